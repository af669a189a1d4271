"""Cross-validation over the known anomalies: every one of them is held out in one fold, and normals alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from bgad.data.layouts import Dataset
from bgad.data.split import (
    Split,
    Stream,
    check_leakage,
    distinct,
    draw,
    holdout_size,
    shuffle_by_class,
    without,
)
from bgad.errors import ConfigError, DataError
from bgad.types import Sample

CROSS_VALIDATION = "cross-validation"
FOLDS = 5
MIN_FOLDS = 2  # one known anomaly to train on, another to test
NOT_DRAWN = "anomaly that was not drawn"


def fold_count(dataset: Dataset, folds: int, known: int = 0) -> int:
    """Return the number of folds: those asked for, but at most one for each known anomaly; DataError below two.

    `known` limits the anomalies that take part; 0: all of them. An anomaly that repeats another one does not count.
    """
    if folds < MIN_FOLDS:
        raise ConfigError(f"cross-validation needs {MIN_FOLDS} or more folds, not {folds}")
    if known and known < MIN_FOLDS:
        raise ConfigError(f"cross-validation needs {MIN_FOLDS} or more known anomalies, or 0 for all, not {known}")
    anomalies = [s for s in _taking_part(dataset) if s.label]
    pool, repeats = distinct(anomalies, check_leakage(anomalies))
    count = min(len(pool), known or len(pool))
    if count < MIN_FOLDS:
        copies = f" and {len(repeats)} {'copy' if len(repeats) == 1 else 'copies'} of it" if repeats else ""
        unseen = sum(s.label for s in dataset.samples) - len(anomalies)
        place = f" outside of the test set, whose {unseen} are not used" if unseen else ""
        raise DataError(
            f"{dataset.root}: cross-validation needs {MIN_FOLDS} or more known anomalies, one to train on and one to "
            f"test; found {count}{copies}{place}: add images of defects{' to the training set' if unseen else ''}"
        )
    return min(folds, count)


def fold_split(dataset: Dataset, fold: int, folds: int, *, known: int, seed: int, hashes: dict[str, str]) -> Split:
    """Return the split of one fold, from 1 to `folds`: its anomalies and its normals are tested, the others trained on.

    Where anomalies lie outside of the data's test set, only images outside of it take part, and the test set stays
    unseen; otherwise all images take part. Every defect class is spread over the folds. `known` limits the anomalies
    that take part, drawn by the seed with the classes in turn; 0: all of them. Repeated images are left out.
    """
    candidates = sorted(_taking_part(dataset), key=lambda s: s.name)
    pool, repeats = distinct(candidates, hashes)
    anomalies = shuffle_by_class([s for s in pool if s.label], seed)
    anomalies = anomalies[: known or len(anomalies)]
    groups = _by_class(anomalies), _shuffled([s for s in pool if not s.label], seed)
    tested = [sample for group in groups for sample in group[fold - 1 :: folds]]
    _check(dataset, groups, fold, folds)
    known_here, normals = (sorted(without(group, tested), key=lambda s: s.name) for group in groups)
    calibration = draw(normals, holdout_size(len(normals)), seed, Stream.HOLDOUT)
    train = without(normals, calibration)
    place = f"fold {fold} of {folds}"
    why = {s.name: f"held out in {place}" for s in tested}
    why |= {s.name: f"known anomaly in {place}" for s in known_here}
    why |= {s.name: "held out for calibration" for s in calibration}
    why |= {s.name: f"normal in {place}" for s in train}
    unused = without(sorted(dataset.samples, key=lambda s: s.name), [*train, *calibration, *known_here, *tested])
    why |= {s.name: _why_unused(s, repeats, {c.name for c in candidates}) for s in unused}
    return Split(
        train,
        calibration,
        known_here,
        sorted(tested, key=lambda s: s.name),
        hashes,
        seed=seed,
        why=why,
        notes=[f"same image twice: {name} repeats {first} and is not used" for name, first in repeats.items()],
        unused=unused,
        data=dataset.name,
        protocol=CROSS_VALIDATION,
    )


def test_takes_part(dataset: Dataset) -> bool:
    """Tell whether images of the data's test set are cross-validated, for want of anomalies outside of it."""
    return any(s.split == "test" for s in _taking_part(dataset))


def _taking_part(dataset: Dataset) -> list[Sample]:
    """Return the images that are cross-validated."""
    outside = [s for s in dataset.samples if s.split != "test"]
    return outside if any(s.label for s in outside) else list(dataset.samples)


def _by_class(anomalies: Sequence[Sample]) -> list[Sample]:
    """Return the anomalies class by class, so that every k-th of them is of all classes."""
    return sorted(anomalies, key=lambda s: s.defect)  # stable: within a class they stay shuffled


def _shuffled(normals: list[Sample], seed: int) -> list[Sample]:
    return [normals[i] for i in np.random.default_rng([seed, Stream.TEST]).permutation(len(normals))]


def _check(dataset: Dataset, groups: tuple[list[Sample], list[Sample]], fold: int, folds: int) -> None:
    """DataError where a fold has nothing to test or too little to train on."""
    if not 1 <= fold <= folds:
        raise ConfigError(f"there are folds 1 to {folds}, no fold {fold}")
    for group, name in zip(groups, ("distinct anomalies", "distinct normals"), strict=True):
        if len(group) < folds:
            enough = f", or give --folds {len(group)}" if len(group) >= MIN_FOLDS else ""
            text = f"{dataset.root}: {folds} folds need {folds} or more {name}, found {len(group)}"
            raise DataError(f"{text}: add some{enough}")


def _why_unused(sample: Sample, repeats: Mapping[str, str], candidates: set[str]) -> str:
    if sample.name in repeats:
        return f"same image as {repeats[sample.name]}"
    return NOT_DRAWN if sample.name in candidates else "of the test set, which stays unseen"
