"""Pictures larger than the model's input: cut into overlapping tiles, the maps of the tiles joined without a seam."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from bgad.config import TileConfig
from bgad.errors import ImageError
from bgad.io import images
from bgad.types import BoolArray, Box, FloatArray, Shape


def boxes(shape: Shape, config: TileConfig, region: BoolArray | None = None) -> list[Box]:
    """The tiles (left, top, right, bottom) of a picture, row by row: all of one size, and every pixel is in one. With a
    region to look at, only those that show a part of it.

    >>> boxes((100, 250), TileConfig(size=100, overlap=0.25))
    [(0, 0, 100, 100), (75, 0, 175, 100), (150, 0, 250, 100)]
    """
    side = config.size
    if min(shape) < side:
        raise ImageError(too_small(shape, config))
    down, along = (_starts(length, config) for length in shape)
    found = [(left, top, left + side, top + side) for top in down for left in along]
    return found if region is None else [box for box in found if region[box[1] : box[3], box[0] : box[2]].any()]


def parts(
    picture: npt.NDArray[Any], config: TileConfig, region: BoolArray | None, size: int
) -> Iterator[tuple[Box, FloatArray]]:
    """The tiles of a picture, each brought to the size of the model's input; or the picture as a whole, if the recipe
    has no tiles."""
    shape = (picture.shape[0], picture.shape[1])
    for left, top, right, bottom in boxes(shape, config, region) if config.size else [(0, 0, shape[1], shape[0])]:
        yield (left, top, right, bottom), images.fit(picture[top:bottom, left:right], (size, size))


def too_small(shape: Shape, config: TileConfig) -> str:
    """What to say of a picture that no tile fits into."""
    side = f"{config.size}x{config.size}"
    return f"{shape[1]}x{shape[0]} pixels are less than a tile of {side}: use smaller tiles"


def _starts(length: int, config: TileConfig) -> list[int]:
    """Where tiles begin on a side: evenly from one end to the other, with the overlap or more."""
    last = length - config.size
    count = math.ceil(last / max(1, math.floor(config.size * (1 - config.overlap)))) + 1
    return [round(i * last / max(1, count - 1)) for i in range(count)]


class Blend:
    """One map of the maps of a picture's tiles. Where tiles overlap, each counts the more the farther a pixel lies from
    the tile's edge, where a tile knows least of what surrounds it; so no edge shows."""

    def __init__(self, shape: Shape, config: TileConfig) -> None:
        side = config.size
        self._window = np.minimum(np.arange(side) + 0.5, side - 0.5 - np.arange(side)).astype(np.float32) / side
        totals = []
        for length in shape:
            total = np.zeros(length, np.float32)
            for start in _starts(length, config):
                total[start : start + side] += self._window
            totals.append(total)
        self._down, self._along = totals
        self.map: FloatArray = np.zeros(shape, np.float32)

    def add(self, box: Box, part: FloatArray) -> None:
        """The map of one tile, in its pixels."""
        left, top, right, bottom = box
        down = self._window / self._down[top:bottom]
        along = self._window / self._along[left:right]
        self.map[top:bottom, left:right] += part * down[:, None] * along[None]
