"""Fits the image head to the features of normals and known anomalies."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from bgad.features.cache import Features, chunks, even_pick
from bgad.model.image_head import DiscriminantDirection, ImageHead
from bgad.model.scoring import ScoringModel
from bgad.training import image_head_statistics
from bgad.training.image_head_statistics import DescriptorStatistics, FeatureStatistics, direction_peaks
from bgad.training.training_set import AnomalyFeatures
from bgad.types import DoubleArray, FloatArray, Index

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
    model: ScoringModel,
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
    if len(descriptors) < image_head_statistics.MIN_NORMALS:
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
    fold = np.arange(count) % image_head_statistics.FOLDS
    of_known = np.zeros(count)
    for number in range(min(count, image_head_statistics.FOLDS) if count > 1 else 0):
        others = [kind[fold[kind] != number] for kind in kinds]
        projections = [project(fit_direction(kind)[0]) for kind in others if len(kind)]
        of_known[fold == number] = np.max(projections, axis=0)[fold == number]
    of_normals = np.max([projection for _, projection in fitted], axis=0)
    return [direction for direction, _ in fitted], of_normals, of_known


def _descriptor_space(
    fitted: DescriptorStatistics, known_descriptors: FloatArray, reference: Index
) -> tuple[FitDirection, Project]:
    """Directions in the space of the descriptors of an image."""

    def fit_direction(chosen: Index) -> tuple[DiscriminantDirection, Projection]:
        direction, of_normals = fitted.direction(known_descriptors[chosen])
        return direction, of_normals[reference]

    return fit_direction, lambda direction: direction.excess(known_descriptors @ direction.vector)


def _map_space(normals: Features, known: AnomalyFeatures, level: int, reference: Index) -> tuple[FitDirection, Project]:
    """Directions in the space of the features of one stride; an image counts by the peak of its map."""
    numbers = np.arange(known.features.count)
    statistics = FeatureStatistics(normals.rows(level, even_pick(normals.count, MAX_DIRECTION_IMAGES)))
    normal_rows, known_rows = normals.rows(level, reference), known.features.rows(level, numbers)
    cells = marked_cells(known, level, numbers)

    def fit_direction(chosen: Index) -> tuple[DiscriminantDirection, Projection]:
        direction = statistics.direction(known_rows[chosen], [cells[k] for k in chosen])
        return direction, direction.excess(direction_peaks(normal_rows @ direction.vector))

    return fit_direction, lambda direction: direction.excess(direction_peaks(known_rows @ direction.vector))


def descriptors_of(model: ScoringModel, head: ImageHead, features: Features) -> FloatArray:
    """The descriptors (images, values) that the image head computes of cached features."""
    parts = [np.arange(part.start, part.stop) for part in chunks(features.count, DESCRIPTOR_BATCH)]
    rows = ([torch.from_numpy(features.rows(i, part)) for i in model.image_head_maps] for part in parts)
    return np.concatenate([head.descriptor(maps).numpy() for maps in rows])


def marked_cells(known: AnomalyFeatures, level: int, chosen: Index) -> list[Index | None]:
    """The cells of the chosen anomalies that show the defect; None for an anomaly without a mask."""
    return [known.cells[level][k] if known.marked[k] else None for k in chosen]
