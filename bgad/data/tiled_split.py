"""Cuts the training images of a split into tiles."""

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

SEPARATOR = "#"  # between the name of an image and the position of a tile
MAX_TILES = 2000  # normal tiles to train on; more of them improve nothing and fill the disk


def cut(split: Split, config: TileConfig, shapes: Mapping[str, Shape]) -> Split:
    """Return the split with tiles in place of training images; calibration and test images stay as they are.

    Of a known anomaly, only the tiles that show a part of the defect are kept. A known anomaly without a mask is left
    out, because most of its tiles are normal.
    """
    train = [tile for sample in split.train for tile in _tiles(sample, config, shapes)]
    for sample in split.calibration:
        _tiles(sample, config, shapes)  # calibration tiles are cut later, but an image that is too small fails now
    if len(train) > MAX_TILES:
        logger.warning(f"{MAX_TILES} of {len(train)} normal tiles are used for training, evenly spread over the images")
        train = [train[i * len(train) // MAX_TILES] for i in range(MAX_TILES)]
    masked = [sample for sample in split.known if sample.mask is not None]
    if len(masked) < len(split.known):
        logger.warning(
            f"{len(split.known) - len(masked)} known anomalies have no mask and are not used for training: it is not "
            "known which of their tiles are anomalous. Mark the defects, or train without --tile"
        )
    known = [tile for sample in masked for tile in _tiles(sample, config, shapes) if _shows_defect(tile)]
    hashes = dict(split.hashes)
    for tile in (*train, *known):  # the hash of the file is known: only the position of the tile is added
        text = f"{split.hashes[image_name_of(tile.name, config)]} {tile.box}"
        hashes[tile.name] = sha256_bytes(text.encode())
    return replace(split, train=train, known=known, hashes=hashes)


def image_name_of(name: str, config: TileConfig) -> str:
    """Return the name of the image that a training sample was cut from: its own in a recipe without tiles."""
    return name.rpartition(SEPARATOR)[0] if config.size else name


def _tiles(sample: Sample, config: TileConfig, shapes: Mapping[str, Shape]) -> Sequence[Sample]:
    try:
        tile_boxes = boxes(shapes[sample.name], config, region(sample))
    except ImageError as error:
        raise DataError(f"{sample.name}: {error}, or leave out --tile") from error
    x, y = (sample.box or (0, 0))[:2]
    return [
        replace(sample, name=f"{sample.name}{SEPARATOR}{left},{top}", box=(x + left, y + top, x + right, y + bottom))
        for left, top, right, bottom in tile_boxes
    ]


def _shows_defect(tile: Sample) -> bool:
    mask = read_mask(tile)
    return mask is not None and bool(mask.any())
