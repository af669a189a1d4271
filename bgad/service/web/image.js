// One image: look at it closely, paint what is wrong, and say what it is.

import { bitmap, download, get, path, show, thumbnail } from "./api.js";
import { contour, heatOf, readMap } from "./contour.js";
import { badge, button, decision, el, fail, guarded, number, percent, plural, say, select, time, typing, versionText } from "./dom.js";
import { dropDraft, keepDraft, takeDraft } from "./drafts.js";
import { Painting } from "./paint.js";
import { hint } from "./queue.js";
import { judge } from "./review.js";
import { state, theList } from "./state.js";
import { Viewer } from "./viewer.js";

const TOOLS = [["move", "Move", "1"], ["paint", "Paint", "2"], ["erase", "Erase", "3"], ["polygon", "Polygon", "4"], ["fill", "Fill", "5"]];
const HELP = {
  move: "Drag moves the picture, the wheel zooms.",
  paint: "Draw over what is wrong. Two fingers move the picture.",
  erase: "Wipe off what was painted.",
  polygon: "Click the corners; Enter, a double click or the first corner closes it. Backspace takes one back.",
  fill: "Click inside a closed outline.",
};
const HINT = [
  ["G", "good"], ["B", "bad"], ["U", "unsure"], ["N", "next"], ["P", "previous"], ["Esc", "back"], ["+ − 0", "zoom"],
  ["O", "map"], ["1 – 5", "tools"], ["[ ]", "brush"], ["Ctrl Z", "undo"], ["Ctrl Y", "redo"],
];

export async function showImage(main, signal, given) {
  const image = Number(given);
  const detail = await get(`images/${image}`, { model: state.model.name }, { signal });
  const page = new Page(detail, signal);
  main.append(el("div", { class: "two" }, page.stage(), page.side()), hint(HINT));
  addEventListener("keydown", (event) => page.key(event), { signal });
  addEventListener("beforeunload", (event) => page.unsaved() && event.preventDefault(), { signal });
  signal.addEventListener("abort", () => page.keep());
  await page.load();
}

class Page {
  constructor(detail, signal) {
    this.detail = detail;
    this.signal = signal;
    this.said = detail.scores.find((said) => said.version === state.model.version.id) ?? null;
    this.last = detail.reviews.at(-1) ?? null;
    this.saving = false;
    this.canvas = el("canvas", { class: "canvas", tabindex: "0", "aria-label": `The picture ${detail.name}` });
    const painting = new Painting(detail.width, detail.height, () => this.changed());
    this.tools = {
      tool: "move",
      size: Math.max(3, Math.round(Math.max(detail.width, detail.height) / 40)),
      painting: null, // until what was painted before is here
      polygon: [],
      addPoint: (x, y, near) => this.addPoint(x, y, near),
      closePolygon: () => this.closePolygon(),
      fillAt: (x, y) => painting.fill(x, y) || say("The outline is not closed here: nothing was filled.", true),
    };
    this.painting = painting;
    this.viewer = new Viewer(this.canvas, this.tools);
    this.note = el("textarea", { rows: "2", maxlength: "2000", "aria-label": "Note", placeholder: "Note (optional)" });
    this.note.value = this.last?.note ?? "";
    this.saved = { mark: painting.mark, note: this.note.value };
    this.draft = takeDraft(detail.id); // until it is restored
    if (this.draft) this.note.value = this.draft.note;
  }

  // --- the left side

  stage() {
    this.help = el("span", { class: "dim help" });
    const stage = el("section", { class: "stage", "aria-label": "Picture" }, this.toolbar(), this.canvas, this.looks());
    new ResizeObserver(() => !this.signal.aborted && this.viewer.resize()).observe(this.canvas);
    this.useTool("move");
    return stage;
  }

  toolbar() {
    this.toolButtons = TOOLS.map(([tool, text, key]) =>
      button(text, () => this.useTool(tool), { title: `${HELP[tool]} (${key})`, "data-tool": tool }));
    this.size = el("input", {
      type: "range", min: "1", max: "100", value: this.tools.size, "aria-label": "Brush size in pixels",
      oninput: (event) => this.setSize(Number(event.target.value)),
    });
    this.sizeText = el("span", { class: "number" }, `${this.tools.size} px`);
    this.undo = button("Undo", () => this.painting.undo(), { title: "Ctrl Z", disabled: true });
    this.redo = button("Redo", () => this.painting.redo(), { title: "Ctrl Y", disabled: true });
    const layers = select("Layer", [["defect", "defect"], ["ignore", "ignore"]], "defect", (value) => {
      this.painting.current = value;
      this.canvas.focus(); // so that the keys work again
    });
    layers.title = "ignore: what should not count; teaching leaves it out";
    layers.classList.add("layer");
    return el("div", { class: "toolbar", role: "toolbar", "aria-label": "Painting" },
      el("span", { class: "group" }, this.toolButtons),
      el("label", { class: "field" }, "Brush ", this.size, this.sizeText),
      layers,
      el("span", { class: "group" }, this.undo, this.redo,
        button("Clear", () => this.painting.clear(), { title: "Empty this layer" })));
  }

  looks() {
    const { viewer } = this;
    this.mapBox = el("input", { type: "checkbox", checked: true, onchange: (event) => this.showMap(event.target.checked) });
    const strength = el("input", {
      type: "range", min: "0", max: "100", value: "70", "aria-label": "Strength of the map",
      oninput: (event) => {
        viewer.strength = event.target.value / 100;
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
      this.help);
  }

  showMap(shown) {
    this.mapBox.checked = shown;
    this.viewer.mapShown = shown;
    this.viewer.draw();
  }

  useTool(tool) {
    this.tools.tool = tool;
    this.tools.polygon = [];
    this.canvas.dataset.tool = tool;
    this.help.textContent = HELP[tool];
    for (const one of this.toolButtons) one.setAttribute("aria-pressed", String(one.dataset.tool === tool));
    this.viewer.draw();
  }

  setSize(size) {
    this.tools.size = Math.max(1, Math.min(100, size));
    this.size.value = this.tools.size;
    this.sizeText.textContent = `${this.tools.size} px`;
    this.viewer.draw();
  }

  addPoint(x, y, near) {
    const { polygon } = this.tools;
    const [first] = polygon;
    if (polygon.length > 2 && Math.hypot(x - first[0], y - first[1]) < near) return this.closePolygon();
    const last = polygon.at(-1);
    if (!last || Math.hypot(x - last[0], y - last[1]) > near / 4) polygon.push([x, y]);
    return undefined;
  }

  closePolygon() {
    const points = this.tools.polygon;
    this.tools.polygon = [];
    if (points.length > 2) this.painting.polygon(points);
    this.viewer.draw();
  }

  changed() {
    this.undo.disabled = !this.painting.done.length;
    this.redo.disabled = !this.painting.undone.length;
    this.viewer.draw();
  }

  async load() {
    const { signal, detail, viewer } = this;
    const shown = bitmap(path(`images/${detail.id}/view.png`), signal).then(({ picture }) => viewer.setPicture(picture));
    const masks = () => Promise.all([this.loadMask("defect", this.last?.mask), this.loadMask("ignore", this.last?.ignore)]);
    this.masks = shown.then(masks).then(() => this.restore());
    await Promise.all([shown.then(() => this.loadMap()), this.masks]);
  }

  async loadMap() {
    const { name, version } = state.model;
    const url = path(`images/${this.detail.id}/map.png`, { model: name, version: version.id });
    const { picture, headers } = await bitmap(url, this.signal);
    const map = readMap(picture, headers);
    this.viewer.setMap(map, heatOf(map), contour(map));
    this.boundaryText.textContent = map.high > map.boundary
      ? "The bright line is the boundary: what is inside counts as strange."
      : "Nothing in the map reaches the boundary.";
  }

  async loadMask(layer, link) {
    if (link) this.painting.load(layer, (await bitmap(link, this.signal)).picture);
  }

  // --- what is not saved yet

  unsaved() {
    const { painting, saved } = this;
    const busy = this.draft !== null || painting.stroke !== null || this.tools.polygon.length > 0;
    return busy || painting.mark !== saved.mark || this.note.value !== saved.note;
  }

  /** For the next time that the picture is opened. */
  keep() {
    const { detail, painting, saved } = this;
    painting.end();
    if (this.tools.polygon.length) this.closePolygon();
    if (!this.unsaved()) return;
    const layers = this.draft ? this.draft.layers : painting.mark !== saved.mark ? painting.kept() : null;
    this.kept = { name: detail.name, note: this.note.value, layers };
    keepDraft(detail.id, this.kept);
  }

  restore() {
    if (this.signal.aborted) return;
    this.tools.painting = this.painting;
    this.viewer.draw();
    if (!this.draft) return;
    const { layers } = this.draft;
    this.draft = null;
    if (layers) this.painting.restore(layers);
    say(`${this.detail.name}: your unsaved ${layers ? "painting" : "note"} is back.`);
  }

  // --- the right side

  side() {
    const { detail } = this;
    this.boundaryText = el("p", { class: "dim" });
    return el("aside", { class: "side", "aria-label": "About the picture" },
      el("h1", { class: "name", title: detail.name }, detail.name),
      this.verdictBox(),
      this.said ? this.facts() : el("p", {}, "The released version has not scored this picture."),
      this.boundaryText,
      this.otherVersions(),
      this.reviewList(),
      this.neighbours(),
      el("p", { class: "dim" }, `${detail.width} × ${detail.height} pixels, received ${time(detail.received)}. `,
        el("a", { href: path(`images/${detail.id}/picture`), onclick: (event) => this.download(event) }, "Download")));
  }

  download(event) {
    event.preventDefault();
    download(path(`images/${this.detail.id}/picture`), this.detail.name).catch(fail);
  }

  verdictBox() {
    const key = (verdict, text) =>
      button(text, () => this.judge(verdict), { class: `verdict ${verdict}`, "aria-pressed": String(this.last?.verdict === verdict) });
    return el("div", { class: "verdicts" },
      el("div", { class: "row" }, key("good", "Good (G)"), key("bad", "Bad (B)"), key("unsure", "Unsure (U)")),
      this.note,
      el("div", { class: "row" },
        button("Back", () => this.back()), button("Previous (P)", () => this.go(-1)), button("Next (N)", () => this.go(1))));
  }

  facts() {
    const { said } = this;
    const what = decision(said.is_anomaly);
    return el("div", {},
      el("p", { class: "words" }, badge(what, what), ` ${inWords(said.p_value, state.model.calibration)}`),
      el("dl", { class: "facts" },
        el("dt", {}, "Score"), el("dd", {}, number(said.score)),
        el("dt", {}, "Threshold"), el("dd", {}, number(said.threshold)),
        el("dt", {}, "p-value"), el("dd", {}, said.p_value.toPrecision(2)),
        el("dt", {}, "Model"), el("dd", {}, `${said.model}, ${versionText(said)}`)));
  }

  otherVersions() {
    const others = this.detail.scores.filter((said) => said !== this.said);
    if (!others.length) return null;
    return el("details", {}, el("summary", {}, `What ${plural(others.length, "other version")} said`),
      el("ul", { class: "plain" }, others.map((said) =>
        el("li", {}, `${said.model}, ${versionText(said)}: ${number(said.score)} `,
          badge(decision(said.is_anomaly), decision(said.is_anomaly))))));
  }

  reviewList() {
    const { reviews } = this.detail;
    if (!reviews.length) return el("p", { class: "dim" }, "Not reviewed yet.");
    const line = (review) =>
      el("li", {}, badge(review.verdict, review.verdict), ` ${review.who}, ${time(review.created)}`,
        review.mask && " · painted", review.ignore && " · ignored area",
        review.note && el("div", { class: "note" }, review.note));
    return el("details", { open: true }, el("summary", {}, plural(reviews.length, "review")),
      el("ul", { class: "plain" }, [...reviews].reverse().map(line)));
  }

  neighbours() {
    const { neighbours } = this.detail;
    if (!neighbours.length) return null;
    const link = (near) => {
      const picture = el("img", { alt: "", loading: "lazy" });
      show(picture, thumbnail(near.id, state.model.name, state.model.version.id));
      return el("a", { href: `#/image/${near.id}`, title: near.name }, picture, el("span", {}, number(near.score)));
    };
    return el("div", {}, el("h2", {}, "Scores nearby"), el("div", { class: "strip" }, neighbours.map(link)));
  }

  // --- what the person does

  async judge(verdict) {
    if (this.saving) return;
    this.saving = true;
    if ((await this.save(verdict)) && !this.signal.aborted) await this.go(1, true).catch(fail);
    this.saving = false;
  }

  /** Whether it could be saved. */
  async save(verdict) {
    const { detail, painting } = this;
    try {
      await this.masks; // a verdict keeps what was painted before, also when it comes before that is here
      if (this.tools.polygon.length) this.closePolygon();
      const sent = { mark: painting.mark, note: this.note.value };
      const [mask, ignore] = await Promise.all([painting.encoded("defect"), painting.encoded("ignore")]);
      await judge(detail.id, verdict, { note: sent.note, mask, ignore });
      this.saved = sent;
      const unkept = verdict === "good" && mask ? " A good part has no defect: that layer was not kept." : "";
      say(`${detail.name}: ${verdict}.${unkept}`);
    } catch (error) {
      const why = error.name === "AbortError" ? "it was left before it was loaded" : error.message;
      say(`${detail.name} was not saved as ${verdict}: ${why}`, true);
      return false;
    }
    if (!this.unsaved()) dropDraft(detail.id, this.kept); // there is one if it was left while it was being saved
    return true;
  }

  /** To the next or the one before in the order of the queue. */
  async go(step, judged = false) {
    const list = theList();
    await list.fetch(Math.max(0, state.at));
    const here = list.placeOf(this.detail.id);
    const place = here < 0 ? state.at : here + step;
    const row = place >= 0 && place < list.total ? await list.row(place) : undefined;
    if (this.signal.aborted) return undefined; // somebody has gone elsewhere meanwhile
    if (!row || row.id === this.detail.id) {
      if (judged) return this.reload();
      return say(step > 0 ? "This is the last one." : "This is the first one.");
    }
    state.at = place;
    location.hash = `#/image/${row.id}`;
    return undefined;
  }

  reload() {
    dispatchEvent(new HashChangeEvent("hashchange"));
  }

  back() {
    const place = theList().placeOf(this.detail.id);
    if (place >= 0) state.at = place;
    location.hash = "#/queue";
  }

  key(event) {
    if (event.key === "Escape" && event.target === this.note) return this.canvas.focus();
    if (typing(event)) return undefined;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    const did = event.ctrlKey || event.metaKey ? this.controlKey(key, event.shiftKey) : this.plainKey(key, event);
    if (did) event.preventDefault();
    return undefined;
  }

  controlKey(key, shift) {
    if (key === "z" && !shift) this.painting.undo();
    else if (key === "y" || key === "z") this.painting.redo();
    else return false;
    return true;
  }

  plainKey(key, event) {
    if (event.altKey) return false;
    const polygon = this.tools.polygon.length > 0;
    const once = (verdict) => () => event.repeat || this.judge(verdict); // a key that is held judges once
    const actions = {
      g: once("good"), b: once("bad"), u: once("unsure"),
      n: guarded(() => this.go(1)), p: guarded(() => this.go(-1)),
      "+": () => this.viewer.zoom(1.25), "=": () => this.viewer.zoom(1.25), "-": () => this.viewer.zoom(1 / 1.25),
      0: () => this.viewer.fit(), o: () => this.showMap(!this.viewer.mapShown),
      "[": () => this.setSize(this.tools.size - 1), "]": () => this.setSize(this.tools.size + 1),
      Escape: () => (polygon ? this.useTool("polygon") : this.back()),
    };
    TOOLS.forEach(([tool, , number_]) => (actions[number_] = () => this.useTool(tool)));
    if (polygon) {
      actions.Enter = () => this.closePolygon();
      actions.Backspace = () => {
        this.tools.polygon.pop();
        this.viewer.draw();
      };
    }
    if (!(key in actions)) return false;
    actions[key]();
    return true;
  }
}

/** A p-value as a sentence; `n` is how many good parts it was compared with. */
export function inWords(p, n) {
  if (n && p * (n + 1) < 1.5) return `Stranger than all ${n} good parts it was compared with.`;
  if (p > 0.5) return `Looks like most good parts: ${percent(p)} of them look at least this strange.`;
  return `1 in ${Math.round(1 / p)} good parts looks this strange.`;
}
