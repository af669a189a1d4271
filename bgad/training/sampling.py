"""Which features a training step takes: positions of normals, and positions of anomalies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bgad.training.training_set import AnomalyFeatures
from bgad.types import Index


def sample_positions(positions: Index, count: int, rng: np.random.Generator) -> Index:
    """Draw at most `count` of the positions without replacement, in ascending order."""
    return positions[np.sort(rng.choice(len(positions), min(count, len(positions)), replace=False))]


def sample_anomalies(
    groups: Sequence[AnomalyFeatures], level: int, count: int, pseudo_share: float, rng: np.random.Generator
) -> list[tuple[AnomalyFeatures, Index, Index]]:
    """Draw `count` anomalous features: for each group the images and the positions in them.

    Every image of a group is equally likely. With real and pseudo anomalies, `pseudo_share` of the features come from
    the pseudo ones; where there is one kind, all features come from it.
    """
    pseudo_count = round(pseudo_share * count)
    has_both_kinds = len({group.pseudo for group in groups}) == 2
    drawn = []
    for group in groups:
        number = count if not has_both_kinds else pseudo_count if group.pseudo else count - pseudo_count
        image = rng.integers(group.features.count, size=number)
        fraction = rng.random(number)
        cells = group.cells[level]
        position = np.array([cells[k][int(u * len(cells[k]))] for k, u in zip(image, fraction, strict=True)], np.int64)
        drawn.append((group, image, position))
    return drawn
