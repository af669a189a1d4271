// Draws an image on a canvas, with heat map, contour, region, masks, polygon and brush.

import { Viewport } from "./viewport.js";

/** @import { MapLayer } from "./anomaly_map.js" */
/** @import { MaskOverlay } from "./mask_overlay.js" */
/** @import { Point } from "./viewport.js" */
/** @typedef {[colour: string, width: number][]} Pens lines drawn on top of each other, widths in screen pixels */

/** @type {Pens} */
const CONTOUR_PENS = [["#000a", 3.5], ["#00e5ff", 1.6]];
/** @type {Pens} */
const REGION_PENS = [["#000a", 4], ["#fff", 2]];
const REGION_DASH = [8, 5]; // screen pixels
const REGION_MARGIN = 4; // screen pixels between the region and its frame
/** @type {Pens} */
const POLYGON_PENS = [["#000", 4], ["#fff", 2]];
/** @type {Pens} */
const BRUSH_PENS = [["#000", 3], ["#fff", 1.2]];
const CORNER_SIZE = 7; // screen pixels
const MAX_SMOOTH_SCALE = 3; // above, the pixels of an image are shown as squares

export class Viewer {
  viewport = new Viewport();
  /** @type {ImageBitmap | null} */
  image = null;
  /** @type {MapLayer | null} */
  mapLayer = null;
  /** @type {number[] | null} */
  region = null; // that stands out: left, top, right and bottom in pixels of the image
  /** @type {MaskOverlay | null} */
  masks = null;
  isMapShown = true;
  mapStrength = 0.7;
  /** @type {Point[]} */
  polygon = [];
  brushSize = 0; // 0: no brush is shown
  /** @type {Point | null} */
  cursor = null; // in pixels of the image
  #pixelRatio = 1;
  #isDrawPending = false;

  /**
   * @param {HTMLCanvasElement} canvas
   */
  constructor(canvas) {
    const context = canvas.getContext("2d");
    if (!context) throw new Error("this browser cannot draw on a canvas");
    this.canvas = canvas;
    this.context = context;
  }

  /**
   * @param {ImageBitmap} image
   */
  setImage(image) {
    this.image = image;
    this.viewport.image = image;
    this.resize();
    this.fit();
  }

  /**
   * @param {MapLayer | null} layer
   */
  setMap(layer) {
    this.mapLayer = layer;
    this.draw();
  }

  /**
   * @param {number[] | null} region
   */
  setRegion(region) {
    this.region = region;
    this.draw();
  }

  /** Adapts to the size of the canvas on the page. */
  resize() {
    const { canvas } = this;
    const { clientWidth: width, clientHeight: height } = canvas;
    this.#pixelRatio = devicePixelRatio || 1;
    canvas.width = Math.max(1, Math.round(width * this.#pixelRatio));
    canvas.height = Math.max(1, Math.round(height * this.#pixelRatio));
    this.viewport.resize({ width, height });
    this.draw();
  }

  fit() {
    this.viewport.fit();
    this.draw();
  }

  /**
   * @param {number} factor
   * @param {Point} [centre]
   */
  zoom(factor, centre) {
    this.viewport.zoom(factor, centre);
    this.draw();
  }

  /**
   * @param {number} dx
   * @param {number} dy
   */
  pan(dx, dy) {
    this.viewport.pan(dx, dy);
    this.draw();
  }

  /** Draws in the next frame; several calls within a frame draw once. */
  draw() {
    if (this.#isDrawPending) return;
    this.#isDrawPending = true;
    requestAnimationFrame(() => {
      this.#isDrawPending = false;
      this.#drawNow();
    });
  }

  #drawNow() {
    const { context, image, canvas, viewport } = this;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, canvas.width, canvas.height);
    if (!image) return;
    const ratio = this.#pixelRatio;
    const scale = viewport.scale * ratio;
    context.setTransform(scale, 0, 0, scale, viewport.x * ratio, viewport.y * ratio);
    context.imageSmoothingEnabled = scale < MAX_SMOOTH_SCALE;
    context.imageSmoothingQuality = "high";
    context.drawImage(image, 0, 0);
    this.#drawMap(image);
    this.#drawRegion();
    context.imageSmoothingEnabled = false;
    this.masks?.draw(context);
    this.#drawPolygon();
    this.#drawBrush();
  }

  /**
   * @param {ImageBitmap} image
   */
  #drawMap(image) {
    const { context, mapLayer } = this;
    if (!mapLayer || !this.isMapShown) return;
    const { map, heat, contour } = mapLayer;
    context.imageSmoothingEnabled = true;
    context.globalAlpha = this.mapStrength;
    context.drawImage(heat, 0, 0, image.width, image.height);
    context.globalAlpha = 1;
    const [scaleX, scaleY] = [image.width / map.width, image.height / map.height];
    context.save();
    context.scale(scaleX, scaleY);
    this.#stroke(CONTOUR_PENS, contour, scaleX);
    context.restore();
  }

  #drawRegion() {
    const { context, region, viewport } = this;
    if (!region || !this.isMapShown) return;
    const [left, top, right, bottom] = region;
    const margin = REGION_MARGIN / viewport.scale;
    const path = new Path2D();
    path.rect(left - margin, top - margin, right - left + 2 * margin, bottom - top + 2 * margin);
    context.setLineDash(REGION_DASH.map((length) => length / viewport.scale));
    this.#stroke(REGION_PENS, path);
    context.setLineDash([]);
  }

  #drawPolygon() {
    const { context, polygon } = this;
    if (!polygon.length) return;
    const path = new Path2D();
    for (const [x, y] of polygon) path.lineTo(x, y);
    if (this.cursor) path.lineTo(...this.cursor);
    this.#stroke(POLYGON_PENS, path);
    const size = CORNER_SIZE / this.viewport.scale;
    context.fillStyle = "#fff";
    for (const [x, y] of polygon) context.fillRect(x - size / 2, y - size / 2, size, size);
  }

  #drawBrush() {
    if (!this.cursor || !this.brushSize) return;
    const path = new Path2D();
    path.arc(...this.cursor, Math.max(0.5, this.brushSize / 2), 0, 2 * Math.PI);
    this.#stroke(BRUSH_PENS, path);
  }

  /**
   * Draws a line with each of the pens, as wide on the screen at any zoom.
   * @param {Pens} pens
   * @param {Path2D} path
   * @param {number} [extraScale] by which the context is scaled beside the viewport
   */
  #stroke(pens, path, extraScale = 1) {
    for (const [colour, width] of pens) {
      this.context.strokeStyle = colour;
      this.context.lineWidth = width / this.viewport.scale / extraScale;
      this.context.stroke(path);
    }
  }
}
