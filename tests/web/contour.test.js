import assert from "node:assert/strict";
import { test } from "node:test";

import { contourSegments, squareSegments } from "../../bgad/service/web/image/contour.js";
import { heatColour, rampColour } from "../../bgad/service/web/image/heat_colours.js";

function mapOf(rows, threshold = 1, low = 0) {
  const values = Float32Array.from(rows.flat());
  return { width: rows[0].length, height: rows.length, values, low, high: 9, threshold };
}

/** The end points of the segments, each once, as sorted text. */
function corners(segments) {
  return [...new Set(segments.flat().map(String))].sort();
}

test("a single high pixel has a diamond around its centre", () => {
  const segments = contourSegments(mapOf([[0, 0, 0], [0, 2, 0], [0, 0, 0]]));
  assert.equal(segments.length, 4);
  assert.deepEqual(corners(segments), ["1,1.5", "1.5,1", "1.5,2", "2,1.5"]); // half way to each neighbour
});

test("the crossing is interpolated between the values", () => {
  const segments = contourSegments(mapOf([[0, 0, 0], [0, 4, 0], [0, 0, 0]])); // 3 above and 1 below: three quarters
  assert.deepEqual(corners(segments), ["0.75,1.5", "1.5,0.75", "1.5,2.25", "2.25,1.5"]);
});

test("a contour at the border of the map is closed outside of it", () => {
  const segments = contourSegments(mapOf([[2]]));
  assert.deepEqual(corners(segments), ["0,0.5", "0.5,0", "0.5,1", "1,0.5"]);
});

test("a map that does not cross its threshold has no contour", () => {
  assert.deepEqual(contourSegments(mapOf([[0, 1], [1, 0]])), []); // equal to the threshold is not above it
});

test("every contour is closed: each point ends an even number of segments", () => {
  const row = (y) => Array.from({ length: 11 }, (_, x) => (x * 7 + y * 13 + x * y * 5) % 10);
  const values = Array.from({ length: 9 }, (_, y) => row(y));
  const segments = contourSegments(mapOf(values, 4.5));
  assert.ok(segments.length > 50);
  const counts = new Map();
  for (const point of segments.flat().map(String)) counts.set(point, (counts.get(point) ?? 0) + 1);
  for (const [point, count] of counts) assert.equal(count % 2, 0, point);
});

test("a square with one high corner is cut by one segment", () => {
  assert.deepEqual(squareSegments(0, 0, [1, -1, -1, -3]), [[[0.5, 0], [0, 0.25]]]);
  assert.deepEqual(squareSegments(10, 20, [-1, -1, 3, -1]), [[[11, 20.25], [10.25, 21]]]);
  assert.deepEqual(squareSegments(0, 0, [1, 1, 1, 1]), []);
});

test("a saddle is cut by two segments", () => {
  assert.deepEqual(squareSegments(0, 0, [1, -1, 1, -1]), [[[0.5, 0], [1, 0.5]], [[0.5, 1], [0, 0.5]]]);
});

test("heat is clear at the lowest value, faint at the threshold and strong above it", () => {
  const map = { low: 0, threshold: 2 };
  assert.deepEqual(heatColour(0, map), [255, 237, 130, 0]);
  close(heatColour(1, map), [255, 237, 130, 255 * 0.06]);
  close(heatColour(2, map), [255, 237, 130, 255 * 0.12]);
  close(heatColour(2 + 2 * Math.log(2), map), [247, 134, 58, 255 * 0.75]); // half of the ramp
  close(heatColour(1e6, map), [165, 0, 38, 255 * 0.95]);
});

test("the ramp is interpolated", () => {
  assert.deepEqual(rampColour(0), [255, 237, 130]);
  close(rampColour(1 / 6), [254.5, 207.5, 103]);
  assert.deepEqual(rampColour(1), [165, 0, 38]);
});

function close(actual, expected) {
  assert.equal(actual.length, expected.length);
  actual.forEach((value, i) => assert.ok(Math.abs(value - expected[i]) < 1e-6, `${actual} is not ${expected}`));
}
