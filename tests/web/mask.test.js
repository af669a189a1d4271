import assert from "node:assert/strict";
import { test } from "node:test";

import { Mask, rowCrossings, unionBox } from "../../bgad/service/web/image/mask.js";
import { maskOf, textOf } from "./helpers.js";

test("a disc marks the pixels whose centres it holds", () => {
  const mask = new Mask(5, 5);
  mask.fillDisc([2.5, 2.5], 1, 1); // the four neighbours' centres are exactly 1 away
  assert.deepEqual(textOf(mask), [".....", "..#..", ".###.", "..#..", "....."]);
  mask.fillDisc([2.5, 2.5], 0.9, 0);
  assert.deepEqual(textOf(mask), [".....", "..#..", ".#.#.", "..#..", "....."]);
});

test("the smallest brush marks at least one pixel, and four where it is on their common corner", () => {
  const centred = new Mask(3, 3);
  centred.fillDisc([1.5, 1.5], 0.5, 1);
  assert.deepEqual(textOf(centred), ["...", ".#.", "..."]);
  const corner = new Mask(3, 3);
  corner.fillDisc([1, 1], 0.5, 1); // each centre is 0.707 away
  assert.deepEqual(textOf(corner), ["##.", "##.", "..."]);
});

test("a disc is clipped at the border, and its box covers what it may have changed", () => {
  const mask = new Mask(4, 4);
  const box = mask.fillDisc([0, 0], 1.2, 1);
  assert.deepEqual(textOf(mask), ["#...", "....", "....", "...."]); // the next centres are 1.58 away
  assert.deepEqual(box, { x: 0, y: 0, width: 3, height: 3 });
  assert.equal(mask.fillDisc([9, 9], 1, 1).width, 0);
});

test("a stroke leaves no gaps between its ends", () => {
  const mask = new Mask(8, 3);
  const box = mask.strokeLine([1.5, 1.5], [5.5, 1.5], 1, 1);
  assert.deepEqual(textOf(mask), ["........", ".#####..", "........"]);
  assert.deepEqual(box, { x: 1, y: 1, width: 6, height: 2 });
});

test("an erasing stroke unmarks only what it touches", () => {
  const mask = maskOf("######", "######", "######");
  mask.strokeLine([2.5, 1.5], [3.5, 1.5], 1, 0);
  assert.deepEqual(textOf(mask), ["######", "##..##", "######"]);
});

test("a polygon marks the pixels whose centres are inside", () => {
  const square = new Mask(6, 5);
  square.fillPolygon([[1, 1], [4, 1], [4, 3], [1, 3]]);
  assert.deepEqual(textOf(square), ["......", ".###..", ".###..", "......", "......"]);
  const triangle = new Mask(5, 5);
  triangle.fillPolygon([[0, 0], [4, 0], [0, 4]]); // row r is crossed at x = 3.5 - r
  assert.deepEqual(textOf(triangle), ["####.", "###..", "##...", "#....", "....."]);
});

test("a row belongs to a polygon that holds the middle of the row", () => {
  const mask = new Mask(5, 5);
  mask.fillPolygon([[1, 1.6], [4, 1.6], [4, 3.4], [1, 3.4]]);
  assert.deepEqual(textOf(mask), [".....", ".....", ".###.", ".....", "....."]);
});

test("a polygon that leaves the image is clipped", () => {
  const mask = new Mask(3, 3);
  mask.fillPolygon([[-5, 1], [9, 1], [9, 9], [-5, 9]]);
  assert.deepEqual(textOf(mask), ["...", "###", "###"]);
});

test("a row through the arms of a U crosses four edges", () => {
  const u = [[0, 0], [6, 0], [6, 4], [4, 4], [4, 2], [2, 2], [2, 4], [0, 4]];
  assert.deepEqual(rowCrossings(u, 1), [0, 6]);
  assert.deepEqual(rowCrossings(u, 3), [0, 2, 4, 6]);
  assert.deepEqual(rowCrossings(u, 5), []);
  assert.deepEqual(rowCrossings([[0, 0], [4, 0], [0, 4]], 1), [0, 3]);
});

test("an area is enclosed when it does not reach the border", () => {
  const ring = maskOf(".......", ".####..", ".#..#..", ".#..#..", ".####..", ".......");
  const area = ring.enclosedArea(2, 2);
  assert.deepEqual([...area.keys()].filter((pixel) => area[pixel]), [16, 17, 23, 24]); // rows 2 and 3, columns 2 and 3
  assert.equal(ring.enclosedArea(0, 0), null);
  ring.bits[1 * 7 + 2] = 0; // a gap in the upper side
  assert.equal(ring.enclosedArea(2, 2), null);
});

test("an area that reaches any side of the image is not enclosed", () => {
  const openSides = [
    maskOf("####", "#...", "####"), maskOf("####", "...#", "####"), maskOf("#.#", "#.#", "###"), maskOf("###", "#.#", "#.#"),
  ];
  for (const mask of openSides) assert.equal(mask.enclosedArea(1, 1), null);
});

test("an area does not leak through a diagonal", () => {
  const diamond = maskOf(".......", "...#...", "..#.#..", "...#...", ".......");
  const area = diamond.enclosedArea(3, 2);
  assert.equal(area.reduce((sum, bit) => sum + bit, 0), 1);
});

test("a cropped part goes back into its place", () => {
  const mask = maskOf("#..#", ".##.", "#..#");
  const box = { x: 1, y: 0, width: 2, height: 2 };
  const part = mask.crop(box);
  assert.deepEqual([...part], [0, 0, 1, 1]);
  mask.bits.fill(0);
  mask.paste(box, part);
  assert.deepEqual(textOf(mask), ["....", ".##.", "...."]);
});

test("the changed box is as small as possible", () => {
  const mask = maskOf("....", "....", "....");
  const before = mask.bits.slice();
  assert.equal(mask.changedBox(mask.bounds, before), null);
  mask.bits[1 * 4 + 1] = 1;
  mask.bits[2 * 4 + 3] = 1;
  assert.deepEqual(mask.changedBox(mask.bounds, before), { x: 1, y: 1, width: 3, height: 2 });
  assert.deepEqual(mask.changedBox({ x: 0, y: 0, width: 3, height: 3 }, before), { x: 1, y: 1, width: 1, height: 1 });
});

test("the union of boxes holds both; null is empty", () => {
  const one = { x: 1, y: 2, width: 3, height: 1 };
  assert.deepEqual(unionBox(one, { x: 0, y: 4, width: 2, height: 2 }), { x: 0, y: 2, width: 4, height: 4 });
  assert.equal(unionBox(one, null), one);
  assert.equal(unionBox(null, one), one);
  assert.equal(unionBox(null, null), null);
});
