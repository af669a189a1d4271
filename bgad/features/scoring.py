"""Scores and log-likelihoods of images whose features are cached, and the constants that scoring takes from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from bgad.errors import BgadError
from bgad.features.cache import Features, chunks, even_pick
from bgad.inference.base import ACCELERATOR_BATCH, CPU_BATCH, Output, Outputs
from bgad.inference.torch_engine import Detector, to_numpy
from bgad.io.cpus import usable_cpus
from bgad.model.device import WorkerPool
from bgad.model.level import FlowLevel, Level, LevelConstants
from bgad.model.scoring import LevelModel, ScoringModel
from bgad.types import FloatArray, Index, Scores, Shape

AHEAD = 8  # batches that may be scored before they are consumed; bounds the memory
# Quantiles and moments over a set of normals use an even sample of this many images, so that the start of phase 2 does
# not grow with the data set. At an input of 256 pixels the finest level has 400,000 features in them.
MAX_SET_IMAGES = 400
BATCH_IMAGES = 2  # all positions of an image are evaluated, so two images already make a large batch


def score_features(detector: Detector, features: Features, shapes: Sequence[Shape]) -> Iterator[Scores | BgadError]:
    """Score images from cached features, as `score_stream` scores files; `shapes` are the sizes of the images."""
    for output, shape in zip(run_features(detector.model, features, detector.device), shapes, strict=True):
        yield detector.finish_one(output, shape)


def run_features(model: ScoringModel, features: Features, device: torch.device) -> Iterator[Output]:
    """Yield the output of the model for one image after another, from the backbone's features."""

    def run(part: slice) -> Outputs:
        chosen = np.arange(part.start, part.stop)
        with torch.inference_mode():
            rows = [torch.from_numpy(features.rows(i, chosen)).to(device) for i in range(len(features.levels))]
            return to_numpy(*model.score_features(rows))

    workers = WorkerPool(usable_cpus(), device)
    parts = list(chunks(features.count, CPU_BATCH if device.type == "cpu" else ACCELERATOR_BATCH))
    for window in chunks(len(parts), AHEAD):
        for outputs in workers.stream(run, parts[window]):
            yield from (outputs.one(i) for i in range(len(outputs.scores)))


def latents(model: LevelModel, level: int, features: Features, images: Index, positions: Index) -> FloatArray:
    """Return the latents (n, C) of single features: of image images[i] at position positions[i]."""
    module: FlowLevel = model.levels[level]  # type: ignore[assignment]
    with torch.inference_mode():
        rows = torch.from_numpy(features.rows(level, images, positions)).to(module.mean)
        part = module.flow.position_part(module.position[torch.from_numpy(positions).to(module.mean.device)])
        z, _ = module.flow(module.standardise(rows)[None], part)
    array: FloatArray = z[0].cpu().numpy()
    return array


@dataclass(frozen=True)
class LevelLikelihoods:
    """Evaluates the flows of all levels on cached features."""

    levels: Sequence[Level]
    beta: float  # quantile of the normals at which the boundary lies
    device: torch.device
    workers: WorkerPool
    roi_positions: Sequence[Index] | None = None  # of each level; None: all

    def of_images(self, level: int, features: Features, images: Index | None = None) -> FloatArray:
        """log p / d at every position of the chosen images, or of all, (images, positions)."""
        images = np.arange(features.count) if images is None else images
        with torch.inference_mode():
            parts = [
                self.levels[level](torch.from_numpy(features.rows(level, images[part])).to(self.device)).cpu().numpy()
                for part in chunks(len(images), BATCH_IMAGES)
            ]
        return np.concatenate(parts)

    def inside_roi(self, level: int, log_p: FloatArray) -> FloatArray:
        """Return the values (images, positions) at the positions of the region of interest."""
        return log_p if self.roi_positions is None else log_p[:, self.roi_positions[level]]

    def of_set(self, level: int, features: Features) -> FloatArray:
        """log p / d of a set of images inside the region of interest, flat; of a large set, an even sample."""
        images = even_pick(features.count, MAX_SET_IMAGES)
        return self.inside_roi(level, self.of_images(level, features, images)).ravel()

    def constants(self, features: Features) -> list[LevelConstants]:
        """Return the constants of each level, from a set of normals."""
        sets = self.workers.each(lambda i: self.of_set(i, features))
        return [LevelConstants.of(log_p, self.beta) for log_p in sets]
