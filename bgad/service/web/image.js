// One image: look at it closely, paint what is wrong, and say what it is.

import { facts, lineText, neighbours, otherVersions, reviewList } from "./about.js";
import { bitmap, download, get, path } from "./api.js";
import { contour, heatOf, readMap } from "./contour.js";
import { button, el, fail, guarded, say, select, time, typing, versionText } from "./dom.js";
import { dropDraft, keepDraft, takeDraft } from "./drafts.js";
import { Painting } from "./paint.js";
import { hint } from "./queue.js";
import { judge } from "./review.js";
import { newList, state, theList } from "./state.js";
import { Tools } from "./tools.js";
import { arrive, goBack, imageLink, rename, stepTo } from "./trail.js";

const HINT = [
  ["G", "good"], ["B", "bad"], ["U", "unsure"], ["N", "next"], ["P", "previous"], ["Esc", "back"], ["+ − 0", "zoom"],
  ["← → ↑ ↓", "pan"], ["O", "map"], ["1 – 5", "tools"], ["[ ]", "brush"], ["L", "layer"], ["Ctrl Z", "undo"], ["Ctrl Y", "redo"],
];
const PAN = 60; // pixels of the screen that an arrow key pans
const FAR = 5; // times as many with Shift
const ARROWS = { ArrowLeft: [1, 0], ArrowRight: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

/** The address names the image, and may name the model that is looked at and one of its versions. */
export async function showImage(main, signal, given, model, number) {
  const detail = await load(Number(given), model && decodeURIComponent(model), signal);
  if (signal.aborted) return;
  const page = new Page(detail, signal, number === undefined ? null : versionOf(Number(number)));
  main.append(el("div", { class: "two" }, page.stage(), page.side()), hint(HINT));
  addEventListener("keydown", (event) => (event.target === document.body || main.contains(event.target)) && page.key(event), { signal });
  addEventListener("beforeunload", (event) => page.unsaved() && event.preventDefault(), { signal });
  signal.addEventListener("abort", () => page.keep());
  await page.load();
}

/** The image, with its model as the chosen one: that of the address, else the one that is chosen, unless only another
 * one has scored it. */
async function load(image, name, signal) {
  if (name) choose(name);
  const detail = await get(`images/${image}`, { model: state.model.name }, { signal });
  const known = detail.scores.map((said) => said.model).filter((model) => state.models.some((one) => one.name === model));
  if (name || !known.length || known.includes(state.model.name) || signal.aborted) return detail;
  return load(image, known.at(-1), signal);
}

function choose(name) {
  if (name === state.model.name) return;
  const found = state.models.find((model) => model.name === name);
  if (!found) throw new Error(`There is no model ${name} here.`);
  state.model = found;
  localStorage.setItem("bgad-model", name);
  document.getElementById("model").value = name;
  newList();
}

function versionOf(number) {
  const found = usable().find((version) => version.id === number);
  if (!found) throw new Error(`${state.model.name} has no version ${number} that can be used.`);
  return found;
}

/** The versions that can be looked at, the released one first, then the newest. */
function usable() {
  const { versions, version } = state.model;
  const others = versions.filter((one) => one.id !== version.id && one.state !== "discarded");
  return [version, ...others.reverse()];
}

class Page {
  /** `version`: the one that was asked for; null: the released one, if it has scored the image. */
  constructor(detail, signal, version) {
    this.detail = detail;
    this.signal = signal;
    this.model = state.model;
    this.last = detail.reviews.at(-1) ?? null;
    this.saving = false;
    this.version = version ?? this.model.version;
    this.asked = version !== null;
    this.trail = arrive(this.link());
    this.canvas = el("canvas", { class: "canvas", tabindex: "0", "aria-label": `The picture ${detail.name}` });
    this.painting = new Painting(detail.width, detail.height, () => this.tools.changed());
    this.tools = new Tools(this.canvas, this.painting, signal);
    this.viewer = this.tools.viewer;
    this.note = el("textarea", { rows: "2", maxlength: "2000", "aria-label": "Note", placeholder: "Note (optional)" });
    this.note.value = this.last?.note ?? "";
    this.saved = { mark: this.painting.mark, note: this.note.value };
    this.draft = takeDraft(detail.id); // until it is restored
    if (this.draft) this.note.value = this.draft.note;
  }

  link(image = this.detail.id) {
    return imageLink(image, this.model.name, this.asked ? this.version.id : undefined);
  }

  // --- what is shown

  stage() {
    const stage = el("section", { class: "stage", "aria-label": "Picture" }, this.tools.toolbar(), this.canvas, this.tools.looks());
    new ResizeObserver(() => !this.signal.aborted && this.viewer.resize()).observe(this.canvas);
    this.tools.start();
    return stage;
  }

  side() {
    const { detail } = this;
    this.about = el("div", { "aria-live": "polite" });
    this.others = el("div");
    return el("aside", { class: "side", "aria-label": "About the picture" },
      el("h1", { class: "name", title: detail.name }, detail.name),
      detail.dropped === null ? [this.verdictBox(), this.versionChoice()] : button("Back", () => this.back()),
      this.about,
      this.others,
      reviewList(detail.reviews),
      neighbours(detail.neighbours, this.model),
      el("p", { class: "dim" }, `${detail.width} × ${detail.height} pixels, received ${time(detail.received)}. `,
        detail.dropped === null && el("a", { href: path(`images/${detail.id}/original`), onclick: (event) => this.download(event) }, "Download")));
  }

  download(event) {
    event.preventDefault();
    download(path(`images/${this.detail.id}/original`), this.detail.name).catch(fail);
  }

  verdictBox() {
    const key = (verdict, text) =>
      button(text, () => this.judge(verdict), { class: `verdict ${verdict}`, "aria-pressed": String(this.last?.verdict === verdict) });
    return el("div", { class: "verdicts" },
      el("div", { class: "row" }, key("good", "Good (G)"), key("bad", "Bad (B)"), key("unsure", "Unsure (U)")),
      this.note,
      el("div", { class: "row" },
        button("Back", () => this.back()), button("Previous (P)", guarded(() => this.go(-1))), button("Next (N)", guarded(() => this.go(1)))));
  }

  versionChoice() {
    const versions = usable();
    if (versions.length < 2) return null;
    const options = versions.map((version) => [String(version.id), `${version.id} (${version.checksum.slice(0, 8)}), ${version.state}`]);
    return select("Version", options, String(this.version.id), guarded(async (value) => {
      this.canvas.focus({ preventScroll: true }); // so that the keys work again
      await this.ask(versionOf(Number(value)));
    }));
  }

  async load() {
    const { signal, detail, viewer } = this;
    if (detail.dropped !== null) return this.showDropped();
    this.pictured = bitmap(path(`images/${detail.id}/view.png`), signal).then(({ picture }) => viewer.setPicture(picture));
    const masks = () => Promise.all([this.loadMask("defect", this.last?.mask), this.loadMask("ignore", this.last?.ignore)]);
    this.masked = this.pictured.then(masks).then(() => this.restore());
    return Promise.all([this.masked, this.showVersion()]);
  }

  /** The picture is not there any more; what was said of it is. */
  showDropped() {
    const said = this.stored();
    this.others.replaceChildren(otherVersions(this.detail, this.version) ?? "");
    this.about.replaceChildren(
      el("p", {}, `The picture was dropped ${time(this.detail.dropped)}, as nobody had reviewed it. Add it again to look at it.`),
      said ? facts(said, this.model.calibration) : "");
  }

  async loadMask(layer, link) {
    if (link) this.painting.load(layer, (await bitmap(link, this.signal)).picture);
  }

  // --- what a version says

  /** Look at the picture with another version; with the released one, also where that has not scored it. */
  async ask(version) {
    this.version = version;
    this.asked = version.id !== this.model.version.id || !this.stored();
    rename(this.link());
    await this.showVersion();
  }

  stored() {
    return this.detail.scores.find((said) => said.version === this.version.id);
  }

  async showVersion() {
    const { version, asked } = this;
    this.viewer.setMap();
    this.others.replaceChildren(otherVersions(this.detail, version) ?? "");
    if (!asked && !this.stored()) return this.about.replaceChildren(...this.notScored());
    if (asked) this.about.replaceChildren(el("p", { class: "dim" }, "One moment …"));
    const said = asked ? await this.fetchScore() : this.stored();
    if (this.version !== version) return undefined; // another one was chosen meanwhile
    const line = el("p", { class: "dim" });
    this.about.replaceChildren(facts(said, said.calibration ?? this.model.calibration),
      asked && !this.stored() ? el("p", { class: "dim" }, "It has not scored this picture before: this is not kept.") : "", line);
    await this.pictured;
    const map = await this.fetchMap();
    if (this.version !== version) return undefined;
    this.viewer.setMap(map, heatOf(map), contour(map));
    line.textContent = lineText(map, said);
    return undefined;
  }

  notScored() {
    return [
      el("p", {}, `The released ${versionText(this.version)} of ${this.model.name} has not scored this picture: there is no map.`),
      button("Ask it now", guarded(() => this.ask(this.version))),
    ];
  }

  query() {
    return { model: this.model.name, version: this.version.id };
  }

  fetchScore() {
    return get(`images/${this.detail.id}/score`, this.query(), { signal: this.signal });
  }

  async fetchMap() {
    const { picture, headers } = await bitmap(path(`images/${this.detail.id}/map.png`, this.query()), this.signal);
    return readMap(picture, headers);
  }

  // --- what is not saved yet

  unsaved() {
    const { painting, saved } = this;
    return this.draft !== null || this.tools.busy || painting.mark !== saved.mark || this.note.value !== saved.note;
  }

  /** For the next time that the picture is opened. */
  keep() {
    const { detail, painting, saved } = this;
    this.tools.finish();
    if (!this.unsaved()) return;
    const layers = this.draft ? this.draft.layers : painting.mark !== saved.mark ? painting.kept() : null;
    this.kept = { name: detail.name, note: this.note.value, layers };
    keepDraft(detail.id, this.kept);
  }

  restore() {
    if (this.signal.aborted) return;
    this.tools.ready();
    if (!this.draft) return;
    const { layers } = this.draft;
    this.draft = null;
    if (layers) this.painting.restore(layers);
    say(`${this.detail.name}: your unsaved ${layers ? "painting" : "note"} is back.`);
  }

  // --- what the person does

  async judge(verdict) {
    if (this.saving) return;
    this.saving = true;
    const told = await this.save(verdict);
    if (told && !this.signal.aborted) await this.go(1, told).catch(fail);
    this.saving = false;
  }

  /** What is said where it could be saved. */
  async save(verdict) {
    const { detail, painting } = this;
    let told;
    try {
      await this.masked; // a verdict keeps what was painted before, also when it comes before that is here
      this.tools.finish();
      const sent = { mark: painting.mark, note: this.note.value };
      const [mask, ignore] = await Promise.all([painting.encoded("defect"), painting.encoded("ignore")]);
      await judge(detail.id, verdict, { note: sent.note, mask, ignore, model: this.model.name });
      this.saved = sent;
      const unkept = verdict === "good" && mask ? " A good part has no defect: that layer was not kept." : "";
      told = `${detail.name}: ${verdict}.${unkept}`;
      say(told);
    } catch (error) {
      const why = error.name === "AbortError" ? "it was left before it was loaded" : error.message;
      say(`${detail.name} was not saved as ${verdict}: ${why}`, true);
      return "";
    }
    if (!this.unsaved()) dropDraft(detail.id, this.kept); // there is one if it was left while it was being saved
    return told;
  }

  /** To the next or the one before in the order of the queue; `told` is what was said of the verdict that leads on. */
  async go(step, told = "") {
    const list = theList();
    await list.fetch(Math.max(0, state.at));
    if (list.placeOf(this.detail.id) < 0) { // it may be far from what was fetched
      const far = await list.open(this.detail.id);
      if (far !== null) await list.fetch(far);
    }
    const here = list.placeOf(this.detail.id);
    const place = here + step;
    const row = here >= 0 && place >= 0 && place < list.total ? await list.row(place) : undefined;
    if (this.signal.aborted) return undefined; // somebody has gone elsewhere meanwhile
    if (here < 0) say(`${told} This picture is not in the queue as it is shown: it stays here.`.trim());
    else if (!row && !told) say(step > 0 ? "This is the last one." : "This is the first one.");
    if (!row) return told && this.reload();
    state.at = place;
    return stepTo(this.link(row.id), this.trail);
  }

  reload() {
    dispatchEvent(new HashChangeEvent("hashchange"));
  }

  back() {
    const place = theList().placeOf(this.detail.id);
    if (place >= 0) state.at = place;
    goBack(this.trail);
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
    if (key === "z" && !shift) this.tools.undo();
    else if (key === "y" || key === "z") this.tools.redo();
    else return false;
    return true;
  }

  plainKey(key, event) {
    if (event.altKey) return false;
    if (key in ARROWS) return this.pan(key, event);
    const once = (verdict) => () => event.repeat || this.judge(verdict); // a key that is held judges once
    const { polygon } = this.tools;
    const actions = {
      ...this.tools.keys(),
      g: once("good"), b: once("bad"), u: once("unsure"),
      n: guarded(() => this.go(1)), p: guarded(() => this.go(-1)),
      Escape: () => (polygon.length ? this.tools.useTool("polygon") : this.back()),
    };
    if (polygon.length) {
      actions.Backspace = () => this.tools.undo();
      if (!event.target.matches("button, a, summary")) actions.Enter = () => this.tools.closePolygon();
    }
    if (!(key in actions)) return false;
    actions[key]();
    return true;
  }

  /** Where there is more than what is seen, and no field takes the arrows. */
  pan(key, event) {
    if (this.viewer.fitted || (event.target !== this.canvas && event.target !== document.body)) return false;
    const far = PAN * (event.shiftKey ? FAR : 1);
    const [x, y] = ARROWS[key];
    this.viewer.pan(x * far, y * far);
    return true;
  }
}
