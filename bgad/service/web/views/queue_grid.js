// The grid of the queue: cells of the visible images, and the selection.

import { el } from "../lib/dom.js";
import { GridLayout } from "../lib/grid_layout.js";
import { showError } from "../lib/messages.js";
import { state } from "../lib/state.js";
import { createCell, fillCell } from "./queue_cell.js";

/** @import { ImageList } from "../lib/image_list.js" */

const touchScreen = matchMedia("(pointer: coarse)");

export class QueueGrid {
  /** @type {ImageList | null} */
  list = null;
  /** @type {Set<number>} */
  failedImages = new Set(); // whose last verdict could not be saved
  /** @type {GridLayout | null} */
  #layout = null;
  /** @type {Map<number, HTMLElement>} */
  #cells = new Map(); // by index
  inner = el("div", { class: "inner" });
  box = el("div", {
    class: "grid", tabindex: 0, role: "listbox", "aria-label": "Images", onscroll: () => this.draw(),
  }, this.inner);

  /**
   * @param {() => void} onOpen is called when the user opens the selected image
   * @param {AbortSignal} signal
   */
  constructor(onOpen, signal) {
    this.onOpen = onOpen;
    this.signal = signal;
    new ResizeObserver(() => !signal.aborted && this.layOut()).observe(this.box);
  }

  get columns() {
    return this.#layout?.columns ?? 1;
  }

  isAtStart() {
    return state.selectedIndex === 0 && this.box.scrollTop === 0;
  }

  focus() {
    this.box.focus({ preventScroll: true });
  }

  /**
   * Shows a list, which has been opened.
   * @param {ImageList} list
   * @param {boolean} keepScroll
   */
  show(list, keepScroll) {
    this.list = list;
    this.failedImages.clear();
    if (!keepScroll) this.box.scrollTop = 0;
    this.layOut();
    this.reveal();
  }

  // --- cells

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
      if (opens) this.onOpen();
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
    fillCell(cell, row, this.failedImages.has(row.id));
    cell.setAttribute("aria-setsize", String(list.total));
    cell.setAttribute("aria-posinset", String(index + 1));
    this.#markSelection(index);
  }

  /**
   * Shows the new state of an image, where its cell is visible.
   * @param {number} imageId
   */
  refresh(imageId) {
    const index = this.list?.indexOf(imageId) ?? -1;
    if (this.#cells.has(index)) this.#fillCell(index);
  }

  // --- selection

  /**
   * Selects an image and scrolls to it.
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
}

function emptyText() {
  const { decision, review, from, to } = state.filters;
  if (decision || review || from || to) return "No image matches these filters.";
  return "No images yet. Drop some here, or use “Add images”.";
}
