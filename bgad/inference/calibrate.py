"""From the outputs of a model for its calibration normals to a calibration, in training and for any precision."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bgad.artifact.card import CalibrationCard, ScorePart
from bgad.calibration import Calibration, effective_rate
from bgad.config import TileConfig
from bgad.inference.base import BaseScorer, JoinedTiles, Output, Outputs
from bgad.types import PARTS, BoolArray, Box, FloatArray, ImageLike, Shape

_NO_MAP = np.zeros((0, 0), np.float32)


class SampleScore(NamedTuple):
    """The output of a model for a sample, and the maximum of the map from which every map of it is drawn.

    Resizing averages map values, so no map that is drawn of the sample exceeds `map_max`, at whatever resolution.
    """

    output: Output  # of an image that is cut into tiles: that of its highest tile
    map_max: float  # of an image that is cut into tiles: of its joined map, inside the region of interest


def score_tiles(
    run: Callable[[FloatArray], Outputs],
    shape: Shape,
    inputs: Iterable[tuple[Box, FloatArray]],
    tile: TileConfig,
    inside: BoolArray | None,
) -> SampleScore:
    """Score an image of this shape by its tiles; `inside` is its region of interest."""
    joined = JoinedTiles(shape, tile)
    for box, pixels in inputs:
        joined.add([box], run(pixels[None]))
    values = joined.map if inside is None else joined.map[inside]
    return SampleScore(joined.highest, float(values.max()))


def score_images(scorer: BaseScorer, images: Iterable[ImageLike]) -> Iterator[SampleScore]:
    """Yield the scores of images in order, without maps; the first that cannot be read raises."""

    def score(image: ImageLike) -> SampleScore:
        shape, inputs = scorer.inputs(image)
        if scorer.tile.size:
            inside = None if scorer.roi is None else scorer.roi.mask
            output, highest = score_tiles(scorer.run, shape, inputs, scorer.tile, inside)
        else:
            output = scorer.run(next(inputs)[1][None]).one(0)
            highest = float(output.map.max())
        return SampleScore(output._replace(map=_NO_MAP, levels=()), highest)

    return scorer.in_threads(score, images)


def calibrate(
    scored: Iterable[SampleScore],
    parts: Sequence[ScorePart],
    asked_rate: float | None,
    confidence: float | None = None,
) -> CalibrationCard:
    """Calibrate the score, the map and the given parts with the calibration normals, at one false-reject rate."""
    normals = [(output.score, output.parts, map_max) for output, map_max in scored]  # their maps are not kept
    scores, values, maxima = zip(*normals, strict=True)
    rate, is_default = effective_rate(len(scores), asked_rate, confidence), asked_rate is None
    limits = np.quantile(np.stack(values), 1 - rate, axis=0, method="higher")
    return CalibrationCard.of(
        Calibration.from_scores(scores, rate, is_default=is_default, confidence=confidence),
        Calibration.from_scores(maxima, rate, is_default=is_default, confidence=confidence),
        {part.name: float(limits[PARTS.index(part.name)]) for part in parts},
    )
