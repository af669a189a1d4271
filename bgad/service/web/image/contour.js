// The map of an image: its numbers, its heat, and the line where it crosses the boundary.

const RAMP = [[255, 237, 130], [254, 178, 76], [240, 90, 40], [165, 0, 38]]; // as in the thumbnails

/** Numbers of the grey picture that the API gives, with what its headers say. */
export function readMap(picture, headers) {
  const { width, height } = picture;
  const context = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  context.drawImage(picture, 0, 0);
  const pixels = context.getImageData(0, 0, width, height).data;
  const low = Number(headers.get("X-Low"));
  const high = Number(headers.get("X-High"));
  const values = new Float32Array(width * height);
  for (let i = 0; i < values.length; i += 1) values[i] = low + (pixels[4 * i] / 255) * (high - low);
  return { width, height, values, low, high, boundary: Number(headers.get("X-Boundary")) };
}

/** The map as a picture to lay over the image: almost clear up to the boundary, then yellow to dark red. */
export function heatOf(map) {
  const { width, height, values, low, boundary } = map;
  const unit = boundary > low ? boundary - low : 1;
  const drawn = new ImageData(width, height);
  values.forEach((value, i) => {
    const heat = 1 - Math.exp(-Math.max(value - boundary, 0) / unit);
    const alpha = value > boundary ? 0.55 + 0.4 * heat : 0.12 * Math.min(1, (value - low) / unit);
    drawn.data.set([...colour(heat), 255 * alpha], 4 * i);
  });
  const canvas = new OffscreenCanvas(width, height);
  canvas.getContext("2d").putImageData(drawn, 0, 0);
  return canvas;
}

function colour(heat) {
  const place = heat * (RAMP.length - 1);
  const left = Math.min(RAMP.length - 2, Math.floor(place));
  return RAMP[left].map((from, c) => from + (RAMP[left + 1][c] - from) * (place - left));
}

/** Where the map crosses the boundary, by marching squares: a path in pixels of the map. */
export function contour(map) {
  const { width, height, values, low, boundary } = map;
  const path = new Path2D();
  const value = (x, y) => (x < 0 || y < 0 || x >= width || y >= height ? low : values[y * width + x]) - boundary;
  for (let y = -1; y < height; y += 1) {
    for (let x = -1; x < width; x += 1) {
      square(path, x + 0.5, y + 0.5, value(x, y), value(x + 1, y), value(x + 1, y + 1), value(x, y + 1));
    }
  }
  return path;
}

/** The line through one square whose corners are a, b, c, d, clockwise from the upper left. */
function square(path, x, y, a, b, c, d) {
  const points = [];
  if (a > 0 !== b > 0) points.push([x + a / (a - b), y]);
  if (b > 0 !== c > 0) points.push([x + 1, y + b / (b - c)]);
  if (c > 0 !== d > 0) points.push([x + d / (d - c), y + 1]);
  if (d > 0 !== a > 0) points.push([x, y + a / (a - d)]);
  for (let i = 0; i + 1 < points.length; i += 2) {
    path.moveTo(...points[i]);
    path.lineTo(...points[i + 1]);
  }
}
