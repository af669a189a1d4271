"""Scoring of images whose features are cached."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from bgad.errors import BgadError
from bgad.features.cache import Features, chunks
from bgad.inference.base import BATCH, Outputs
from bgad.inference.torch_engine import Detector
from bgad.io.cpus import usable_cpus
from bgad.model.device import WorkerPool
from bgad.model.scoring import ScoringModel
from bgad.types import FloatArray, Scores, Shape

AHEAD = 8  # batches that may be scored before they are consumed; bounds the memory


def score_features(detector: Detector, features: Features, shapes: Sequence[Shape]) -> Iterator[Scores | BgadError]:
    """Score images from cached features, as `score_stream` scores files; `shapes` are the sizes of the images."""
    for i, (score, model_map, levels) in enumerate(run_features(detector.model, features, detector.device)):
        yield detector.finish_one(score, model_map, levels, shapes[i])


def run_features(
    model: ScoringModel, features: Features, device: torch.device
) -> Iterator[tuple[float, FloatArray, tuple[FloatArray, ...]]]:
    """Yield score, map and log-likelihoods of one image after another, from the backbone's features."""

    def run(part: slice) -> Outputs:
        chosen = np.arange(part.start, part.stop)
        with torch.inference_mode():
            rows = [torch.from_numpy(features.rows(i, chosen)).to(device) for i in range(len(features.levels))]
            scores, maps, levels = model.score_features(rows)
            return scores.cpu().numpy(), maps.cpu().numpy(), [level.cpu().numpy() for level in levels]

    workers = WorkerPool(usable_cpus(), device)
    parts = list(chunks(features.count, BATCH))
    for window in chunks(len(parts), AHEAD):
        for scores, maps, levels in workers.stream(run, parts[window]):
            for i, score in enumerate(scores):
                yield float(score), maps[i], tuple(level[i] for level in levels)
