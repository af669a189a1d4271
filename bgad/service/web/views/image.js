// The image view: look closely, paint the defect, give a verdict.

import { Tools } from "../image/tools.js";
import { apiUrl } from "../lib/api.js";
import { enterImage, goBack, openAddress } from "../lib/back_links.js";
import { button, el, isTyping, keyOf } from "../lib/dom.js";
import { formatCount, formatTime } from "../lib/format.js";
import { downloadFile, fetchBitmap } from "../lib/image_loader.js";
import { errorText, reportErrors, showError, showMessage } from "../lib/messages.js";
import { undoneText, undoReview } from "../lib/reviews.js";
import { currentList, state } from "../lib/state.js";
import { showShortcuts, verdictOfKey } from "../lib/verdict_keys.js";
import { neighbourStrip, reviewList } from "./image_details.js";
import { ReviewForm } from "./image_review.js";
import { findVersion, loadDetail, ScorePanel } from "./image_scores.js";

/** @import { ImageDetail, Verdict, Version } from "../lib/types.js" */

/** @type {[string, string][]} */
const SHORTCUTS = [
  ["N", "next"], ["P", "previous"], ["Esc", "back"], ["+ − 0", "zoom"], ["← → ↑ ↓", "pan"], ["O", "map"],
  ["1 – 5", "tools"], ["[ ]", "brush"], ["L", "layer"], ["Ctrl Z", "undo"], ["Ctrl Y", "redo"],
];
const PAN_PIXELS = 60; // by which an arrow key pans
const FAST_FACTOR = 5; // with Shift
/** @type {Record<string, [number, number]>} */
const ARROW_DIRECTIONS = { ArrowLeft: [1, 0], ArrowRight: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

/**
 * Shows an image. The address may name a model and one of its versions.
 * @param {HTMLElement} main
 * @param {AbortSignal} signal
 * @param {string} imageId
 * @param {string} [modelName]
 * @param {string} [versionId]
 */
export async function showImage(main, signal, imageId, modelName, versionId) {
  const detail = await loadDetail(Number(imageId), modelName && decodeURIComponent(modelName), signal);
  if (signal.aborted) return;
  const view = new ImageView(detail, versionId === undefined ? null : findVersion(Number(versionId)), signal);
  main.append(el("div", { class: "two" }, view.stage(), view.sidebar()));
  showShortcuts(SHORTCUTS, signal, { onSwitch: () => view.review.labelButtons() });
  addEventListener("keydown", (event) => {
    const { target } = event;
    if (target === document.body || (target instanceof Node && main.contains(target))) view.onKey(event);
  }, { signal });
  addEventListener("beforeunload", (event) => view.review.isUnsaved() && event.preventDefault(), { signal });
  signal.addEventListener("abort", () => view.review.keepDraft());
  await view.load();
}

class ImageView {
  #isSaving = false;

  /**
   * @param {ImageDetail} detail
   * @param {Version | null} version
   * @param {AbortSignal} signal
   */
  constructor(detail, version, signal) {
    this.detail = detail;
    this.signal = signal;
    this.canvas = el("canvas", { class: "canvas", tabindex: 0, "aria-label": `The image ${detail.name}` });
    this.tools = new Tools(this.canvas, detail, signal);
    this.viewer = this.tools.viewer;
    this.scores = new ScorePanel(detail, version, this.viewer, signal);
    this.review = new ReviewForm(detail, this.tools, signal);
    this.trail = enterImage(this.scores.address());
    this.place = el("span", { class: "place dim" }); // of the image in the queue
  }

  // --- layout

  stage() {
    new ResizeObserver(() => !this.signal.aborted && this.viewer.resize()).observe(this.canvas);
    return el("section", { class: "stage", "aria-label": "Image" }, this.tools.paintingBar, this.canvas, this.tools.viewBar);
  }

  sidebar() {
    const { detail, scores } = this;
    const isDropped = detail.dropped !== null;
    const size = `${detail.width} × ${detail.height} pixels, received ${formatTime(detail.received)}. `;
    return el("aside", { class: "side", "aria-label": "About the image" },
      el("div", { class: "title" }, el("h1", { class: "name", title: detail.name }, detail.name), this.place),
      isDropped ? button("Back", () => this.back()) : [this.#verdictBox(), scores.versionChoice(() => this.#focusCanvas())],
      scores.scoreBox,
      scores.otherBox,
      reviewList(detail.reviews, isDropped ? null : (review) => this.undoVerdict(review.id)),
      neighbourStrip(detail.neighbours, scores.model),
      el("p", { class: "dim" }, size, !isDropped && this.#downloadLink()));
  }

  #verdictBox() {
    return el("div", { class: "verdicts" },
      this.review.controls((verdict) => this.giveVerdict(verdict)),
      el("div", { class: "row" },
        button("Back", () => this.back()),
        button("Previous (P)", reportErrors(() => this.go(-1))),
        button("Next (N)", reportErrors(() => this.go(1)))));
  }

  #downloadLink() {
    const url = apiUrl(`images/${this.detail.id}/original`);
    return el("a", { href: url, onclick: (event) => {
      event.preventDefault(); // a plain link would not send the token
      downloadFile(url, this.detail.name).catch(showError);
    } }, "Download");
  }

  /** Gives the canvas the focus, so that the keys work again. */
  #focusCanvas() {
    this.canvas.focus({ preventScroll: true });
  }

  async load() {
    const { signal, detail, scores, review } = this;
    if (detail.dropped !== null) return scores.showDropped();
    const imageShown = fetchBitmap(detail.view, signal).then(({ bitmap }) => this.viewer.setImage(bitmap));
    scores.imageShown = imageShown;
    review.masksLoaded = imageShown.then(() => review.loadMasks());
    await Promise.all([review.masksLoaded, scores.show(), this.#showPlace()]);
    return undefined;
  }

  /** Says where in the queue the image is. */
  async #showPlace() {
    const index = await this.#indexInList();
    const total = currentList().total ?? 0;
    this.place.textContent = index < 0 ? "Not in the queue" : `${formatCount(index + 1)} of ${formatCount(total)}`;
  }

  // --- verdicts and navigation

  /**
   * Saves a verdict and goes on to the next image.
   * @param {Verdict} verdict
   */
  async giveVerdict(verdict) {
    if (this.#isSaving) return;
    this.#isSaving = true;
    const saved = await this.review.save(verdict);
    if (saved) {
      showMessage(saved.message, { action: { label: "Undo", run: () => this.undoVerdict(saved.review.id) } });
      if (!this.signal.aborted) await this.go(1, saved.message).catch(showError);
    }
    this.#isSaving = false;
  }

  /**
   * Withdraws a verdict on this image and shows the image again, also where the user has gone on to another one.
   * @param {number} reviewId
   */
  async undoVerdict(reviewId) {
    const { name } = this.detail;
    try {
      showMessage(undoneText(name, await undoReview(reviewId)));
    } catch (error) {
      showMessage(`The verdict on ${name} was not undone: ${errorText(error)}`, { isError: true });
      return;
    }
    const address = this.scores.address();
    if (location.hash === address) dispatchEvent(new HashChangeEvent("hashchange"));
    else openAddress(address, this.trail);
  }

  /**
   * Opens the next or the previous image of the queue.
   * @param {1 | -1} step
   * @param {string} [message] what was shown about the verdict that leads on
   */
  async go(step, message = "") {
    const list = currentList();
    const index = await this.#indexInList();
    const next = index + step;
    const isInList = index >= 0 && next >= 0 && next < (list.total ?? 0);
    const row = isInList ? await list.fetchRow(next) : undefined;
    if (this.signal.aborted) return; // another view was opened meanwhile
    if (row) {
      state.selectedIndex = next;
      openAddress(this.scores.address(row.id), this.trail);
      return;
    }
    if (index < 0) showMessage(`${message} This image is not in the queue with its present filters, so it stays open.`.trim());
    else if (!message) showMessage(step > 0 ? "This is the last image." : "This is the first image.");
    if (message) dispatchEvent(new HashChangeEvent("hashchange")); // shows the image with its new review
  }

  /** Returns the index of the image in the queue, or -1; its page may not have been fetched yet. */
  async #indexInList() {
    const list = currentList();
    await list.fetchPage(Math.max(0, state.selectedIndex));
    if (list.indexOf(this.detail.id) < 0) {
      const index = await list.open(this.detail.id);
      if (index !== null) await list.fetchPage(index);
    }
    return list.indexOf(this.detail.id);
  }

  back() {
    const index = currentList().indexOf(this.detail.id);
    if (index >= 0) state.selectedIndex = index;
    goBack(this.trail);
  }

  // --- keys

  /**
   * @param {KeyboardEvent} event
   */
  onKey(event) {
    if (event.key === "Escape" && event.target === this.review.note) return this.canvas.focus();
    if (isTyping(event)) return undefined;
    const isHandled = event.ctrlKey || event.metaKey ? this.#onControlKey(event) : this.#onPlainKey(event);
    if (isHandled) event.preventDefault();
    return undefined;
  }

  /**
   * @param {KeyboardEvent} event
   */
  #onControlKey(event) {
    const key = keyOf(event);
    if (key === "z" && !event.shiftKey) this.tools.undo();
    else if (key === "y" || key === "z") this.tools.redo();
    else return false;
    return true;
  }

  /**
   * @param {KeyboardEvent} event
   */
  #onPlainKey(event) {
    if (event.altKey) return false;
    if (event.key in ARROW_DIRECTIONS) return this.#onArrow(event);
    const verdict = verdictOfKey(event);
    if (verdict && !event.repeat) this.giveVerdict(verdict); // a held key counts once
    if (verdict) return true;
    const action = this.#keyActions(event)[keyOf(event)];
    action?.();
    return Boolean(action);
  }

  /**
   * @param {KeyboardEvent} event
   * @returns {Record<string, (() => unknown) | undefined>}
   */
  #keyActions({ target }) {
    const { tools } = this;
    const isDrawing = tools.polygon.length > 0;
    const isOnControl = target instanceof Element && target.matches("button, a, summary");
    return {
      ...tools.keyActions(),
      n: reportErrors(() => this.go(1)), p: reportErrors(() => this.go(-1)),
      Escape: () => (isDrawing ? tools.setTool("polygon") : this.back()),
      Backspace: isDrawing ? () => tools.undo() : undefined,
      Enter: isDrawing && !isOnControl ? () => tools.closePolygon() : undefined,
    };
  }

  /**
   * Pans where the image is zoomed and no field takes the arrows.
   * @param {KeyboardEvent} event
   */
  #onArrow({ key, target, shiftKey }) {
    const isForImage = target instanceof Element && target.matches("body, main, h1, .canvas");
    if (this.viewer.viewport.isFitted || !isForImage) return false;
    const distance = PAN_PIXELS * (shiftKey ? FAST_FACTOR : 1);
    const [x, y] = ARROW_DIRECTIONS[key];
    this.viewer.pan(x * distance, y * distance);
    return true;
  }
}
