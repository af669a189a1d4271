// The queue: a grid of thumbnails of which only the visible ones exist.

import { againLine } from "./again.js";
import { show, thumbnail } from "./api.js";
import { badge, decision, el, fail, number, plural, say, select, typing } from "./dom.js";
import { judgeListed } from "./review.js";
import { newList, state, theList } from "./state.js";

const CELL = 172; // least width in pixels
const GAP = 10;
const CAPTION = 50; // below the square picture
const SPARE = 3; // rows drawn above and below what is seen
const VERDICT_KEYS = { g: "good", b: "bad", u: "unsure" };
const HINT = [
  ["← → ↑ ↓", "move"], ["Enter", "open"], ["G", "good"], ["B", "bad"], ["U", "unsure"], ["N", "next"],
];

export function showQueue(main, signal) {
  const grid = new Grid(signal);
  const again = againLine(signal, () => state.at || grid.renew()); // nothing moves under the eyes of who looks further down
  main.append(toolbar(() => grid.renew()), again, grid.box, hint(HINT));
  addEventListener("keydown", (event) => grid.key(event), { signal });
  new ResizeObserver(() => !signal.aborted && grid.layout()).observe(grid.box);
  return grid.start();
}

/** A line that says which keys there are. */
export function hint(keys) {
  const parts = keys.flatMap(([key, text]) => [el("kbd", {}, key), ` ${text}  `]);
  return el("p", { class: "hint" }, ...parts);
}

function toolbar(changed) {
  const filters = state.filters;
  const set = (key) => (value) => {
    filters[key] = value;
    changed();
  };
  const day = (label, key) =>
    el("label", { class: "field" }, `${label} `,
      el("input", { type: "date", value: filters[key], onchange: (event) => set(key)(event.target.value) }));
  return el("form", { class: "toolbar", "aria-label": "What the queue shows", onsubmit: (e) => e.preventDefault() },
    select("Sort", [["uncertain", "most uncertain"], ["anomalous", "most anomalous"], ["newest", "newest"]],
      filters.order, set("order")),
    select("Decision", [["", "all"], ["anomalous", "anomalous"], ["normal", "normal"]],
      filters.decision, set("decision")),
    select("Review", [["", "all"], ["none", "not reviewed"], ["any", "reviewed"], ["good", "good"], ["bad", "bad"],
      ["unsure", "unsure"]], filters.review, set("review")),
    day("From", "from"),
    day("To", "to"),
    el("span", { id: "count", class: "dim", "aria-live": "polite" }));
}

class Grid {
  constructor(signal) {
    this.signal = signal;
    this.cells = new Map(); // by place
    this.inner = el("div", { class: "inner" });
    this.box = el("div", {
      class: "grid", tabindex: "0", role: "listbox", "aria-label": "Pictures", onscroll: () => this.draw(),
    }, this.inner);
  }

  async start() {
    const list = theList();
    this.list = list;
    try {
      await list.fetch(0);
    } catch (error) {
      if (!this.signal.aborted) fail(error);
      return;
    }
    if (this.signal.aborted || list !== this.list) return; // another view, or other filters meanwhile
    state.at = Math.min(state.at, Math.max(0, list.total - 1));
    document.getElementById("count").textContent = plural(list.total, "picture");
    this.layout();
    this.reveal();
    this.box.focus({ preventScroll: true });
  }

  /** Begin again with other filters. */
  renew() {
    newList();
    this.clear();
    this.box.scrollTop = 0;
    this.start();
  }

  clear() {
    this.inner.replaceChildren();
    this.cells.clear();
  }

  layout() {
    const { list } = this;
    if (!list || list.total === null) return;
    const width = this.inner.clientWidth;
    if (!width) return;
    this.columns = Math.max(2, Math.floor((width + GAP) / (CELL + GAP)));
    this.width = Math.floor((width - GAP * (this.columns - 1)) / this.columns);
    this.height = this.width + CAPTION;
    const rows = Math.ceil(list.total / this.columns);
    this.inner.style.height = `${Math.max(0, rows * (this.height + GAP) - GAP)}px`;
    this.clear();
    if (!list.total) this.inner.append(el("p", { class: "empty" }, nothingText()));
    this.draw();
  }

  /** Make the cells that are seen, drop the others. */
  draw() {
    const { list } = this;
    if (!list?.total || !this.columns) return;
    const step = this.height + GAP;
    const top = Math.max(0, Math.floor(this.box.scrollTop / step) - SPARE);
    const bottom = Math.ceil((this.box.scrollTop + this.box.clientHeight) / step) + SPARE;
    const first = top * this.columns;
    const last = Math.min(list.total, bottom * this.columns);
    for (const [place, cell] of this.cells) {
      if (place >= first && place < last) continue;
      cell.remove();
      this.cells.delete(place);
    }
    for (let place = first; place < last; place += 1) if (!this.cells.has(place)) this.add(place);
  }

  add(place) {
    const cell = el("div", { class: "cell", role: "option", id: `cell-${place}` });
    cell.style.width = `${this.width}px`;
    cell.style.height = `${this.height}px`;
    const x = (place % this.columns) * (this.width + GAP);
    const y = Math.floor(place / this.columns) * (this.height + GAP);
    cell.style.transform = `translate(${x}px, ${y}px)`;
    cell.addEventListener("click", () => {
      this.select(place);
      this.open();
    });
    this.cells.set(place, cell);
    this.inner.append(cell);
    this.fill(place);
  }

  /** Put the row into its cell, now or when it has come. */
  async fill(place) {
    const { list } = this;
    const cell = this.cells.get(place);
    let row = list.at(place);
    if (!row) {
      try {
        row = await list.row(place);
      } catch (error) {
        return this.signal.aborted || fail(error);
      }
    }
    if (!row || list !== this.list || this.cells.get(place) !== cell) return undefined;
    const what = decision(row.is_anomaly);
    const picture = cell.querySelector("img") ?? newPicture(row);
    cell.replaceChildren(
      picture,
      el("div", { class: "name", title: row.name }, row.name),
      el("div", { class: "line" }, el("span", { class: "score" }, number(row.score)), badge(what, what)));
    const said = row.failed ? "not saved" : `${row.verdict ?? "not reviewed"}${row.has_mask ? ", painted" : ""}`;
    const brush = row.has_mask && el("span", { class: "painted", title: "the defect is painted" }, " ✎");
    if (row.failed) cell.append(el("div", { class: "said" }, badge("not saved", "failed")));
    else if (row.verdict) cell.append(el("div", { class: "said" }, badge([row.verdict, brush], row.verdict)));
    cell.setAttribute("aria-label", `${row.name}, score ${number(row.score)}, ${what}, ${said}`);
    cell.setAttribute("aria-setsize", list.total);
    cell.setAttribute("aria-posinset", place + 1);
    this.mark(place);
    return undefined;
  }

  mark(place) {
    const cell = this.cells.get(place);
    if (!cell) return;
    const chosen = place === state.at;
    cell.setAttribute("aria-selected", String(chosen));
    if (chosen) this.box.setAttribute("aria-activedescendant", cell.id);
  }

  select(place) {
    const before = state.at;
    state.at = Math.max(0, Math.min(place, this.list.total - 1));
    this.mark(before);
    this.reveal();
    this.mark(state.at);
  }

  reveal() {
    if (!this.columns) return;
    const top = Math.floor(state.at / this.columns) * (this.height + GAP);
    const bottom = top + this.height;
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    else if (bottom > this.box.scrollTop + this.box.clientHeight) this.box.scrollTop = bottom - this.box.clientHeight;
    this.draw();
  }

  open() {
    const row = this.list.at(state.at);
    if (row) location.hash = `#/image/${row.id}`;
  }

  async judge(verdict) {
    const place = state.at;
    const row = this.list.at(place);
    if (!row) return;
    this.select(place + 1);
    const turn = Promise.resolve(row.turn).then(() => judgeListed(row, verdict)); // the later one is the last
    row.turn = turn.catch(() => {});
    try {
      await turn;
      row.failed = false;
      say(`${row.name}: ${verdict}`);
    } catch (error) {
      row.failed = true;
      say(`${row.name} was not saved as ${verdict}: ${error.message}`, true);
    }
    if (this.cells.has(place)) this.fill(place);
  }

  key(event) {
    if (typing(event) || event.ctrlKey || event.metaKey || event.altKey || !this.list?.total) return;
    const onButton = event.target instanceof HTMLElement && event.target.matches("button, a");
    const moves = {
      ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.columns, ArrowUp: -this.columns, n: 1, p: -1,
      PageDown: this.columns * 3, PageUp: -this.columns * 3, Home: -Infinity, End: Infinity,
    };
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    if (key in moves) this.select(state.at + moves[key]);
    else if (key in VERDICT_KEYS) event.repeat || this.judge(VERDICT_KEYS[key]); // a key that is held judges once
    else if (key === "Enter" && !onButton) this.open();
    else return;
    event.preventDefault();
  }
}

function newPicture(row) {
  const picture = el("img", { alt: "", loading: "lazy", decoding: "async", draggable: "false" });
  show(picture, thumbnail(row.id, state.model.name, state.model.version.id));
  return picture;
}

function nothingText() {
  const { decision: wanted, review, from, to } = state.filters;
  if (wanted || review || from || to) return "No picture fits these filters.";
  return "No pictures yet. Drop some here, or use “Add pictures”.";
}
