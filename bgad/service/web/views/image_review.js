// The review of one image: verdict buttons, note and masks, with a draft of what is not saved yet.

import { dropDraft, keepDraft, takeDraft } from "../image/drafts.js";
import { decodeMask, encodeMask } from "../image/mask_overlay.js";
import { button, el } from "../lib/dom.js";
import { fetchBitmap } from "../lib/image_loader.js";
import { errorText, isAbort, showMessage } from "../lib/messages.js";
import { saveReview } from "../lib/reviews.js";
import { currentModel } from "../lib/state.js";
import { verdictLabel } from "../lib/verdict_keys.js";

/** @import { Draft } from "../image/drafts.js" */
/** @import { LayerName } from "../image/painting.js" */
/** @import { Tools } from "../image/tools.js" */
/** @import { ImageDetail, Review, Verdict } from "../lib/types.js" */

const MAX_NOTE_LENGTH = 2000;
/** @type {Verdict[]} */
const VERDICTS = ["good", "bad", "unsure"];

export class ReviewForm {
  model = currentModel();
  note = el("textarea", { rows: 2, maxlength: MAX_NOTE_LENGTH, "aria-label": "Note", placeholder: "Note (optional)" });
  /** @type {Promise<unknown>} */
  masksLoaded = Promise.resolve();
  /** @type {HTMLButtonElement[]} */
  #buttons = [];
  /** @type {Draft | null} */
  #keptDraft = null; // the one left behind when the view was closed

  /**
   * @param {ImageDetail} detail
   * @param {Tools} tools
   * @param {AbortSignal} signal
   */
  constructor(detail, tools, signal) {
    this.detail = detail;
    this.tools = tools;
    this.signal = signal;
    this.lastReview = detail.reviews.at(-1) ?? null;
    this.note.value = this.lastReview?.note ?? "";
    this.saved = { revision: tools.painting.revision, note: this.note.value };
    this.draft = takeDraft(detail.id); // until it is restored
    if (this.draft) this.note.value = this.draft.note;
    this.seen = this.draft ? this.draft.seen : (this.lastReview?.id ?? 0); // a draft may be older than the last review
  }

  /**
   * Creates the verdict buttons and the note.
   * @param {(verdict: Verdict) => void} onVerdict
   */
  controls(onVerdict) {
    this.#buttons = VERDICTS.map((verdict) => button("", () => onVerdict(verdict), {
      class: `verdict ${verdict}`, "aria-pressed": String(this.lastReview?.verdict === verdict),
    }));
    this.labelButtons();
    return [el("div", { class: "row" }, this.#buttons), this.note];
  }

  /** Names the verdict buttons, with their keys where these work. */
  labelButtons() {
    this.#buttons.forEach((one, i) => (one.textContent = verdictLabel(VERDICTS[i])));
  }

  /** Loads the masks of the last review, then restores the draft. */
  async loadMasks() {
    await Promise.all([
      this.#loadMask("defect", this.lastReview?.mask),
      this.#loadMask("ignore", this.lastReview?.ignore),
    ]);
    this.#restoreDraft();
  }

  /**
   * @param {LayerName} layer
   * @param {string | null | undefined} url
   */
  async #loadMask(layer, url) {
    if (!url) return;
    const { bitmap } = await fetchBitmap(url, this.signal);
    this.tools.painting.load(layer, decodeMask(bitmap, this.detail.width, this.detail.height));
  }

  // --- drafts

  get isPaintingChanged() {
    return this.tools.painting.revision !== this.saved.revision;
  }

  isUnsaved() {
    const isNoteChanged = this.note.value !== this.saved.note;
    return this.draft !== null || this.tools.isDrawing || this.isPaintingChanged || isNoteChanged;
  }

  /** Keeps what is not saved for the next time that the image is opened. */
  keepDraft() {
    this.tools.finish();
    if (!this.isUnsaved()) return;
    const newMasks = this.isPaintingChanged ? this.tools.painting.snapshot() : null;
    const masks = this.draft ? this.draft.masks : newMasks;
    this.#keptDraft = { name: this.detail.name, note: this.note.value, masks, seen: this.seen };
    keepDraft(this.detail.id, this.#keptDraft);
  }

  #restoreDraft() {
    if (this.signal.aborted) return;
    this.tools.setReady();
    if (!this.draft) return;
    const { masks } = this.draft;
    this.draft = null;
    if (masks) this.tools.painting.restore(masks);
    showMessage(`${this.detail.name}: your unsaved ${masks ? "painting" : "note"} is back.`);
  }

  // --- saving

  /**
   * Saves a verdict with note and masks. Returns the saved review and the message about it, or null: it was not saved.
   * @param {Verdict} verdict
   */
  async save(verdict) {
    const { detail, tools } = this;
    try {
      await this.masksLoaded; // saved masks must be here before a verdict that would replace them
      tools.finish();
      const { layers, revision } = tools.painting;
      const note = this.note.value;
      const [mask, ignore] = await Promise.all([encodeMask(layers.defect), encodeMask(layers.ignore)]);
      const { isSaved, review } = await saveReview(detail, verdict, { note, mask, ignore }, this.seen, this.model.name);
      if (!review) throw new Error("you wanted to decide later");
      this.saved = { revision, note };
      this.seen = review.id;
      if (!this.isUnsaved()) dropDraft(detail.id, this.#keptDraft); // kept where the view was closed meanwhile
      if (!isSaved) return this.#showKept(review);
      const omitted = verdict === "good" && mask ? " A good part has no defect: the defect layer was not saved." : "";
      return { review, message: `${detail.name}: ${verdict}.${omitted}` };
    } catch (error) {
      const reason = isAbort(error) ? "the view was closed before the image was loaded" : errorText(error);
      showMessage(`${detail.name} was not saved as ${verdict}: ${reason}`, { isError: true });
      return null;
    }
  }

  /**
   * Shows the review by somebody else, which the user has let stand.
   * @param {Review} review
   */
  #showKept({ who, verdict }) {
    showMessage(`${this.detail.name}: ${verdict}, as ${who} said.`);
    if (!this.signal.aborted) dispatchEvent(new HashChangeEvent("hashchange"));
    return null;
  }
}
