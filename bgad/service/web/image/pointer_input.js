// Turns mouse, pen and touch events on the canvas into panning, zooming and painting.

/** @import { Tools } from "./tools.js" */
/** @import { Point } from "./viewport.js" */

/** @type {Record<string, number>} */
const HIT_DISTANCE = { mouse: 8, pen: 8, touch: 24 }; // screen pixels from a corner that still hit it
const WHEEL_SPEED = 0.0015;
const TRACKPAD_SPEED = 0.01; // a pinch on a trackpad comes as a wheel event with the control key
const MIDDLE_BUTTON = 1;

export class PointerInput {
  /** @type {Map<number, Point>} */
  #pointers = new Map(); // positions on the screen by pointer
  /** @type {"pan" | "pinch" | "brush" | "tap" | null} */
  #gesture = null;

  /**
   * @param {HTMLCanvasElement} canvas
   * @param {Tools} tools
   */
  constructor(canvas, tools) {
    this.canvas = canvas;
    this.tools = tools;
    this.viewer = tools.viewer;
    canvas.addEventListener("pointerdown", (event) => this.#onDown(event));
    canvas.addEventListener("pointermove", (event) => this.#onMove(event));
    canvas.addEventListener("pointerup", (event) => this.#onUp(event));
    canvas.addEventListener("pointercancel", (event) => this.#onUp(event));
    canvas.addEventListener("pointerleave", () => this.#setCursor(null));
    canvas.addEventListener("dblclick", () => this.tools.tool === "polygon" && this.tools.closePolygon());
    canvas.addEventListener("wheel", (event) => this.#onWheel(event), { passive: false });
  }

  /** @param {Point | null} cursor */
  #setCursor(cursor) {
    this.viewer.cursor = cursor;
    this.viewer.draw();
  }

  /**
   * @param {Point} position on the screen
   * @returns {Point}
   */
  #toCanvas([x, y]) {
    const box = this.canvas.getBoundingClientRect();
    return [x - box.left, y - box.top];
  }

  /** @param {MouseEvent} event */
  #toImage(event) {
    return this.viewer.viewport.toImage(this.#toCanvas([event.clientX, event.clientY]));
  }

  /** @param {WheelEvent} event */
  #onWheel(event) {
    event.preventDefault();
    const speed = event.ctrlKey ? TRACKPAD_SPEED : WHEEL_SPEED;
    this.viewer.zoom(Math.exp(-event.deltaY * speed), [event.offsetX, event.offsetY]);
  }

  /** @param {PointerEvent} event */
  #onDown(event) {
    if (!this.viewer.image) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.#pointers.set(event.pointerId, [event.clientX, event.clientY]);
    if (this.#pointers.size > 1) {
      this.tools.painting.abandon();
      this.#gesture = "pinch";
      return;
    }
    this.#gesture = this.#gestureOf(event);
    if (this.#gesture === "brush") {
      this.tools.painting.begin();
      this.#brush(event);
    }
    this.viewer.draw();
  }

  /** @param {PointerEvent} event */
  #gestureOf(event) {
    const { tool, isReady } = this.tools;
    if (tool === "move" || event.button === MIDDLE_BUTTON || !isReady) return "pan";
    if (event.button !== 0) return null;
    return tool === "polygon" || tool === "fill" ? "tap" : "brush"; // a tap counts when it ends without a second finger
  }

  /** @param {PointerEvent} event */
  #brush(event) {
    const { painting, brushSize, tool } = this.tools;
    painting.brush(...this.#toImage(event), brushSize, tool === "erase" ? 0 : 1);
  }

  /** @param {PointerEvent} event */
  #onMove(event) {
    const before = this.#pointers.get(event.pointerId);
    if (before) {
      /** @type {Point} */
      const now = [event.clientX, event.clientY];
      if (this.#gesture === "pinch" && this.#pointers.size === 2) this.#pinch(event.pointerId, before, now);
      this.#pointers.set(event.pointerId, now);
      if (this.#gesture === "pan") this.viewer.pan(now[0] - before[0], now[1] - before[1]);
      if (this.#gesture === "brush") for (const part of event.getCoalescedEvents?.() ?? [event]) this.#brush(part);
    }
    this.#setCursor(this.#toImage(event));
  }

  /**
   * @param {number} movedId
   * @param {Point} before
   * @param {Point} now
   */
  #pinch(movedId, before, now) {
    for (const [id, other] of this.#pointers) {
      if (id === movedId) continue;
      this.viewer.viewport.pinch(this.#toCanvas(before), this.#toCanvas(now), this.#toCanvas(other));
    }
  }

  /** @param {PointerEvent} event */
  #onUp(event) {
    this.#pointers.delete(event.pointerId);
    if (this.#gesture === "brush") this.tools.painting.end();
    if (this.#gesture === "tap" && event.type === "pointerup") this.#tap(event);
    if (this.#gesture !== "pinch" || !this.#pointers.size) this.#gesture = null;
    this.viewer.draw();
  }

  /** @param {PointerEvent} event */
  #tap(event) {
    const [x, y] = this.#toImage(event);
    const distance = HIT_DISTANCE[event.pointerType] ?? HIT_DISTANCE.mouse;
    if (this.tools.tool === "fill") this.tools.fillAt(x, y);
    if (this.tools.tool === "polygon") this.tools.addCorner([x, y], distance / this.viewer.viewport.scale);
  }
}
