// The queue: a grid of thumbnails to review, by keyboard, mouse or touch.

import { button, byId, el, isTyping, keyOf } from "../lib/dom.js";
import { formatPlural } from "../lib/format.js";
import { ImageList } from "../lib/image_list.js";
import { errorText, showError, showMessage } from "../lib/messages.js";
import { onUpdate } from "../lib/poll.js";
import { rescoreProgress } from "../lib/rescore_progress.js";
import { reviewListed, undoneText, undoReview } from "../lib/reviews.js";
import { currentModel, state } from "../lib/state.js";
import { isUploading } from "../lib/upload.js";
import { showShortcuts, verdictOfKey } from "../lib/verdict_keys.js";
import { filterBar } from "./queue_filters.js";
import { QueueGrid } from "./queue_grid.js";

/** @import { Outcome } from "../lib/reviews.js" */
/** @import { ListedImage, Verdict } from "../lib/types.js" */
/** @typedef {{ row: ListedImage, saved: Promise<Outcome> }} GivenVerdict */

/** @type {[string, string][]} */
const SHORTCUTS = [["← → ↑ ↓", "move"], ["Enter", "open"], ["N", "next"], ["P", "previous"], ["Ctrl Z", "undo"]];
const NOTICE_MILLISECONDS = 700; // that people need to notice another image under the selection
const PAGE_ROWS = 3; // that Page Up and Page Down move

/**
 * @param {HTMLElement} main
 * @param {AbortSignal} signal
 */
export function showQueue(main, signal) {
  const queue = new Queue(signal);
  const progress = el("div", {}, rescoreProgress(signal));
  const filters = filterBar(() => queue.reload(), queue.moreButton);
  main.append(el("h1", { class: "unseen" }, "Queue"), filters, progress, queue.grid.box, queue.touchBar());
  showShortcuts(SHORTCUTS, signal, { touchText: "Tap an image to select it, and again to open it." });
  addEventListener("keydown", (event) => queue.onKey(event), { signal });
  onUpdate(signal, ({ newImages, decisionChanged }) => {
    if (decisionChanged) progress.replaceChildren(rescoreProgress(signal));
    queue.onUpdate(newImages, decisionChanged);
  });
  queue.grid.focus();
  return queue.reload({ keepSelection: true });
}

class Queue {
  /** @type {ImageList | null} */
  #pendingList = null; // the list that is being fetched
  #isOutdated = false; // the list could not be fetched
  /** @type {GivenVerdict[]} */
  #givenVerdicts = []; // that can be undone, the last one at the end
  /** @type {Map<number, Promise<unknown>>} */
  #savings = new Map(); // the last saving of each image, so that verdicts arrive in their order
  #selectionMoved = -Infinity; // when another image came under the selection by itself

  moreButton = button("", () => {
    this.reload();
    this.grid.focus();
  }, { id: "more", hidden: true });

  /**
   * @param {AbortSignal} signal
   */
  constructor(signal) {
    this.signal = signal;
    this.grid = new QueueGrid(() => this.open(), signal);
  }

  // --- the list

  #selectedRow() {
    return state.list?.rowAt(state.selectedIndex);
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
      if (isObsolete() || (isAutomatic && !this.grid.isAtStart())) return;
      const selectedBefore = this.#selectedRow()?.id;
      this.#setList(list, place ?? (keepSelection ? state.selectedIndex : 0));
      if (isAutomatic) this.#noticeMove(selectedBefore);
      this.grid.show(list, keepSelection);
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
      const selected = keepSelection ? this.#selectedRow()?.id : undefined;
      const place = await list.open(selected);
      if (!keepSelection || isObsolete() || selected === this.#selectedRow()?.id) return place;
    }
  }

  /**
   * @param {ImageList} list
   * @param {number} index to select
   */
  #setList(list, index) {
    const total = list.total ?? 0;
    state.list = list;
    state.selectedIndex = Math.max(0, Math.min(index, total - 1));
    this.#isOutdated = false;
    this.moreButton.hidden = true;
    byId("count", HTMLSpanElement).textContent = formatPlural(total, "image");
  }

  /**
   * Remembers when a reload has put another image under the selection.
   * @param {number | undefined} selectedBefore
   */
  #noticeMove(selectedBefore) {
    const isMoved = selectedBefore !== undefined && selectedBefore !== this.#selectedRow()?.id;
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
    else if (!isUploading() && newImages && this.grid.isAtStart()) this.reload({ isAutomatic: true });
    else {
      this.moreButton.hidden = !newImages;
      this.moreButton.textContent = `${formatPlural(newImages, "new image")}: show`;
    }
  }

  // --- the selected image

  open() {
    const row = this.grid.list?.rowAt(state.selectedIndex);
    if (row) location.hash = `#/image/${row.id}`;
  }

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
    const { grid } = this;
    const row = grid.list?.rowAt(state.selectedIndex);
    if (!row) return;
    if (performance.now() - this.#selectionMoved < NOTICE_MILLISECONDS) {
      showMessage("A new image has just arrived here: look again.", { isError: true });
      return;
    }
    grid.select(state.selectedIndex + 1);
    const saved = Promise.resolve(this.#savings.get(row.id)).then(() => reviewListed(row, verdict));
    this.#savings.set(row.id, saved.catch(() => {}));
    const given = { row, saved };
    this.#givenVerdicts.push(given);
    try {
      this.#showOutcome(await saved, given, verdict);
    } catch (error) {
      grid.failedImages.add(row.id);
      this.#forget(given);
      showMessage(`${row.name} was not saved as ${verdict}: ${errorText(error)}`, { isError: true });
    }
    grid.refresh(row.id);
  }

  /**
   * @param {Outcome} outcome
   * @param {GivenVerdict} given
   * @param {Verdict} verdict
   */
  #showOutcome({ isSaved, review }, given, verdict) {
    const { row } = given;
    if (!review) throw new Error("you wanted to decide later");
    this.grid.failedImages.delete(row.id);
    if (isSaved) showMessage(`${row.name}: ${verdict}`, { action: { label: "Undo", run: () => this.undo(given) } });
    else {
      this.#forget(given);
      showMessage(`${row.name}: ${review.verdict}, as ${review.who} said.`);
    }
  }

  /**
   * @param {GivenVerdict} given a verdict that cannot be undone
   */
  #forget(given) {
    this.#givenVerdicts = this.#givenVerdicts.filter((one) => one !== given);
  }

  /**
   * Withdraws a verdict: the one before it counts again, or the image is not reviewed.
   * @param {GivenVerdict} given
   */
  async undo({ row, saved }) {
    const { grid } = this;
    this.#givenVerdicts = this.#givenVerdicts.filter((one) => one.row.id !== row.id); // an image has one undo step
    try {
      const { review } = await saved;
      if (!review) return;
      showMessage(undoneText(row.name, await undoReview(review.id)));
    } catch (error) {
      showMessage(`The verdict on ${row.name} was not undone: ${errorText(error)}`, { isError: true });
      return;
    }
    if (this.signal.aborted) return;
    const index = grid.list?.indexOf(row.id) ?? -1;
    if (index >= 0) grid.select(index);
    grid.refresh(row.id);
  }

  // --- keys

  /**
   * Whether a key press is for the grid: on a link, a button or a field it gives no verdict.
   * @param {KeyboardEvent} event
   */
  #isForGrid(event) {
    const { target } = event;
    if (isTyping(event) || !(target instanceof HTMLElement)) return false;
    return target === document.body || target.id === "main" || this.grid.box.contains(target);
  }

  /**
   * @param {KeyboardEvent} event
   */
  onKey(event) {
    if (!this.#isForGrid(event) || event.altKey || !this.grid.list?.total) return;
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
    const verdict = verdictOfKey(event);
    const { columns } = this.grid;
    /** @type {Record<string, number>} */
    const moves = {
      ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, n: 1, p: -1,
      PageDown: PAGE_ROWS * columns, PageUp: -PAGE_ROWS * columns, Home: -Infinity, End: Infinity,
    };
    if (key in moves) this.grid.select(state.selectedIndex + moves[key]);
    else if (verdict) {
      if (!event.repeat) this.giveVerdict(verdict); // a held key counts once
    } else if (key === "Enter") this.open();
    else return false;
    return true;
  }
}
