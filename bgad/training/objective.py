"""The objective of a training: log-likelihoods of cached features, the features of a step, their loss.

`likelihood_loss` and `objective` take log p / d. Weights, pull and push take it normalised: log p / d / NORMALISER.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bgad.config import LossConfig
from bgad.features.cache import AnomalyFeatures, Features, chunks, even_pick
from bgad.model.boundary import abnormal_boundary
from bgad.model.device import WorkerPool
from bgad.model.flow import Level, LevelConstants
from bgad.types import FloatArray, Index

# The paper divides log p by this number. Here log p / d is divided by it, for margin, weights and semi-push-pull.
NORMALISER = 10.0
REFRESH_STEPS = 20  # steps between two selections of instances: in fewer, the flows change little

# Truncated focal weight of hard normals and reversed focal weight of anomalies. The constants make both
# weights meet 1 at their thresholds (0.996 and 0.992); the paper's printed ones for normals do not (0.54).
ALPHA_N, GAMMA_N, EASY_NORMAL = 11.7, 0.5, -0.2
ALPHA_A, GAMMA_A, EASY_ABNORMAL = 0.53, 2.0, -1.0
FAR = -1.0  # features below it are far outside of the boundary and need no push or pull

# Quantiles and moments over a set of normals use an even sample of this many images, so that the start of phase 2 does
# not grow with the data set. At an input of 256 pixels the finest level has 400,000 features in them.
MAX_SET_IMAGES = 400
BATCH_IMAGES = 2  # all positions of an image are evaluated, so two images already make a large batch


@dataclass(frozen=True)
class LevelLikelihoods:
    """Evaluates all levels on cached features."""

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


def likelihood_loss(log_p: Tensor, kind: str, weight: Tensor | None = None) -> Tensor:
    """Return the mean negative log-likelihood of normal features; `log_p` is log p / d, not normalised."""
    return _weighted(-log_p if kind == "nll" else -F.logsigmoid(log_p), weight).mean()


def normal_weight(log_p: Tensor) -> Tensor:
    """1 for easy normals, growing with the distance for hard ones (at or below EASY_NORMAL)."""
    hard = -ALPHA_N * (1 - log_p.exp()).clamp(min=0) ** GAMMA_N * log_p
    return torch.where(log_p > EASY_NORMAL, 1.0, hard).detach()


def abnormal_weight(log_p: Tensor, cap: float) -> Tensor:
    """1 for easy anomalies, growing with the likelihood for hard ones, at most `cap` (there is a pole at 0)."""
    near = log_p.clamp(max=-1e-6)
    hard = (-ALPHA_A * (1 + near.exp()) ** GAMMA_A / near).clamp(max=cap)
    return torch.where(log_p > EASY_ABNORMAL, hard, 1.0).detach()


def semi_pull(log_p: Tensor, b_n: float, *, weight: Tensor | None = None, exclude_far: bool = True) -> Tensor:
    """Return the mean distance to b_n of the normals outside of it; the others have no loss."""
    return _violation(b_n - log_p, log_p, weight, exclude_far)


def semi_push(log_p: Tensor, b_a: float, *, weight: Tensor | None = None, exclude_far: bool = True) -> Tensor:
    """Return the mean excess over b_a of the anomalies above it, that is, inside b_n or in the margin."""
    return _violation(log_p - b_a, log_p, weight, exclude_far)


def _violation(excess: Tensor, log_p: Tensor, weight: Tensor | None, exclude_far: bool) -> Tensor:
    wrong = excess.detach() > 0
    if exclude_far:
        wrong = wrong & (log_p.detach() >= FAR)
    return torch.where(wrong, _weighted(excess, weight), 0.0).sum() / wrong.sum().clamp(min=1)


def full_pull(log_p: Tensor, *, weight: Tensor | None = None) -> Tensor:
    """Return how far normals lie below 0, on average; those above count as 0."""
    return _weighted((-log_p).clamp(min=0), weight).mean()


def full_push(log_p: Tensor, *, weight: Tensor | None = None) -> Tensor:
    """Return how far anomalies lie above FAR, on average; those below count as 0."""
    return _weighted((log_p - FAR).clamp(min=0), weight).mean()


def _weighted(values: Tensor, weight: Tensor | None) -> Tensor:
    return values if weight is None else values * weight


@dataclass(frozen=True)
class Parts:
    """The loss of a level and its parts."""

    total: Tensor
    likelihood: Tensor
    pull: Tensor
    push: Tensor


def objective(kind: str, config: LossConfig, normal: Tensor, abnormal: Tensor | None, b_n: float | None) -> Parts:
    """Return the loss of a level, from log p / d of normal and anomalous features and the normalised boundary.

    `kind` is one of OBJECTIVES. Phase 1, and `likelihood` in both phases, have no boundary (None).
    """
    zero = normal.new_zeros(())
    if b_n is None or kind == "likelihood":
        likelihood = likelihood_loss(normal, config.likelihood)
        return Parts(likelihood, likelihood, zero, zero)
    n, a = normal / NORMALISER, None if abnormal is None or kind == "semi-pull" else abnormal / NORMALISER
    weight_n = normal_weight(n) if config.asymmetric_weights else None
    weight_a = abnormal_weight(a, config.max_abnormal_weight) if config.asymmetric_weights and a is not None else None
    likelihood = zero if kind == "boundary-only" else likelihood_loss(normal, config.likelihood, weight_n)
    if kind == "full-push-pull":
        pull = full_pull(n, weight=weight_n)
        push = zero if a is None else full_push(a, weight=weight_a)
    else:
        pull, push = semi_pull(n, b_n, weight=weight_n, exclude_far=config.exclude_far), zero
        if a is not None:
            push = semi_push(a, abnormal_boundary(b_n, config.tau), weight=weight_a, exclude_far=config.exclude_far)
    return Parts(likelihood + config.push_pull_weight * (pull + push), likelihood, pull, push)
