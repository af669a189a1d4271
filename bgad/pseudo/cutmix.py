"""Pseudo anomalies as in DRA: a rectangle of another normal image, pasted without blending (CutMix)."""

from __future__ import annotations

import math

import numpy as np

from bgad.types import BoolArray, FloatArray

AREA_RANGE = (0.02, 0.15)  # of the rectangle, as a share of the image; DRA's
ASPECT_RANGE = (0.3, 3.3)  # height by width; DRA's
MAX_ATTEMPTS = 4  # draws of a rectangle before one that changes nothing is accepted
ROUNDING = 2 / 255  # a change below it is rounding, not a defect


def rectangle(height: int, width: int, rng: np.random.Generator) -> tuple[int, int]:
    """Draw height and width of a rectangle inside an image: its area is uniform, the logarithm of its aspect too."""
    area = rng.uniform(*AREA_RANGE) * height * width
    aspect = math.exp(rng.uniform(*np.log(ASPECT_RANGE)))
    sides = math.sqrt(area * aspect), math.sqrt(area / aspect)
    rows, columns = (min(max(1, round(side)), length) for side, length in zip(sides, (height, width), strict=True))
    return rows, columns


def cutmix(normal: FloatArray, other: FloatArray, rng: np.random.Generator) -> tuple[FloatArray, BoolArray, str]:
    """Paste a rectangle of `other` on `normal`, at another place; returns the image, its change and a description."""
    height, width = normal.shape[:2]
    for _ in range(MAX_ATTEMPTS):
        rows, columns = rectangle(height, width, rng)
        (top, left), (from_top, from_left) = (
            (int(rng.integers(height - rows + 1)), int(rng.integers(width - columns + 1))) for _ in range(2)
        )
        image = normal.copy()
        patch = other[from_top : from_top + rows, from_left : from_left + columns]
        image[top : top + rows, left : left + columns] = patch
        mask: BoolArray = np.abs(image - normal).max(axis=2) > ROUNDING
        if mask.any():
            break
    return image, mask, f"{columns} x {rows}"
