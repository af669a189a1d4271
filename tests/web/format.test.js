import assert from "node:assert/strict";
import { test } from "node:test";

import { formatNumber, formatPercent, formatPlural, versionText } from "../../bgad/service/web/lib/format.js";

test("numbers have three significant digits, large ones none after the point", () => {
  assert.deepEqual([0, 0.012345, 3.14159, 99.96, 1234.4, -1234.6].map(formatNumber),
    ["0", "0.0123", "3.14", "100", "1234", "-1235"]);
});

test("percentages have two significant digits below ten", () => {
  assert.deepEqual([0, 1 / 6, 0.0123, 0.00056, 0.999, 1].map(formatPercent),
    ["0 %", "17 %", "1.2 %", "0.056 %", "100 %", "100 %"]);
});

test("nouns agree with their count", () => {
  assert.equal(formatPlural(1, "image"), "1 image");
  assert.equal(formatPlural(0, "image"), "0 images");
  assert.equal(formatPlural(1234, "entry", "entries"), "1,234 entries");
});

test("a version is named by its number and the start of its checksum", () => {
  assert.equal(versionText(3, "0123456789abcdef"), "version 3 (01234567)");
});
