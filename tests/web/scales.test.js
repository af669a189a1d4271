import assert from "node:assert/strict";
import { test } from "node:test";

import { binEdges, histogram, linearScale, momentText, ticks, timeTicks } from "../../bgad/service/web/lib/scales.js";

const HOUR = 3600;
const DAY = 24 * HOUR;
const seconds = (...parts) => new Date(...parts).getTime() / 1000; // local time, as on the axis

test("a scale maps ends to ends and is linear between", () => {
  const x = linearScale([0, 10], [100, 200]);
  assert.deepEqual([0, 2.5, 10, 12].map(x), [100, 125, 200, 220]);
  const y = linearScale([-1, 1], [50, 10]); // upwards on the screen
  assert.deepEqual([-1, 0, 1].map(y), [50, 30, 10]);
});

test("a scale of a single value does not divide by zero", () => {
  const x = linearScale([3, 3], [0, 10]);
  assert.deepEqual([x(3), x(4)], [0, 10]);
});

test("ticks are round numbers within the range", () => {
  assert.deepEqual(ticks(0, 100), [0, 20, 40, 60, 80, 100]);
  assert.deepEqual(ticks(7, 23, 4), [10, 15, 20]);
  assert.deepEqual(ticks(0, 1, 4), [0, 0.5, 1]);
  assert.deepEqual(ticks(-3, 3, 6), [-3, -2, -1, 0, 1, 2, 3]);
  assert.deepEqual(ticks(5, 5), [5]);
});

test("ticks do not show errors of rounding", () => {
  assert.deepEqual(ticks(0, 0.7, 7), [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]);
  assert.deepEqual(ticks(0, 6e-5, 4), [0, 2e-5, 4e-5, 6e-5]);
});

test("a histogram counts each value once; a value at an edge is below it, as a score at the threshold is normal", () => {
  assert.deepEqual(histogram([0, 0.5, 1, 1.5, 2], [0, 0.5, 1, 1.5, 2]), [2, 1, 1, 1]);
  assert.deepEqual(histogram([0.49, 0.5, 0.51, 0.52], [0, 0.5, 1]), [2, 2]);
  assert.deepEqual(histogram([], [0, 1, 2, 3]), [0, 0, 0]);
});

test("values outside the range count in the outermost bins", () => {
  assert.deepEqual(histogram([-5, 0.5, 9], [0, 0.4, 0.7, 1]), [1, 1, 1]);
});

test("no bin holds values on both sides of a cut", () => {
  for (const cuts of [[0.333], [0.1, 0.101], [0.5, 0.5], [-1, 2], [0.001, 0.999], []]) {
    const edges = binEdges(0, 1, 10, cuts);
    assert.deepEqual([edges[0], edges.at(-1)], [0, 1]);
    assert.ok(edges.every((edge, i) => i === 0 || edge > edges[i - 1]), "ascending");
    assert.ok(edges.length >= 10 && edges.length <= 14);
    for (const cut of cuts.filter((value) => value > 0 && value < 1)) assert.ok(edges.includes(cut));
  }
  const edges = binEdges(0, 1, 4, [0.6]);
  const counts = histogram([0.55, 0.6, 0.61, 0.9], edges);
  const place = edges.indexOf(0.6);
  assert.equal(counts.slice(0, place).reduce((sum, count) => sum + count, 0), 2);
});

test("bins of equal values do not divide by zero", () => {
  assert.deepEqual(histogram([4, 4, 4], binEdges(4, 4, 3, [4])), [3]);
});

test("ticks of a few hours are at full hours within the range", () => {
  const { values } = timeTicks(seconds(2024, 0, 10, 9, 30), seconds(2024, 0, 10, 15, 30));
  assert.deepEqual(values, [10, 11, 12, 13, 14, 15].map((hour) => seconds(2024, 0, 10, hour)));
});

test("ticks of three days are twelve hours apart", () => {
  const { values } = timeTicks(seconds(2024, 0, 10), seconds(2024, 0, 13));
  assert.deepEqual(values.map((time) => (time - values[0]) / HOUR), [0, 12, 24, 36, 48, 60, 72]);
});

test("ticks of ten days are at midnights, two days apart, and name the day", () => {
  const { values, text } = timeTicks(seconds(2024, 0, 10, 9, 30), seconds(2024, 0, 20, 9, 30));
  assert.deepEqual(values, [11, 13, 15, 17, 19].map((day) => seconds(2024, 0, day)));
  assert.match(text(values[0]), /11/);
  assert.doesNotMatch(text(values[0]), /:/);
});

test("a moment has its hour only within a few days", () => {
  const from = seconds(2024, 0, 10);
  const moment = seconds(2024, 0, 12, 14, 5);
  assert.match(momentText(moment, from, from + 4 * DAY), /12.*14:05/);
  assert.doesNotMatch(momentText(moment, from, from + 5 * DAY), /14/);
});
