// The part of an image that a canvas shows: zoom and pan. Nothing here touches the page.

const MAX_SCALE = 64; // screen pixels for one pixel of the image
const MIN_SHARE = 0.2; // of the canvas's width, to which an image can be zoomed out
const FIT_SHARE = 0.98; // of the canvas, which a fitted image fills

/** @typedef {{ width: number, height: number }} Size */
/** @typedef {[x: number, y: number]} Point */

export class Viewport {
  /** @type {Size} */
  canvas = { width: 1, height: 1 }; // in screen pixels
  /** @type {Size | null} */
  image = null;
  scale = 1;
  x = 0; // of the image's corner on the canvas
  y = 0;
  isFitted = false; // the whole image stays in view when the canvas changes its size

  /**
   * @param {Size} canvas
   */
  resize(canvas) {
    this.canvas = canvas;
    if (this.isFitted) this.fit();
  }

  /** Shows the whole image in the middle of the canvas. */
  fit() {
    if (!this.image) return;
    const { canvas, image } = this;
    this.scale = Math.min(canvas.width / image.width, canvas.height / image.height) * FIT_SHARE || 1;
    this.x = (canvas.width - image.width * this.scale) / 2;
    this.y = (canvas.height - image.height * this.scale) / 2;
    this.isFitted = true;
  }

  /**
   * Zooms around a point of the canvas, which keeps its place.
   * @param {number} factor
   * @param {Point} [centre]
   */
  zoom(factor, [x, y] = [this.canvas.width / 2, this.canvas.height / 2]) {
    if (!this.image) return;
    const minScale = Math.min(MIN_SHARE * Math.min(this.canvas.width / this.image.width, 1), this.scale);
    const scale = Math.max(minScale, Math.min(MAX_SCALE, this.scale * factor));
    this.x = x - ((x - this.x) * scale) / this.scale;
    this.y = y - ((y - this.y) * scale) / this.scale;
    this.scale = scale;
    this.isFitted = false;
  }

  /**
   * @param {number} dx in screen pixels
   * @param {number} dy
   */
  pan(dx, dy) {
    this.x += dx;
    this.y += dy;
    this.isFitted = false;
  }

  /**
   * Follows two fingers, one of which has moved: their middle pans, their distance zooms.
   * @param {Point} before the moved finger's last position
   * @param {Point} now
   * @param {Point} other the other finger's position
   */
  pinch(before, now, other) {
    this.pan((now[0] - before[0]) / 2, (now[1] - before[1]) / 2);
    const distance = (/** @type {Point} */ [x, y]) => Math.max(0.1, Math.hypot(x - other[0], y - other[1]));
    this.zoom(distance(now) / distance(before), [(now[0] + other[0]) / 2, (now[1] + other[1]) / 2]);
  }

  /**
   * Converts a point of the canvas to pixels of the image.
   * @param {Point} point
   * @returns {Point}
   */
  toImage([x, y]) {
    return [(x - this.x) / this.scale, (y - this.y) / this.scale];
  }
}
