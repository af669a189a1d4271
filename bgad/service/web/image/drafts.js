// Drafts: notes and masks that are not saved yet. A draft waits here until its image is opened again.

import { showMessage } from "../lib/messages.js";

/** @import { Snapshot } from "./painting.js" */

/**
 * What is not saved of one image; `masks` is null where only the note has changed. `seen` is the last review that the
 * user had seen, 0 for none.
 * @typedef {{ name: string, note: string, masks: Snapshot | null, seen: number }} Draft
 */

const MAX_DRAFTS = 8;
/** @type {Map<number, Draft>} */
const drafts = new Map(); // by image, the oldest first

addEventListener("beforeunload", (event) => drafts.size && event.preventDefault());

/**
 * Keeps a draft; where there are too many, the oldest one is discarded.
 * @param {number} imageId
 * @param {Draft} draft
 */
export function keepDraft(imageId, draft) {
  drafts.delete(imageId);
  drafts.set(imageId, draft);
  if (drafts.size <= MAX_DRAFTS) return;
  for (const [oldestId, { name }] of drafts) {
    drafts.delete(oldestId);
    showMessage(`The unsaved changes of ${name} were discarded: at most ${MAX_DRAFTS} images can have some.`, { isError: true });
    return;
  }
}

/**
 * Returns the draft of an image, or null, and removes it from here.
 * @param {number} imageId
 */
export function takeDraft(imageId) {
  const draft = drafts.get(imageId) ?? null;
  drafts.delete(imageId);
  return draft;
}

/**
 * Removes a draft, unless another one has replaced it meanwhile.
 * @param {number} imageId
 * @param {Draft | null} draft
 */
export function dropDraft(imageId, draft) {
  if (drafts.get(imageId) === draft) drafts.delete(imageId);
}
