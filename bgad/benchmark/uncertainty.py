"""Image AUROC of a cross-validation, and its uncertainty by a bootstrap that is paired over the methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bgad.types import DoubleArray

REPLICATES = 2000
CONFIDENCE = 0.95
SEED = 0  # the same images give the same interval


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


def bootstrap(methods: Mapping[str, Sequence[HeldOut]]) -> dict[str, DoubleArray]:
    """Return replicates of each method's AUROC: normals are drawn anew within folds, anomalies over all of them.

    All methods must have scored the same images in the same order. They share the draws, so that the difference of two
    methods has less spread than each of them. The draws tell how the figures vary with the images that were tested;
    they do not tell how a training varies with its seed.
    """
    rng = np.random.default_rng(SEED)
    sizes = [(len(fold.normal), len(fold.anomalous)) for fold in next(iter(methods.values()))]
    normals = [_counts(rng, normal) for normal, _ in sizes]
    total = sum(anomalous for _, anomalous in sizes)
    anomalies = _counts(rng, total)
    replicates = {}
    for method, folds in methods.items():
        shares = [counts @ _in_order(fold).T / counts.shape[1] for counts, fold in zip(normals, folds, strict=True)]
        replicates[method] = (np.concatenate(shares, axis=1) * anomalies).sum(1) / total  # (R, A) -> (R,)
    return replicates


def interval(replicates: DoubleArray) -> tuple[float, float]:
    """Return the interval that holds a share of CONFIDENCE of the replicates."""
    low, high = np.quantile(replicates, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def _counts(rng: np.random.Generator, size: int) -> DoubleArray:
    """Return how often each of `size` images is drawn in each replicate, (R, size)."""
    return rng.multinomial(size, np.full(size, 1 / size), size=REPLICATES).astype(np.float64)


def _in_order(fold: HeldOut) -> DoubleArray:
    """Return 1 where an anomaly scores above a normal, and a half where both score the same, (A, N)."""
    anomalous, normal = fold.anomalous[:, None], fold.normal[None]
    above: DoubleArray = (anomalous > normal) + 0.5 * (anomalous == normal)
    return above
