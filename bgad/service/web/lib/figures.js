// Compares the figures of two versions in words. Nothing here touches the page.

import { formatApart } from "./format.js";

/** @import { ComparedSet, Figures } from "./types.js" */

/**
 * One figure of two versions. `by` is the size of the change; both are empty where the figures look equal.
 * @typedef {object} FigureChange
 * @property {string} title
 * @property {string} before
 * @property {string} after
 * @property {"better" | "worse" | ""} change
 * @property {string} by
 */

const AUROC_DIGITS = 6; // further ones are errors of rounding

/**
 * Compares the figures of two versions on one set of images. A change is only named where it shows.
 * @param {ComparedSet} set
 * @returns {FigureChange[]}
 */
export function figureChanges({ before, after, images, bad }) {
  return [
    areaChange(before.auroc, after.auroc),
    countChange(`Missed, of ${bad} bad`, before, after, "missed"),
    countChange(`False rejects, of ${images - bad} good`, before, after, "false_rejects"),
  ];
}

/**
 * @param {number | null} before
 * @param {number | null} after
 * @returns {FigureChange}
 */
function areaChange(before, after) {
  const title = "AUROC";
  const fixed = (/** @type {number} */ value, digits = 3) => value.toFixed(digits);
  if (before === null || after === null) {
    const text = (/** @type {number | null} */ value) => (value === null ? "–" : fixed(value));
    return { title, before: text(before), after: text(after), change: "", by: "" };
  }
  const [one, other] = formatApart(before, after, fixed, AUROC_DIGITS);
  if (one === other) return { title, before: one, after: other, change: "", by: "" };
  const digits = one.length - one.indexOf(".") - 1;
  const by = fixed(Math.abs(Number(other) - Number(one)), digits); // of the shown figures, so that they add up
  return { title, before: one, after: other, change: after > before ? "better" : "worse", by };
}

/**
 * @param {string} title
 * @param {Figures} before
 * @param {Figures} after
 * @param {"missed" | "false_rejects"} key
 * @returns {FigureChange}
 */
function countChange(title, before, after, key) {
  const [one, other] = [before[key], after[key]];
  const change = one === other ? "" : other < one ? "better" : "worse";
  return { title, before: String(one), after: String(other), change, by: change && String(Math.abs(other - one)) };
}

/**
 * Says by how much a version is worse than another one on the test images; empty where it is worse in nothing.
 * @param {ComparedSet} tests
 * @param {number} newVersion
 * @param {number} oldVersion
 */
export function worseText(tests, newVersion, oldVersion) {
  if (!tests.images) return "";
  const changes = figureChanges(tests);
  const list = (/** @type {"better" | "worse"} */ kind) =>
    changes.filter((one) => one.change === kind).map(({ title, before, after, by }) => `${title}: ${after} instead of ${before} (by ${by})`).join("; ");
  const worse = list("worse");
  if (!worse) return "";
  const better = list("better");
  return `On the ${tests.images} test images, version ${newVersion} is worse than version ${oldVersion} in this: ${worse}.${better && ` It is better in this: ${better}.`}`;
}
