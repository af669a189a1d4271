// Arithmetic of charts: scales, ticks and histograms. Nothing here touches the page.

const HOUR = 3600; // seconds
const DAY = 24 * HOUR;
const TICK_HOURS = [1, 2, 3, 6, 12, 24, 48, 24 * 7, 24 * 30, 24 * 91, 24 * 365];
const MAX_DAYS_WITH_HOURS = 5;

/** @typedef {(value: number) => number} Scale */

/**
 * Maps a range of values linearly to a range of positions.
 * @param {[number, number]} domain
 * @param {[number, number]} range
 * @returns {Scale}
 */
export function linearScale([from, to], [start, end]) {
  const width = to - from || 1;
  return (value) => start + ((value - from) / width) * (end - start);
}

/**
 * Returns round numbers that divide a range into about `count` parts.
 * @param {number} from
 * @param {number} to
 * @param {number} [count]
 */
export function ticks(from, to, count = 5) {
  const roughStep = (to - from) / count || 1;
  const power = 10 ** Math.floor(Math.log10(roughStep));
  const step = power * ([1, 2, 5].find((factor) => factor * power >= roughStep) ?? 10);
  const values = [];
  const last = to + step * 1e-9; // keeps a last tick that rounding puts just above the range
  for (let i = Math.ceil(from / step); i * step <= last; i += 1) values.push(Number((i * step).toPrecision(12)));
  return values;
}

/**
 * Divides a range into about `binCount` bins of about the same width, so that every cut is an edge.
 * @param {number} from
 * @param {number} to
 * @param {number} binCount
 * @param {number[]} cuts
 * @returns {number[]} the edges, ascending
 */
export function binEdges(from, to, binCount, cuts) {
  if (!(to > from)) return [from, to];
  const width = (to - from) / binCount;
  const inside = cuts.filter((cut) => cut > from && cut < to);
  const ends = [...new Set([from, ...inside, to])].sort((one, other) => one - other);
  const edges = [from];
  for (let i = 1; i < ends.length; i += 1) {
    const [start, end] = [ends[i - 1], ends[i]];
    const count = Math.max(1, Math.round((end - start) / width));
    for (let k = 1; k < count; k += 1) edges.push(start + ((end - start) * k) / count);
    edges.push(end);
  }
  return edges;
}

/**
 * Counts the values in each bin. A value at an edge is in the bin below it, as a score at the threshold is normal;
 * values outside the range count in the outermost bins.
 * @param {number[]} values
 * @param {number[]} edges ascending
 */
export function histogram(values, edges) {
  /** @type {number[]} */
  const counts = new Array(edges.length - 1).fill(0);
  for (const value of values) {
    const above = edges.findIndex((edge, i) => i > 0 && value <= edge);
    counts[above < 0 ? counts.length - 1 : above - 1] += 1;
  }
  return counts;
}

/**
 * Returns ticks at local full hours or midnights, at most about `maxCount` of them, and their labels.
 * @param {number} from in seconds since 1970
 * @param {number} to
 * @param {number} [maxCount]
 */
export function timeTicks(from, to, maxCount = 8) {
  const hours = TICK_HOURS.find((width) => (to - from) / HOUR / width <= maxCount) ?? TICK_HOURS[TICK_HOURS.length - 1];
  const first = new Date(from * 1000);
  first.setHours(hours < 24 ? Math.ceil(first.getHours() / hours) * hours : 24, 0, 0, 0);
  const values = [];
  for (let time = first.getTime() / 1000; time <= to; time += hours * HOUR) if (time >= from) values.push(time);
  return { values, text: hours < 24 ? hourText : dayText };
}

/**
 * @param {number} time in seconds since 1970
 */
function hourText(time) {
  return new Date(time * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false });
}

/**
 * @param {number} time in seconds since 1970
 */
function dayText(time) {
  return new Date(time * 1000).toLocaleDateString([], { day: "numeric", month: "short" });
}

/**
 * Labels a moment within a time span: with the hour where the span is a few days at most.
 * @param {number} time in seconds since 1970
 * @param {number} from
 * @param {number} to
 */
export function momentText(time, from, to) {
  return to - from < MAX_DAYS_WITH_HOURS * DAY ? `${dayText(time)} ${hourText(time)}` : dayText(time);
}
