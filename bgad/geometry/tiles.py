"""Pictures larger than the model's input: cut into overlapping tiles, the maps of the tiles joined without a seam."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from bgad.config import TileConfig
from bgad.data.sample_io import Box, read_mask, region
from bgad.data.split import Split
from bgad.errors import DataError, ImageError
from bgad.io import images
from bgad.types import BoolArray, FloatArray, Sample

logger = logging.getLogger(__name__)

MARK = "#"  # between the name of a picture and the place of a tile
MAX_TILES = 2000  # normals to learn from; more of them teach nothing new and fill the disk

Shape = tuple[int, int]


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


def cut(split: Split, config: TileConfig, shapes: Mapping[str, Shape]) -> Split:
    """The split with tiles in place of the pictures that are learnt from; the others stay whole.

    Of known anomalies, the tiles that show a part of the defect; one that nobody marked cannot be used, as most of its
    tiles are good.
    """
    train = [tile for sample in split.train for tile in _tiles(sample, config, shapes)]
    for sample in split.calibration:
        _tiles(sample, config, shapes)  # they are cut later; now is the time to say that one is too small
    if len(train) > MAX_TILES:
        logger.warning(f"{MAX_TILES} of {len(train)} tiles of normals are learnt from, evenly spread over the pictures")
        train = [train[i * len(train) // MAX_TILES] for i in range(MAX_TILES)]
    marked = [sample for sample in split.known if sample.mask is not None]
    if len(marked) < len(split.known):
        logger.warning(
            f"{len(split.known) - len(marked)} known anomalies have no mask and are not learnt from: which of their "
            "tiles are bad? Mark the defects, or train without --tile"
        )
    known = [tile for sample in marked for tile in _tiles(sample, config, shapes) if _shows(tile)]
    hashes = dict(split.hashes)
    for tile in (*train, *known):  # the file has been hashed: what is added is the place in it
        text = f"{split.hashes[picture_of(tile, config)]} {tile.box}"
        hashes[tile.name] = hashlib.sha256(text.encode()).hexdigest()
    return replace(split, train=train, known=known, hashes=hashes)


def _tiles(sample: Sample, config: TileConfig, shapes: Mapping[str, Shape]) -> Sequence[Sample]:
    try:
        found = boxes(shapes[sample.name], config, region(sample))
    except ImageError as error:
        raise DataError(f"{sample.name}: {error}, or leave out --tile") from error
    x, y = (sample.box or (0, 0))[:2]
    return [
        replace(sample, name=f"{sample.name}{MARK}{left},{top}", box=(x + left, y + top, x + right, y + bottom))
        for left, top, right, bottom in found
    ]


def picture_of(sample: Sample, config: TileConfig) -> str:
    """The name of the picture that a sample to learn from is, or was cut from where the recipe has tiles."""
    return sample.name.rpartition(MARK)[0] if config.size else sample.name


def _shows(tile: Sample) -> bool:
    mask = read_mask(tile)
    return mask is not None and bool(mask.any())
