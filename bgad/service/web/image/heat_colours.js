// Colours of the heat map. Nothing here touches the page.

/** @import { AnomalyMap } from "./contour.js" */

/** @typedef {[red: number, green: number, blue: number]} Colour */

/** @type {Colour[]} */
const RAMP = [[255, 237, 130], [254, 178, 76], [240, 90, 40], [165, 0, 38]]; // yellow to dark red, as in the thumbnails
const FAINT_ALPHA = 0.12; // at the threshold, from below
const LEAST_ALPHA = 0.55; // at the threshold, from above
const ALPHA_RANGE = 0.4;

/**
 * Returns the colour of a map value: almost transparent below the threshold, from yellow to dark red above it.
 * @param {number} value
 * @param {Pick<AnomalyMap, "low" | "threshold">} map
 * @returns {[red: number, green: number, blue: number, alpha: number]} from 0 to 255
 */
export function heatColour(value, { low, threshold }) {
  const unit = threshold > low ? threshold - low : 1;
  const heat = 1 - Math.exp(-Math.max(value - threshold, 0) / unit);
  const alpha = value > threshold ? LEAST_ALPHA + ALPHA_RANGE * heat : FAINT_ALPHA * Math.min(1, (value - low) / unit);
  return [...rampColour(heat), 255 * alpha];
}

/**
 * Interpolates the ramp.
 * @param {number} position from 0 to 1
 * @returns {Colour}
 */
export function rampColour(position) {
  const place = position * (RAMP.length - 1);
  const left = Math.min(RAMP.length - 2, Math.floor(place));
  const [from, to] = [RAMP[left], RAMP[left + 1]];
  const mix = (/** @type {number} */ channel) => from[channel] + (to[channel] - from[channel]) * (place - left);
  return [mix(0), mix(1), mix(2)];
}
