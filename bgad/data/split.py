"""Divides a data set into training normals, calibration normals, known anomalies and test images."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from bgad.calibration import normals_needed, rate_words, typeable_rate
from bgad.data.layouts import Dataset
from bgad.data.sample_io import digest
from bgad.errors import ConfigError, DataError
from bgad.types import ROLES, UNUSED, Sample, SplitImage, SplitRecord


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


DEFAULT_KNOWN = 10  # known anomalies drawn from a test set that has no training anomalies: the paper's number
NOT_DRAWN = "anomaly of the training set that was not drawn"
HOLDOUT_SHARE = 0.2  # of the normals outside of the test set: enough for rates around 5 % on small sets


@dataclass(frozen=True)
class Split:
    """The role of every image, with the reason for it and the hash that identifies the image later."""

    train: list[Sample]  # normal
    calibration: list[Sample]  # normal, never trained on
    known: list[Sample]  # anomalous, for training, in the order drawn
    test: list[Sample]
    hashes: dict[str, str]  # name -> sha256
    seed: int = 0
    why: dict[str, str] = field(default_factory=dict)  # name -> reason for the role
    notes: list[str] = field(default_factory=list)
    unused: list[Sample] = field(default_factory=list)  # no role; `why` has the reason
    data: str = ""
    protocol: str = "given"
    known_class: str = ""  # of one-class
    subset: int = 0  # of hard and unseen

    def __post_init__(self) -> None:
        self._check_roles()
        if self.protocol == "unsupervised" and self.known:
            raise DataError(f"{self.known[0].name} is known, but the protocol is unsupervised")
        if self.protocol == "one-class":
            wrong = [s.name for s in self.known if s.defect != self.known_class]
            wrong += [s.name for s in self.test if s.defect == self.known_class]
            if wrong:
                raise DataError(f"{wrong[0]}: one-class has all known anomalies, and no test image, of one class")

    def _check_roles(self) -> None:
        """Check that no name and no image content has two roles, and that every role fits the label."""
        roles: dict[str, str] = {}
        contents: dict[str, tuple[str, Sample]] = {}
        for role in (*ROLES, UNUSED):
            for sample in self.samples_of(role):
                if sample.name in roles:
                    raise DataError(f"{sample.name} has two roles: {roles[sample.name]} and {role}")
                roles[sample.name] = role
                if role == UNUSED:
                    continue
                if role != "test" and sample.label != (role == "known"):
                    label = "anomalous" if sample.label else "normal"
                    raise DataError(f"{sample.name} is {label}, so it cannot have the role {role}")
                other_role, other = contents.setdefault(self.hashes[sample.name], (role, sample))
                if (other_role, other.label) != (role, sample.label):
                    raise DataError(f"{sample.name} ({role}) is the same image as {other.name} ({other_role})")

    def samples_of(self, role: str) -> list[Sample]:
        """Return the samples of one of ROLES, or those of UNUSED."""
        samples: list[Sample] = getattr(self, role)
        return samples

    def record(self) -> SplitRecord:
        """Return what the split file holds."""
        images = [
            SplitImage(
                sample.name, self.hashes[sample.name], role, sample.defect, self.why.get(sample.name, ""), sample.box
            )
            for role in (*ROLES, UNUSED)
            for sample in self.samples_of(role)
        ]
        return SplitRecord(images, self.data, self.protocol, self.known_class, self.subset, self.seed, self.notes)

    def to_json(self) -> dict[str, Any]:
        """Return the content of the split file as plain JSON values."""
        return self.record().to_json()

    def to_bytes(self) -> bytes:
        """Return the split file."""
        return json.dumps(self.to_json(), indent=1).encode()

    @classmethod
    def load(cls: type[Self], path: str | Path, dataset: Dataset) -> Self:
        """Read a split file, also one edited by hand, for a data set that must hold its images unchanged."""
        stored = _read_record(Path(path))
        samples = {sample.name: sample for sample in dataset.samples}
        groups: dict[str, list[Sample]] = {role: [] for role in (*ROLES, UNUSED)}
        hashes: dict[str, str] = {}
        why: dict[str, str] = {}
        for image in stored.images:
            name = image.name
            if name not in samples:
                raise DataError(f"{path}: {name} is not among the readable images of {dataset.root}")
            if name in hashes:
                raise DataError(f"{path}: {name} is listed twice; one image has one role")
            sample = samples[name]
            hashes[name], why[name] = digest(sample), image.why
            if hashes[name] != image.sha256:
                raise DataError(f"{path}: {name} has changed since the split was made; make a new split")
            if image.defect not in ("", sample.defect):
                raise DataError(f"{path}: {name} is of class {image.defect!r} there, {sample.defect!r} in the data")
            groups[image.role].append(sample)
        if len(groups["train"]) < 2 or not groups["calibration"]:
            raise DataError(f"{path}: at least 2 images must have the role train, and 1 calibration")
        notes = list(stored.notes)
        if new := [sample for sample in dataset.samples if sample.name not in hashes]:
            notes.append(f"{len(new)} images are not in the split file and get no role, the first: {new[0].name}")
            hashes |= {sample.name: digest(sample) for sample in new}
            why |= {sample.name: "not in the split file" for sample in new}
            groups[UNUSED] += new
        try:
            return cls(
                **groups,
                hashes=hashes,
                seed=stored.seed,
                why=why,
                notes=notes,
                data=stored.data,
                protocol=stored.protocol,
                known_class=stored.known_class,
                subset=stored.subset,
            )
        except DataError as error:
            raise DataError(f"{path}: {error}") from error


def _read_record(path: Path) -> SplitRecord:
    try:
        return SplitRecord.from_json(json.loads(path.read_bytes()))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: is not a split file: not valid JSON") from error
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def check_numbers(known: int, seed: int, test_share: float) -> None:
    """Raise ConfigError where one of the numbers is out of range."""
    if known < 0 or seed < 0 or not 0 <= test_share < 1:
        raise ConfigError("known and seed must be 0 or more, and test_share 0 or more and below 1")


class Choice(NamedTuple):
    """The anomalies that are known and those that are tested; the others get no role."""

    known: list[Sample]
    test: list[Sample]
    why: dict[str, str]
    notes: list[str]


class Setting(NamedTuple):
    """The way in which a data set is divided."""

    seed: int
    test_share: float  # of the normals, where the data set has no test split
    protocol: str
    known_class: str = ""
    subset: int = 0


def make_split(
    dataset: Dataset,
    *,
    holdout: int | None = None,
    rate: float | None = None,
    confidence: float | None = None,
    seed: int = 0,
    known: int | None = None,
    test_share: float = 0.0,
) -> Split:
    """Give every image its role; the result depends on the names and the seed only.

    Normals outside of the test set are trained on, except for `holdout` of them (by default `holdout_size` of the
    distinct ones, the false-reject rate and its confidence), and for `test_share` of them where the data set has no
    test split. Anomalies outside of the test set are known (or `known` of them); where there are none, `known` of the
    test anomalies are taken out of the test set, spread over the classes. A draw of fewer known anomalies is always
    the beginning of a draw of more.
    """
    check_numbers(known or 0, seed, test_share)
    if holdout is not None and holdout < 0:
        raise ConfigError(f"the number of held-out normals cannot be negative: {holdout}")
    hashes = check_leakage(dataset.samples)
    choice = _choose_known(dataset, hashes, known, seed)
    outside = sum(s.label for s in dataset.samples if s.split != "train")
    drawn = bool(choice.known) and choice.known[0].split != "train" and len(choice.known) < outside
    protocol = "multi-class" if drawn else "given" if choice.known else "unsupervised"
    size = partial(holdout_size, rate=rate, confidence=confidence) if holdout is None else lambda _: holdout
    return assemble(dataset, hashes, choice, Setting(seed, test_share, protocol), size)


def assemble(
    dataset: Dataset, hashes: dict[str, str], choice: Choice, setting: Setting, holdout: Callable[[int], int]
) -> Split:
    """Return the split with the chosen anomalies; the roles of the normals do not depend on them.

    `holdout` maps the number of normals to the number that is held out for calibration. A normal that repeats the
    content of another one is dropped before any draw, so no copy of a training image is tested.
    """
    samples = sorted(dataset.samples, key=lambda s: s.name)
    seed = setting.seed
    why = dict(choice.why)
    pool, repeats = distinct([s for s in samples if not s.label and s.split != "test"], hashes)
    notes = [f"same image twice: {name} repeats {first} and is not used" for name, first in repeats.items()]
    why |= {name: f"same image as {first}" for name, first in repeats.items()}
    test = [s for s in samples if s.split == "test" and not s.label]
    why |= {s.name: "normal of the test set" for s in test}

    if setting.test_share and not any(s.split == "test" for s in samples):
        if repeats:
            counts = f"{len(repeats)} of {len(pool) + len(repeats)} normals repeat another"
            notes.append(f"{counts}: {len(pool)} are divided into train and test")
        test = draw(pool, max(1, round(setting.test_share * len(pool))), seed, Stream.TEST)
        why |= {s.name: "normal drawn for the test set" for s in test}
    pool = without(pool, test)
    held_out = holdout(len(pool))
    if len(pool) <= held_out:
        raise DataError(f"{dataset.root}: {len(pool)} normals cannot spare {held_out} for calibration; add normals")
    calibration = draw(pool, held_out, seed, Stream.HOLDOUT)
    train = without(pool, calibration)
    why |= {s.name: "held out for calibration" for s in calibration}
    why |= {s.name: f"normal of {s.name.rpartition('/')[0] or dataset.name}" for s in train}

    notes += choice.notes
    tested, twins = _without_copies(choice, hashes)
    notes += [f"left out of test: {name} is the same image as the known anomaly {twin}" for name, twin in twins.items()]
    why |= {name: f"same image as {twin}" for name, twin in twins.items()}
    why |= {s.name: "left for test" for s in tested if s.name not in why}
    test = sorted([*test, *tested], key=lambda s: s.name)
    return Split(
        train,
        calibration,
        choice.known,
        test,
        hashes,
        seed=seed,
        why=why,
        notes=notes,
        unused=without(samples, [*train, *calibration, *choice.known, *test]),
        data=dataset.name,
        protocol=setting.protocol,
        known_class=setting.known_class,
        subset=setting.subset,
    )


def _without_copies(choice: Choice, hashes: dict[str, str]) -> tuple[list[Sample], dict[str, str]]:
    """Return the test anomalies that are no copy of a known one, and copy -> known anomaly."""
    known = {hashes[s.name]: s.name for s in choice.known}
    ordered = sorted(choice.test, key=lambda s: s.name)
    copies = {s.name: known[hashes[s.name]] for s in ordered if hashes[s.name] in known}
    return [s for s in ordered if s.name not in copies], copies


def holdout_size(normals: int, rate: float | None = None, confidence: float | None = None) -> int:
    """Return how many normals to hold out: a fifth, or as many as a threshold at a false-reject rate needs.

    With n held-out normals the smallest p-value is 1 / (n + 1), so a rate below that can never be met. A rate that
    holds with a confidence for the set at hand needs more of them.

    >>> holdout_size(50), holdout_size(50, rate=0.05), holdout_size(100, rate=0.05, confidence=0.9)
    (10, 19, 45)
    """
    if normals < 3:
        raise DataError(f"{normals} normal images are too few: at least 3 are needed, 2 to train and 1 to calibrate")
    share = max(1, round(HOLDOUT_SHARE * normals))
    if rate is None:
        return share
    if not 1e-6 <= rate < 1:
        raise ConfigError(f"a false-reject rate lies between 0.000001 and 1, not {rate:g}")
    needed = normals_needed(rate, confidence)
    most = normals // 2
    if needed > most:
        raise DataError(
            f"{rate_words(rate, confidence)} needs {needed} held-out normals; this set has {normals}, of "
            f"which at most {most} can be held out (smallest rate: {typeable_rate(most, confidence):g}). "
            "Add normals or ask for a higher rate."
        )
    return max(share, needed)


def _choose_known(dataset: Dataset, hashes: dict[str, str], known: int | None, seed: int) -> Choice:
    """Choose the anomalies of the training set as known, or draw from the test set where there are none."""
    anomalies = sorted((s for s in dataset.samples if s.label), key=lambda s: s.name)
    outside_test = [s for s in anomalies if s.split != "test"]
    candidates, _ = distinct(outside_test or anomalies, hashes)
    total = len(candidates)
    if known is None:
        known = total if outside_test else min(DEFAULT_KNOWN, total // 2)
    if outside_test and known > total:
        raise DataError(f"{dataset.root}: {known} known anomalies asked for, but there are {total}")
    if known and not outside_test and known >= total:
        raise DataError(
            f"{dataset.root}: {known} known anomalies asked for, but the test set has {total} and keeps one"
        )
    drawn = shuffle_by_class(candidates, seed)[:known]
    why = {
        s.name: "known anomaly of the training set"
        if known == total and s.split == "train"
        else f"drawn as known anomaly {i + 1} of {known}"
        for i, s in enumerate(drawn)
    }
    rest = without(anomalies, drawn)
    unused = [s for s in rest if s.split == "train"]
    why |= {s.name: NOT_DRAWN for s in unused}
    notes = [f"{len(unused)} training anomalies are not used: {known} known anomalies were asked for"]
    return Choice(drawn, without(rest, unused), why, notes if unused and known < total else [])
