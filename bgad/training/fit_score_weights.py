"""Fits the level weights and the image-head weight of a score to the known anomalies.

On some images the fine level tells most, on others the coarse one or the image head. A grid of weights is tried on
known anomalies that the flows were not trained on, against validation normals. The weights are averaged over the grid,
each point by its prior and by how well it separates the anomalies: one anomaly moves them little, ten decide.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from bgad.features.cache import AnomalyFeatures, Features, even_pick
from bgad.model.flow import LevelConstants
from bgad.model.scoring import LevelModel, default_score_weights, level_anomaly, resize_maps
from bgad.training.fit_image_head import HeadScores, top_mean
from bgad.training.objective import LevelLikelihoods
from bgad.training.training_set import NormalPartition, TrainingSet
from bgad.types import DoubleArray, FloatArray, Index

# Level weights are multiples of one sixth: three levels then have 28 combinations, few enough to try all of them, and
# the average over them is as fine as needed.
WEIGHT_STEPS = 6
# Width of the soft step from "below a normal" to "above a normal", in standard deviations of the normals. A hard step
# would let the few known anomalies decide by single ranks.
STEP_WIDTH = 0.5
# Grid of the image-head weight, as powers of two times its prior: from an eighth to eight times.
HEAD_WEIGHT_OCTAVES = np.arange(-3.0, 3.5, 0.5)


def level_weights(
    prior: Sequence[float],
    normals: Sequence[FloatArray],
    known: Sequence[FloatArray],
    *,
    top_share: float,
    evidence_weight: float,
) -> list[float]:
    """Posterior weight of each level in the map's part of the score; the weights sum to 1.

    `normals` and `known` are the maps of each level on one grid, (images, positions). Anomalies with and without masks
    count by the share of normals that they score above.
    """
    grid = _weight_grid(len(prior))
    log_prior = [
        sum(math.log(p) * w * WEIGHT_STEPS for p, w in zip(prior, weights, strict=True) if w) for weights in grid
    ]
    log_ways = [-sum(math.lgamma(w * WEIGHT_STEPS + 1) for w in weights) for weights in grid]  # multinomial
    detection = [
        float(share_below(*(map_scores(weighted_map(weights, maps), top_share) for maps in (known, normals))).sum())
        for weights in grid
    ]
    posterior = _softmax(np.array(log_prior) + np.array(log_ways) + evidence_weight * np.array(detection))
    return [float(x) for x in posterior @ np.array(grid)]


def image_head_weight(
    prior: float,
    normals: tuple[FloatArray, FloatArray],
    known: tuple[FloatArray, FloatArray],
    *,
    evidence_weight: float,
) -> float:
    """Posterior weight of the image head beside the map.

    `normals` (n,) and `known` (k,) are each a pair of scores, of the map and of the image head.
    """
    factors = 2.0**HEAD_WEIGHT_OCTAVES
    detection = [
        float(share_below(known[0] + prior * factor * known[1], normals[0] + prior * factor * normals[1]).sum())
        for factor in factors
    ]
    return float(prior * 2.0 ** (_softmax(evidence_weight * np.array(detection)) @ HEAD_WEIGHT_OCTAVES))


def share_below(known: npt.NDArray[np.floating], normals: npt.NDArray[np.floating]) -> DoubleArray:
    """For each known anomaly, the share of normals that score below it, with soft steps."""
    unit = STEP_WIDTH * max(float(normals.std()), 1e-9)
    difference = (known[:, None].astype(np.float64) - normals[None]) / unit
    shares: DoubleArray = (1 / (1 + np.exp(-np.clip(difference, -50, 50)))).mean(axis=1)
    return shares


def map_scores(maps: npt.NDArray[np.floating], share: float) -> npt.NDArray[np.floating]:
    """Return the image score of each map (n, P): the mean of its highest share, or its maximum for 0."""
    return top_mean(maps, max(1, round(share * maps.shape[1])))


def _weight_grid(levels: int) -> list[tuple[float, ...]]:
    """Return all combinations of level weights that are multiples of one sixth and sum to 1.

    >>> len(_weight_grid(3)), _weight_grid(1)
    (28, [(1.0,)])
    """
    counts = (c for c in itertools.product(range(WEIGHT_STEPS + 1), repeat=levels) if sum(c) == WEIGHT_STEPS)
    return [tuple(x / WEIGHT_STEPS for x in c) for c in counts]


def weighted_map(weights: Sequence[float], maps: Sequence[FloatArray]) -> FloatArray:
    """Return the sum of the maps of all levels, each times its weight."""
    total: FloatArray = np.zeros_like(maps[0])
    for weight, level_map in zip(weights, maps, strict=True):
        if weight:
            total = total + np.float32(weight) * level_map
    return total


def _softmax(x: DoubleArray) -> DoubleArray:
    weight = np.exp(x - x.max())
    normalised: DoubleArray = weight / weight.sum()
    return normalised


MAX_VOTERS = 200  # known anomalies that the weights are fitted to: more do not move them, and their maps take memory
MIN_LEVEL_PRIOR = 1e-3  # an update may give weight again to a level whose weight an earlier fit has set to 0
# The posterior of the image-head weight stays within this factor of the recipe's weight. Beyond it, either the map or
# the image head would have no influence, and known anomalies say nothing about defects of another kind.
MAX_HEAD_WEIGHT_FACTOR = 8


class ScoreWeightFitter:
    """Fits the level weights and the image-head weight to the known anomalies.

    The weights are fitted while the flows know no anomaly (or, in an update, none of the new ones), because known
    anomalies are then as new to them as those to come. Without validation normals the weights keep their priors.
    """

    def __init__(
        self,
        model: LevelModel,
        training_set: TrainingSet,
        partition: NormalPartition,
        head_scores: HeadScores | None = None,
        new_anomalies: Index | None = None,
    ) -> None:
        """In an update, `new_anomalies` are the numbers of those to teach, and the model's weights are the prior."""
        self.model, self.partition, self.head_scores = model, partition, head_scores
        self.known, self.new_anomalies = training_set.known, new_anomalies
        self.prior: list[float] = (
            default_score_weights(model.config) if new_anomalies is None else model.score_weights.tolist()
        )
        trained = training_set.trained_positions
        self._trained_positions = None if trained is None else trained[0]

    def fit(self, likelihoods: LevelLikelihoods) -> None:
        """Set the weights of the model from the log-likelihoods of known anomalies under its present flows."""
        config, known = self.model.config.score, self.known
        weights = list(self.prior)
        voters = np.arange(known.features.count if known else 0) if self.new_anomalies is None else self.new_anomalies
        if known is not None and len(voters) and config.evidence_weight and self.partition.validation is not None:
            voter_sample = voters[even_pick(len(voters), MAX_VOTERS)]
            weights = self._posterior(likelihoods, known, voter_sample)
            # In an update, the weights of before stand for the anomalies that the model knew already.
            share = len(voters) / known.features.count
            weights = [share * now + (1 - share) * before for now, before in zip(weights, self.prior, strict=True)]
        self.model.score_weights.copy_(torch.tensor(weights))

    def _posterior(self, likelihoods: LevelLikelihoods, known: AnomalyFeatures, voters: Index) -> list[float]:
        """Return the level weights and the image-head weight, given some of the known anomalies."""
        config = self.model.config.score
        normal_maps, known_maps = self._anomaly_maps(likelihoods, known.features.select(voters))
        weights = level_weights(
            [max(weight, MIN_LEVEL_PRIOR) for weight in self.prior[:-1]],
            normal_maps,
            known_maps,
            top_share=config.top_share,
            evidence_weight=config.evidence_weight,
        )
        head_weight = self.prior[-1]
        if self.head_scores is not None and config.image_head_weight:
            normal_scores, known_scores = (
                map_scores(weighted_map(weights, maps), config.top_share) for maps in (normal_maps, known_maps)
            )
            mean, spread = float(normal_scores.mean()), max(float(normal_scores.std()), 1e-6)
            posterior = image_head_weight(
                head_weight,
                ((normal_scores - mean) / spread, self.head_scores.normals),
                ((known_scores - mean) / spread, self.head_scores.known[voters]),
                evidence_weight=config.evidence_weight,
            )
            lowest = config.image_head_weight / MAX_HEAD_WEIGHT_FACTOR
            head_weight = min(max(posterior, lowest), config.image_head_weight * MAX_HEAD_WEIGHT_FACTOR)
        return [*weights, head_weight]

    def _anomaly_maps(
        self, likelihoods: LevelLikelihoods, known: Features
    ) -> tuple[Sequence[FloatArray], Sequence[FloatArray]]:
        """Return each level's anomaly maps (images, positions) on the finest grid: of normals, of known anomalies."""
        grid = likelihoods.levels[0].grid
        everywhere = np.arange(grid[0] * grid[1])
        trained = everywhere if self._trained_positions is None else self._trained_positions
        outside = np.setdiff1d(everywhere, trained)

        def level_maps(i: int) -> tuple[FloatArray, FloatArray]:
            level, fusion = likelihoods.levels[i], self.model.config.score.fusion
            log_p = [likelihoods.of_images(i, x) for x in (self.partition.reference, known)]
            constants = torch.tensor(LevelConstants.of(likelihoods.inside_roi(i, log_p[0]), likelihoods.beta).values())
            shaped = [level_anomaly(torch.from_numpy(x), constants, fusion).reshape(-1, *level.grid) for x in log_p]
            maps = [resize_maps(x, grid).flatten(1) for x in shaped]
            for anomaly_map in maps:  # outside of the region of interest there is no anomaly
                anomaly_map[:, outside] = anomaly_map[:, trained].amin(1, keepdim=True)
            return maps[0].numpy(), maps[1].numpy()

        maps = likelihoods.workers.each(level_maps)
        return [of_normals for of_normals, _ in maps], [of_known for _, of_known in maps]
