"""Scoring images whose features are already cached."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from bgad.errors import BgadError
from bgad.features.cache import Features, chunks
from bgad.inference.base import BATCH
from bgad.inference.torch_engine import Detector
from bgad.model import device as devices
from bgad.model.scoring import ScoringModel
from bgad.types import FloatArray, Scores, Shape

AHEAD = 8  # batches that may be scored before they are asked for


def score_features(detector: Detector, features: Features, shapes: Sequence[Shape]) -> Iterator[Scores | BgadError]:
    """Score images from their cached features, as `score_stream` scores files; `shapes` are the sizes of the images."""
    for i, (score, small, levels) in enumerate(run_features(detector.model, features, detector.device)):
        yield detector.finish_one(score, small, levels, shapes[i])


def run_features(
    model: ScoringModel, features: Features, device: torch.device
) -> Iterator[tuple[float, FloatArray, tuple[FloatArray, ...]]]:
    """Score, map and log-likelihoods of one image after the other, from the backbone's features."""

    def batch(part: slice) -> tuple[FloatArray, FloatArray, list[FloatArray]]:
        chosen = np.arange(part.start, part.stop)
        with torch.inference_mode():
            rows = [torch.from_numpy(features.rows(i, chosen)).to(device) for i in range(len(features.levels))]
            scores, maps, levels = model.score_features(rows)
            return scores.cpu().numpy(), maps.cpu().numpy(), [level.cpu().numpy() for level in levels]

    workers = devices.Workers(os.cpu_count() or 1, device)
    parts = list(chunks(features.count, BATCH))
    for some in chunks(len(parts), AHEAD):
        for scores, maps, levels in workers.stream(batch, parts[some]):
            for i, score in enumerate(scores):
                yield float(score), maps[i], tuple(level[i] for level in levels)
