"""Who learns what: a data set -> training normals, calibration normals, known anomalies and test images."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Self

import numpy as np

from bgad.data.folders import Dataset, hash_file
from bgad.errors import ConfigError, DataError
from bgad.types import Sample

ROLES = ("train", "calibration", "known", "test")
DEFAULT_KNOWN = 10  # known anomalies drawn from a test set that has no training anomalies: the paper's number
_HOLDOUT_SHARE = 0.2
_TEST, _HOLDOUT, _KNOWN = range(3)  # one random stream for each draw: the size of one does not change another


@dataclass(frozen=True)
class Split:
    """Every image in one role at most, with the reason and the hash that recognises it later."""

    train: list[Sample]  # normal
    calibration: list[Sample]  # normal, never trained on
    known: list[Sample]  # anomalous, for training
    test: list[Sample]
    hashes: dict[str, str]  # name -> sha256
    seed: int = 0
    why: dict[str, str] = field(default_factory=dict)  # name -> reason for the role
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """What goes into the model card."""
        listed = [
            {
                "name": sample.name,
                "sha256": self.hashes[sample.name],
                "role": role,
                "defect": sample.defect,
                "why": self.why[sample.name],
            }
            for role in ROLES
            for sample in getattr(self, role)
        ]
        return {"seed": self.seed, "images": listed}

    @classmethod
    def roles_from_json(cls: type[Self], stored: Mapping[str, Any]) -> dict[str, str]:
        """sha256 -> role, from what `to_json` gave: tells whether a model has seen a picture."""
        try:
            roles = {str(image["sha256"]): str(image["role"]) for image in stored["images"]}
        except (KeyError, TypeError) as error:
            raise DataError("the stored split is broken: it needs images with sha256 and role") from error
        if not set(roles.values()) <= set(ROLES):
            raise DataError(f"the stored split has unknown roles: {', '.join(sorted(set(roles.values())))}")
        return roles


def check_leakage(samples: Iterable[Sample]) -> dict[str, str]:
    """Refuse a picture that is both normal and anomalous, or both in test and not; give name -> hash."""
    hashes: dict[str, str] = {}
    first: dict[str, dict[tuple[int, bool], Sample]] = {}
    for sample in sorted(samples, key=lambda s: s.name):
        digest = hashes[sample.name] = hash_file(sample.path)
        kind = (sample.label, sample.split == "test")
        twins = first.setdefault(digest, {})
        for other_kind, other in twins.items():
            if other_kind != kind:
                a, b = sorted((other, sample), key=lambda s: (s.split == "test", s.label))
                raise DataError(f"leakage: {a.name} is the same picture as {b.name}; remove one of them")
        twins.setdefault(kind, sample)
    return hashes


def make_split(
    dataset: Dataset, *, holdout: int, seed: int = 0, known: int | None = None, test_share: float = 0.0
) -> Split:
    """Give every image its role; depends on the names and the seed only.

    Normals outside of the test set are trained on, but for `holdout` of them, and for `test_share` of them
    where the data set has no test split. Anomalies outside of the test set are known (or `known` of them);
    where there are none, `known` of the test anomalies are taken out of the test set, spread over the
    classes. A draw of fewer known anomalies is always the beginning of a draw of more.
    """
    if holdout < 0 or not 0 <= test_share < 1 or (known is not None and known < 0) or seed < 0:
        raise ConfigError("holdout, known and seed cannot be negative, and test_share lies in 0..1")
    samples = sorted(dataset.samples, key=lambda s: s.name)
    hashes = check_leakage(samples)
    notes: list[str] = []
    why: dict[str, str] = {}
    pool = _once([s for s in samples if not s.label and s.split != "test"], hashes, notes)
    test = [s for s in samples if s.split == "test"]

    aside: list[Sample] = []
    if test_share and not test:
        aside = _draw(pool, max(1, round(test_share * len(pool))), seed, _TEST)
        why |= {s.name: "normal set aside for test" for s in aside}
    pool = _without(pool, aside)
    if len(pool) <= holdout:
        raise DataError(f"{dataset.root}: {len(pool)} normals cannot spare {holdout} for calibration; add normals")
    calibration = _draw(pool, holdout, seed, _HOLDOUT)
    train = _without(pool, calibration)
    why |= {s.name: "held out for calibration" for s in calibration}
    why |= {s.name: f"normal of {s.name.rpartition('/')[0] or dataset.name}" for s in train}

    drawn, rest = _known(dataset, samples, known, seed, notes, why)
    seen = {hashes[s.name]: s for s in drawn}
    left = []
    for sample in sorted([*(s for s in test if not s.label), *aside, *rest], key=lambda s: s.name):
        if hashes[sample.name] in seen:
            twin = seen[hashes[sample.name]].name
            notes.append(f"left out of test: {sample.name} is the same picture as the known anomaly {twin}")
        else:
            left.append(sample)
            why.setdefault(sample.name, "left for test" if sample.label else "normal of the test set")
    return Split(train, calibration, drawn, left, hashes, seed, why, notes)


def holdout_size(normals: int, rate: float | None = None) -> int:
    """How many normals to hold out: a fifth, or as many as a threshold at a false-reject rate needs.

    With n held-out normals the smallest p-value is 1 / (n + 1), so a rate below that can never be met.

    >>> holdout_size(50), holdout_size(50, rate=0.05)
    (10, 19)
    """
    if normals < 3:
        raise DataError(f"{normals} normal images are too few: at least 3 are needed, 2 to train and 1 to calibrate")
    share = max(1, round(_HOLDOUT_SHARE * normals))
    if rate is None:
        return share
    if not 1e-6 <= rate < 1:
        raise ConfigError(f"a false-reject rate lies between 0.000001 and 1, not {rate:g}")
    need = math.ceil(1 / rate - 1e-9) - 1
    most = normals // 2
    if need > most:
        smallest = math.ceil(1e4 / (most + 1)) / 1e4  # rounded up, so that it works when typed back
        raise DataError(
            f"a false-reject rate of {rate:g} needs {need} held-out normals; this set has {normals}, of "
            f"which at most {most} can be held out (smallest rate: {smallest:g}). "
            "Add normals or ask for a higher rate."
        )
    return max(share, need)


def _known(
    dataset: Dataset,
    samples: list[Sample],
    known: int | None,
    seed: int,
    notes: list[str],
    why: dict[str, str],
) -> tuple[list[Sample], list[Sample]]:
    """The known anomalies, in the order drawn, and the anomalies left for test."""
    own = [s for s in samples if s.label and s.split != "test"]
    tested = [s for s in samples if s.label and s.split == "test"]
    candidates = own or tested
    total = len(candidates)
    if known is None:
        known = total if own else min(DEFAULT_KNOWN, total // 2)
    if own and known > total:
        raise DataError(f"{dataset.root}: {known} known anomalies asked for, but there are {total}")
    if known and not own and known >= total:
        raise DataError(
            f"{dataset.root}: {known} known anomalies asked for, but the test set has {total} and keeps one"
        )
    drawn = _spread(candidates, seed)[:known]
    for i, sample in enumerate(drawn):
        given = known == total and sample.split == "train"
        why[sample.name] = (
            "known anomaly of the training set" if given else f"drawn as known anomaly {i + 1} of {known}"
        )
    rest = _without(candidates, drawn)
    unused = [s for s in rest if s.split == "train"]
    if unused:
        notes.append(f"{len(unused)} training anomalies are not used: {known} known anomalies were asked for")
    return drawn, [s for s in rest if s.split != "train"] + (tested if own else [])


def _spread(samples: list[Sample], seed: int) -> list[Sample]:
    """A random order that takes the classes in turn."""
    rng = np.random.default_rng([seed, _KNOWN])
    classes: dict[str, list[Sample]] = {}
    for sample in samples:
        classes.setdefault(sample.defect, []).append(sample)
    names = sorted(classes)
    shuffled = [
        [classes[names[c]][i] for i in rng.permutation(len(classes[names[c]]))] for c in rng.permutation(len(names))
    ]
    return [sample for turn in zip_longest(*shuffled) for sample in turn if sample is not None]


def _draw(samples: list[Sample], count: int, seed: int, stream: int) -> list[Sample]:
    order = np.random.default_rng([seed, stream]).permutation(len(samples))
    return [samples[i] for i in sorted(order[:count])]


def _without(samples: list[Sample], taken: list[Sample]) -> list[Sample]:
    names = {sample.name for sample in taken}
    return [sample for sample in samples if sample.name not in names]


def _once(samples: list[Sample], hashes: dict[str, str], notes: list[str]) -> list[Sample]:
    first: dict[str, Sample] = {}
    for sample in samples:
        kept = first.setdefault(hashes[sample.name], sample)
        if kept is not sample:
            notes.append(f"same picture twice: {sample.name} repeats {kept.name} and is not used")
    return list(first.values())
