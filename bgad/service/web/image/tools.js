// The tools of the image view: toolbars, brush, polygon, fill, layers and the look of the map.

import { el } from "../lib/dom.js";
import { showMessage } from "../lib/messages.js";
import { html, render } from "../lib/vendor/lit-html.js";
import { LAYER_COLOURS, MaskOverlay } from "./mask_overlay.js";
import { Painting } from "./painting.js";
import { PointerInput } from "./pointer_input.js";
import { Viewer } from "./viewer.js";

/** @import { LayerName } from "./painting.js" */
/** @import { Point } from "./viewport.js" */
/** @typedef {"move" | "paint" | "erase" | "polygon" | "fill"} Tool */

/** @type {[tool: Tool, text: string, key: string][]} */
const TOOLS = [["move", "Move", "1"], ["paint", "Paint", "2"], ["erase", "Erase", "3"], ["polygon", "Polygon", "4"], ["fill", "Fill", "5"]];
/** @type {[layer: LayerName, text: string, title: string][]} */
const LAYERS = [
  ["defect", "Defect", "The defect (L switches)"],
  ["ignore", "Ignore", "What teaching leaves out (L switches)"],
];
/** @type {Record<Tool, string>} */
const HELP = {
  move: "Drag to move the image, turn the wheel to zoom.",
  paint: "Draw over the defect.",
  erase: "Erase what was painted.",
  polygon: "Click the corners; Enter, a double click or the first corner closes it. Undo removes the last corner.",
  fill: "Click inside a closed outline.",
};
/** @type {Record<Tool, string>} */
const TOUCH_HELP = {
  move: "One finger moves the image, two zoom it.",
  paint: "Draw over the defect. Two fingers move and zoom the image.",
  erase: "Erase what was painted. Two fingers move and zoom the image.",
  polygon: "Tap the corners; the first corner also closes it. Undo removes the last corner.",
  fill: "Tap inside a closed outline.",
};
const ZOOM_STEP = 1.25;
const BRUSH_STEP = 1.1; // factor by which a key changes the brush
const MIN_CORNERS = 3;

// Kept from one image to the next. The brush is a fraction of the image's longer side, so that it looks the same on
// images of any size.
const settings = {
  tool: /** @type {Tool} */ ("move"),
  layer: /** @type {LayerName} */ ("defect"),
  brush: /** @type {number | null} */ (null),
  isMapShown: true,
  mapStrength: 0.7,
};
let isTouch = matchMedia("(pointer: coarse)").matches; // the last pointer was a finger

export class Tools {
  tool = settings.tool;
  brushSize = 1; // in pixels of the image
  isReady = false; // saved masks are loaded, so that painting may begin
  /** @type {Point[]} */
  polygon = []; // its corners while it is open
  paintingBar = el("div", { class: "toolbar", role: "toolbar", "aria-label": "Painting" });
  viewBar = el("div", { class: "toolbar" });

  /**
   * @param {HTMLCanvasElement} canvas
   * @param {{ width: number, height: number }} image
   * @param {AbortSignal} signal
   */
  constructor(canvas, { width, height }, signal) {
    this.canvas = canvas;
    this.viewer = new Viewer(canvas);
    this.viewer.mapStrength = settings.mapStrength;
    this.viewer.isMapShown = settings.isMapShown;
    this.masks = new MaskOverlay(width, height);
    this.painting = new Painting(width, height, (layer, box) => {
      this.masks.update(layer, this.painting.layers[layer], box);
      this.viewer.draw();
    }, () => this.update());
    this.painting.currentLayer = settings.layer;
    this.longestSide = Math.max(width, height);
    this.maxBrush = Math.max(20, Math.round(this.longestSide / 10));
    this.swatches = { defect: swatch("defect"), ignore: swatch("ignore") };
    new PointerInput(canvas, this);
    addEventListener("pointerdown", (event) => {
      isTouch = event.pointerType === "touch";
      this.update();
    }, { signal });
    const { brush } = settings;
    this.#showBrushSize(brush === null ? Math.max(3, this.longestSide / 40) : brush * this.longestSide);
  }

  /** Allows painting, once saved masks are loaded. */
  setReady() {
    this.isReady = true;
    this.viewer.masks = this.masks;
    this.viewer.draw();
  }

  // --- toolbars

  /** Brings toolbars and canvas up to date. */
  update() {
    render(this.#paintingTemplate(), this.paintingBar);
    render(this.#viewTemplate(), this.viewBar);
    this.canvas.dataset.tool = this.tool;
    this.viewer.polygon = this.polygon;
    this.viewer.brushSize = this.tool === "paint" || this.tool === "erase" ? this.brushSize : 0;
    this.viewer.draw();
  }

  #paintingTemplate() {
    const { painting, polygon } = this;
    const canUndo = polygon.length > 0 || painting.undoSteps.length > 0;
    const canRedo = !polygon.length && painting.redoSteps.length > 0;
    return html`
      <span class="group">${TOOLS.map(([tool, text, key]) => html`
        <button type="button" title=${`${HELP[tool]} (${key})`} data-tool=${tool} aria-pressed=${tool === this.tool}
          @click=${() => this.setTool(tool)}>${text}</button>`)}</span>
      <label class="field">Brush
        <input type="range" min="1" max=${this.maxBrush} aria-label="Brush size in pixels" .value=${String(this.brushSize)}
          @input=${(/** @type {any} */ event) => this.setBrushSize(Number(event.target.value))}>
        <span class="number">${this.brushSize} px</span></label>
      <span class="group" role="group" aria-label="Layer">${LAYERS.map(([layer, text, title]) => html`
        <button type="button" title=${title} data-layer=${layer} aria-pressed=${layer === painting.currentLayer}
          @click=${() => this.setLayer(layer)}>${this.swatches[layer]}${text}</button>`)}</span>
      <span class="group">
        <button type="button" title="Ctrl Z" ?disabled=${!canUndo} @click=${() => this.undo()}>Undo</button>
        <button type="button" title="Ctrl Y" ?disabled=${!canRedo} @click=${() => this.redo()}>Redo</button>
        <button type="button" title="Erase this layer" @click=${() => painting.clear()}>Clear</button></span>`;
  }

  #viewTemplate() {
    const { viewer, polygon } = this;
    return html`
      <label class="field"><input type="checkbox" .checked=${viewer.isMapShown}
        @change=${(/** @type {any} */ event) => this.showMap(event.target.checked)}> Map</label>
      <label class="field">Strength
        <input type="range" min="0" max="100" aria-label="Strength of the map" .value=${String(100 * viewer.mapStrength)}
          @input=${(/** @type {any} */ event) => this.setMapStrength(Number(event.target.value) / 100)}></label>
      <span class="group">
        <button type="button" aria-label="Zoom out" @click=${() => viewer.zoom(1 / ZOOM_STEP)}>−</button>
        <button type="button" title="0" @click=${() => viewer.fit()}>Fit</button>
        <button type="button" aria-label="Zoom in" @click=${() => viewer.zoom(ZOOM_STEP)}>+</button></span>
      <button type="button" title="Enter" ?hidden=${this.tool !== "polygon"} ?disabled=${polygon.length < MIN_CORNERS}
        @click=${() => this.closePolygon()}>Close polygon</button>
      <span class="dim help">${(isTouch ? TOUCH_HELP : HELP)[this.tool]}</span>`;
  }

  /**
   * Returns what the keys do.
   * @returns {Record<string, () => void>}
   */
  keyActions() {
    const { viewer } = this;
    /** @type {Record<string, () => void>} */
    const actions = {
      "+": () => viewer.zoom(ZOOM_STEP), "=": () => viewer.zoom(ZOOM_STEP), "-": () => viewer.zoom(1 / ZOOM_STEP),
      0: () => viewer.fit(), o: () => this.showMap(!viewer.isMapShown),
      "[": () => this.setBrushSize(Math.min(this.brushSize - 1, this.brushSize / BRUSH_STEP)),
      "]": () => this.setBrushSize(Math.max(this.brushSize + 1, this.brushSize * BRUSH_STEP)),
      l: () => this.setLayer(this.painting.currentLayer === "defect" ? "ignore" : "defect"),
    };
    for (const [tool, , key] of TOOLS) actions[key] = () => this.setTool(tool);
    return actions;
  }

  // --- settings

  /**
   * @param {Tool} tool
   */
  setTool(tool) {
    settings.tool = tool;
    this.tool = tool;
    this.polygon = [];
    this.update();
  }

  /**
   * @param {LayerName} layer
   */
  setLayer(layer) {
    settings.layer = layer;
    this.painting.currentLayer = layer;
    this.update();
  }

  /**
   * @param {number} size
   */
  setBrushSize(size) {
    this.#showBrushSize(size);
    settings.brush = this.brushSize / this.longestSide;
  }

  /**
   * @param {number} size
   */
  #showBrushSize(size) {
    this.brushSize = Math.max(1, Math.min(this.maxBrush, Math.round(size)));
    this.update();
  }

  /**
   * @param {boolean} isShown
   */
  showMap(isShown) {
    settings.isMapShown = isShown;
    this.viewer.isMapShown = isShown;
    this.update();
  }

  /**
   * @param {number} strength from 0 to 1
   */
  setMapStrength(strength) {
    settings.mapStrength = strength;
    this.viewer.mapStrength = strength;
    this.viewer.draw();
  }

  // --- painting

  /** Whether a stroke or a polygon has been begun and not ended. */
  get isDrawing() {
    return this.painting.stroke !== null || this.polygon.length > 0;
  }

  /**
   * Adds a corner to the polygon; one near the first corner closes it.
   * @param {Point} corner
   * @param {number} hitDistance within which a point hits a corner
   */
  addCorner(corner, hitDistance) {
    const { polygon } = this;
    const distanceTo = (/** @type {Point} */ [x, y]) => Math.hypot(corner[0] - x, corner[1] - y);
    if (polygon.length >= MIN_CORNERS && distanceTo(polygon[0]) < hitDistance) return this.closePolygon();
    const last = polygon.at(-1);
    if (!last || distanceTo(last) > hitDistance / 4) polygon.push(corner);
    return this.update();
  }

  closePolygon() {
    if (this.polygon.length >= MIN_CORNERS) this.finish();
  }

  /** Completes the stroke or the polygon; a polygon with too few corners is given up. */
  finish() {
    this.painting.end();
    const corners = this.polygon;
    this.polygon = [];
    if (corners.length >= MIN_CORNERS) this.painting.polygon(corners);
    this.update();
  }

  /**
   * @param {number} x
   * @param {number} y
   */
  fillAt(x, y) {
    if (!this.painting.fill(x, y)) showMessage("The outline is not closed: nothing was filled.", { isError: true });
  }

  /** Removes the last corner of an open polygon, else undoes the last step. */
  undo() {
    if (this.polygon.length) {
      this.polygon.pop();
      this.update();
    } else this.painting.undo();
  }

  redo() {
    if (!this.polygon.length) this.painting.redo();
  }
}

/**
 * @param {LayerName} layer
 */
function swatch(layer) {
  const [red, green, blue] = LAYER_COLOURS[layer];
  const box = el("span", { class: "swatch" });
  box.style.background = `rgb(${red} ${green} ${blue})`;
  return box;
}
