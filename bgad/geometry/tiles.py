"""Tiling of images larger than the model's input: overlapping tiles, and one seamless map from the tiles' maps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from bgad.config import TileConfig
from bgad.errors import ImageError
from bgad.io import images
from bgad.types import AnyArray, BoolArray, Box, FloatArray, Shape


def boxes(shape: Shape, config: TileConfig, region: BoolArray | None = None) -> list[Box]:
    """Return the tiles (left, top, right, bottom) of an image, row by row: equal in size, covering every pixel.

    With a region of interest, tiles that show no part of it are left out.

    >>> boxes((100, 250), TileConfig(size=100, overlap=0.25))
    [(0, 0, 100, 100), (75, 0, 175, 100), (150, 0, 250, 100)]
    """
    side = config.size
    if min(shape) < side:
        raise ImageError(too_small(shape, config))
    tops, lefts = (_starts(length, config) for length in shape)
    tiles = [(left, top, left + side, top + side) for top in tops for left in lefts]
    return tiles if region is None else [box for box in tiles if region[box[1] : box[3], box[0] : box[2]].any()]


def model_inputs(
    part: Callable[[Box], AnyArray], shape: Shape, config: TileConfig, region: BoolArray | None, size: int
) -> Iterator[tuple[Box, FloatArray]]:
    """Yield the tiles of an image, resized to the model's input; `part` returns the RGB pixels of any box in it."""
    for box in boxes(shape, config, region):
        yield box, images.fit(part(box), (size, size))


def too_small(shape: Shape, config: TileConfig) -> str:
    """Return the error message for an image that is smaller than a tile."""
    side = f"{config.size}x{config.size}"
    return f"{shape[1]}x{shape[0]} pixels are less than a tile of {side}: use smaller tiles"


def _starts(length: int, config: TileConfig) -> list[int]:
    """Return where tiles start along one side: evenly spaced from end to end, with the overlap or more."""
    last = length - config.size
    count = math.ceil(last / max(1, math.floor(config.size * (1 - config.overlap)))) + 1
    return [round(i * last / max(1, count - 1)) for i in range(count)]


class Blend:
    """Joins the anomaly maps of an image's tiles.

    Where tiles overlap, a tile's weight falls towards its edge, where it sees least of the surroundings; so no edge
    shows in the joined map.
    """

    def __init__(self, shape: Shape, config: TileConfig) -> None:
        side = config.size
        self._window = np.minimum(np.arange(side) + 0.5, side - 0.5 - np.arange(side)).astype(np.float32) / side
        totals = []
        for length in shape:
            total = np.zeros(length, np.float32)
            for start in _starts(length, config):
                total[start : start + side] += self._window
            totals.append(total)
        self._row_totals, self._column_totals = totals
        self.map: FloatArray = np.zeros(shape, np.float32)

    def add(self, box: Box, tile_map: FloatArray) -> None:
        """Add the anomaly map of one tile, at the tile's resolution."""
        left, top, right, bottom = box
        row_weights = self._window / self._row_totals[top:bottom]
        column_weights = self._window / self._column_totals[left:right]
        self.map[top:bottom, left:right] += tile_map * row_weights[:, None] * column_weights[None]
