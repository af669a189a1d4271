// Saves and withdraws reviews.

import { getJson, request, sendJson } from "./api.js";
import { currentModel, state } from "./state.js";

/** @import { ImageDetail, ListedImage, Review, Verdict } from "./types.js" */

/**
 * What goes along with a verdict; masks are PNGs in base64.
 * @typedef {object} ReviewContent
 * @property {string} note
 * @property {string | null} mask
 * @property {string | null} ignore
 */

/**
 * Saves a review. A good part has no defect, so that mask is not sent.
 * @param {number} imageId
 * @param {Verdict} verdict
 * @param {ReviewContent} content
 * @param {string} [modelName] the model that was looked at
 * @returns {Promise<Review>}
 */
export async function saveReview(imageId, verdict, { note, mask, ignore }, modelName = currentModel().name) {
  const body = { verdict, note, mask: verdict === "good" ? null : mask, ignore, model: modelName };
  /** @type {Review} */
  const review = await sendJson("POST", `images/${imageId}/reviews`, body);
  state.list?.setVerdict(imageId, verdict, note, review.mask !== null);
  return review;
}

/**
 * Saves a verdict from the list. Note and masks of the last review stay, even of one that somebody saved meanwhile.
 * @param {ListedImage} row
 * @param {Verdict} verdict
 */
export async function reviewListed(row, verdict) {
  /** @type {ImageDetail} */
  const detail = await getJson(`images/${row.id}`);
  const last = detail.reviews.at(-1);
  const [mask, ignore] = await Promise.all([fetchBase64(last?.mask), fetchBase64(last?.ignore)]);
  return saveReview(row.id, verdict, { note: last?.note ?? "", mask, ignore });
}

/**
 * Withdraws a review and returns the verdict that counts now, or null for none.
 * @param {number} reviewId
 * @param {number} imageId
 * @returns {Promise<Verdict | null>}
 */
export async function undoReview(reviewId, imageId) {
  /** @type {Review} */
  const review = await sendJson("POST", `reviews/${reviewId}/undo`, undefined, { model: currentModel().name });
  const verdict = review.verdict === "withdrawn" ? null : review.verdict;
  state.list?.setVerdict(imageId, verdict, review.note, review.mask !== null);
  return verdict;
}

/**
 * @param {string | null | undefined} url
 */
async function fetchBase64(url) {
  return url ? toBase64(await (await request(url)).blob()) : null;
}

/**
 * Encodes a blob in base64.
 * @param {Blob} blob
 * @returns {Promise<string>}
 */
export function toBase64(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => {
      const dataUrl = String(reader.result);
      resolve(dataUrl.slice(dataUrl.indexOf(",") + 1));
    };
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}
