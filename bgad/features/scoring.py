"""Scores of images whose features are cached."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from bgad.errors import BgadError
from bgad.features.cache import Features, chunks
from bgad.inference.base import ACCELERATOR_BATCH, CPU_BATCH, Output, Outputs
from bgad.inference.torch_engine import Detector, to_numpy
from bgad.io.cpus import usable_cpus
from bgad.model.device import WorkerPool
from bgad.model.flow import FlowLevel
from bgad.model.scoring import LevelModel, ScoringModel
from bgad.types import FloatArray, Index, Scores, Shape

AHEAD = 8  # batches that may be scored before they are consumed; bounds the memory


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
        part = module.position_parts(torch.from_numpy(positions).to(module.mean.device))
        z, _ = module.flow(module.standardise(rows)[None], part)
    array: FloatArray = z[0].cpu().numpy()
    return array
