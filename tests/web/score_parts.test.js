import assert from "node:assert/strict";
import { test } from "node:test";

import { partBars, reasonText } from "../../bgad/service/web/lib/score_parts.js";

test("bars and limits are shares of the longest bar", () => {
  const bars = partBars({ parts: { map: 4, image: -1, known: 0.5 }, limits: { map: 2, image: 1, known: 0.5 } });
  assert.deepEqual(bars.map(({ label }) => label), ["Map", "Whole image", "Known defects"]);
  assert.deepEqual(bars.map(({ length }) => length), [1, 0, 0.125]);
  assert.deepEqual(bars.map(({ mark }) => mark), [0.5, 0.25, 0.125]);
  assert.deepEqual(bars.map(({ isAbove }) => isAbove), [true, false, false]);
});

test("a very long bar ends with the axis, at four times the highest limit", () => {
  const bars = partBars({ parts: { map: 4, image: 0, known: 700 }, limits: { map: 1, image: 1, known: 2 } });
  assert.deepEqual(bars.map(({ length }) => length), [0.5, 0, 1]);
  assert.deepEqual(bars.map(({ mark }) => mark), [0.125, 0.125, 0.25]);
});

test("only the parts that the model has are shown", () => {
  const bars = partBars({ parts: { map: 1, image: 0, known: 0 }, limits: { map: 2 } });
  assert.deepEqual(bars.map(({ value, limit }) => [value, limit]), [[1, 2]]);
});

test("parts without limits or with nothing positive have bars all the same", () => {
  const bars = partBars({ parts: { map: -1, image: -2, known: 0 }, limits: null });
  assert.deepEqual(bars.map(({ length, limit, isAbove }) => [length, limit, isAbove]), Array(3).fill([0, null, false]));
});

test("a reason is a sentence", () => {
  assert.equal(reasonText({ reason: "a region stands out" }), "A region stands out.");
  assert.equal(reasonText({ reason: null }), null);
});
