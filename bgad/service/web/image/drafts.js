// What was painted or noted and not saved yet: it waits here until its picture is opened again.

import { say } from "../lib/dom.js";

const MOST = 8;
const drafts = new Map(); // by image, the oldest first

addEventListener("beforeunload", (event) => drafts.size && event.preventDefault());

export function keepDraft(image, draft) {
  drafts.delete(image);
  drafts.set(image, draft);
  if (drafts.size <= MOST) return;
  const [oldest, { name }] = drafts.entries().next().value;
  drafts.delete(oldest);
  say(`What was not saved of ${name} is given up: ${MOST} pictures are kept.`, true);
}

/** The draft of an image, which is no longer kept here. */
export function takeDraft(image) {
  const draft = drafts.get(image) ?? null;
  drafts.delete(image);
  return draft;
}

/** Forget a draft, unless it was taken or there is another one by now. */
export function dropDraft(image, draft) {
  if (drafts.get(image) === draft) drafts.delete(image);
}
