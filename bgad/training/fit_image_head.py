"""Fits the image head: statistics of the normals' features, and discriminant directions of known anomalies.

The normals give their descriptors a Gaussian with a shrunk covariance: it needs no training, and does not overfit to
few normals. A discriminant direction points from the normals to the known anomalies, in units of that covariance.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from bgad.features.cache import AnomalyFeatures, Features, chunks, even_pick
from bgad.model.image_head import DIRECTION_PEAK_SHARE, DescriptorGaussian, DiscriminantDirection, ImageHead, peak_count
from bgad.model.scoring import LevelModel
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


def top_mean(rows: npt.NDArray[np.floating], count: int) -> npt.NDArray[np.floating]:
    """Return the mean of the `count` highest values of each row, (n, P) -> (n,).

    >>> top_mean(np.array([[1.0, 4.0, 2.0], [0.0, 0.0, 6.0]]), 2)
    array([3., 3.])
    """
    means: npt.NDArray[np.floating] = np.partition(rows, -count, axis=1)[:, -count:].mean(axis=1)
    return means


def direction_peaks(projections: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    """Return the mean of each row's highest projections (n, P), as the image head computes it."""
    return top_mean(projections, peak_count(projections.shape[1], DIRECTION_PEAK_SHARE))


def _highest(row: DoubleArray) -> Index:
    count = peak_count(len(row), INSTANCE_SHARE)
    return np.argpartition(row, -count)[-count:].astype(np.int64)


def _with_boundary(vector: DoubleArray, projections: npt.NDArray[np.floating]) -> DiscriminantDirection:
    spread = max(float(projections.std()), 1e-6)
    return DiscriminantDirection(vector.astype(np.float32), float(np.quantile(projections, BOUNDARY_QUANTILE)), spread)


logger = logging.getLogger(__name__)

# Training normals that the covariance of a discriminant direction is estimated from. Each has hundreds of positions,
# so more images cost memory and change little.
MAX_DIRECTION_IMAGES = 300
DESCRIPTOR_BATCH = 16  # images

# Of images on a direction, in standard deviations beyond the edge of the normals.
Projection = DoubleArray
FitDirection = Callable[
    [Index], tuple[DiscriminantDirection, Projection]
]  # chosen anomalies -> direction, normals along it
Project = Callable[[DiscriminantDirection], Projection]  # all anomalies along a direction


class HeadScores(NamedTuple):
    """Scores of the image head, cross-validated: every image is scored by a head that was fitted without it."""

    normals: FloatArray  # (n,)
    known: FloatArray  # (k,)


def fit_image_head(
    model: LevelModel,
    head: ImageHead,
    normals: Features,
    known: AnomalyFeatures | None,
    reference: Index,
    taught: Index | None = None,
) -> HeadScores | None:
    """Fit the image head to all normals and known anomalies; None where the normals are too few.

    Known anomalies of the first training and those `taught` since have separate directions, because the mean of two
    kinds of defects may resemble neither. Returns the scores of the `reference` normals and of the known anomalies.
    """
    descriptors = descriptors_of(model, head, normals)
    if len(descriptors) < MIN_NORMALS:
        logger.warning(f"{len(descriptors)} normals are too few to judge an image as a whole: only its map counts")
        return None
    fitted = DescriptorStatistics(descriptors)
    head.set_gaussian(fitted.gaussian)
    if known is None:
        return HeadScores(fitted.normal_distances[reference].astype(np.float32), np.zeros(0, np.float32))
    numbers = np.arange(known.features.count)
    is_taught = np.isin(numbers, [] if taught is None else taught)
    kinds = [kind for kind in (numbers[~is_taught], numbers[is_taught]) if len(kind)]
    known_descriptors = descriptors_of(model, head, known.features)
    spaces = [
        _descriptor_space(fitted, known_descriptors, reference),
        *(_map_space(normals, known, i, reference) for i in model.image_head_maps),
    ]
    normal_projections, known_projections = list[Projection](), list[Projection]()
    for number, (fit_direction, project) in enumerate(spaces):
        directions, of_normals, of_known = _best_direction(kinds, fit_direction, project)
        head.set_directions(number, directions)
        normal_projections.append(of_normals)
        known_projections.append(of_known)
    if known.features.count == 1:
        # No other anomaly can give it a direction, so its score has no projection, and that of a normal none either.
        normal_projections = [np.zeros(len(reference))]

    def score(distance: DoubleArray, projections: list[Projection]) -> FloatArray:
        total: FloatArray = model.image_head_score(
            torch.from_numpy(distance), torch.from_numpy(np.stack(projections, axis=1))
        ).numpy()
        return total.astype(np.float32)

    return HeadScores(
        score(fitted.normal_distances[reference], normal_projections),
        score(fitted.distances(known_descriptors), known_projections),
    )


def _best_direction(
    kinds: Sequence[Index], fit_direction: FitDirection, project: Project
) -> tuple[list[DiscriminantDirection], Projection, Projection]:
    """Fit one direction to each kind of known anomalies.

    Returns the directions, and the projections on the best of them: of normals, and cross-validated of each anomaly.
    """
    fitted = [fit_direction(kind) for kind in kinds]
    count = sum(len(kind) for kind in kinds)
    fold = np.arange(count) % FOLDS
    of_known = np.zeros(count)
    for number in range(min(count, FOLDS) if count > 1 else 0):
        others = [kind[fold[kind] != number] for kind in kinds]
        projections = [project(fit_direction(kind)[0]) for kind in others if len(kind)]
        of_known[fold == number] = np.max(projections, axis=0)[fold == number]
    of_normals = np.max([projection for _, projection in fitted], axis=0)
    return [direction for direction, _ in fitted], of_normals, of_known


def _descriptor_space(
    fitted: DescriptorStatistics, known_descriptors: FloatArray, reference: Index
) -> tuple[FitDirection, Project]:
    """Return the fit of directions in the space of the descriptors of an image."""

    def fit_direction(chosen: Index) -> tuple[DiscriminantDirection, Projection]:
        direction, of_normals = fitted.direction(known_descriptors[chosen])
        return direction, of_normals[reference]

    return fit_direction, lambda direction: direction.excess(known_descriptors @ direction.vector)


def _map_space(normals: Features, known: AnomalyFeatures, level: int, reference: Index) -> tuple[FitDirection, Project]:
    """Return the fit of directions in the features of one stride; an image counts by the peak of its map."""
    numbers = np.arange(known.features.count)
    statistics = FeatureStatistics(normals.rows(level, even_pick(normals.count, MAX_DIRECTION_IMAGES)))
    normal_rows, known_rows = normals.rows(level, reference), known.features.rows(level, numbers)
    cells = marked_cells(known, level, numbers)

    def fit_direction(chosen: Index) -> tuple[DiscriminantDirection, Projection]:
        direction = statistics.direction(known_rows[chosen], [cells[k] for k in chosen])
        return direction, direction.excess(direction_peaks(normal_rows @ direction.vector))

    return fit_direction, lambda direction: direction.excess(direction_peaks(known_rows @ direction.vector))


def descriptors_of(model: LevelModel, head: ImageHead, features: Features) -> FloatArray:
    """Return the descriptors (images, values) that the image head computes of cached features."""
    parts = [np.arange(part.start, part.stop) for part in chunks(features.count, DESCRIPTOR_BATCH)]
    rows = ([torch.from_numpy(features.rows(i, part)) for i in model.image_head_maps] for part in parts)
    return np.concatenate([head.descriptor(maps).numpy() for maps in rows])


def marked_cells(known: AnomalyFeatures, level: int, chosen: Index) -> list[Index | None]:
    """Return the cells of the chosen anomalies that show the defect; None for an anomaly without a mask."""
    return [known.cells[level][k] if known.marked[k] else None for k in chosen]
