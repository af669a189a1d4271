"""A split whose training images are cut into tiles."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from bgad.config import TileConfig
from bgad.data.sample_io import read_mask, region
from bgad.data.split import Split
from bgad.errors import DataError, ImageError
from bgad.geometry.tiles import boxes
from bgad.io.files import sha256_bytes
from bgad.types import Sample, Shape

logger = logging.getLogger(__name__)

MARK = "#"  # between the name of an image and the position of a tile
MAX_TILES = 2000  # normal tiles to train on; more of them teach nothing new and fill the disk


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
        hashes[tile.name] = sha256_bytes(text.encode())
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
