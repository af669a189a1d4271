"""What the image head stores: statistics of the normals' features, and discriminant directions of known anomalies.

The normals give their descriptors a Gaussian with a shrunk covariance: it needs no training, and does not overfit to
few normals. A discriminant direction points from the normals to the known anomalies, in units of that covariance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bgad import arrays
from bgad.model.image_head import DIRECTION_PEAK_SHARE, DescriptorGaussian, DiscriminantDirection, peak_count
from bgad.types import DoubleArray, FloatArray, Index

MIN_NORMALS = 8  # a covariance of fewer descriptors says next to nothing, however it is shrunk
FOLDS = 5  # of the cross-validation
# Share of normals inside the boundary of a direction: a quantile that some tens of normals determine well.
# The excess of the quarter beyond it is small in units of the normals' spread.
BOUNDARY_QUANTILE = 0.75
# Of the mean variance, added to the covariance of features: a direction that rests on few defects must not follow
# components in which normals hardly vary.
RIDGE = 0.1
INSTANCE_SHARE = (
    0.1  # of the positions of an unmarked anomaly: wide enough for a defect that covers a tenth of the part
)
ROUNDS = 4  # one that starts from the Mahalanobis distance, three that refine the selected positions


def ledoit_wolf(x: DoubleArray) -> tuple[DoubleArray, float]:
    """Return the covariance of centred rows, shrunk to a multiple of the identity, and the shrinkage.

    O. Ledoit, M. Wolf, A well-conditioned estimator for large-dimensional covariance matrices, 2004. Written out here
    because the `train` extra does not install scikit-learn; a test compares it with scikit-learn's estimator.
    """
    rows, columns = x.shape
    empirical = x.T @ x / rows
    scale = float(np.trace(empirical)) / columns
    square = float((empirical**2).sum())
    distance = square / columns - scale**2
    noise = (float(((x**2).sum(axis=1) ** 2).sum()) / rows - square) / rows / columns  # variance of the estimate
    shrinkage = 1.0 if distance <= 0 else min(1.0, max(0.0, noise) / distance)
    return (1 - shrinkage) * empirical + shrinkage * scale * np.eye(columns), shrinkage


@dataclass(frozen=True)
class _Gaussian:
    mean: DoubleArray
    whiten: DoubleArray

    def distance(self, x: DoubleArray) -> DoubleArray:
        """Return the Mahalanobis distance of each row."""
        whitened: DoubleArray = (x - self.mean) @ self.whiten.T
        distances: DoubleArray = np.sqrt((whitened**2).sum(axis=1))
        return distances

    def discriminant(self, known: DoubleArray) -> DoubleArray:
        """Return the direction to the mean of known anomalies; projections of normals have about unit variance."""
        difference: DoubleArray = (known.mean(axis=0) - self.mean) @ self.whiten.T
        return (difference / max(float(np.linalg.norm(difference)), 1e-12)) @ self.whiten


def _fit_gaussian(x: DoubleArray) -> _Gaussian:
    mean, std = x.mean(axis=0), x.std(axis=0)
    # a floor: neither a constant channel nor a set of identical normals must decide the distance alone
    least = max(1e-3 * float(std.mean()), 1e-4 * float(np.abs(x).mean()), 1e-12)
    std = np.maximum(std, least)
    covariance, _ = ledoit_wolf((x - mean) / std)
    ridge = 1e-6 * np.trace(covariance) / len(covariance) + 1e-12
    lower = np.linalg.cholesky(covariance + ridge * np.eye(len(covariance)))
    return _Gaussian(mean, np.linalg.solve(lower, np.diag(1 / std)))


class DescriptorStatistics:
    """The Gaussian of the normals' descriptors (n, V).

    Distances and projections of the normals are cross-validated: normals that a Gaussian was fitted to lie too close
    to its mean.
    """

    def __init__(self, normals: npt.NDArray[np.floating]) -> None:
        self._x = normals.astype(np.float64)
        self._fold = np.arange(len(self._x)) % FOLDS
        self._all = _fit_gaussian(self._x)
        self._parts = [_fit_gaussian(self._x[self._fold != k]) for k in range(FOLDS)]
        distances = np.empty(len(self._x))
        for k, part in enumerate(self._parts):
            distances[self._fold == k] = part.distance(self._x[self._fold == k])
        mean, whiten = self._all.mean.astype(np.float32), self._all.whiten.astype(np.float32)
        std = max(float(distances.std()), 1e-6)
        self.gaussian = DescriptorGaussian(mean, whiten, float(distances.mean()), std)
        self.normal_distances = self._standardise(distances)  # of the normals, in standard deviations

    def distances(self, descriptors: npt.NDArray[np.floating]) -> DoubleArray:
        """Return the distances of other images, in standard deviations of the normals'."""
        return self._standardise(self._all.distance(descriptors.astype(np.float64)))

    def _standardise(self, distances: DoubleArray) -> DoubleArray:
        standard: DoubleArray = (distances - self.gaussian.distance_mean) / self.gaussian.distance_std
        return standard

    def direction(self, known: npt.NDArray[np.floating]) -> tuple[DiscriminantDirection, DoubleArray]:
        """Fit the direction to known anomalies (k, V); return it with the excess of the normals along it."""
        anomalous = known.astype(np.float64)
        vector = self._all.discriminant(anomalous)
        projections = np.empty(len(self._x))
        for k, part in enumerate(self._parts):
            projections[self._fold == k] = (self._x[self._fold == k] - part.mean) @ part.discriminant(anomalous)
        projections += self._all.mean @ vector
        direction = _with_boundary(vector, projections)
        return direction, direction.excess(projections)


class FeatureStatistics:
    """The covariance of the normals' features (n, P, C) at one stride."""

    def __init__(self, normals: FloatArray) -> None:
        channels = normals.shape[2]
        self._normals = normals
        self._mean = normals.mean(axis=(0, 1), dtype=np.float64).astype(np.float32)
        x = (normals - self._mean).reshape(-1, channels)  # (n * P, C)
        covariance = (x.T @ x).astype(np.float64) / len(x)
        ridge = RIDGE * np.trace(covariance) / channels + 1e-12
        self._precision: DoubleArray = np.linalg.inv(covariance + ridge * np.eye(channels))

    def direction(self, known: FloatArray, cells: Sequence[Index | None]) -> DiscriminantDirection:
        """Fit the direction to the defects of known anomalies (k, P, C).

        `cells` holds the positions of each anomaly's defect, or None where it is not marked. For an unmarked anomaly
        the positions with the largest Mahalanobis distance start, and each round selects those with the highest
        projections on the direction of the round before.
        """
        centred = (known - self._mean).astype(np.float64)
        evidence: DoubleArray = ((centred @ self._precision) * centred).sum(axis=2)
        for _ in range(ROUNDS):
            pairs = zip(cells, evidence, strict=True)
            chosen = [_highest(row) if marked is None else marked for marked, row in pairs]
            means = [image[at].mean(axis=0) for image, at in zip(centred, chosen, strict=True)]
            defect: DoubleArray = np.mean(means, axis=0)
            vector: DoubleArray = self._precision @ defect
            vector /= max(float(np.sqrt(defect @ vector)), 1e-12)
            evidence = centred @ vector
            if all(marked is not None for marked in cells):
                break
        return _with_boundary(vector, direction_peaks(self._normals @ vector.astype(np.float32)))


def direction_peaks(projections: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    """Return the mean of each row's highest projections (n, P), as the image head computes it."""
    return arrays.top_mean(projections, peak_count(projections.shape[1], DIRECTION_PEAK_SHARE))


def _highest(row: DoubleArray) -> Index:
    count = peak_count(len(row), INSTANCE_SHARE)
    return np.argpartition(row, -count)[-count:].astype(np.int64)


def _with_boundary(vector: DoubleArray, projections: npt.NDArray[np.floating]) -> DiscriminantDirection:
    spread = max(float(projections.std()), 1e-6)
    return DiscriminantDirection(vector.astype(np.float32), float(np.quantile(projections, BOUNDARY_QUANTILE)), spread)
