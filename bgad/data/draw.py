"""Random draws of samples, and checks for repeated image content; every result depends on names and seed alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from itertools import zip_longest

import numpy as np

from bgad.data.sample_io import digest
from bgad.errors import DataError
from bgad.types import Sample


class Stream(IntEnum):
    """One random stream for each kind of draw, so that the size of one draw does not change another."""

    TEST = 0
    HOLDOUT = 1
    KNOWN = 2


def draw(samples: list[Sample], count: int, seed: int, stream: Stream) -> list[Sample]:
    """Draw `count` samples at random; they keep their order."""
    order = np.random.default_rng([seed, stream]).permutation(len(samples))
    return [samples[i] for i in sorted(order[:count])]


def shuffle_by_class(samples: list[Sample], seed: int) -> list[Sample]:
    """Shuffle known-anomaly candidates so that the defect classes take turns."""
    rng = np.random.default_rng([seed, Stream.KNOWN])
    classes: dict[str, list[Sample]] = {}
    for sample in samples:
        classes.setdefault(sample.defect, []).append(sample)
    names = sorted(classes)
    shuffled = [
        [classes[names[c]][i] for i in rng.permutation(len(classes[names[c]]))] for c in rng.permutation(len(names))
    ]
    return [sample for turn in zip_longest(*shuffled) for sample in turn if sample is not None]


def without(samples: list[Sample], taken: list[Sample]) -> list[Sample]:
    """Return the samples that are not in `taken`, by name."""
    names = {sample.name for sample in taken}
    return [sample for sample in samples if sample.name not in names]


def distinct(samples: Iterable[Sample], hashes: Mapping[str, str]) -> tuple[list[Sample], dict[str, str]]:
    """Return each image content once, under its first name, and repeated name -> first name."""
    first: dict[str, Sample] = {}
    repeats = {}
    for sample in samples:
        kept = first.setdefault(hashes[sample.name], sample)
        if kept is not sample:
            repeats[sample.name] = kept.name
    return list(first.values()), repeats


def check_leakage(samples: Iterable[Sample], hashes: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return name -> hash; refuse an image that is both normal and anomalous, or both in the test set and outside.

    Names that `hashes`, an earlier result of this function, already has are not read again.
    """
    cached = {} if hashes is None else hashes
    digests: dict[str, str] = {}
    first: dict[str, dict[tuple[int, bool], Sample]] = {}  # content -> first sample of each label and part
    for sample in sorted(samples, key=lambda s: s.name):
        content = digests[sample.name] = cached.get(sample.name) or digest(sample)
        kind = (sample.label, sample.split == "test")
        twins = first.setdefault(content, {})
        for other_kind, other in twins.items():
            if other_kind != kind:
                a, b = sorted((other, sample), key=lambda s: (s.split == "test", s.label))
                raise DataError(f"leakage: {a.name} is the same image as {b.name}; remove one of them")
        twins.setdefault(kind, sample)
    return digests
