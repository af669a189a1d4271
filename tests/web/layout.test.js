import assert from "node:assert/strict";
import { test } from "node:test";

import { Viewport } from "../../bgad/service/web/image/viewport.js";
import { GridLayout } from "../../bgad/service/web/lib/grid_layout.js";

function viewport() {
  const view = new Viewport();
  view.resize({ width: 200, height: 100 });
  view.image = { width: 100, height: 100 };
  return view;
}

test("a fitted image is centred with a small margin", () => {
  const view = viewport();
  view.fit();
  assert.deepEqual([view.scale, view.x, view.y], [0.98, 51, 1]);
  view.resize({ width: 400, height: 200 });
  assert.deepEqual([view.scale, view.x, view.y], [1.96, 102, 2]);
});

test("zooming keeps the point under the pointer", () => {
  const view = viewport();
  view.fit();
  const before = view.toImage([120, 40]);
  view.zoom(3, [120, 40]);
  view.toImage([120, 40]).forEach((value, i) => assert.ok(Math.abs(value - before[i]) < 1e-9));
  assert.ok(Math.abs(view.scale - 2.94) < 1e-9);
  view.resize({ width: 400, height: 200 }); // no longer fitted: the size of the canvas does not matter
  assert.ok(Math.abs(view.scale - 2.94) < 1e-9);
});

test("zooming has limits", () => {
  const view = viewport();
  view.fit();
  view.zoom(1e6);
  assert.equal(view.scale, 64);
  view.zoom(1e-6);
  assert.equal(view.scale, 0.2);
});

test("two fingers keep the points of the image under them", () => {
  const view = viewport();
  view.pinch([100, 0], [200, 0], [0, 0]); // twice as far apart
  assert.deepEqual([view.scale, view.x, view.y], [2, 0, 0]);
  assert.deepEqual(view.toImage([200, 0]), [100, 0]);
});

test("a grid has as many columns as fit", () => {
  const layout = new GridLayout(744, 10); // 4 * 172 + 3 * 10 = 718 fits, 5 columns would need 900
  assert.deepEqual([layout.columns, layout.cellWidth, layout.cellHeight], [4, 178, 246]);
  assert.equal(layout.height, 3 * 246 + 2 * 10);
  assert.deepEqual(layout.position(5), { x: 188, y: 256 });
  assert.equal(new GridLayout(100, 3).columns, 2);
  assert.equal(new GridLayout(744, 0).height, 0);
});

test("a grid draws three rows more than are visible on each side", () => {
  const layout = new GridLayout(744, 1000);
  assert.deepEqual(layout.visibleRange(2560, 512), { first: 28, end: 60 }); // rows 10 and 11 are visible
  assert.deepEqual(layout.visibleRange(0, 100), { first: 0, end: 16 });
  assert.deepEqual(new GridLayout(744, 10).visibleRange(0, 476), { first: 0, end: 10 });
});

test("a grid scrolls no farther than it must", () => {
  const layout = new GridLayout(744, 1000);
  assert.equal(layout.scrollTo(0, 500, 400), 0);
  assert.equal(layout.scrollTo(20, 0, 500), 1280 + 246 - 500);
  assert.equal(layout.scrollTo(4, 256, 400), 256);
});
