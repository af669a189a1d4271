"""The image as a whole: how strange the sum of its feature maps is, and how much it resembles known anomalies.

A defect of the whole part (too dark, the wrong part, a finely spread flaw) can hide from every single feature. So the
feature maps are summed up (mean, spread and peak of each channel), and the normals give these summaries a Gaussian
with a shrunk covariance, which needs no training and does not overfit to few normals.

Known anomalies add directions: of the summary, and of the features at their defects. A boundary guides them as it
guides the flows: a direction counts only beyond where the normals end in it. So what is known adds suspicion to what
resembles it, and takes none from a kind of defect that nobody has seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bgad.arrays import top_mean
from bgad.types import FloatArray

MIN_NORMALS = 8  # with fewer, nothing can be said of the image as a whole
FOLDS = 5
EDGE = 0.75  # share of normals that lie inside the boundary of a direction
RIDGE = 0.1  # of the mean variance, added to the covariance of features: few defects must not rest on fine details
INSTANCES = 0.1  # share of the positions of an anomaly without a mask that are taken for its defect
ROUNDS = 4  # of choosing these positions and finding the direction
MAX_SUMMARY = 2048  # values; wide backbones are summed up by fewer statistics
PEAK, DEFECT_PEAK = 0.02, 0.05  # highest shares of a map that make its peak, of channels and along a direction

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Direction:
    """Towards known anomalies; what lies beyond `start` lies beyond three quarters of the normals."""

    towards: FloatArray  # (C,)
    start: float
    spread: float  # of the normals, the unit of what lies beyond

    def beyond(self, places: npt.NDArray[np.floating]) -> Array:
        """How far beyond, of places along the direction."""
        away: Array = (places.astype(np.float64) - self.start) / self.spread
        return away


@dataclass(frozen=True)
class Whole:
    """The Gaussian of the summaries."""

    mean: FloatArray  # (V,)
    whiten: FloatArray  # (V, V): whiten @ (x - mean) has about unit covariance
    centre: float  # of the normals' distances from the mean
    spread: float


def statistics_of(channels: int) -> int:
    """How many of mean, spread and peak are kept: the covariance of the summaries must stay small.

    >>> statistics_of(112 + 320), statistics_of(1024 + 2048)
    (3, 1)
    """
    return min(3, max(1, MAX_SUMMARY // channels))


def peak_count(positions: int, share: float) -> int:
    """How many of the highest values make a peak."""
    return max(1, int(positions * share))


def ledoit_wolf(x: Array) -> tuple[Array, float]:
    """Covariance of centred rows, shrunk to a multiple of the identity by the share that Ledoit and Wolf derive.

    O. Ledoit, M. Wolf, A well-conditioned estimator for large-dimensional covariance matrices, 2004.
    """
    rows, columns = x.shape
    empirical = x.T @ x / rows
    scale = float(np.trace(empirical)) / columns
    square = float((empirical**2).sum())
    distance = square / columns - scale**2
    noise = (float(((x**2).sum(axis=1) ** 2).sum()) / rows - square) / rows / columns  # of the products of each row
    share = 1.0 if distance <= 0 else min(1.0, max(0.0, noise) / distance)
    return (1 - share) * empirical + share * scale * np.eye(columns), share


@dataclass(frozen=True)
class _Gaussian:
    mean: Array
    whiten: Array

    def distance(self, x: Array) -> Array:
        """Mahalanobis distance of each row."""
        away: Array = (x - self.mean) @ self.whiten.T
        distances: Array = np.sqrt((away**2).sum(axis=1))
        return distances

    def direction(self, known: Array) -> Array:
        """Of the mean of the known anomalies, such that x @ direction has about unit variance over normals."""
        towards: Array = (known.mean(axis=0) - self.mean) @ self.whiten.T
        return (towards / max(float(np.linalg.norm(towards)), 1e-12)) @ self.whiten


def _gaussian(x: Array) -> _Gaussian:
    mean, std = x.mean(axis=0), x.std(axis=0)
    least = max(1e-3 * float(std.mean()), 1e-4 * float(np.abs(x).mean()), 1e-12)
    std = np.maximum(
        std, least
    )  # a constant channel must not decide alone, and neither must normals that are all alike
    covariance, _ = ledoit_wolf((x - mean) / std)
    ridge = 1e-6 * np.trace(covariance) / len(covariance) + 1e-12
    lower = np.linalg.cholesky(covariance + ridge * np.eye(len(covariance)))
    return _Gaussian(mean, np.linalg.solve(lower, np.diag(1 / std)))


class Summaries:
    """The Gaussian of the normals' summaries (n, V).

    The normals are measured out of fold: those that a Gaussian was fitted to lie too close to it.
    """

    def __init__(self, normals: npt.NDArray[np.floating]) -> None:
        self._x = normals.astype(np.float64)
        self._fold = np.arange(len(self._x)) % FOLDS
        self._all = _gaussian(self._x)
        self._parts = [_gaussian(self._x[self._fold != k]) for k in range(FOLDS)]
        distances = np.empty(len(self._x))
        for k, part in enumerate(self._parts):
            distances[self._fold == k] = part.distance(self._x[self._fold == k])
        mean, whiten = self._all.mean.astype(np.float32), self._all.whiten.astype(np.float32)
        self.whole = Whole(mean, whiten, float(distances.mean()), max(float(distances.std()), 1e-6))
        self.normals = self._standard(distances)  # distances of the normals, in standard deviations

    def distances(self, summaries: npt.NDArray[np.floating]) -> Array:
        """Of other images, in standard deviations of the normals."""
        return self._standard(self._all.distance(summaries.astype(np.float64)))

    def _standard(self, distances: Array) -> Array:
        standard: Array = (distances - self.whole.centre) / self.whole.spread
        return standard

    def direction(self, known: npt.NDArray[np.floating]) -> tuple[Direction, Array]:
        """Towards known anomalies (k, V), and how far beyond it the normals lie."""
        bad = known.astype(np.float64)
        towards = self._all.direction(bad)
        places = np.empty(len(self._x))
        for k, part in enumerate(self._parts):
            places[self._fold == k] = (self._x[self._fold == k] - part.mean) @ part.direction(bad)
        places += self._all.mean @ towards
        found = _direction(towards, places)
        return found, found.beyond(places)


class Places:
    """The covariance of the normals' features (n, P, C) at one stride."""

    def __init__(self, normals: FloatArray) -> None:
        channels = normals.shape[2]
        self._normals = normals
        self._mean = normals.mean(axis=(0, 1), dtype=np.float64).astype(np.float32)
        x = (normals - self._mean).reshape(-1, channels)  # (n * P, C)
        covariance = (x.T @ x).astype(np.float64) / len(x)
        ridge = RIDGE * np.trace(covariance) / channels + 1e-12
        self._precision: Array = np.linalg.inv(covariance + ridge * np.eye(channels))

    def direction(self, known: FloatArray, cells: Sequence[Index | None]) -> Direction:
        """Towards known anomalies (k, P, C).

        `cells` are the positions of each anomaly that show its defect, None where nobody marked it: then they are the
        strangest ones, and after each round those that lie farthest along the direction found.
        """
        bad = (known - self._mean).astype(np.float64)
        strange: Array = ((bad @ self._precision) * bad).sum(axis=2)
        for _ in range(ROUNDS):
            chosen = [own if own is not None else _highest(row) for own, row in zip(cells, strange, strict=True)]
            defect: Array = np.mean([image[at].mean(axis=0) for image, at in zip(bad, chosen, strict=True)], axis=0)
            towards: Array = self._precision @ defect
            towards /= max(float(np.sqrt(defect @ towards)), 1e-12)
            strange = bad @ towards
            if all(own is not None for own in cells):
                break
        return _direction(towards, peaks(self._normals @ towards.astype(np.float32)))


def peaks(along: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    """Mean of the highest values of each row."""
    count = peak_count(along.shape[1], DEFECT_PEAK)
    return top_mean(along, count)


def _highest(row: Array) -> Index:
    count = peak_count(len(row), INSTANCES)
    return np.argpartition(row, -count)[-count:].astype(np.int64)


def _direction(towards: Array, places: npt.NDArray[np.floating]) -> Direction:
    spread = max(float(places.std()), 1e-6)
    return Direction(towards.astype(np.float32), float(np.quantile(places, EDGE)), spread)
