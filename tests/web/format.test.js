import assert from "node:assert/strict";
import { test } from "node:test";

import { formatApart, formatNumber, formatPercent, formatPlural, versionText } from "../../bgad/service/web/lib/format.js";

test("numbers have three significant digits, large ones none after the point", () => {
  assert.deepEqual([0, 0.012345, 3.14159, 99.96, 1234.4, -1234.6].map(formatNumber),
    ["0", "0.0123", "3.14", "100", "1234", "−1235"]);
});

test("percentages have two significant digits below ten", () => {
  assert.deepEqual([0, 1 / 6, 0.0123, 0.00056, 1].map(formatPercent), ["0 %", "17 %", "1.2 %", "0.056 %", "100 %"]);
});

test("only all is 100 percent", () => {
  assert.deepEqual([0.99, 0.992, 299 / 300, 0.99999].map(formatPercent), ["99 %", "99.2 %", "99.7 %", "99.9 %"]);
});

test("different numbers look different, with no more digits than that takes", () => {
  assert.deepEqual(formatApart(5, 6), ["5.00", "6.00"]);
  assert.deepEqual(formatApart(5.0021, 5.0012), ["5.002", "5.001"]);
  assert.deepEqual(formatApart(1234.6, 1234.9), ["1234.6", "1234.9"]);
  assert.deepEqual(formatApart(5, 5), ["5.00", "5.00"]);
  const next = 5 + 2 ** -50; // the smallest number above 5
  const [one, other] = formatApart(next, 5);
  assert.ok(Number(one) > Number(other));
});

test("nouns agree with their count", () => {
  assert.equal(formatPlural(1, "image"), "1 image");
  assert.equal(formatPlural(0, "image"), "0 images");
  assert.equal(formatPlural(1234, "entry", "entries"), "1,234 entries");
});

test("a version is named by its number and the start of its checksum", () => {
  assert.equal(versionText(3, "0123456789abcdef"), "version 3 (01234567)");
});
