// Draws masks over an image, and converts them from and to PNG.

import { toBase64 } from "../lib/base64.js";
import { LAYER_NAMES } from "./painting.js";

/** @import { Box, Mask } from "./mask.js" */
/** @import { LayerName } from "./painting.js" */

/** @type {Record<LayerName, [red: number, green: number, blue: number, alpha: number]>} */
export const LAYER_COLOURS = { defect: [255, 0, 200, 130], ignore: [0, 140, 255, 130] };

/** One canvas for each layer, which holds the mask's pixels in the layer's colour. */
export class MaskOverlay {
  /**
   * @param {number} width
   * @param {number} height
   */
  constructor(width, height) {
    this.contexts = { defect: canvasContext(width, height), ignore: canvasContext(width, height) };
  }

  /**
   * Redraws the part of a layer whose mask has changed.
   * @param {LayerName} layer
   * @param {Mask} mask
   * @param {Box} box
   */
  update(layer, mask, box) {
    if (box.width <= 0 || box.height <= 0) return;
    const pixels = new ImageData(box.width, box.height);
    mask.crop(box).forEach((bit, i) => bit && pixels.data.set(LAYER_COLOURS[layer], 4 * i));
    this.contexts[layer].putImageData(pixels, box.x, box.y);
  }

  /**
   * @param {CanvasRenderingContext2D} context
   */
  draw(context) {
    for (const layer of LAYER_NAMES) context.drawImage(this.contexts[layer].canvas, 0, 0);
  }
}

/**
 * Reads a mask from an image: every pixel that is not black is marked.
 * @param {ImageBitmap} bitmap
 * @param {number} width of the mask, to which the image is scaled
 * @param {number} height
 */
export function decodeMask(bitmap, width, height) {
  const data = bitmapPixels(bitmap, width, height);
  const bits = new Uint8Array(width * height);
  for (let i = 0; i < bits.length; i += 1) bits[i] = data[4 * i] || data[4 * i + 1] || data[4 * i + 2] ? 1 : 0;
  return bits;
}

/**
 * Encodes a mask, white on black, as PNG in base64; null where nothing is marked.
 * @param {Mask} mask
 * @returns {Promise<string | null>}
 */
export async function encodeMask(mask) {
  if (mask.isEmpty()) return null;
  const pixels = new ImageData(mask.width, mask.height);
  const words = new Uint32Array(pixels.data.buffer);
  mask.bits.forEach((bit, i) => (words[i] = bit ? 0xffffffff : 0xff000000));
  const context = canvasContext(mask.width, mask.height);
  context.putImageData(pixels, 0, 0);
  return toBase64(await context.canvas.convertToBlob({ type: "image/png" }));
}

/**
 * Returns the RGBA bytes of an image, scaled to a size.
 * @param {ImageBitmap} bitmap
 * @param {number} [width]
 * @param {number} [height]
 */
export function bitmapPixels(bitmap, width = bitmap.width, height = bitmap.height) {
  const context = canvasContext(width, height, { willReadFrequently: true });
  context.drawImage(bitmap, 0, 0, width, height);
  return context.getImageData(0, 0, width, height).data;
}

/**
 * Creates an off-screen canvas and returns its context.
 * @param {number} width
 * @param {number} height
 * @param {CanvasRenderingContext2DSettings} [settings]
 */
export function canvasContext(width, height, settings) {
  const context = new OffscreenCanvas(width, height).getContext("2d", settings);
  if (!context) throw new Error("this browser cannot draw on a canvas");
  return context;
}
