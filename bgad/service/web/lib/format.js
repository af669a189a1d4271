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
  return withMinus(Math.abs(value) >= 1000 || value === 0 ? value.toFixed(0) : value.toPrecision(3));
}

const ALL_DIGITS = 17; // as many tell any two numbers apart

/**
 * Formats two numbers with so many digits, from three on, that different ones look different.
 * @param {number} one
 * @param {number} other
 * @param {(value: number, digits: number) => string} [format]
 * @param {number} [maxDigits] numbers that only differ in later digits look equal
 * @returns {[string, string]}
 */
export function formatApart(one, other, format = withDigits, maxDigits = ALL_DIGITS) {
  for (let digits = 3; digits <= maxDigits; digits += 1) {
    const [first, second] = [format(one, digits), format(other, digits)];
    if (first !== second) return [first, second];
  }
  return [format(one, 3), format(other, 3)];
}

/**
 * @param {number} value
 * @param {number} digits significant ones
 */
function withDigits(value, digits) {
  return digits > 3 && value !== 0 ? withMinus(Number(value.toPrecision(digits)).toString()) : formatNumber(value);
}

/**
 * Replaces the hyphen of a negative number by a minus, which is as wide as a plus.
 * @param {string} number
 */
function withMinus(number) {
  return number.replace(/^-/, "−");
}

/**
 * Formats an integer with separators between thousands.
 * @param {number} value
 */
export function formatCount(value) {
  return value.toLocaleString("en");
}

/**
 * Formats a fraction as a percentage with two significant digits; only all is 100 %.
 * @param {number} fraction
 */
export function formatPercent(fraction) {
  const value = fraction * 100;
  if (value > 99 && value < 100) return `${Math.min(99.9, Number(value.toFixed(1)))} %`;
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
