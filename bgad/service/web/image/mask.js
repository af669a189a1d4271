// A binary mask and its operations: brush, polygon, flood fill. Nothing here touches the page.

/** @typedef {{ x: number, y: number, width: number, height: number }} Box */
/** @typedef {[x: number, y: number]} Point */
/** @typedef {0 | 1} Bit */

const MIN_RADIUS = 0.71; // just over half of a pixel's diagonal, so that the brush always reaches a pixel's centre

/** One byte for each pixel: 1 where it is marked. */
export class Mask {
  /**
   * @param {number} width
   * @param {number} height
   */
  constructor(width, height) {
    this.width = width;
    this.height = height;
    this.bits = new Uint8Array(width * height);
  }

  /** @returns {Box} */
  get bounds() {
    return { x: 0, y: 0, width: this.width, height: this.height };
  }

  isEmpty() {
    return !this.bits.includes(1);
  }

  /**
   * Sets the pixels whose centres lie within a disc; returns the box that may have changed.
   * @param {Point} centre
   * @param {number} radius
   * @param {Bit} value
   */
  fillDisc([x, y], radius, value) {
    const box = this.#clip(x - radius, y - radius, x + radius, y + radius);
    const limit = Math.max(radius, MIN_RADIUS) ** 2;
    for (let row = box.y; row < box.y + box.height; row += 1) {
      for (let column = box.x; column < box.x + box.width; column += 1) {
        const distance = (column + 0.5 - x) ** 2 + (row + 0.5 - y) ** 2;
        if (distance <= limit) this.bits[row * this.width + column] = value;
      }
    }
    return box;
  }

  /**
   * Draws a stroke with a round brush; returns the box that may have changed.
   * @param {Point} from
   * @param {Point} to
   * @param {number} size the brush's diameter
   * @param {Bit} value
   */
  strokeLine(from, to, size, value) {
    const length = Math.hypot(to[0] - from[0], to[1] - from[1]);
    const steps = Math.max(1, Math.ceil(length / Math.max(1, size / 4)));
    /** @type {Box | null} */
    let box = null;
    for (let i = 0; i <= steps; i += 1) {
      const part = i / steps;
      const centre = /** @type {Point} */ ([from[0] + (to[0] - from[0]) * part, from[1] + (to[1] - from[1]) * part]);
      box = unionBox(box, this.fillDisc(centre, size / 2, value));
    }
    return box;
  }

  /**
   * Marks the inside of a polygon by the even-odd rule; returns the box that may have changed.
   * @param {Point[]} points
   */
  fillPolygon(points) {
    const xs = points.map(([x]) => x);
    const ys = points.map(([, y]) => y);
    const box = this.#clip(Math.min(...xs), Math.min(...ys), Math.max(...xs), Math.max(...ys));
    for (let row = box.y; row < box.y + box.height; row += 1) {
      const crossings = rowCrossings(points, row + 0.5);
      for (let i = 0; i + 1 < crossings.length; i += 2) {
        const start = Math.max(0, Math.round(crossings[i]));
        const end = Math.min(this.width, Math.round(crossings[i + 1]));
        if (end > start) this.bits.fill(1, row * this.width + start, row * this.width + end);
      }
    }
    return box;
  }

  /**
   * Returns the unmarked area around a pixel as bits; null where it reaches the border, so that it is not enclosed.
   * @param {number} column
   * @param {number} row
   */
  enclosedArea(column, row) {
    const { width, height, bits } = this;
    const area = new Uint8Array(bits.length);
    const queue = [row * width + column];
    area[queue[0]] = 1;
    for (let pixel = queue.pop(); pixel !== undefined; pixel = queue.pop()) {
      const x = pixel % width;
      const y = (pixel - x) / width;
      if (x === 0 || y === 0 || x === width - 1 || y === height - 1) return null;
      for (const next of [pixel - 1, pixel + 1, pixel - width, pixel + width]) {
        if (bits[next] || area[next]) continue;
        area[next] = 1;
        queue.push(next);
      }
    }
    return area;
  }

  /**
   * Copies the pixels of a box.
   * @param {Box} box
   * @param {Uint8Array} [bits] of a mask of the same size
   */
  crop({ x, y, width, height }, bits = this.bits) {
    const part = new Uint8Array(width * height);
    for (let row = 0; row < height; row += 1) {
      const start = (y + row) * this.width + x;
      part.set(bits.subarray(start, start + width), row * width);
    }
    return part;
  }

  /**
   * Puts pixels that `crop` has copied back into their box.
   * @param {Box} box
   * @param {Uint8Array} part
   */
  paste({ x, y, width, height }, part) {
    for (let row = 0; row < height; row += 1) {
      this.bits.set(part.subarray(row * width, (row + 1) * width), (y + row) * this.width + x);
    }
  }

  /**
   * Returns the smallest box that holds all pixels, within a box, that differ from earlier bits; null where none does.
   * @param {Box} within
   * @param {Uint8Array} before
   * @returns {Box | null}
   */
  changedBox(within, before) {
    let [left, top, right, bottom] = [Infinity, Infinity, -1, -1];
    for (let row = within.y; row < within.y + within.height; row += 1) {
      for (let column = within.x; column < within.x + within.width; column += 1) {
        const pixel = row * this.width + column;
        if (this.bits[pixel] === before[pixel]) continue;
        left = Math.min(left, column);
        right = Math.max(right, column);
        top = Math.min(top, row);
        bottom = row;
      }
    }
    return bottom < 0 ? null : { x: left, y: top, width: right - left + 1, height: bottom - top + 1 };
  }

  /**
   * Returns the pixels that an area touches, as far as they are inside the image.
   * @param {number} left
   * @param {number} top
   * @param {number} right
   * @param {number} bottom
   * @returns {Box}
   */
  #clip(left, top, right, bottom) {
    const x = Math.min(this.width, Math.max(0, Math.floor(left)));
    const y = Math.min(this.height, Math.max(0, Math.floor(top)));
    const width = Math.max(0, Math.min(this.width, Math.ceil(right) + 1) - x);
    const height = Math.max(0, Math.min(this.height, Math.ceil(bottom) + 1) - y);
    return { x, y, width, height };
  }
}

/**
 * Returns where a horizontal line crosses the edges of a polygon, from left to right.
 * @param {Point[]} points
 * @param {number} y
 */
export function rowCrossings(points, y) {
  /** @type {number[]} */
  const crossings = [];
  points.forEach(([x1, y1], i) => {
    const [x2, y2] = points[(i + 1) % points.length];
    if (y1 <= y !== y2 <= y) crossings.push(x1 + ((y - y1) / (y2 - y1)) * (x2 - x1));
  });
  return crossings.sort((a, b) => a - b);
}

/**
 * Returns the smallest box that holds both boxes; null stands for an empty box.
 * @param {Box | null} one
 * @param {Box | null} other
 * @returns {Box | null}
 */
export function unionBox(one, other) {
  if (!one || !other) return one ?? other;
  const x = Math.min(one.x, other.x);
  const y = Math.min(one.y, other.y);
  const width = Math.max(one.x + one.width, other.x + other.width) - x;
  const height = Math.max(one.y + one.height, other.y + other.height) - y;
  return { x, y, width, height };
}
