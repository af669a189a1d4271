// Masks at the image's own resolution: brush, polygon, fill, undo and redo.

import { base64 } from "../lib/reviews.js";

export const COLOURS = { defect: [255, 0, 200, 130], ignore: [0, 140, 255, 130] };
const MOST_STEPS = 100;
const MOST_BYTES = 64 * 2 ** 20; // of all steps

/** One mask: a byte for each pixel, and a canvas that shows it. */
class Layer {
  constructor(width, height, rgba) {
    this.width = width;
    this.height = height;
    this.rgba = rgba;
    this.bits = new Uint8Array(width * height);
    this.canvas = new OffscreenCanvas(width, height);
    this.context = this.canvas.getContext("2d");
  }

  /** Draw a part of the mask anew. */
  refresh({ x, y, width, height }) {
    if (width <= 0 || height <= 0) return;
    const drawn = new ImageData(width, height);
    for (let row = 0; row < height; row += 1) {
      for (let column = 0; column < width; column += 1) {
        if (this.bits[(y + row) * this.width + x + column]) drawn.data.set(this.rgba, 4 * (row * width + column));
      }
    }
    this.context.putImageData(drawn, x, y);
  }

  crop({ x, y, width, height }, bits = this.bits) {
    const cut = new Uint8Array(width * height);
    for (let row = 0; row < height; row += 1) {
      const from = (y + row) * this.width + x;
      cut.set(bits.subarray(from, from + width), row * width);
    }
    return cut;
  }

  /** The part of a box in which the mask is not what it was; null if there is none. */
  changed(box, before) {
    let [left, top, right, bottom] = [Infinity, Infinity, -1, -1];
    for (let row = box.y; row < box.y + box.height; row += 1) {
      for (let column = box.x; column < box.x + box.width; column += 1) {
        const at = row * this.width + column;
        if (this.bits[at] === before[at]) continue;
        left = Math.min(left, column);
        right = Math.max(right, column);
        top = Math.min(top, row);
        bottom = row;
      }
    }
    return bottom < 0 ? null : { x: left, y: top, width: right - left + 1, height: bottom - top + 1 };
  }

  paste(box, cut) {
    for (let row = 0; row < box.height; row += 1) {
      const part = cut.subarray(row * box.width, (row + 1) * box.width);
      this.bits.set(part, (box.y + row) * this.width + box.x);
    }
    this.refresh(box);
  }
}

export class Painting {
  constructor(width, height, changed) {
    this.width = width;
    this.height = height;
    this.changed = changed;
    this.layers = {
      defect: new Layer(width, height, COLOURS.defect),
      ignore: new Layer(width, height, COLOURS.ignore),
    };
    this.current = "defect";
    this.whole = { x: 0, y: 0, width, height };
    this.done = [];
    this.undone = [];
    this.steps = 0; // that were ever made
    this.forgotten = 0; // the last step that cannot be taken back any more
    this.stroke = null;
  }

  get layer() {
    return this.layers[this.current];
  }

  /** A number that says what is painted: the same again when steps were taken back. */
  get mark() {
    return this.done.at(-1)?.number ?? this.forgotten;
  }

  // --- strokes

  begin(layer = this.layer) {
    this.stroke = { layer, before: layer.bits.slice(), box: null, last: null };
  }

  /** A round brush from where it was last to here. */
  brush(x, y, size, value) {
    const { last } = this.stroke;
    const [fromX, fromY] = last ?? [x, y];
    const steps = Math.max(1, Math.ceil(Math.hypot(x - fromX, y - fromY) / Math.max(1, size / 4)));
    let dirty = null;
    for (let i = last ? 1 : 0; i <= steps; i += 1) {
      const part = i / steps;
      dirty = joined(dirty, this.#disc(fromX + (x - fromX) * part, fromY + (y - fromY) * part, size / 2, value));
    }
    this.stroke.last = [x, y];
    this.#dirty(dirty);
  }

  #disc(x, y, radius, value) {
    const box = this.#clipped(x - radius, y - radius, x + radius, y + radius);
    for (let row = box.y; row < box.y + box.height; row += 1) {
      for (let column = box.x; column < box.x + box.width; column += 1) {
        const near = (column + 0.5 - x) ** 2 + (row + 0.5 - y) ** 2 <= Math.max(radius, 0.71) ** 2;
        if (near) this.stroke.layer.bits[row * this.width + column] = value;
      }
    }
    return box;
  }

  #clipped(left, top, right, bottom) {
    const x = Math.min(this.width, Math.max(0, Math.floor(left)));
    const y = Math.min(this.height, Math.max(0, Math.floor(top)));
    const width = Math.max(0, Math.min(this.width, Math.ceil(right) + 1) - x);
    const height = Math.max(0, Math.min(this.height, Math.ceil(bottom) + 1) - y);
    return { x, y, width, height };
  }

  #dirty(box) {
    if (!box || !box.width || !box.height) return;
    this.stroke.box = joined(this.stroke.box, box);
    this.stroke.layer.refresh(box);
    this.changed();
  }

  /** Keep what the stroke has changed, so that it can be taken back. */
  end() {
    const { stroke } = this;
    this.stroke = null;
    const box = stroke?.box && stroke.layer.changed(stroke.box, stroke.before);
    if (!box) return;
    const { layer } = stroke;
    this.steps += 1;
    this.done.push({ number: this.steps, layer, box, before: layer.crop(box, stroke.before), after: layer.crop(box) });
    while (this.done.length > MOST_STEPS || (this.done.length > 1 && bytes(this.done) > MOST_BYTES)) {
      this.forgotten = this.done.shift().number;
    }
    this.undone = [];
    this.changed();
  }

  /** Forget the stroke: a second finger came, and it was meant to move the picture. */
  abandon() {
    const { stroke } = this;
    this.stroke = null;
    if (!stroke?.box) return;
    stroke.layer.paste(stroke.box, stroke.layer.crop(stroke.box, stroke.before));
    this.changed();
  }

  // --- areas

  /** Mark what is inside a polygon. */
  polygon(points) {
    this.begin();
    const ys = points.map(([, y]) => y);
    const xs = points.map(([x]) => x);
    const box = this.#clipped(Math.min(...xs), Math.min(...ys), Math.max(...xs), Math.max(...ys));
    for (let row = box.y; row < box.y + box.height; row += 1) {
      const crossings = crossed(points, row + 0.5);
      for (let i = 0; i + 1 < crossings.length; i += 2) {
        const from = Math.max(0, Math.round(crossings[i]));
        const to = Math.min(this.width, Math.round(crossings[i + 1]));
        if (to > from) this.layer.bits.fill(1, row * this.width + from, row * this.width + to);
      }
    }
    this.#dirty(box);
    this.end();
  }

  /** Mark the empty area around a point if it is closed; false if it reaches the border of the image. */
  fill(x, y) {
    const { width, height } = this;
    const start = Math.floor(y) * width + Math.floor(x);
    const { bits } = this.layer;
    if (x < 0 || y < 0 || x >= width || y >= height || bits[start]) return true;
    const area = new Uint8Array(bits.length);
    const waiting = [start];
    area[start] = 1;
    while (waiting.length) {
      const at = waiting.pop();
      const column = at % width;
      const row = (at - column) / width;
      if (column === 0 || row === 0 || column === width - 1 || row === height - 1) return false;
      for (const next of [at - 1, at + 1, at - width, at + width]) {
        if (bits[next] || area[next]) continue;
        area[next] = 1;
        waiting.push(next);
      }
    }
    this.begin();
    for (let i = 0; i < area.length; i += 1) if (area[i]) bits[i] = 1;
    this.#dirty(this.whole);
    this.end();
    return true;
  }

  clear() {
    this.begin();
    this.layer.bits.fill(0);
    this.#dirty(this.whole);
    this.end();
  }

  // --- back and forth

  undo() {
    this.#step(this.done, this.undone, "before");
  }

  redo() {
    this.#step(this.undone, this.done, "after");
  }

  #step(from, to, side) {
    const step = from.pop();
    if (!step) return;
    step.layer.paste(step.box, step[side]);
    to.push(step);
    this.changed();
  }

  // --- in and out

  marked(name) {
    return this.layers[name].bits.includes(1);
  }

  /** A mask that was painted before. */
  load(name, picture) {
    const layer = this.layers[name];
    const context = new OffscreenCanvas(this.width, this.height).getContext("2d", { willReadFrequently: true });
    context.drawImage(picture, 0, 0, this.width, this.height);
    const { data } = context.getImageData(0, 0, this.width, this.height);
    for (let i = 0; i < layer.bits.length; i += 1) layer.bits[i] = data[4 * i] || data[4 * i + 1] || data[4 * i + 2] ? 1 : 0;
    layer.refresh(this.whole);
    this.changed();
  }

  /** What is marked in each layer, for `restore`; null where nothing is. */
  kept() {
    const empty = new Uint8Array(this.width * this.height);
    return Object.entries(this.layers).map(([name, layer]) => {
      const box = layer.changed(this.whole, empty);
      return [name, box && { box, cut: layer.crop(box) }];
    });
  }

  /** Paint what was kept, as a step that can be taken back. */
  restore(kept) {
    for (const [name, part] of kept) {
      const layer = this.layers[name];
      this.begin(layer);
      layer.bits.fill(0);
      if (part) layer.paste(part.box, part.cut);
      this.#dirty(this.whole);
      this.end();
    }
  }

  /** White on black as PNG in base64; null where nothing is marked. */
  async encoded(name) {
    if (!this.marked(name)) return null;
    const { bits } = this.layers[name];
    const drawn = new ImageData(this.width, this.height);
    const words = new Uint32Array(drawn.data.buffer);
    for (let i = 0; i < bits.length; i += 1) words[i] = bits[i] ? 0xffffffff : 0xff000000;
    const canvas = new OffscreenCanvas(this.width, this.height);
    canvas.getContext("2d").putImageData(drawn, 0, 0);
    return base64(await canvas.convertToBlob({ type: "image/png" }));
  }
}

/** Where a row crosses a polygon, from left to right. */
function crossed(points, y) {
  const found = [];
  points.forEach(([x1, y1], i) => {
    const [x2, y2] = points[(i + 1) % points.length];
    if (y1 <= y !== y2 <= y) found.push(x1 + ((y - y1) / (y2 - y1)) * (x2 - x1));
  });
  return found.sort((a, b) => a - b);
}

function bytes(steps) {
  return steps.reduce((sum, step) => sum + step.before.length + step.after.length, 0);
}

function joined(one, two) {
  if (!one) return two;
  if (!two) return one;
  const x = Math.min(one.x, two.x);
  const y = Math.min(one.y, two.y);
  const width = Math.max(one.x + one.width, two.x + two.width) - x;
  const height = Math.max(one.y + one.height, two.y + two.height) - y;
  return { x, y, width, height };
}
