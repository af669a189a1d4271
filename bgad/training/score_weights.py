"""Posterior of the level weights and of the image-head weight, given scores of known anomalies and of normals.

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

from bgad import arrays
from bgad.types import DoubleArray, FloatArray, Index

# Level weights are multiples of one sixth: three levels then have 28 combinations, few enough to try all of them, and
# the average over them is as fine as needed.
WEIGHT_STEPS = 6
# False-positive rates of positions at which the share of a marked defect that is found is averaged: from what a useful
# map shows of a normal image up to where most defects are found.
POSITION_FALSE_POSITIVE_RATES = (0.003, 0.01, 0.03, 0.1)
# Width of the soft step from "below a normal" to "above a normal", in standard deviations of the normals. A hard step
# would let the few known anomalies decide by single ranks.
STEP_WIDTH = 0.5
# Grid of the image-head weight, as powers of two times its prior: from an eighth to eight times.
HEAD_WEIGHT_OCTAVES = np.arange(-3.0, 3.5, 0.5)


def level_weights(
    prior: Sequence[float],
    normals: Sequence[FloatArray],
    known: Sequence[FloatArray],
    cells: Sequence[Index | None],
    *,
    top_share: float,
    evidence_weight: float,
) -> list[float]:
    """Posterior weight of each level in the anomaly map; the weights sum to 1.

    `normals` and `known` are the maps of each level on one grid, (images, positions). `cells` are the positions of each
    anomaly that show its defect, None for an anomaly without a mask.
    """
    grid = _weight_grid(len(prior))
    log_prior = [
        sum(math.log(p) * w * WEIGHT_STEPS for p, w in zip(prior, weights, strict=True) if w) for weights in grid
    ]
    log_ways = [-sum(math.lgamma(w * WEIGHT_STEPS + 1) for w in weights) for weights in grid]  # multinomial
    detection = [
        float(_detection(weighted_map(weights, normals), weighted_map(weights, known), cells, top_share).sum())
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


def top_mean(maps: npt.NDArray[np.floating], share: float) -> npt.NDArray[np.floating]:
    """Mean of the highest share of each row, or its maximum for 0: the image score of a map."""
    return arrays.top_mean(maps, max(1, round(share * maps.shape[1])))


def _detection(normals: FloatArray, known: FloatArray, cells: Sequence[Index | None], top_share: float) -> DoubleArray:
    """How well each known anomaly is detected, 0 to 1: with a mask by its positions, without one by its score."""
    rates = share_below(top_mean(known, top_share), top_mean(normals, top_share))
    thresholds = np.quantile(normals, [1 - rate for rate in POSITION_FALSE_POSITIVE_RATES])
    for i, defect in enumerate(cells):
        if defect is not None:
            rates[i] = np.mean([(known[i][defect] > threshold).mean() for threshold in thresholds])
    return rates


def _weight_grid(levels: int) -> list[tuple[float, ...]]:
    """All combinations of level weights that are multiples of one sixth and sum to 1.

    >>> len(_weight_grid(3)), _weight_grid(1)
    (28, [(1.0,)])
    """
    counts = (c for c in itertools.product(range(WEIGHT_STEPS + 1), repeat=levels) if sum(c) == WEIGHT_STEPS)
    return [tuple(x / WEIGHT_STEPS for x in c) for c in counts]


def weighted_map(weights: Sequence[float], maps: Sequence[FloatArray]) -> FloatArray:
    """The sum of the maps of all levels, each times its weight."""
    total: FloatArray = np.zeros_like(maps[0])
    for weight, level_map in zip(weights, maps, strict=True):
        if weight:
            total = total + np.float32(weight) * level_map
    return total


def _softmax(x: DoubleArray) -> DoubleArray:
    weight = np.exp(x - x.max())
    normalised: DoubleArray = weight / weight.sum()
    return normalised
