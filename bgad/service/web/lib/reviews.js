// Saves and withdraws reviews. Where somebody else has reviewed an image meanwhile, the user decides which one counts.

import { ApiError, getJson, request, sendJson } from "./api.js";
import { toBase64 } from "./base64.js";
import { askWhichCounts } from "./review_conflict.js";
import { currentModel, state } from "./state.js";

/** @import { OwnReview, ReviewedImage } from "./review_conflict.js" */
/** @import { ImageDetail, ListedImage, Review, Verdict } from "./types.js" */

const CONFLICT = 409;

/**
 * What goes along with a verdict; masks are PNGs in base64.
 * @typedef {object} ReviewContent
 * @property {string} note
 * @property {string | null} mask
 * @property {string | null} ignore
 */

/**
 * What became of a review: `review` is the one that counts now, null where the user wants to decide later.
 * @typedef {{ isSaved: boolean, review: Review | null }} Outcome
 */

/**
 * Saves a review of an image. A good part has no defect, so that mask is not sent.
 * @param {ReviewedImage} image
 * @param {Verdict} verdict
 * @param {ReviewContent} content
 * @param {number} seen the last review that the user has seen, 0 for none
 * @param {string} modelName the model that was looked at
 * @returns {Promise<Outcome>}
 */
export function saveReview(image, verdict, { note, mask, ignore }, seen, modelName) {
  const defect = verdict === "good" ? null : mask;
  const body = { verdict, note, mask: defect, ignore, model: modelName };
  const mine = { verdict, note, masks: { defect, ignore } };
  return saveOrAsk(image, mine, seen, (newSeen) => post(image.id, { ...body, seen: newSeen }));
}

/**
 * Saves a verdict from the list; note and masks of the last review stay.
 * @param {ListedImage} row
 * @param {Verdict} verdict
 * @returns {Promise<Outcome>}
 */
export function reviewListed(row, verdict) {
  return saveOrAsk(row, { verdict, note: "", masks: null }, row.review, async (seen) => {
    /** @type {ImageDetail} */
    const detail = await getJson(`images/${row.id}`);
    const last = detail.reviews.at(-1);
    const [mask, ignore] = await Promise.all([verdict === "good" ? null : fetchBase64(last?.mask), fetchBase64(last?.ignore)]);
    return post(row.id, { verdict, note: last?.note ?? "", mask, ignore, model: currentModel().name, seen });
  });
}

/**
 * Saves a review; asks the user where somebody else was faster, and saves it again if it is to count all the same.
 * @param {ReviewedImage} image
 * @param {OwnReview} mine
 * @param {number} seen
 * @param {(seen: number) => Promise<Review>} save
 * @returns {Promise<Outcome>}
 */
async function saveOrAsk(image, mine, seen, save) {
  try {
    return { isSaved: true, review: await save(seen) };
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== CONFLICT || !error.answer?.review) throw error;
    /** @type {Review} */
    const theirs = error.answer.review;
    const choice = await askWhichCounts(image, mine, theirs);
    if (choice === "mine") return saveOrAsk(image, mine, theirs.id, save);
    if (choice === "theirs") state.list?.setReview(theirs);
    return { isSaved: false, review: choice === "theirs" ? theirs : null };
  }
}

/**
 * @param {number} imageId
 * @param {object} body
 */
async function post(imageId, body) {
  /** @type {Review} */
  const review = await sendJson("POST", `images/${imageId}/reviews`, body);
  state.list?.setReview(review);
  return review;
}

/**
 * Withdraws a review and returns the verdict that counts now, or null for none.
 * @param {number} reviewId
 * @returns {Promise<Verdict | null>}
 */
export async function undoReview(reviewId) {
  /** @type {Review} */
  const review = await sendJson("POST", `reviews/${reviewId}/undo`, undefined, { model: currentModel().name });
  state.list?.setReview(review);
  return review.verdict === "withdrawn" ? null : review.verdict;
}

/**
 * Says what counts after a verdict was withdrawn.
 * @param {string} name of the image
 * @param {Verdict | null} verdict
 */
export function undoneText(name, verdict) {
  return `${name}: ${verdict ? `${verdict} again` : "not reviewed"}`;
}

/**
 * @param {string | null | undefined} url
 */
async function fetchBase64(url) {
  return url ? toBase64(await (await request(url)).blob()) : null;
}
