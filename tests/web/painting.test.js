import assert from "node:assert/strict";
import { test } from "node:test";

import { Painting } from "../../bgad/service/web/image/painting.js";
import { textOf } from "./helpers.js";

const EMPTY = ["......", "......", "......", "......"];

function dot(painting, x, y, value = 1) {
  painting.begin();
  painting.brush(x + 0.5, y + 0.5, 1, value);
  painting.end();
}

function defect(painting) {
  return textOf(painting.layers.defect);
}

test("the brush connects its positions within a stroke, and not between strokes", () => {
  const painting = new Painting(6, 4);
  painting.begin();
  painting.brush(0.5, 1.5, 1, 1);
  painting.brush(3.5, 1.5, 1, 1);
  painting.end();
  dot(painting, 5, 3);
  assert.deepEqual(defect(painting), ["......", "####..", "......", ".....#"]);
  assert.equal(painting.undoSteps.length, 2);
});

test("undo and redo walk through the steps", () => {
  const painting = new Painting(6, 4);
  dot(painting, 1, 1);
  dot(painting, 4, 2);
  assert.equal(painting.revision, 2);
  painting.undo();
  assert.deepEqual(defect(painting), ["......", ".#....", "......", "......"]);
  assert.equal(painting.revision, 1);
  painting.undo();
  painting.undo(); // there is nothing left to undo
  assert.deepEqual(defect(painting), EMPTY);
  assert.equal(painting.revision, 0);
  painting.redo();
  painting.redo();
  painting.redo();
  assert.deepEqual(defect(painting), ["......", ".#....", "....#.", "......"]);
  assert.equal(painting.revision, 2);
});

test("a new step drops what could be redone", () => {
  const painting = new Painting(6, 4);
  dot(painting, 1, 1);
  painting.undo();
  dot(painting, 2, 2);
  painting.redo();
  assert.deepEqual(defect(painting), ["......", "......", "..#...", "......"]);
  assert.equal(painting.revision, 2); // not 1: it is another painting than the one that was undone
});

test("a step holds the changed pixels alone", () => {
  const painting = new Painting(6, 4);
  dot(painting, 1, 1);
  const [{ box, before, after }] = painting.undoSteps;
  assert.deepEqual(box, { x: 1, y: 1, width: 1, height: 1 });
  assert.deepEqual([[...before], [...after]], [[0], [1]]);
});

test("a stroke that changes nothing is no step", () => {
  const painting = new Painting(6, 4);
  dot(painting, 1, 1, 0);
  dot(painting, 40, 40);
  painting.clear();
  assert.equal(painting.undoSteps.length, 0);
});

test("erasing is a step like painting", () => {
  const painting = new Painting(6, 4);
  painting.polygon([[0, 0], [6, 0], [6, 2], [0, 2]]);
  dot(painting, 2, 1, 0);
  assert.deepEqual(defect(painting), ["######", "##.###", "......", "......"]);
  painting.undo();
  assert.deepEqual(defect(painting), ["######", "######", "......", "......"]);
});

test("an abandoned stroke leaves no trace", () => {
  const painting = new Painting(6, 4);
  dot(painting, 1, 1);
  painting.begin();
  painting.brush(1.5, 1.5, 1, 0);
  painting.brush(4.5, 1.5, 3, 1);
  painting.abandon();
  assert.deepEqual(defect(painting), ["......", ".#....", "......", "......"]);
  assert.equal(painting.undoSteps.length, 1);
  assert.equal(painting.stroke, null);
});

test("fill marks the inside of a closed outline alone", () => {
  const painting = new Painting(6, 5);
  painting.polygon([[0, 0], [6, 0], [6, 5], [0, 5]]);
  for (const [x, y] of [[2, 2], [3, 2]]) dot(painting, x, y, 0);
  assert.equal(painting.fill(2.2, 2.9), true);
  assert.deepEqual(textOf(painting.layers.defect), Array(5).fill("######"));
  assert.equal(painting.undoSteps.length, 4);
  painting.clear();
  assert.equal(painting.fill(2, 2), false); // no outline
  assert.equal(painting.fill(-1, 2), true); // outside there is nothing to fill
  assert.equal(painting.layers.defect.isEmpty(), true);
});

test("layers are painted apart and undone in the order of the steps", () => {
  const painting = new Painting(6, 4);
  dot(painting, 1, 1);
  painting.currentLayer = "ignore";
  dot(painting, 3, 3);
  assert.deepEqual(textOf(painting.layers.ignore), ["......", "......", "......", "...#.."]);
  painting.currentLayer = "defect";
  painting.undo();
  assert.equal(painting.layers.ignore.isEmpty(), true);
  assert.equal(painting.layers.defect.isEmpty(), false);
});

test("the oldest of more than 100 steps are forgotten", () => {
  const painting = new Painting(11, 10);
  for (let i = 0; i < 105; i += 1) dot(painting, i % 11, Math.floor(i / 11));
  assert.equal(painting.undoSteps.length, 100);
  for (let i = 0; i < 101; i += 1) painting.undo();
  assert.equal(painting.revision, 5);
  assert.deepEqual(defect(painting)[0], "#####......");
});

test("a snapshot is restored as steps", () => {
  const painting = new Painting(6, 4);
  dot(painting, 1, 1);
  dot(painting, 2, 3);
  const snapshot = painting.snapshot();
  assert.deepEqual(snapshot.map(({ layer, box }) => [layer, box]), [
    ["defect", { x: 1, y: 1, width: 2, height: 3 }], ["ignore", null],
  ]);
  const other = new Painting(6, 4);
  dot(other, 5, 0);
  other.restore(snapshot);
  assert.deepEqual(defect(other), ["......", ".#....", "......", "..#..."]);
  other.undo();
  assert.deepEqual(defect(other), [".....#", "......", "......", "......"]);
});

test("a saved mask is loaded without a step", () => {
  const boxes = [];
  const painting = new Painting(2, 2, (layer, box) => boxes.push([layer, box]));
  painting.load("ignore", Uint8Array.of(0, 1, 0, 0));
  assert.deepEqual(textOf(painting.layers.ignore), [".#", ".."]);
  assert.equal(painting.revision, 0);
  assert.deepEqual(boxes, [["ignore", { x: 0, y: 0, width: 2, height: 2 }]]);
});

test("listeners hear of pixels and of steps", () => {
  const calls = [];
  const painting = new Painting(6, 4, (layer) => calls.push(layer), () => calls.push("steps"));
  dot(painting, 1, 1);
  painting.undo();
  assert.deepEqual(calls, ["defect", "steps", "defect", "steps"]);
});
