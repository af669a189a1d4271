// The tools of one picture: brush, polygon, fill, layers, the look of the map. What was chosen stays for the next one.

import { button, el, say } from "../lib/dom.js";
import { COLOURS } from "./painting.js";
import { Viewer } from "./viewer.js";

const TOOLS = [["move", "Move", "1"], ["paint", "Paint", "2"], ["erase", "Erase", "3"], ["polygon", "Polygon", "4"], ["fill", "Fill", "5"]];
const LAYERS = [
  ["defect", "Defect", "What is wrong (L switches)"],
  ["ignore", "Ignore", "What should not count; teaching leaves it out (L switches)"],
];
const HELP = {
  move: "Drag moves the picture, the wheel zooms.",
  paint: "Draw over what is wrong.",
  erase: "Wipe off what was painted.",
  polygon: "Click the corners; Enter, a double click or the first corner closes it. Undo takes one back.",
  fill: "Click inside a closed outline.",
};
const TOUCH_HELP = {
  move: "One finger moves the picture, two zoom it.",
  paint: "Draw over what is wrong. Two fingers move and zoom the picture.",
  erase: "Wipe off what was painted. Two fingers move and zoom the picture.",
  polygon: "Tap the corners; the first corner closes it, too. Undo takes one back.",
  fill: "Tap inside a closed outline.",
};
const STEP = 1.1; // by which the keys change the brush
const LEAST_CORNERS = 3;

// What was chosen last. The brush is a share of the picture's longer side: pictures of any size are shown as large.
const chosen = { tool: "move", brush: null, layer: "defect", map: true, strength: 0.7 };
let touch = matchMedia("(pointer: coarse)").matches; // how the page was last pointed at

export class Tools {
  /** `masks` is what is painted; pointers reach it once `ready` is said. */
  constructor(canvas, masks, signal) {
    this.canvas = canvas;
    this.masks = masks;
    this.painting = null;
    this.polygon = [];
    this.tool = chosen.tool;
    this.longest = Math.max(masks.width, masks.height);
    this.most = Math.max(20, Math.round(this.longest / 10));
    this.viewer = new Viewer(canvas, this);
    this.viewer.strength = chosen.strength;
    masks.current = chosen.layer;
    addEventListener("pointerdown", (event) => this.pointed(event), { signal });
  }

  /** What was painted before is here. */
  ready() {
    this.painting = this.masks;
    this.viewer.draw();
  }

  // --- what there is to press

  toolbar() {
    this.toolButtons = TOOLS.map(([tool, text, key]) =>
      button(text, () => this.useTool(tool), { title: `${HELP[tool]} (${key})`, "data-tool": tool }));
    this.slider = el("input", {
      type: "range", min: "1", max: this.most, "aria-label": "Brush size in pixels",
      oninput: (event) => this.setSize(Number(event.target.value)),
    });
    this.sizeText = el("span", { class: "number" });
    this.layerButtons = LAYERS.map(([layer, text, title]) =>
      button([swatch(layer), text], () => this.useLayer(layer), { title, "data-layer": layer }));
    this.undoing = button("Undo", () => this.undo(), { title: "Ctrl Z" });
    this.redoing = button("Redo", () => this.redo(), { title: "Ctrl Y" });
    return el("div", { class: "toolbar", role: "toolbar", "aria-label": "Painting" },
      el("span", { class: "group" }, this.toolButtons),
      el("label", { class: "field" }, "Brush ", this.slider, this.sizeText),
      el("span", { class: "group", role: "group", "aria-label": "Layer" }, this.layerButtons),
      el("span", { class: "group" }, this.undoing, this.redoing,
        button("Clear", () => this.masks.clear(), { title: "Empty this layer" })));
  }

  looks() {
    const { viewer } = this;
    this.help = el("span", { class: "dim help" });
    this.closing = button("Close polygon", () => this.closePolygon(), { title: "Enter" });
    this.mapBox = el("input", { type: "checkbox", onchange: (event) => this.showMap(event.target.checked) });
    const strength = el("input", {
      type: "range", min: "0", max: "100", value: 100 * chosen.strength, "aria-label": "Strength of the map",
      oninput: (event) => {
        chosen.strength = event.target.value / 100;
        viewer.strength = chosen.strength;
        viewer.draw();
      },
    });
    return el("div", { class: "toolbar" },
      el("label", { class: "field" }, this.mapBox, " Map"),
      el("label", { class: "field" }, "Strength ", strength),
      el("span", { class: "group" },
        button("−", () => viewer.zoom(1 / 1.25), { "aria-label": "Zoom out" }),
        button("Fit", () => viewer.fit(), { title: "0" }),
        button("+", () => viewer.zoom(1.25), { "aria-label": "Zoom in" })),
      this.closing, this.help);
  }

  /** Show what was chosen for the picture before; after `toolbar` and `looks`. */
  start() {
    this.useTool(chosen.tool);
    this.useLayer(chosen.layer);
    this.showMap(chosen.map);
    this.showSize(chosen.brush === null ? Math.max(3, this.longest / 40) : chosen.brush * this.longest);
  }

  /** What the keys do. */
  keys() {
    const keys = {
      "+": () => this.viewer.zoom(1.25), "=": () => this.viewer.zoom(1.25), "-": () => this.viewer.zoom(1 / 1.25),
      0: () => this.viewer.fit(), o: () => this.showMap(!this.viewer.mapShown),
      "[": () => this.setSize(Math.min(this.size - 1, this.size / STEP)),
      "]": () => this.setSize(Math.max(this.size + 1, this.size * STEP)),
      l: () => this.useLayer(this.masks.current === "defect" ? "ignore" : "defect"),
    };
    for (const [tool, , key] of TOOLS) keys[key] = () => this.useTool(tool);
    return keys;
  }

  // --- choices

  useTool(tool) {
    chosen.tool = tool;
    this.tool = tool;
    this.polygon = [];
    this.canvas.dataset.tool = tool;
    this.closing.hidden = tool !== "polygon"; // it comes with the tool, not with a corner: nothing moves while one draws
    this.showHelp();
    press(this.toolButtons, "tool", tool);
    this.changed();
  }

  useLayer(layer) {
    chosen.layer = layer;
    this.masks.current = layer;
    press(this.layerButtons, "layer", layer);
  }

  setSize(size) {
    this.showSize(size);
    chosen.brush = this.size / this.longest;
  }

  showSize(size) {
    this.size = Math.max(1, Math.min(this.most, Math.round(size)));
    this.slider.value = this.size;
    this.sizeText.textContent = `${this.size} px`;
    this.viewer.draw();
  }

  showMap(shown) {
    chosen.map = shown;
    this.mapBox.checked = shown;
    this.viewer.mapShown = shown;
    this.viewer.draw();
  }

  pointed(event) {
    touch = event.pointerType === "touch";
    this.showHelp();
  }

  showHelp() {
    this.help.textContent = (touch ? TOUCH_HELP : HELP)[this.tool];
  }

  // --- painting

  addPoint(x, y, near) {
    const { polygon } = this;
    const [first] = polygon;
    if (polygon.length >= LEAST_CORNERS && Math.hypot(x - first[0], y - first[1]) < near) return this.closePolygon();
    const last = polygon.at(-1);
    if (!last || Math.hypot(x - last[0], y - last[1]) > near / 4) polygon.push([x, y]);
    return this.changed();
  }

  closePolygon() {
    if (this.polygon.length >= LEAST_CORNERS) this.finish();
  }

  /** What was begun is done now, or given up where it is nothing yet. */
  finish() {
    this.masks.end();
    const points = this.polygon;
    this.polygon = [];
    if (points.length >= LEAST_CORNERS) this.masks.polygon(points);
    this.changed();
  }

  fillAt(x, y) {
    if (!this.masks.fill(x, y)) say("The outline is not closed here: nothing was filled.", true);
  }

  /** The last corner of an open polygon, else the last step. */
  undo() {
    if (!this.polygon.length) return this.masks.undo();
    this.polygon.pop();
    return this.changed();
  }

  redo() {
    if (!this.polygon.length) this.masks.redo();
  }

  get busy() {
    return this.masks.stroke !== null || this.polygon.length > 0;
  }

  changed() {
    this.closing.disabled = this.polygon.length < LEAST_CORNERS;
    this.undoing.disabled = !this.polygon.length && !this.masks.done.length;
    this.redoing.disabled = this.polygon.length > 0 || !this.masks.undone.length;
    this.viewer.draw();
  }
}

function press(buttons, key, value) {
  for (const one of buttons) one.setAttribute("aria-pressed", String(one.dataset[key] === value));
}

function swatch(layer) {
  const [red, green, blue] = COLOURS[layer];
  const box = el("span", { class: "swatch" });
  box.style.background = `rgb(${red} ${green} ${blue})`;
  return box;
}
