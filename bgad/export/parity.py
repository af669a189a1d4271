"""The comparison of an exported graph with torch, on the same pixels."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F

from bgad.errors import BgadError, ModelError
from bgad.inference.base import BaseScorer
from bgad.inference.torch_engine import Detector
from bgad.types import FloatArray, ImageLike, Progress, ProgressTask

logger = logging.getLogger(__name__)

TOLERANCE = 1e-4  # of the range of scores or map values; float32 engines stay below a tenth of it
BATCH = 4  # images that are compared at a time


class Inputs(Protocol):
    """A number of inputs of the model, each (S, S, 3) in float32."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[FloatArray]: ...


@dataclass(frozen=True)
class Parity:
    """The largest differences of a graph from torch, as shares of the range of scores and of map values."""

    images: int  # number of images that were compared
    score: float
    map: float
    tolerance: float = TOLERANCE

    @property
    def holds(self) -> bool:
        """Tell whether both differences are within the tolerance."""
        return self.score <= self.tolerance and self.map <= self.tolerance


def compare(
    detector: Detector,
    engine: BaseScorer,
    images: Sequence[ImageLike] | None = None,
    progress: Progress | None = None,
    *,
    inputs: Inputs | None = None,
) -> Parity:
    """Run torch and another engine on the same inputs: those of images, those given, or else synthetic ones.

    The range of the scores is that of the calibration normals, or the distance of an image's score from their mean
    where that is larger. So one extreme image does not hide differences of the others.
    """
    calibration = np.array(detector.card.calibration_at().scores)
    centre, spread = calibration.mean(), max(float(np.ptp(calibration)), 1e-12)
    score_difference, map_difference = 0.0, 0.0
    map_low, map_high, count = np.inf, -np.inf, 0
    if inputs is None:
        inputs = [] if images is not None else synthetic_images(detector.card.config.backbone.size)
    task = ProgressTask(progress, "comparing the graph with torch", len(inputs if images is None else images))
    for pixels in _batches(_counted(inputs, task) if images is None else _inputs(detector, images, task)):
        expected, expected_maps, _ = detector.run(pixels)
        scores, maps, _ = engine.run(pixels)
        if not (np.isfinite(scores).all() and np.isfinite(maps).all()):
            score_difference = map_difference = math.inf
        map_low, map_high = min(map_low, float(expected_maps.min())), max(map_high, float(expected_maps.max()))
        scale = np.maximum(np.abs(expected - centre), spread)
        score_difference = max(score_difference, float((np.abs(expected - scores) / scale).max()))
        map_difference = max(map_difference, float(np.abs(expected_maps - maps).max()))
        count += len(pixels)
    if not count:
        raise ModelError("there is no image to compare the exported graph with torch on")
    return Parity(count, score_difference, map_difference / max(map_high - map_low, 1e-12))


def _inputs(detector: Detector, images: Sequence[ImageLike], task: ProgressTask) -> Iterator[FloatArray]:
    """Yield the model's inputs for the images that can be read."""
    for image in images:
        try:
            yield from (pixels for _, pixels in detector.inputs(image)[1])
        except BgadError as error:
            logger.warning(str(error))
        task.advance()


def _counted(inputs: Inputs, task: ProgressTask) -> Iterator[FloatArray]:
    for pixels in inputs:
        yield pixels
        task.advance()


def _batches(source: Iterator[FloatArray]) -> Iterator[FloatArray]:
    while batch := list(islice(source, BATCH)):
        yield np.stack(batch)


def synthetic_images(size: int, seed: int = 0) -> Sequence[FloatArray]:
    """Return synthetic images of many kinds: flat, ramps, and noise of several grain sizes."""
    rng = np.random.default_rng(seed)
    ramp = np.linspace(0, 1, size, dtype=np.float32)
    flat = [np.full((size, size, 3), value, np.float32) for value in (0.0, 0.5, 1.0)]
    ramps = [np.broadcast_to(values, (size, size, 3)).copy() for values in (ramp[None, :, None], ramp[:, None, None])]
    noise = [
        F.interpolate(torch.from_numpy(rng.random((1, 3, n, n), np.float32)), size=(size, size), mode="bilinear")[0]
        for n in (2, 4, 8, 16, 32, 64, size)
    ]
    return [*flat, *ramps, *(image.permute(1, 2, 0).numpy() for image in noise)]
