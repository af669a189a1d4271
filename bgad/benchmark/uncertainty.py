"""Image AUROC of a cross-validation and its uncertainty, with intervals that also hold for few anomalies.

They show how the figures vary with the images that are tested. They do not show how a training varies with its seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from bgad.types import DoubleArray

CONFIDENCE = 0.95
BISECTIONS = 50  # of a range of length 1: to the precision of a float


class HeldOut(NamedTuple):
    """The scores that the model of one fold gives to the images that were held out from it."""

    normal: DoubleArray  # (N,)
    anomalous: DoubleArray  # (A,)


def fold_auroc(folds: Sequence[HeldOut]) -> float:
    """Return the share of pairs of a held-out anomaly and a normal of its fold that are in order, over all anomalies.

    Scores of two folds come from two models, so they are never compared. Every anomaly counts the same.

    >>> fold_auroc([HeldOut(np.array([0.0, 2.0]), np.array([1.0])), HeldOut(np.array([5.0]), np.array([5.0, 6.0]))])
    0.6666666666666666
    """
    return float(np.concatenate([_in_order(fold).mean(1) for fold in folds]).mean())


def auroc_interval(folds: Sequence[HeldOut]) -> tuple[float, float]:
    """Return the confidence interval of `fold_auroc`: the values that lie no further from it than chance explains.

    This is a score interval after Newcombe (Statistics in Medicine 25, 2006). The variance is that of Hanley and McNeil
    at each candidate value, not one that is estimated from a few images, so it has a width even at an AUROC of 1.

    >>> folds = [HeldOut(np.arange(10.0), np.array([20.0, 21.0]))] * 3
    >>> [f"{limit:.3f}" for limit in auroc_interval(folds)]
    ['0.755', '1.000']
    """
    auroc = fold_auroc(folds)
    sizes = [(len(fold.anomalous), len(fold.normal)) for fold in folds]
    quantile = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)

    def limit(end: float) -> float:
        inside, outside = auroc, end
        for _ in range(BISECTIONS):
            value = (inside + outside) / 2
            if abs(value - auroc) <= quantile * math.sqrt(_variance(value, sizes)):
                inside = value
            else:
                outside = value
        return (inside + outside) / 2

    return limit(0.0), limit(1.0)


def difference_interval(folds: Sequence[HeldOut], others: Sequence[HeldOut]) -> tuple[float, float]:
    """Return the confidence interval of the AUROC of `folds` less that of `others`: the same images, another method.

    The variance is that of DeLong et al. (Biometrics 44, 1988): each image has a difference of its own, so images that
    are hard for both methods do not widen the interval. Its quantile is Student's, with as many degrees of freedom as
    the smaller of the two groups of images has, as the variance is estimated from few images.
    """
    gains = [_in_order(fold) - _in_order(other) for fold, other in zip(folds, others, strict=True)]  # each (A, N)
    of_anomalies = np.concatenate([gain.mean(1) for gain in gains])
    difference, anomalies = float(of_anomalies.mean()), len(of_anomalies)
    influences = (
        (of_anomalies - difference) / anomalies,
        np.concatenate([(gain.mean(0) - difference) * len(gain) / gain.shape[1] for gain in gains]) / anomalies,
    )
    variance = sum(len(group) / (len(group) - 1) * float(np.square(group).sum()) for group in influences)
    margin = t_quantile(min(map(len, influences)) - 1) * math.sqrt(variance)
    return max(-1.0, difference - margin), min(1.0, difference + margin)


def t_quantile(degrees: int) -> float:
    """Return the value that the modulus of Student's t exceeds with a probability of 1 - CONFIDENCE.

    It is computed here because the training install has no scipy; the tests compare it with scipy. The method is
    bisection on the angle whose tangent is t / sqrt(degrees).

    >>> [f"{t_quantile(degrees):.3f}" for degrees in (1, 2, 30)]
    ['12.706', '4.303', '2.042']
    """
    low, high = 0.0, math.pi / 2
    for _ in range(BISECTIONS):
        angle = (low + high) / 2
        low, high = (angle, high) if _share_within(angle, degrees) < CONFIDENCE else (low, angle)
    return math.sqrt(degrees) * math.tan(low)


def _share_within(angle: float, degrees: int) -> float:
    """Return P(|T| <= sqrt(degrees) tan(angle)), by the series of Abramowitz and Stegun (26.7.3 and 26.7.4)."""
    is_odd = degrees % 2
    term, total = math.cos(angle) if is_odd else 1.0, 0.0
    for power in range(is_odd, degrees - 1, 2):
        total += term
        term *= (power + 1) / (power + 2) * math.cos(angle) ** 2
    share = math.sin(angle) * total
    return (angle + share) * 2 / math.pi if is_odd else share


def _variance(auroc: float, sizes: Sequence[tuple[int, int]]) -> float:
    """Return the variance of `fold_auroc` by Hanley and McNeil, for folds of these numbers of anomalies and normals.

    Of their two terms, the larger one is given to the smaller group of images, whichever it is: the cautious choice.
    """
    of_many, of_few = sorted((auroc / (2 - auroc) - auroc**2, 2 * auroc**2 / (1 + auroc) - auroc**2))
    variance, total = 0.0, sum(anomalous for anomalous, _ in sizes)
    for anomalous, normal in sizes:
        few, many = sorted((anomalous, normal))
        terms = auroc * (1 - auroc) + (few - 1) * of_many + (many - 1) * of_few
        variance += (anomalous / total) ** 2 * terms / (few * many)
    return max(0.0, variance)


def _in_order(fold: HeldOut) -> DoubleArray:
    """Return 1 where an anomaly scores above a normal, and a half where both score the same, (A, N)."""
    anomalous, normal = fold.anomalous[:, None], fold.normal[None]
    above: DoubleArray = (anomalous > normal) + 0.5 * (anomalous == normal)
    return above
