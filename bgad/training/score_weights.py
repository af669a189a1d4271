"""How much each level and the image as a whole count in the score, found from the known anomalies.

On one kind of picture the fine level tells most, on another the coarse one or the image as a whole. While the flows
have learnt normals only, known anomalies are as new to them as those to come. So each of a few mixtures is tried on
them, against normals that the flows have not learnt. The mixtures are averaged, each by how well it does and by how
near it is to what holds without known anomalies: one anomaly moves little, ten decide.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from bgad import arrays
from bgad.types import FloatArray

PARTS = 6  # a mixture gives each level so many sixths
FALSE_SHARES = (0.003, 0.01, 0.03, 0.1)  # of normal positions that are let through where a marked defect is looked for
SOFT = 0.5  # standard deviations of normals over which "above a normal" goes from no to yes
OCTAVES = np.arange(-3.0, 3.5, 0.5)  # powers of two that the weight of the image as a whole may be off its default

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]


def level_shares(
    prior: Sequence[float],
    normals: Sequence[FloatArray],
    known: Sequence[FloatArray],
    cells: Sequence[Index | None],
    *,
    top_share: float,
    trust: float,
) -> list[float]:
    """The share of each level in the map; they sum to 1.

    Per level, maps of normals (n, P) and of known anomalies (k, P) on one grid; `cells` are the positions of each
    anomaly that show its defect, None where nobody marked it.
    """
    mixtures = _mixtures(len(prior))
    likely = [sum(math.log(p) * w * PARTS for p, w in zip(prior, mixture, strict=True) if w) for mixture in mixtures]
    ways = [-sum(math.lgamma(w * PARTS + 1) for w in mixture) for mixture in mixtures]
    found = [
        float(_found(mixed(mixture, normals), mixed(mixture, known), cells, top_share).sum()) for mixture in mixtures
    ]
    weight = _softmax(np.array(likely) + np.array(ways) + trust * np.array(found))
    return [float(x) for x in weight @ np.array(mixtures)]


def image_weight(
    prior: float,
    normals: tuple[FloatArray, FloatArray],
    known: tuple[FloatArray, FloatArray],
    *,
    trust: float,
) -> float:
    """Of the image as a whole beside its map, from the scores of both: (n,) of normals, (k,) of known anomalies."""
    factors = 2.0**OCTAVES
    found = [
        float(above(known[0] + prior * factor * known[1], normals[0] + prior * factor * normals[1]).sum())
        for factor in factors
    ]
    return float(prior * 2.0 ** (_softmax(trust * np.array(found)) @ OCTAVES))


def above(known: npt.NDArray[np.floating], normals: npt.NDArray[np.floating]) -> Array:
    """For each known anomaly: the share of normals that it scores above, with soft steps."""
    unit = SOFT * max(float(normals.std()), 1e-9)
    away = (known[:, None].astype(np.float64) - normals[None]) / unit
    shares: Array = (1 / (1 + np.exp(-np.clip(away, -50, 50)))).mean(axis=1)
    return shares


def top_mean(maps: npt.NDArray[np.floating], share: float) -> npt.NDArray[np.floating]:
    """Mean of the highest share of each row, or its maximum for 0."""
    return arrays.top_mean(maps, max(1, round(share * maps.shape[1])))


def _found(normals: FloatArray, known: FloatArray, cells: Sequence[Index | None], top_share: float) -> Array:
    """How well each known anomaly is found, 0 to 1: a marked one by its positions, another one by its score."""
    scores = above(top_mean(known, top_share), top_mean(normals, top_share))
    edges = np.quantile(normals, [1 - share for share in FALSE_SHARES])
    for i, own in enumerate(cells):
        if own is not None:
            scores[i] = np.mean([(known[i][own] > edge).mean() for edge in edges])
    return scores


def _mixtures(levels: int) -> list[tuple[float, ...]]:
    """Every way to give each level a number of sixths.

    >>> len(_mixtures(3)), _mixtures(1)
    (28, [(1.0,)])
    """
    counts = (c for c in itertools.product(range(PARTS + 1), repeat=levels) if sum(c) == PARTS)
    return [tuple(x / PARTS for x in c) for c in counts]


def mixed(mixture: Sequence[float], maps: Sequence[FloatArray]) -> FloatArray:
    """The map of all levels, each by its share."""
    total: FloatArray = np.zeros_like(maps[0])
    for share, level in zip(mixture, maps, strict=True):
        if share:
            total = total + np.float32(share) * level
    return total


def _softmax(x: Array) -> Array:
    weight = np.exp(x - x.max())
    normalised: Array = weight / weight.sum()
    return normalised
