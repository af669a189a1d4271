// Contours of an anomaly map by marching squares. Nothing here touches the page.

/**
 * An anomaly map: values row by row, and the map threshold, at which the contour is.
 * @typedef {object} AnomalyMap
 * @property {number} width
 * @property {number} height
 * @property {Float32Array} values
 * @property {number} low the lowest value that the map can show
 * @property {number} high
 * @property {number} threshold
 * @property {number} rate the largest share of good images that show any contour
 */

/** @typedef {[x: number, y: number]} Point */
/** @typedef {[from: Point, to: Point]} Segment */

/**
 * Returns the segments along which the map crosses its threshold, in pixels of the map. Values lie at pixel centres;
 * outside the map the value is its lowest, so that every contour is closed.
 * @param {Omit<AnomalyMap, "rate">} map
 */
export function contourSegments({ width, height, values, low, threshold }) {
  /** @type {Segment[]} */
  const segments = [];
  const excess = (/** @type {number} */ x, /** @type {number} */ y) => {
    const isInside = x >= 0 && y >= 0 && x < width && y < height;
    return (isInside ? values[y * width + x] : low) - threshold;
  };
  for (let y = -1; y < height; y += 1) {
    for (let x = -1; x < width; x += 1) {
      const corners = [excess(x, y), excess(x + 1, y), excess(x + 1, y + 1), excess(x, y + 1)];
      segments.push(...squareSegments(x + 0.5, y + 0.5, corners));
    }
  }
  return segments;
}

/**
 * Returns the segments through one square of side 1.
 * @param {number} x of its upper left corner
 * @param {number} y
 * @param {number[]} corners values minus the threshold, clockwise from the upper left corner
 */
export function squareSegments(x, y, [a, b, c, d]) {
  /** @type {Point[]} */
  const points = [];
  if (a > 0 !== b > 0) points.push([x + a / (a - b), y]);
  if (b > 0 !== c > 0) points.push([x + 1, y + b / (b - c)]);
  if (c > 0 !== d > 0) points.push([x + d / (d - c), y + 1]);
  if (d > 0 !== a > 0) points.push([x, y + a / (a - d)]);
  /** @type {Segment[]} */
  const segments = [];
  for (let i = 0; i + 1 < points.length; i += 2) segments.push([points[i], points[i + 1]]);
  return segments;
}
