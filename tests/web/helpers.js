// Masks as text: one line per row, # for a marked pixel.

import { Mask } from "../../bgad/service/web/image/mask.js";

export function maskOf(...rows) {
  const mask = new Mask(rows[0].length, rows.length);
  rows.forEach((row, y) => [...row].forEach((letter, x) => (mask.bits[y * mask.width + x] = letter === "#" ? 1 : 0)));
  return mask;
}

export function textOf(mask) {
  return Array.from({ length: mask.height }, (_, y) =>
    [...mask.bits.subarray(y * mask.width, (y + 1) * mask.width)].map((bit) => (bit ? "#" : ".")).join(""));
}
