// Asks which of two reviews of an image counts: the user's, or the one that somebody else has saved meanwhile.

import { decodeMask, MaskOverlay } from "../image/mask_overlay.js";
import { Mask } from "../image/mask.js";
import { apiUrl } from "./api.js";
import { bitmapFromBase64 } from "./base64.js";
import { badge, button, el } from "./dom.js";
import { formatTime } from "./format.js";
import { fetchBitmap } from "./image_loader.js";

/** @import { LayerName } from "../image/painting.js" */
/** @import { Review, Verdict } from "./types.js" */
/** @typedef {"mine" | "theirs" | "later"} Choice */
/** @typedef {{ id: number, name: string, width: number, height: number }} ReviewedImage */
/** @typedef {Record<LayerName, ImageBitmap | null>} MaskBitmaps */

/**
 * The user's review; `masks` are PNGs in base64, and null where those of the other review would stay.
 * @typedef {object} OwnReview
 * @property {Verdict} verdict
 * @property {string} note
 * @property {Record<LayerName, string | null> | null} masks
 */

const PREVIEW_PIXELS = 240; // longer side of the images with both masks

/** @type {Promise<unknown>} */
let lastChoice = Promise.resolve();

/**
 * Shows both reviews and resolves to the user's choice; one question waits for the one before it.
 * @param {ReviewedImage} image
 * @param {OwnReview} mine
 * @param {Review} theirs
 * @returns {Promise<Choice>}
 */
export function askWhichCounts(image, mine, theirs) {
  const choice = lastChoice.then(() => showDialog(image, mine, theirs));
  lastChoice = choice;
  return choice;
}

/**
 * @param {ReviewedImage} image
 * @param {OwnReview} mine
 * @param {Review} theirs
 * @returns {Promise<Choice>}
 */
function showDialog(image, mine, theirs) {
  const time = formatTime(theirs.created);
  const own = el("section", { "aria-label": "Yours" }, el("h3", {}, "Yours, not saved"), badge(mine.verdict, mine.verdict),
    mine.masks ? noteText(mine.note) : el("p", { class: "dim" }, "Note and painting stay as they are."));
  const other = el("section", { "aria-label": `By ${theirs.who}` }, el("h3", {}, `By ${theirs.who}, ${time}`),
    badge(theirs.verdict, theirs.verdict), noteText(theirs.note));
  return new Promise((resolve) => {
    const close = (/** @type {Choice} */ choice) => () => {
      dialog.remove();
      resolve(choice);
    };
    const keep = button(`Keep the one by ${theirs.who}`, close("theirs"), { autofocus: true });
    const dialog = el("dialog", { id: "conflict", class: "wide-dialog", "aria-labelledby": "conflict-title", oncancel: close("later") },
      el("h2", { id: "conflict-title" }, `${image.name} was changed by ${theirs.who} at ${time}`),
      el("p", {}, "Your review was not saved, because you have not seen that one. Which one counts?"),
      el("div", { class: "sides" }, own, other),
      el("div", { class: "row" }, keep, button("Use mine", close("mine")), button("Decide later", close("later"))));
    document.body.append(dialog);
    dialog.showModal();
    showMasks(image, mine, theirs, own, other).catch((error) => {
      other.append(el("p", { class: "dim" }, `The paintings cannot be shown: ${error.message}`));
    });
  });
}

/**
 * @param {string} note
 */
function noteText(note) {
  return note ? el("p", { class: "note" }, note) : el("p", { class: "dim" }, "No note.");
}

/**
 * Adds the image with its masks to both sides, where anything is painted.
 * @param {ReviewedImage} image
 * @param {OwnReview} mine
 * @param {Review} theirs
 * @param {HTMLElement} own
 * @param {HTMLElement} other
 */
async function showMasks(image, mine, theirs, own, other) {
  const isPainted = mine.masks?.defect || mine.masks?.ignore || theirs.mask || theirs.ignore;
  if (!mine.masks || !isPainted) return;
  const signal = AbortSignal.timeout(60000);
  const load = async (/** @type {string | null} */ url) => (url ? (await fetchBitmap(url, signal)).bitmap : null);
  const { bitmap } = await fetchBitmap(apiUrl(`images/${image.id}/view.png`), signal);
  const { defect, ignore } = mine.masks;
  const ownMasks = { defect: await bitmapFromBase64(defect), ignore: await bitmapFromBase64(ignore) };
  const otherMasks = { defect: await load(theirs.mask), ignore: await load(theirs.ignore) };
  own.append(preview(image, bitmap, ownMasks, "your painting"));
  other.append(preview(image, bitmap, otherMasks, `the painting by ${theirs.who}`));
}

/**
 * Draws a small image with its masks.
 * @param {ReviewedImage} image
 * @param {ImageBitmap} bitmap
 * @param {MaskBitmaps} masks
 * @param {string} label
 */
function preview(image, bitmap, masks, label) {
  const scale = Math.min(1, PREVIEW_PIXELS / Math.max(image.width, image.height));
  const [width, height] = [Math.max(1, Math.round(image.width * scale)), Math.max(1, Math.round(image.height * scale))];
  const canvas = el("canvas", { width, height, role: "img", "aria-label": `${image.name}, ${label}` });
  const context = canvas.getContext("2d");
  if (!context) throw new Error("this browser cannot draw on a canvas");
  context.drawImage(bitmap, 0, 0, width, height);
  const overlay = new MaskOverlay(width, height);
  for (const layer of /** @type {LayerName[]} */ (["defect", "ignore"])) {
    const marked = masks[layer];
    if (!marked) continue;
    const mask = new Mask(width, height);
    mask.bits.set(decodeMask(marked, width, height));
    overlay.update(layer, mask, mask.bounds);
  }
  overlay.draw(context);
  return canvas;
}
