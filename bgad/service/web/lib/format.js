// Formats numbers, times and names for people.

/**
 * Formats seconds since 1970 as a local date and time.
 * @param {number} seconds
 */
export function formatTime(seconds) {
  return new Date(seconds * 1000).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
}

/**
 * Formats a number with three significant digits, or as an integer from 1000 on.
 * @param {number} value
 */
export function formatNumber(value) {
  return Math.abs(value) >= 1000 || value === 0 ? value.toFixed(0) : value.toPrecision(3);
}

/**
 * Formats an integer with separators between thousands.
 * @param {number} value
 */
export function formatCount(value) {
  return value.toLocaleString("en");
}

/**
 * Formats a fraction as a percentage with two significant digits.
 * @param {number} fraction
 */
export function formatPercent(fraction) {
  const value = fraction * 100;
  return `${value >= 10 || value === 0 ? Math.round(value) : Number(value.toPrecision(2))} %`;
}

/**
 * Formats a count with its noun.
 * @param {number} count
 * @param {string} singular
 * @param {string} [plural]
 */
export function formatPlural(count, singular, plural = `${singular}s`) {
  return `${formatCount(count)} ${count === 1 ? singular : plural}`;
}

/**
 * @param {boolean} isAnomaly
 */
export function decisionText(isAnomaly) {
  return isAnomaly ? "anomalous" : "normal";
}

/**
 * Names a version by its number and the start of its checksum.
 * @param {number} number
 * @param {string} checksum
 */
export function versionText(number, checksum) {
  return `version ${number} (${checksum.slice(0, 8)})`;
}
