"""Which features a training step takes: positions of normals, of anomalies, and of those without a mask."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bgad.training.likelihoods import LevelLikelihoods
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


REFRESH_STEPS = 20  # steps between two selections: in fewer, the flows change little


def usable_anomalies(groups: Sequence[AnomalyFeatures], share: float) -> list[AnomalyFeatures]:
    """Return the groups that the flows are trained with: without a share, anomalies without masks are left out."""
    return list(groups) if share else [marked for group in groups for marked in group.only_marked()]


def without_masks(groups: Sequence[AnomalyFeatures]) -> list[AnomalyFeatures]:
    """Return the groups in which some anomalies have no mask."""
    return [group for group in groups if not all(group.marked)]


def select_instances(groups: Sequence[AnomalyFeatures], likelihoods: LevelLikelihoods, share: float) -> None:
    """Set the cells of every anomaly without a mask to the least likely share of its positions."""

    def select(level: int) -> None:
        for group in without_masks(groups):
            images = np.flatnonzero(~np.array(group.marked))
            for image, log_p in zip(images, likelihoods.of_images(level, group.features, images), strict=True):
                roi = likelihoods.roi_positions
                positions = np.arange(len(log_p)) if roi is None else roi[level]
                count = max(1, round(share * len(positions)))
                group.cells[level][image] = positions[np.argpartition(log_p[positions], count - 1)[:count]]

    likelihoods.workers.each(select)
