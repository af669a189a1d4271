// The queue: a grid of thumbnails to review, of which only the visible ones exist.

import { button, byId, el, isTyping, keyOf, shortcutHint } from "../lib/dom.js";
import { formatPlural } from "../lib/format.js";
import { GridLayout } from "../lib/grid_layout.js";
import { ImageList } from "../lib/image_list.js";
import { errorText, showError, showMessage } from "../lib/messages.js";
import { onUpdate } from "../lib/poll.js";
import { rescoreProgress } from "../lib/rescore_progress.js";
import { reviewListed, undoReview } from "../lib/reviews.js";
import { currentModel, state } from "../lib/state.js";
import { isUploading } from "../lib/upload.js";
import { createCell, fillCell } from "./queue_cell.js";
import { filterBar } from "./queue_filters.js";

/** @import { Listed, Review, Verdict } from "../lib/types.js" */
/** @typedef {{ row: Listed, saved: Promise<Review> }} GivenVerdict */

/** @type {Record<string, Verdict>} */
const VERDICT_KEYS = { g: "good", b: "bad", u: "unsure" };
/** @type {[string, string][]} */
const SHORTCUTS = [
  ["← → ↑ ↓", "move"], ["Enter", "open"], ["G", "good"], ["B", "bad"], ["U", "unsure"], ["N", "next"],
  ["Ctrl Z", "undo"],
];
const NOTICE_MILLISECONDS = 700; // that people need to notice another image under the selection
const PAGE_ROWS = 3; // that Page Up and Page Down move
const touchScreen = matchMedia("(pointer: coarse)");

/**
 * @param {HTMLElement} main
 * @param {AbortSignal} signal
 */
export function showQueue(main, signal) {
  const queue = new Queue(signal);
  const progress = el("div", {}, rescoreProgress(signal));
  const filters = filterBar(() => queue.reload(), queue.moreButton);
  main.append(filters, progress, queue.box, queue.touchBar(), shortcutHint(SHORTCUTS));
  addEventListener("keydown", (event) => queue.onKey(event), { signal });
  new ResizeObserver(() => !signal.aborted && queue.layOut()).observe(queue.box);
  onUpdate(signal, ({ newImages, decisionChanged }) => {
    if (decisionChanged) progress.replaceChildren(rescoreProgress(signal));
    queue.onUpdate(newImages, decisionChanged);
  });
  queue.box.focus({ preventScroll: true });
  return queue.reload({ keepSelection: true });
}

class Queue {
  /** @type {ImageList | null} */
  list = null;
  /** @type {ImageList | null} */
  #pendingList = null; // the list that is being fetched
  #isOutdated = false; // the list could not be fetched
  /** @type {GridLayout | null} */
  #layout = null;
  /** @type {Map<number, HTMLElement>} */
  #cells = new Map(); // by index
  /** @type {GivenVerdict[]} */
  #givenVerdicts = []; // that can be undone, the last one at the end
  /** @type {Map<number, Promise<unknown>>} */
  #savings = new Map(); // the last saving of each image, so that verdicts arrive in their order
  /** @type {Set<number>} */
  #failedImages = new Set(); // whose last verdict could not be saved
  #selectionMoved = -Infinity; // when another image came under the selection by itself

  moreButton = button("", () => {
    this.reload();
    this.box.focus({ preventScroll: true });
  }, { id: "more", hidden: true });
  inner = el("div", { class: "inner" });
  box = el("div", {
    class: "grid", tabindex: 0, role: "listbox", "aria-label": "Images", onscroll: () => this.draw(),
  }, this.inner);

  /**
   * @param {AbortSignal} signal
   */
  constructor(signal) {
    this.signal = signal;
  }

  // --- the list

  #selectedId() {
    return state.list?.rowAt(state.selectedIndex)?.id;
  }

  #isAtStart() {
    return state.selectedIndex === 0 && this.box.scrollTop === 0;
  }

  /**
   * Fetches the list anew. `keepSelection`: the selected image stays selected, where it is still in the list.
   * `isAutomatic`: the user has not asked for it, so it is given up where the user has moved on meanwhile.
   * @param {{ keepSelection?: boolean, isAutomatic?: boolean }} [options]
   */
  async reload({ keepSelection = false, isAutomatic = false } = {}) {
    const list = new ImageList(currentModel().name, state.filters);
    this.#pendingList = list;
    const isObsolete = () => this.signal.aborted || this.#pendingList !== list;
    try {
      const place = await this.#openList(list, keepSelection, isObsolete);
      if (isObsolete() || (isAutomatic && !this.#isAtStart())) return;
      const selectedBefore = this.#selectedId();
      this.#show(list, place ?? (keepSelection ? state.selectedIndex : 0));
      if (isAutomatic) this.#noticeMove(selectedBefore);
      if (!keepSelection) this.box.scrollTop = 0;
      this.layOut();
      this.reveal();
    } catch (error) {
      if (isObsolete()) return;
      this.#isOutdated = true;
      if (!isAutomatic) showError(error);
    }
  }

  /**
   * Opens a list and returns the place of the selected image; asks again where the selection changes meanwhile.
   * @param {ImageList} list
   * @param {boolean} keepSelection
   * @param {() => boolean} isObsolete
   */
  async #openList(list, keepSelection, isObsolete) {
    for (;;) {
      const selected = keepSelection ? this.#selectedId() : undefined;
      const place = await list.open(selected);
      if (!keepSelection || isObsolete() || selected === this.#selectedId()) return place;
    }
  }

  /**
   * @param {ImageList} list
   * @param {number} index to select
   */
  #show(list, index) {
    const total = list.total ?? 0;
    this.list = list;
    state.list = list;
    state.selectedIndex = Math.max(0, Math.min(index, total - 1));
    this.#isOutdated = false;
    this.#failedImages.clear();
    this.moreButton.hidden = true;
    byId("count", HTMLSpanElement).textContent = formatPlural(total, "image");
  }

  /**
   * Remembers when a reload has put another image under the selection.
   * @param {number | undefined} selectedBefore
   */
  #noticeMove(selectedBefore) {
    const isMoved = selectedBefore !== undefined && selectedBefore !== this.#selectedId();
    if (isMoved) this.#selectionMoved = performance.now();
  }

  /**
   * Shows new images at once at the start of the list; elsewhere it offers a button, so that no image moves while
   * somebody is looking at it.
   * @param {number} newImages
   * @param {boolean} decisionChanged
   */
  onUpdate(newImages, decisionChanged) {
    if (decisionChanged || this.#isOutdated) this.reload({ keepSelection: true });
    else if (!isUploading() && newImages && this.#isAtStart()) this.reload({ isAutomatic: true });
    else {
      this.moreButton.hidden = !newImages;
      this.moreButton.textContent = `${formatPlural(newImages, "new image")}: show`;
    }
  }

  // --- the grid

  /** Computes the layout for the present size and draws the cells anew. */
  layOut() {
    const width = this.inner.clientWidth;
    if (!this.list || this.list.total === null || !width) return;
    this.#layout = new GridLayout(width, this.list.total);
    this.inner.style.height = `${this.#layout.height}px`;
    this.inner.replaceChildren();
    this.#cells.clear();
    if (!this.list.total) this.inner.append(el("p", { class: "empty" }, emptyText()));
    this.draw();
  }

  /** Creates the visible cells and removes the others. */
  draw() {
    const layout = this.#layout;
    if (!this.list?.total || !layout) return;
    const { first, end } = layout.visibleRange(this.box.scrollTop, this.box.clientHeight);
    for (const [index, cell] of this.#cells) {
      if (index >= first && index < end) continue;
      cell.remove();
      this.#cells.delete(index);
    }
    for (let index = first; index < end; index += 1) if (!this.#cells.has(index)) this.#addCell(index, layout);
  }

  /**
   * @param {number} index
   * @param {GridLayout} layout
   */
  #addCell(index, layout) {
    const cell = createCell(index, layout);
    cell.addEventListener("click", () => {
      const opens = !touchScreen.matches || index === state.selectedIndex; // a first tap only selects
      this.select(index);
      if (opens) this.open();
    });
    this.#cells.set(index, cell);
    this.inner.append(cell);
    this.#fillCell(index);
  }

  /**
   * Shows the image of a cell, once its row is fetched.
   * @param {number} index
   */
  async #fillCell(index) {
    const { list } = this;
    const cell = this.#cells.get(index);
    if (!list || !cell) return;
    let row = list.rowAt(index);
    try {
      row ??= await list.fetchRow(index);
    } catch (error) {
      if (!this.signal.aborted) showError(error);
    }
    if (!row || list !== this.list || this.#cells.get(index) !== cell) return;
    fillCell(cell, row, this.#failedImages.has(row.id));
    cell.setAttribute("aria-setsize", String(list.total));
    cell.setAttribute("aria-posinset", String(index + 1));
    this.#markSelection(index);
  }

  /**
   * @param {number} index
   */
  #markSelection(index) {
    const cell = this.#cells.get(index);
    if (!cell) return;
    const isSelected = index === state.selectedIndex;
    cell.setAttribute("aria-selected", String(isSelected));
    if (isSelected) this.box.setAttribute("aria-activedescendant", cell.id);
  }

  /**
   * @param {number} index
   */
  select(index) {
    if (!this.list?.total) return;
    const before = state.selectedIndex;
    state.selectedIndex = Math.max(0, Math.min(index, this.list.total - 1));
    this.#markSelection(before);
    this.reveal();
    this.#markSelection(state.selectedIndex);
  }

  /** Scrolls until the selected cell is visible. */
  reveal() {
    const { box } = this;
    if (!this.#layout) return;
    const scrollTop = this.#layout.scrollTo(state.selectedIndex, box.scrollTop, box.clientHeight);
    if (scrollTop !== box.scrollTop) box.scrollTop = scrollTop;
    this.draw();
  }

  open() {
    const row = this.list?.rowAt(state.selectedIndex);
    if (row) location.hash = `#/image/${row.id}`;
  }

  // --- verdicts

  /** Creates buttons for touch screens, which do what the keys do. */
  touchBar() {
    const verdictButton = (/** @type {Verdict} */ verdict, /** @type {string} */ text) =>
      button(text, () => this.giveVerdict(verdict), { class: `verdict ${verdict}` });
    return el("div", { class: "row touch", role: "toolbar", "aria-label": "The selected image" },
      verdictButton("good", "Good"), verdictButton("bad", "Bad"), verdictButton("unsure", "Unsure"),
      button("Open", () => this.open(), { class: "verdict" }));
  }

  /**
   * Saves a verdict on the selected image, and selects the next one at once.
   * @param {Verdict} verdict
   */
  async giveVerdict(verdict) {
    const row = this.list?.rowAt(state.selectedIndex);
    if (!row) return;
    if (performance.now() - this.#selectionMoved < NOTICE_MILLISECONDS) {
      showMessage("A new image has just arrived here: look again.", { isError: true });
      return;
    }
    this.select(state.selectedIndex + 1);
    const saved = Promise.resolve(this.#savings.get(row.id)).then(() => reviewListed(row, verdict));
    this.#savings.set(row.id, saved.catch(() => {}));
    const given = { row, saved };
    this.#givenVerdicts.push(given);
    try {
      await saved;
      this.#failedImages.delete(row.id);
      showMessage(`${row.name}: ${verdict}`, { action: { label: "Undo", run: () => this.undo(given) } });
    } catch (error) {
      this.#failedImages.add(row.id);
      this.#givenVerdicts = this.#givenVerdicts.filter((one) => one !== given);
      showMessage(`${row.name} was not saved as ${verdict}: ${errorText(error)}`, { isError: true });
    }
    this.#redraw(row.id);
  }

  /**
   * Withdraws a verdict: the one before it counts again, or the image is not reviewed.
   * @param {GivenVerdict} given
   */
  async undo({ row, saved }) {
    this.#givenVerdicts = this.#givenVerdicts.filter((one) => one.row.id !== row.id); // an image has one undo step
    try {
      const review = await saved;
      const verdict = await undoReview(review.id, row.id);
      showMessage(`${row.name}: ${verdict ? `${verdict} again` : "not reviewed"}`);
    } catch (error) {
      showMessage(`The verdict on ${row.name} was not undone: ${errorText(error)}`, { isError: true });
      return;
    }
    const index = this.list?.indexOf(row.id) ?? -1;
    if (this.signal.aborted) return;
    if (index >= 0) this.select(index);
    this.#redraw(row.id);
  }

  /**
   * @param {number} imageId
   */
  #redraw(imageId) {
    const index = this.list?.indexOf(imageId) ?? -1;
    if (this.#cells.has(index)) this.#fillCell(index);
  }

  // --- keys

  /**
   * Whether a key press is for the grid: on a link, a button or a field it gives no verdict.
   * @param {KeyboardEvent} event
   */
  #isForGrid(event) {
    const { target } = event;
    if (isTyping(event) || !(target instanceof HTMLElement)) return false;
    return target === document.body || target.id === "main" || this.box.contains(target);
  }

  /**
   * @param {KeyboardEvent} event
   */
  onKey(event) {
    if (!this.#isForGrid(event) || event.altKey || !this.list?.total) return;
    const isHandled = event.ctrlKey || event.metaKey ? this.#onControlKey(event) : this.#onPlainKey(event);
    if (isHandled) event.preventDefault();
  }

  /**
   * @param {KeyboardEvent} event
   */
  #onControlKey(event) {
    const last = this.#givenVerdicts.at(-1);
    if (keyOf(event) !== "z" || event.shiftKey || event.repeat || !last) return false;
    this.undo(last);
    return true;
  }

  /**
   * @param {KeyboardEvent} event
   */
  #onPlainKey(event) {
    const key = keyOf(event);
    const columns = this.#layout?.columns ?? 1;
    /** @type {Record<string, number>} */
    const moves = {
      ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, n: 1, p: -1,
      PageDown: PAGE_ROWS * columns, PageUp: -PAGE_ROWS * columns, Home: -Infinity, End: Infinity,
    };
    if (key in moves) this.select(state.selectedIndex + moves[key]);
    else if (key in VERDICT_KEYS) {
      if (!event.repeat) this.giveVerdict(VERDICT_KEYS[key]); // a held key counts once
    } else if (key === "Enter") this.open();
    else return false;
    return true;
  }
}

function emptyText() {
  const { decision, review, from, to } = state.filters;
  if (decision || review || from || to) return "No image matches these filters.";
  return "No images yet. Drop some here, or use “Add images”.";
}
