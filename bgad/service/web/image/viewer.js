// The picture on a canvas: zoom, pan, heat, boundary line and masks; passes pointers on to the painting.

const LARGEST = 64; // screen pixels for one pixel of the image
const LINE = "#00e5ff";
const NEAR = { mouse: 8, pen: 8, touch: 24 }; // screen pixels from a corner that still hit it

export class Viewer {
  /** `tools` says what pointers do: { tool, size, painting, polygon, addPoint, closePolygon, fillAt }. */
  constructor(canvas, tools) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.tools = tools;
    this.picture = null;
    this.strength = 0.7;
    this.mapShown = true;
    this.scale = 1;
    this.x = 0; // of the image's corner on the canvas
    this.y = 0;
    this.pointers = new Map();
    this.cursor = null;
    this.waiting = false;
    this.#listen();
  }

  setPicture(picture) {
    this.picture = picture;
    this.resize();
    this.fit();
  }

  /** With nothing given, there is no map. */
  setMap(map = null, heat = null, line = null) {
    this.map = map;
    this.heat = heat;
    this.line = line;
    this.draw();
  }

  resize() {
    const ratio = devicePixelRatio || 1;
    const { clientWidth, clientHeight } = this.canvas;
    this.canvas.width = Math.max(1, Math.round(clientWidth * ratio));
    this.canvas.height = Math.max(1, Math.round(clientHeight * ratio));
    this.ratio = ratio;
    if (this.fitted) this.fit();
    else this.draw();
  }

  fit() {
    if (!this.picture) return;
    const { clientWidth, clientHeight } = this.canvas;
    this.scale = Math.min(clientWidth / this.picture.width, clientHeight / this.picture.height) * 0.98 || 1;
    this.x = (clientWidth - this.picture.width * this.scale) / 2;
    this.y = (clientHeight - this.picture.height * this.scale) / 2;
    this.fitted = true;
    this.draw();
  }

  /** Zoom around a point of the canvas, by default its middle. */
  zoom(factor, x = this.canvas.clientWidth / 2, y = this.canvas.clientHeight / 2) {
    if (!this.picture) return;
    const least = 0.2 * Math.min(this.canvas.clientWidth / this.picture.width, 1);
    const scale = Math.max(Math.min(least, this.scale), Math.min(LARGEST, this.scale * factor));
    this.x = x - ((x - this.x) * scale) / this.scale;
    this.y = y - ((y - this.y) * scale) / this.scale;
    this.scale = scale;
    this.fitted = false;
    this.draw();
  }

  pan(dx, dy) {
    this.x += dx;
    this.y += dy;
    this.fitted = false;
    this.draw();
  }

  // --- drawing

  draw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.#paint();
    });
  }

  #paint() {
    const { context, picture, canvas } = this;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, canvas.width, canvas.height);
    if (!picture) return;
    const scale = this.scale * this.ratio;
    context.setTransform(scale, 0, 0, scale, this.x * this.ratio, this.y * this.ratio);
    context.imageSmoothingEnabled = scale < 3;
    context.imageSmoothingQuality = "high";
    context.drawImage(picture, 0, 0);
    if (this.mapShown && this.map) this.#drawMap(scale);
    this.#drawMasks();
    this.#drawPolygon(scale);
    this.#drawCursor(scale);
  }

  #drawMap(scale) {
    const { context, picture, map } = this;
    context.imageSmoothingEnabled = true;
    context.globalAlpha = this.strength;
    context.drawImage(this.heat, 0, 0, picture.width, picture.height);
    context.globalAlpha = 1;
    context.save();
    const [sx, sy] = [picture.width / map.width, picture.height / map.height];
    context.scale(sx, sy);
    for (const [colour, width] of [["#000a", 3.5], [LINE, 1.6]]) {
      context.strokeStyle = colour;
      context.lineWidth = (width * this.ratio) / scale / sx;
      context.stroke(this.line);
    }
    context.restore();
  }

  #drawMasks() {
    const { painting } = this.tools;
    if (!painting) return;
    this.context.imageSmoothingEnabled = false;
    for (const layer of Object.values(painting.layers)) this.context.drawImage(layer.canvas, 0, 0);
  }

  #drawPolygon(scale) {
    const { polygon } = this.tools;
    if (!polygon.length) return;
    const { context } = this;
    context.beginPath();
    for (const [x, y] of polygon) context.lineTo(x, y);
    if (this.cursor) context.lineTo(...this.cursor);
    for (const [colour, width] of [["#000", 4], ["#fff", 2]]) {
      context.strokeStyle = colour;
      context.lineWidth = (width * this.ratio) / scale;
      context.stroke();
    }
    const half = (3.5 * this.ratio) / scale;
    context.fillStyle = "#fff";
    for (const [x, y] of polygon) context.fillRect(x - half, y - half, 2 * half, 2 * half);
  }

  #drawCursor(scale) {
    const { tool, size } = this.tools;
    if (!this.cursor || (tool !== "paint" && tool !== "erase")) return;
    const { context } = this;
    context.beginPath();
    context.arc(...this.cursor, Math.max(0.5, size / 2), 0, 2 * Math.PI);
    for (const [colour, width] of [["#000", 3], ["#fff", 1.2]]) {
      context.strokeStyle = colour;
      context.lineWidth = (width * this.ratio) / scale;
      context.stroke();
    }
  }

  // --- pointers

  #listen() {
    const { canvas } = this;
    canvas.addEventListener("pointerdown", (event) => this.#down(event));
    canvas.addEventListener("pointermove", (event) => this.#move(event));
    for (const kind of ["pointerup", "pointercancel"]) canvas.addEventListener(kind, (event) => this.#up(event));
    canvas.addEventListener("pointerleave", () => {
      this.cursor = null;
      this.draw();
    });
    canvas.addEventListener("dblclick", () => this.tools.tool === "polygon" && this.tools.closePolygon());
    canvas.addEventListener(
      "wheel",
      (event) => {
        event.preventDefault();
        this.zoom(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0015)), event.offsetX, event.offsetY);
      },
      { passive: false },
    );
  }

  /** A place on the screen in pixels of the image. */
  toImage(event) {
    const box = this.canvas.getBoundingClientRect();
    return [(event.clientX - box.left - this.x) / this.scale, (event.clientY - box.top - this.y) / this.scale];
  }

  #down(event) {
    if (!this.picture) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, [event.clientX, event.clientY]);
    if (this.pointers.size > 1) {
      this.tools.painting?.abandon();
      this.action = "pinch";
      return;
    }
    const { tool, painting } = this.tools;
    this.action = null;
    if (tool === "move" || event.button === 1 || !painting) this.action = "pan";
    else if (event.button !== 0) return;
    else if (tool === "polygon" || tool === "fill") this.action = "tap"; // done when it ends and was no pinch
    else {
      this.action = "brush";
      painting.begin();
      this.#brush(...this.toImage(event));
    }
    this.draw();
  }

  #brush(x, y) {
    const { painting, size, tool } = this.tools;
    painting.brush(x, y, size, tool === "erase" ? 0 : 1);
  }

  #tap(event) {
    const [x, y] = this.toImage(event);
    if (this.tools.tool === "fill") this.tools.fillAt(x, y);
    if (this.tools.tool === "polygon") this.tools.addPoint(x, y, (NEAR[event.pointerType] ?? NEAR.mouse) / this.scale);
  }

  #move(event) {
    this.cursor = this.toImage(event);
    const before = this.pointers.get(event.pointerId);
    if (before) {
      const now = [event.clientX, event.clientY];
      if (this.action === "pinch" && this.pointers.size === 2) this.#pinch(event.pointerId, now);
      this.pointers.set(event.pointerId, now);
      if (this.action === "pan") this.pan(now[0] - before[0], now[1] - before[1]);
      if (this.action === "brush") {
        for (const part of event.getCoalescedEvents?.() ?? [event]) this.#brush(...this.toImage(part));
      }
    }
    this.draw();
  }

  /** Two fingers: their middle moves the picture, their distance zooms it. */
  #pinch(moved, now) {
    const [other] = [...this.pointers].filter(([id]) => id !== moved).map(([, place]) => place);
    const before = this.pointers.get(moved);
    const box = this.canvas.getBoundingClientRect();
    const middle = [(now[0] + other[0]) / 2 - box.left, (now[1] + other[1]) / 2 - box.top];
    this.pan((now[0] - before[0]) / 2, (now[1] - before[1]) / 2);
    const apart = (place) => Math.hypot(place[0] - other[0], place[1] - other[1]);
    this.zoom(Math.max(0.1, apart(now)) / Math.max(0.1, apart(before)), ...middle);
  }

  #up(event) {
    this.pointers.delete(event.pointerId);
    if (this.action === "brush") this.tools.painting.end();
    if (this.action === "tap" && event.type === "pointerup") this.#tap(event);
    if (this.action !== "pinch" || !this.pointers.size) this.action = null;
    this.draw();
  }
}
