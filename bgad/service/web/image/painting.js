// What is painted on an image: two masks, with strokes, undo and redo. Nothing here touches the page.

import { Mask, unionBox } from "./mask.js";

/** @import { Bit, Box, Point } from "./mask.js" */
/** @typedef {"defect" | "ignore"} LayerName */
/** @typedef {{ layer: LayerName, box: Box, before: Uint8Array, after: Uint8Array, number: number }} Step */
/** @typedef {{ layer: LayerName, before: Uint8Array, box: Box | null, last: Point | null }} Stroke */
/** @typedef {{ layer: LayerName, box: Box | null, bits: Uint8Array }[]} Snapshot `box` is null for an empty layer */

/** @type {LayerName[]} */
export const LAYER_NAMES = ["defect", "ignore"];
const MAX_STEPS = 100;
const MAX_BYTES = 64 * 2 ** 20; // of all steps together

export class Painting {
  /** @type {LayerName} */
  currentLayer = "defect";
  /** @type {Step[]} */
  undoSteps = [];
  /** @type {Step[]} */
  redoSteps = [];
  /** @type {Stroke | null} */
  stroke = null;
  #stepCount = 0; // steps ever made
  #oldestRevision = 0; // the last step that can no longer be undone

  /**
   * @param {number} width
   * @param {number} height
   * @param {(layer: LayerName, box: Box) => void} onPixels is called when pixels of a layer have changed
   * @param {() => void} onSteps is called when what can be undone or redone has changed
   */
  constructor(width, height, onPixels = () => {}, onSteps = () => {}) {
    this.width = width;
    this.height = height;
    this.onPixels = onPixels;
    this.onSteps = onSteps;
    this.layers = { defect: new Mask(width, height), ignore: new Mask(width, height) };
  }

  /** A number that identifies what is painted; it returns to its former value when steps are undone. */
  get revision() {
    return this.undoSteps.at(-1)?.number ?? this.#oldestRevision;
  }

  // --- strokes

  /**
   * Begins a stroke, or any other step that can be undone.
   * @param {LayerName} [layer]
   */
  begin(layer = this.currentLayer) {
    this.stroke = { layer, before: this.layers[layer].bits.slice(), box: null, last: null };
  }

  /**
   * Draws with a round brush from its last position to a point.
   * @param {number} x
   * @param {number} y
   * @param {number} size the brush's diameter
   * @param {Bit} value 1 paints, 0 erases
   */
  brush(x, y, size, value) {
    if (!this.stroke) return;
    const { layer, last } = this.stroke;
    this.stroke.last = [x, y];
    this.#touch(this.layers[layer].strokeLine(last ?? [x, y], [x, y], size, value));
  }

  /** Ends the stroke, and keeps what it has changed as a step that can be undone. */
  end() {
    const { stroke } = this;
    this.stroke = null;
    const mask = stroke && this.layers[stroke.layer];
    const box = stroke?.box && mask?.changedBox(stroke.box, stroke.before);
    if (!stroke || !mask || !box) return;
    this.#stepCount += 1;
    const before = mask.crop(box, stroke.before);
    this.undoSteps.push({ number: this.#stepCount, layer: stroke.layer, box, before, after: mask.crop(box) });
    this.#limitSteps();
    this.redoSteps = [];
    this.onSteps();
  }

  /** Drops the oldest steps where there are too many, but never the last one. */
  #limitSteps() {
    const steps = this.undoSteps;
    while (steps.length > MAX_STEPS || (steps.length > 1 && byteCount(steps) > MAX_BYTES)) {
      this.#oldestRevision = steps.shift()?.number ?? 0;
    }
  }

  /** Takes back the stroke: a second finger has arrived, so the gesture is a pinch. */
  abandon() {
    const { stroke } = this;
    this.stroke = null;
    if (stroke?.box) this.#paste(stroke.layer, stroke.box, this.layers[stroke.layer].crop(stroke.box, stroke.before));
  }

  // --- areas

  /**
   * Marks the inside of a polygon.
   * @param {Point[]} points
   */
  polygon(points) {
    this.#step(this.currentLayer, (mask) => mask.fillPolygon(points));
  }

  /**
   * Marks the unmarked area around a point; returns false where the area is not enclosed.
   * @param {number} x
   * @param {number} y
   */
  fill(x, y) {
    const mask = this.layers[this.currentLayer];
    const [column, row] = [Math.floor(x), Math.floor(y)];
    const isInside = x >= 0 && y >= 0 && x < this.width && y < this.height;
    if (!isInside || mask.bits[row * this.width + column]) return true;
    const area = mask.enclosedArea(column, row);
    if (!area) return false;
    this.#step(this.currentLayer, () => {
      for (let i = 0; i < area.length; i += 1) if (area[i]) mask.bits[i] = 1;
      return mask.bounds;
    });
    return true;
  }

  /** Erases the current layer. */
  clear() {
    this.#step(this.currentLayer, (mask) => {
      mask.bits.fill(0);
      return mask.bounds;
    });
  }

  // --- undo and redo

  undo() {
    const step = this.undoSteps.pop();
    if (!step) return;
    this.redoSteps.push(step);
    this.#paste(step.layer, step.box, step.before);
  }

  redo() {
    const step = this.redoSteps.pop();
    if (!step) return;
    this.undoSteps.push(step);
    this.#paste(step.layer, step.box, step.after);
  }

  // --- loading and drafts

  /**
   * Replaces a layer by a saved mask; this is not a step.
   * @param {LayerName} layer
   * @param {Uint8Array} bits
   */
  load(layer, bits) {
    const mask = this.layers[layer];
    mask.bits.set(bits);
    this.onPixels(layer, mask.bounds);
  }

  /**
   * Copies the marked part of each layer, for `restore`.
   * @returns {Snapshot}
   */
  snapshot() {
    const empty = new Uint8Array(this.width * this.height);
    return LAYER_NAMES.map((layer) => {
      const mask = this.layers[layer];
      const box = mask.changedBox(mask.bounds, empty);
      return { layer, box, bits: box ? mask.crop(box) : new Uint8Array() };
    });
  }

  /**
   * Paints a snapshot, as steps that can be undone.
   * @param {Snapshot} snapshot
   */
  restore(snapshot) {
    for (const { layer, box, bits } of snapshot) {
      this.#step(layer, (mask) => {
        mask.bits.fill(0);
        if (box) mask.paste(box, bits);
        return mask.bounds;
      });
    }
  }

  // --- helpers

  /**
   * Runs a change as one step that can be undone.
   * @param {LayerName} layer
   * @param {(mask: Mask) => Box} change returns the box that may have changed
   */
  #step(layer, change) {
    this.begin(layer);
    this.#touch(change(this.layers[layer]));
    this.end();
  }

  /**
   * Records that the stroke may have changed a box.
   * @param {Box | null} box
   */
  #touch(box) {
    if (!this.stroke || !box?.width || !box.height) return;
    this.stroke.box = unionBox(this.stroke.box, box);
    this.onPixels(this.stroke.layer, box);
  }

  /**
   * @param {LayerName} layer
   * @param {Box} box
   * @param {Uint8Array} part
   */
  #paste(layer, box, part) {
    this.layers[layer].paste(box, part);
    this.onPixels(layer, box);
    this.onSteps();
  }
}

/**
 * @param {Step[]} steps
 */
function byteCount(steps) {
  return steps.reduce((sum, step) => sum + step.before.length + step.after.length, 0);
}
