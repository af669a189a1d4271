import assert from "node:assert/strict";
import { test } from "node:test";

import { figureChanges, worseText } from "../../bgad/service/web/lib/figures.js";

const set = (before, after) => ({
  images: 40, bad: 20, rows: [],
  before: { auroc: before[0], missed: before[1], false_rejects: before[2] },
  after: { auroc: after[0], missed: after[1], false_rejects: after[2] },
});

test("a change is only named where the shown figures differ, and by what they differ", () => {
  const [auroc] = figureChanges(set([0.94523, 0, 0], [0.94518, 0, 0]));
  assert.deepEqual(auroc, { title: "AUROC", before: "0.94523", after: "0.94518", change: "worse", by: "0.00005" });
  const [rounded] = figureChanges(set([0.9451, 0, 0], [0.9451 + 1e-9, 0, 0]));
  assert.deepEqual([rounded.before, rounded.after, rounded.change], ["0.945", "0.945", ""]);
  const [plain] = figureChanges(set([0.9, 0, 0], [0.95, 0, 0]));
  assert.deepEqual([plain.before, plain.after, plain.change, plain.by], ["0.900", "0.950", "better", "0.050"]);
  const [unknown] = figureChanges(set([null, 0, 0], [0.95, 0, 0]));
  assert.deepEqual([unknown.before, unknown.after, unknown.change], ["–", "0.950", ""]);
});

test("fewer errors are better", () => {
  const [, missed, rejects] = figureChanges(set([0.9, 3, 1], [0.9, 1, 4]));
  assert.deepEqual([missed.change, missed.by, rejects.change, rejects.by], ["better", "2", "worse", "3"]);
});

test("a version that is worse in something says in what and by how much", () => {
  assert.equal(worseText(set([0.95, 3, 1], [0.94, 1, 1]), 2, 1),
    "On the 40 test images, version 2 is worse than version 1 in this: AUROC: 0.940 instead of 0.950 (by 0.010). " +
    "It is better in this: Missed, of 20 bad: 1 instead of 3 (by 2).");
  assert.equal(worseText(set([0.95, 1, 1], [0.95, 1, 1]), 2, 1), "");
  assert.equal(worseText(set([0.95, 1, 1], [0.97, 0, 0]), 2, 1), "");
  assert.equal(worseText({ ...set([0.9, 0, 0], [0.1, 9, 9]), images: 0 }, 2, 1), "");
});
