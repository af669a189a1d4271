"""Chooses the normal features that a distance level stores."""

from __future__ import annotations

import numpy as np
import torch

from bgad.features.cache import Features
from bgad.model.distance import DistanceLevel
from bgad.types import FloatArray, Index

# Features that the stored ones are chosen from. Ten for each stored one cover a data set's rare normal features; the
# choice then takes seconds.
CANDIDATES_PER_ROW = 10


def fill_bank(level: DistanceLevel, number: int, features: Features, positions: Index, seed: int) -> None:
    """Store features of these images at these positions in the level, which is the model's `number`-th."""
    size = len(level.bank)
    rng = np.random.default_rng([seed, number])
    rows = torch.from_numpy(sample_rows(features, number, positions, CANDIDATES_PER_ROW * size, rng))
    with torch.no_grad():
        rows = rows.to(level.bank)
        level.bank.copy_(rows[spread_out(level.unit_vectors(rows), size)])


def sample_rows(features: Features, level: int, positions: Index, count: int, rng: np.random.Generator) -> FloatArray:
    """Draw at most `count` features of a level without replacement, (count, C), at these positions of any image."""
    total = features.count * len(positions)
    drawn = rng.choice(total, min(count, total), replace=False)
    return features.rows(level, drawn // len(positions), positions[drawn % len(positions)])


def spread_out(unit: torch.Tensor, count: int) -> torch.Tensor:
    """Return the indices of `count` unit vectors (n, D) that leave none of the others far from the nearest of them.

    The greedy choice takes the first, then always the one least similar to those taken (a k-centre coreset). Random
    ones would mostly repeat what is frequent. With fewer than `count` vectors, indices repeat.

    >>> spread_out(torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [-1.0, 0.0]]), 3).tolist()
    [0, 3, 2]
    """
    chosen = [0]
    similarity = unit @ unit[0]
    while len(chosen) < min(count, len(unit)):
        chosen.append(int(similarity.argmin()))
        similarity = torch.maximum(similarity, unit @ unit[chosen[-1]])
    return torch.from_numpy(np.resize(np.array(chosen), count))
