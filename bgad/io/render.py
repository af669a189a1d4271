"""Drawing anomaly maps and masks over images, and writing images and maps to files."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from bgad.io.files import write_atomic
from bgad.io.images import to_uint8
from bgad.types import AnyArray, BoolArray, FloatArray

# Yellow to dark red; the lightness falls evenly, so that hotter also reads as darker in grey print.
HEAT_COLOURS = np.array([[255, 237, 130], [254, 178, 76], [240, 90, 40], [165, 0, 38]], np.float32)
_HAZE_STEPS, _HEAT_STEPS = 255, 1023  # of the heat table, up to the contour and beyond it
OUTLINE = (0, 200, 90)  # colour of the outline of a mask
_STRIP_ROWS = 64  # drawn at a time, to bound the memory of large images
_LEGEND_UNITS = 3  # of heat that a legend shows: beyond, the colour hardly changes
_INK = (40, 40, 40)

Pixels = npt.NDArray[np.uint8]  # (H, W, 3)


def overlay(
    image: AnyArray, map: FloatArray, contour: float, low: float | None = None, out: Pixels | None = None
) -> Pixels:
    """Draw an anomaly map over its image: almost transparent up to the contour value, then yellow to dark red.

    The unit of heat is the distance from `low` to the contour, not the map's maximum: a normal image stays quiet.
    Below `low`, by default the map's minimum, nothing is drawn. `out` is the array to draw into, by default a new one.
    """
    low = float(map.min()) if low is None else low
    unit = contour - low if contour > low else 1.0
    keep, add = _heat_table()
    drawn = np.empty(image.shape, np.uint8) if out is None else out
    for top in range(0, len(map), _STRIP_ROWS):
        rows = slice(top, top + _STRIP_ROWS)
        values = map[rows]
        haze = _HAZE_STEPS * np.clip((values - low) / unit, 0, 1)
        heat = _HAZE_STEPS + 1 + _HEAT_STEPS * (1 - np.exp(-np.maximum(values - contour, 0) / unit))
        step = np.rint(np.where(values > contour, heat, haze)).astype(np.intp)  # (h, W)
        drawn[rows] = np.rint(to_uint8(image[rows]) * keep.take(step, 0, mode="clip") + add.take(step, 0, mode="clip"))
    return drawn


def overlay_with_legend(image: AnyArray, map: FloatArray, legend: Legend) -> Pixels:
    """Draw an anomaly map over its image, and below the image a legend of the colours; the image stays uncovered."""
    height, width = image.shape[:2]
    bar = draw_legend(legend, width)
    drawn = np.full((height + bar.shape[0], bar.shape[1], 3), 255, np.uint8)
    overlay(image, map, legend.contour, legend.low, out=drawn[:height, :width])
    drawn[height:] = bar
    return drawn


@dataclass(frozen=True)
class Legend:
    """What the colours of an overlay mean."""

    low: float  # map value below which nothing is drawn: the mean over normals
    contour: float  # map value above which there is colour
    name: str  # of this value
    meaning: str  # of colour


def draw_legend(legend: Legend, width: int) -> Pixels:
    """Draw a colour bar with its values, at least `width` pixels wide; the text grows with the width."""
    size = min(max(11, width // 64), 64)
    font = ImageFont.load_default(size)
    unit = legend.contour - legend.low if legend.contour > legend.low else 1.0
    high = legend.contour + _LEGEND_UNITS * unit
    words = (f"Colour begins at {legend.name}, {legend.contour:.3g}:", f"{legend.meaning}.")
    pad, line = size // 2, round(1.4 * size)
    width = max(width, 2 * pad + math.ceil(max(font.getlength(text) for text in words)))
    ramp = np.broadcast_to(np.linspace(legend.low, high, width - 2 * pad, dtype=np.float32), (size, width - 2 * pad))
    pixels = np.full((3 * pad + size + 3 * line, width, 3), 255, np.uint8)
    bar = pixels[pad : pad + size, pad:-pad]
    overlay(np.full(bar.shape, 160, np.uint8), ramp, legend.contour, legend.low, out=bar)
    drawn = Image.fromarray(pixels)
    pen = ImageDraw.Draw(drawn)
    top = pad + size
    for value, anchor, more in ((legend.low, "la", ""), (legend.contour, "ma", ""), (high, "ra", " or more")):
        x = pad + (value - legend.low) / (high - legend.low) * (width - 2 * pad - 1)
        pen.line([(x, pad), (x, top + pad // 2)], fill=_INK, width=max(1, size // 12))
        pen.text((x, top + pad // 2), f"{value:.3g}{more}", fill=_INK, font=font, anchor=anchor)
    for i, text in enumerate(words):
        pen.text((pad, top + pad + (i + 1) * line), text, fill=_INK, font=font, anchor="la")
    return np.asarray(drawn)


@cache
def _heat_table() -> tuple[FloatArray, FloatArray]:
    """Return, for each step of heat, the share of the image that stays and the colour that is added, both (n, 3)."""
    heat = np.concatenate([np.zeros(_HAZE_STEPS + 1), np.linspace(0, 1, _HEAT_STEPS + 1)])
    alpha = np.concatenate([np.linspace(0, 0.1, _HAZE_STEPS + 1), 0.35 + 0.4 * heat[_HAZE_STEPS + 1 :]])[:, None]
    stops = np.linspace(0, 1, len(HEAT_COLOURS))
    colour = np.stack([np.interp(heat, stops, HEAT_COLOURS[:, c]) for c in range(3)], axis=-1)
    return np.repeat(1 - alpha, 3, axis=1).astype(np.float32), (colour * alpha).astype(np.float32)


def outline(image: AnyArray, mask: BoolArray, colour: tuple[int, int, int] = (255, 0, 0)) -> npt.NDArray[np.uint8]:
    """Draw the inner edge of a mask on its image; the line is wider on larger images."""
    inner = mask
    for _ in range(max(1, round(max(mask.shape) / 512))):
        padded = np.pad(inner, 1)  # outside counts as unmarked, so a mask at the image's border keeps its line there
        inner = inner & padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
    drawn = to_uint8(image).copy()
    drawn[mask & ~inner] = colour
    return drawn


def encode(array: AnyArray, kind: str, **options: Any) -> bytes:
    """Return an image file of a kind that Pillow writes, such as PNG or JPEG, with the options of its writer."""
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, kind, **options)
    return buffer.getvalue()


def save_png(array: AnyArray, path: str | Path) -> None:
    """Write an 8-bit image as PNG, atomically."""
    write_atomic(Path(path), png(array))


def png(array: AnyArray) -> bytes:
    """Return an 8-bit image as a PNG file."""
    return encode(array, "PNG", compress_level=1)  # 4 times as fast, hardly larger


def save_map(map: FloatArray, path: str | Path) -> None:
    """Write an anomaly map as 32-bit float TIFF, atomically."""
    write_atomic(Path(path), map_tiff(map))  # Pillow does not write the file: libtiff refuses some file names


def map_tiff(map: FloatArray) -> bytes:
    """Return an anomaly map as a 32-bit float TIFF file: image tools read it, and no value is rounded."""
    return encode(np.ascontiguousarray(map), "TIFF", compression="tiff_adobe_deflate")
