// The parts of a score, prepared as bars with their limits. Nothing here touches the page.

/** @import { Judged } from "./types.js" */

/**
 * One part of a score. `length` and `mark`, of the bar and of its limit, are shares of the axis.
 * @typedef {object} PartBar
 * @property {string} label
 * @property {string} meaning
 * @property {number} value
 * @property {number | null} limit null where the model folder is gone
 * @property {number} length
 * @property {number} mark
 * @property {boolean} isAbove whether the part exceeds its limit
 */

const MAX_LIMITS = 4; // the axis ends at so many times the highest limit, so that the limits stay visible
/** @type {[name: string, label: string, meaning: string][]} */
const PARTS = [
  ["map", "Map", "the highest values of the anomaly map"],
  ["image", "Whole image", "how unusual the image is as a whole"],
  ["known", "Known defects", "how much it resembles known defects"],
];

/**
 * Returns the parts of a score that its model has.
 * @param {Pick<Judged, "parts" | "limits">} score
 * @returns {PartBar[]}
 */
export function partBars({ parts, limits }) {
  const shown = PARTS.filter(([name]) => name in (limits ?? parts));
  const highestLimit = Math.max(0, ...Object.values(limits ?? {}));
  const highest = Math.max(1e-9, highestLimit, ...shown.map(([name]) => parts[name]));
  const end = highestLimit ? Math.min(highest, MAX_LIMITS * highestLimit) : highest;
  const share = (/** @type {number} */ value) => Math.min(1, Math.max(0, value) / end);
  return shown.map(([name, label, meaning]) => {
    const value = parts[name];
    const limit = limits ? limits[name] : null;
    const isAbove = limit !== null && value > limit;
    return { label, meaning, value, limit, length: share(value), mark: share(limit ?? 0), isAbove };
  });
}

/**
 * Returns why an image is rejected as a sentence; null where it is not, or where it is not known.
 * @param {{ reason: string | null }} score
 */
export function reasonText({ reason }) {
  return reason && `${reason[0].toUpperCase()}${reason.slice(1)}.`;
}
