"""Validation normals: training normals that no flow is trained on, so that they show how a model sees new normals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bgad.features.cache import Features, even_pick
from bgad.training.training_set import TrainingSet
from bgad.types import Index

MAX_VALIDATION = 64  # the standard error of a spread over 64 normals is 9 % of it
# Units that rest on six normals are wrong by a factor, so of few normals up to a third is taken, until there are 16.
FEW_VALIDATION = 16
# With fewer training normals than this, the flows need all of them, and there are no validation normals.
MIN_TRAINING_NORMALS = 32
VALIDATION_DIVISOR = 8  # one of eight normals is for validation


@dataclass(frozen=True)
class NormalPartition:
    """The training normals, divided into those that the flows are trained on and validation normals."""

    flow_normals: Features
    validation_index: Index  # numbers of the validation normals among the training normals; may be empty
    validation: Features | None  # None where there are none
    reference_index: Index  # validation normals, or an even sample of all normals where there are none
    reference: Features


def partition_normals(training_set: TrainingSet, chosen: Index) -> NormalPartition:
    """Divide the normals of a training set; `chosen` are the numbers of the validation normals.

    No other tile of an image with a validation tile is trained on.
    """
    normals, images = training_set.normals, training_set.image_numbers
    related = chosen if images is None else np.flatnonzero(np.isin(images, images[chosen]))
    reference = chosen if len(chosen) else even_pick(normals.count, MAX_VALIDATION)
    return NormalPartition(
        normals.select(np.setdiff1d(np.arange(normals.count), related)),
        chosen,
        normals.select(chosen) if len(chosen) else None,
        reference,
        normals.select(reference),
    )


def choose_validation_normals(count: int, image_numbers: Index | None = None) -> Index:
    """Choose the validation normals among `count` training normals.

    One of eight, at most 64; a larger share of few normals, and none of very few. With tiles, `image_numbers` tells
    the image of each; then one of eight images is chosen with all of its tiles.

    >>> [len(choose_validation_normals(count)) for count in (31, 40, 59, 400, 5000)]
    [0, 13, 16, 50, 64]
    >>> choose_validation_normals(40, np.repeat(np.arange(8), 5)).tolist()
    [0, 1, 2, 3, 4]
    """
    enough = count >= MIN_TRAINING_NORMALS
    if image_numbers is None or len(np.unique(image_numbers)) == count:
        wanted = max(count // VALIDATION_DIVISOR, min(FEW_VALIDATION, count // 3))
        return even_pick(count, min(MAX_VALIDATION, wanted) if enough else 0)
    images = np.unique(image_numbers)
    chosen = images[even_pick(len(images), len(images) // VALIDATION_DIVISOR)]
    tiles = np.flatnonzero(np.isin(image_numbers, chosen))
    return tiles[even_pick(len(tiles), MAX_VALIDATION)] if enough else tiles[:0]
