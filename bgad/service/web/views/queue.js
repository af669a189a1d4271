// The queue: a grid of thumbnails of which only the visible ones exist.

import { againLine } from "../lib/rescore_progress.js";
import { path, request, show, thumbnail } from "../lib/api.js";
import { badge, button, decision, el, fail, number, plural, say, typing } from "../lib/dom.js";
import { filterBar } from "./queue_filters.js";
import { List } from "../lib/image_list.js";
import { hearNews } from "../lib/poll.js";
import { judgeListed } from "../lib/reviews.js";
import { state } from "../lib/state.js";
import { uploading } from "../lib/upload.js";

const CELL = 172; // least width in pixels
const GAP = 10;
const CAPTION = 50; // below the square picture
const SPARE = 3; // rows drawn above and below what is seen
const VERDICT_KEYS = { g: "good", b: "bad", u: "unsure" };
const HINT = [
  ["← → ↑ ↓", "move"], ["Enter", "open"], ["G", "good"], ["B", "bad"], ["U", "unsure"], ["N", "next"],
  ["Ctrl Z", "undo"],
];
const LOOK = 700; // milliseconds that it takes to see that there is another picture
const coarse = matchMedia("(pointer: coarse)");

export function showQueue(main, signal) {
  const grid = new Grid(signal);
  const again = el("div", {}, againLine(signal));
  main.append(filterBar(() => grid.renew(), grid.more), again, grid.box, grid.bar(), hint(HINT));
  addEventListener("keydown", (event) => grid.key(event), { signal });
  new ResizeObserver(() => !signal.aborted && grid.layout()).observe(grid.box);
  hearNews(signal, ({ count, changed }) => {
    if (changed) again.replaceChildren(againLine(signal));
    grid.hear(count, changed);
  });
  grid.box.focus({ preventScroll: true });
  return grid.renew({ keep: true });
}

/** A line that says which keys there are. */
export function hint(keys) {
  const parts = keys.flatMap(([key, text]) => [el("kbd", {}, key), ` ${text}  `]);
  return el("p", { class: "hint" }, ...parts);
}

class Grid {
  constructor(signal) {
    this.signal = signal;
    this.cells = new Map(); // by place
    this.done = []; // verdicts that can be taken back, the last one at the end
    this.moved = -Infinity; // when another picture has come under the selection by itself
    this.stale = false; // the list could not be fetched
    this.more = button("", () => {
      this.renew();
      this.box.focus({ preventScroll: true });
    }, { id: "more", hidden: true });
    this.inner = el("div", { class: "inner" });
    this.box = el("div", {
      class: "grid", tabindex: "0", role: "listbox", "aria-label": "Pictures", onscroll: () => this.draw(),
    }, this.inner);
  }

  selected() {
    return state.list?.at(state.at)?.id;
  }

  atStart() {
    return state.at === 0 && this.box.scrollTop === 0;
  }

  /** Fetch the list anew. `keep`: the picture that is selected stays so, where it is still in the list. `alone`: nobody
   * has asked for it, so that nothing happens where somebody has gone on meanwhile. */
  async renew({ keep = false, alone = false } = {}) {
    const list = new List(state.model.name, state.filters);
    this.coming = list;
    const over = () => this.signal.aborted || this.coming !== list; // another view, or other filters meanwhile
    let kept;
    let place;
    try {
      do {
        kept = keep ? this.selected() : undefined;
        place = await list.open(kept);
      } while (keep && !over() && kept !== this.selected());
    } catch (error) {
      if (over()) return;
      this.stale = true;
      if (!alone) fail(error);
      return;
    }
    if (over() || (alone && !this.atStart())) return;
    const before = this.selected();
    this.list = state.list = list;
    this.stale = false;
    this.more.hidden = true;
    state.at = Math.max(0, Math.min(place ?? (keep ? state.at : 0), list.total - 1));
    if (alone && before !== undefined && before !== this.selected()) this.moved = performance.now();
    document.getElementById("count").textContent = plural(list.total, "picture");
    if (!keep) this.box.scrollTop = 0;
    this.layout();
    this.reveal();
  }

  /** There are so many new pictures; or another version or threshold decides. */
  hear(count, changed) {
    if (changed || this.stale) this.renew({ keep: true });
    else if (!uploading() && count && this.atStart()) this.renew({ alone: true });
    else this.offer(count);
  }

  /** Nothing moves under the eyes of who looks further down. */
  offer(count) {
    this.more.hidden = !count;
    this.more.textContent = `${plural(count, "new picture")}: show`;
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
      const opens = !coarse.matches || place === state.at; // a finger selects first
      this.select(place);
      if (opens) this.open();
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
    if (!this.list?.total) return;
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

  /** For fingers: what the keys do. */
  bar() {
    const key = (verdict, text) => button(text, () => this.judge(verdict), { class: `verdict ${verdict}` });
    return el("div", { class: "row touch", role: "toolbar", "aria-label": "The selected picture" },
      key("good", "Good"), key("bad", "Bad"), key("unsure", "Unsure"), button("Open", () => this.open(), { class: "verdict" }));
  }

  async judge(verdict) {
    const row = this.list?.at(state.at);
    if (!row) return;
    if (performance.now() - this.moved < LOOK) return say("A new picture has just come here: look again.", true);
    this.select(state.at + 1);
    const turn = Promise.resolve(row.turn).then(() => judgeListed(row, verdict)); // the later one is the last
    row.turn = turn.catch(() => {});
    const said = { row, turn };
    this.done.push(said);
    try {
      await turn;
      row.failed = false;
      say(`${row.name}: ${verdict}`, false, ["Undo", () => this.undo(said)]);
    } catch (error) {
      row.failed = true;
      this.done = this.done.filter((one) => one !== said);
      say(`${row.name} was not saved as ${verdict}: ${error.message}`, true);
    }
    this.redraw(row.id);
  }

  /** Take a verdict back: what was said before counts again, or the picture is not reviewed. */
  async undo(said) {
    const { row, turn } = said;
    this.done = this.done.filter((one) => one.row.id !== row.id); // one step back for a picture
    try {
      const { id } = await turn;
      const url = path(`reviews/${id}/undo`, { model: state.model.name });
      const now = await (await request(url, { method: "POST" })).json();
      const verdict = now.verdict === "withdrawn" ? null : now.verdict;
      state.list?.judged(row.id, verdict, now.note, now.mask !== null);
      say(`${row.name}: ${verdict ? `${verdict} again` : "not reviewed"}`);
    } catch (error) {
      return say(`What was said of ${row.name} was not taken back: ${error.message}`, true);
    }
    if (this.signal.aborted) return undefined;
    const place = this.list.placeOf(row.id);
    if (place >= 0) this.select(place);
    return this.redraw(row.id);
  }

  redraw(image) {
    const place = this.list.placeOf(image);
    if (this.cells.has(place)) this.fill(place);
  }

  /** Keys are for the grid: who is at a link, a button or a field does not judge. */
  hears(event) {
    const { target } = event;
    return !typing(event) && (target === document.body || target.id === "main" || this.box.contains(target));
  }

  key(event) {
    if (!this.hears(event) || event.altKey || !this.list?.total) return;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    const moves = {
      ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.columns, ArrowUp: -this.columns, n: 1, p: -1,
      PageDown: this.columns * 3, PageUp: -this.columns * 3, Home: -Infinity, End: Infinity,
    };
    if (event.ctrlKey || event.metaKey) {
      if (key !== "z" || event.shiftKey || event.repeat || !this.done.length) return;
      this.undo(this.done.at(-1));
    } else if (key in moves) this.select(state.at + moves[key]);
    else if (key in VERDICT_KEYS) event.repeat || this.judge(VERDICT_KEYS[key]); // a key that is held judges once
    else if (key === "Enter") this.open();
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
