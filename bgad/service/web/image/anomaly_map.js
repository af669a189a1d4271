// The anomaly map of an image: decoded from the API's PNG, and prepared for drawing.

import { contourSegments } from "./contour.js";
import { heatColour } from "./heat_colours.js";
import { bitmapPixels, canvasContext } from "./mask_overlay.js";

/** @import { AnomalyMap } from "./contour.js" */
/** @typedef {{ map: AnomalyMap, heat: OffscreenCanvas, contour: Path2D }} MapLayer */

/**
 * Decodes a map: the grey values span the range that the headers give.
 * @param {ImageBitmap} bitmap
 * @param {Headers} headers
 * @returns {AnomalyMap}
 */
export function decodeMap(bitmap, headers) {
  const { width, height } = bitmap;
  const pixels = bitmapPixels(bitmap);
  const names = ["X-Low", "X-High", "X-Map-Threshold", "X-Rate"];
  const [low, high, threshold, rate] = names.map((name) => Number(headers.get(name)));
  const values = new Float32Array(width * height);
  for (let i = 0; i < values.length; i += 1) values[i] = low + (pixels[4 * i] / 255) * (high - low);
  return { width, height, values, low, high, threshold, rate };
}

/**
 * Prepares the heat map and the contour of a map.
 * @param {AnomalyMap} map
 * @returns {MapLayer}
 */
export function mapLayer(map) {
  return { map, heat: heatCanvas(map), contour: contourPath(map) };
}

/**
 * @param {AnomalyMap} map
 */
function heatCanvas(map) {
  const pixels = new ImageData(map.width, map.height);
  map.values.forEach((value, i) => pixels.data.set(heatColour(value, map), 4 * i));
  const context = canvasContext(map.width, map.height);
  context.putImageData(pixels, 0, 0);
  return context.canvas;
}

/**
 * @param {AnomalyMap} map
 */
function contourPath(map) {
  const path = new Path2D();
  for (const [from, to] of contourSegments(map)) {
    path.moveTo(...from);
    path.lineTo(...to);
  }
  return path;
}
