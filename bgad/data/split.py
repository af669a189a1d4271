"""Who learns what: a data set -> training normals, calibration normals, known anomalies and test images."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from bgad.calibration import normals_needed
from bgad.data.layouts import Dataset
from bgad.data.sample_io import digest
from bgad.errors import ConfigError, DataError
from bgad.io import files as output_files
from bgad.types import Sample

FORMAT = 1  # of the split file
ROLES = ("train", "calibration", "known", "test")
UNUSED = "unused"  # neither learnt from nor tested
DEFAULT_KNOWN = 10  # known anomalies drawn from a test set that has no training anomalies: the paper's number
NOT_DRAWN = "anomaly of the training set that was not drawn"
_FACTS = {"data": "", "protocol": "given", "known_class": "", "subset": 0, "seed": 0, "notes": []}  # in the split file
_HOLDOUT_SHARE = 0.2
_TEST, _HOLDOUT, _KNOWN = range(3)  # one random stream for each draw: the size of one does not change another


@dataclass(frozen=True)
class Split:
    """Every image in one role at most, with the reason and the hash that recognises it later."""

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
        placed: dict[str, str] = {}
        pictures: dict[str, tuple[str, Sample]] = {}
        for role in (*ROLES, UNUSED):
            for sample in getattr(self, role):
                if sample.name in placed:
                    raise DataError(f"{sample.name} has two roles: {placed[sample.name]} and {role}")
                placed[sample.name] = role
                if role == UNUSED:
                    continue
                if role != "test" and sample.label != (role == "known"):
                    what = "anomalous" if sample.label else "normal"
                    raise DataError(f"{sample.name} is {what}, so it cannot have the role {role}")
                other_role, other = pictures.setdefault(self.hashes[sample.name], (role, sample))
                if (other_role, other.label) != (role, sample.label):
                    raise DataError(f"{sample.name} ({role}) is the same picture as {other.name} ({other_role})")
        if self.protocol == "unsupervised" and self.known:
            raise DataError(f"{self.known[0].name} is known, but the protocol is unsupervised")
        if self.protocol == "one-class":
            wrong = [s.name for s in self.known if s.defect != self.known_class]
            wrong += [s.name for s in self.test if s.defect == self.known_class]
            if wrong:
                raise DataError(f"{wrong[0]}: one-class has all known anomalies, and no test image, of one class")

    def to_json(self) -> dict[str, Any]:
        """What the split file holds."""
        listed = [
            {
                "name": sample.name,
                **({"box": list(sample.box)} if sample.box else {}),
                "sha256": self.hashes[sample.name],
                "role": role,
                "defect": sample.defect,
                "why": self.why.get(sample.name, ""),
            }
            for role in (*ROLES, UNUSED)
            for sample in getattr(self, role)
        ]
        return {"format": FORMAT, **{name: getattr(self, name) for name in _FACTS}, "images": listed}

    def to_bytes(self) -> bytes:
        """The split file."""
        return json.dumps(self.to_json(), indent=1).encode()

    def save(self, path: str | Path) -> None:
        """Write the split file, in place of one that is there."""
        output_files.write_atomic(Path(path), self.to_bytes())

    @classmethod
    def load(cls: type[Self], path: str | Path, dataset: Dataset) -> Self:
        """The split in a file, for a data set that must hold its images, unchanged; a file edited by hand will do."""
        stored = _read(Path(path))
        found = {sample.name: sample for sample in dataset.samples}
        groups: dict[str, list[Sample]] = {role: [] for role in (*ROLES, UNUSED)}
        hashes: dict[str, str] = {}
        why: dict[str, str] = {}
        for image in stored["images"]:
            name, role = image["name"], image["role"]
            if role not in groups:
                raise DataError(f"{path}: {name} has the unknown role {role!r}; use {', '.join(groups)}")
            if name not in found:
                raise DataError(f"{path}: {name} is not among the readable images of {dataset.root}")
            if name in hashes:
                raise DataError(f"{path}: {name} is listed twice; one image has one role")
            sample = found[name]
            hashes[name], why[name] = digest(sample), image["why"]
            if hashes[name] != image["sha256"]:
                raise DataError(f"{path}: {name} is not the picture of which the split was made; make a new split")
            if image["defect"] not in ("", sample.defect):
                raise DataError(f"{path}: {name} is of class {image['defect']!r} there, {sample.defect!r} in the data")
            groups[role].append(sample)
        if len(groups["train"]) < 2 or not groups["calibration"]:
            raise DataError(f"{path}: at least 2 images must have the role train, and 1 calibration")
        notes = list(stored["notes"])
        if new := [sample for sample in dataset.samples if sample.name not in hashes]:
            notes.append(f"{len(new)} images are not in the split file and get no role, the first: {new[0].name}")
            hashes |= {sample.name: digest(sample) for sample in new}
            why |= {sample.name: "not in the split file" for sample in new}
            groups[UNUSED] += new
        facts = {key: stored[key] for key in _FACTS}
        rest: dict[str, Any] = groups | facts | {"notes": notes}
        try:
            return cls(hashes=hashes, why=why, **rest)
        except DataError as error:
            raise DataError(f"{path}: {error}") from error

    @classmethod
    def roles_from_json(cls: type[Self], stored: Mapping[str, Any]) -> dict[str, str]:
        """sha256 -> role, from what `to_json` gave: tells whether a model has seen a picture."""
        try:
            pairs = [(str(image["sha256"]), str(image["role"])) for image in stored["images"]]
        except (KeyError, TypeError) as error:
            raise DataError("the stored split is broken: it needs images with sha256 and role") from error
        if unknown := sorted({role for _, role in pairs} - {*ROLES, UNUSED}):
            raise DataError(f"the stored split has unknown roles: {', '.join(unknown)}")
        pairs.sort(key=lambda pair: pair[1] != UNUSED)  # a copy of a picture that has a role is that picture
        return dict(pairs)


def _read(path: Path) -> dict[str, Any]:
    """The content of a split file, in the right types; what people may leave out is filled in."""
    try:
        stored = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: is not a split file: not valid JSON") from error
    version = stored.get("format") if isinstance(stored, dict) else None
    if not isinstance(version, int) or not isinstance(stored.get("images"), list):
        raise DataError(f"{path}: is not a split file: it needs format and images")
    if version > FORMAT:
        raise DataError(f"{path}: has format {version}, this bgad reads up to {FORMAT}: upgrade bgad to use it")
    for key, value in _FACTS.items():
        if type(stored.setdefault(key, value)) is not type(value):
            raise DataError(f"{path}: {key} must be of type {type(value).__name__}")
    if not all(isinstance(note, str) for note in stored["notes"]):
        raise DataError(f"{path}: notes must be a list of texts")
    for number, image in enumerate(stored["images"], start=1):
        if not isinstance(image, dict) or not {"name", "sha256", "role"} <= image.keys():
            raise DataError(f"{path}: image {number} needs name, sha256 and role")
        image |= {"defect": image.get("defect", ""), "why": image.get("why", "")}
        if not all(isinstance(image[key], str) for key in ("name", "sha256", "role", "defect", "why")):
            raise DataError(f"{path}: image {number} has something other than text in one of its fields")
    return dict(stored)


def check_leakage(samples: Iterable[Sample], hashes: Mapping[str, str] | None = None) -> dict[str, str]:
    """Refuse a picture that is both normal and anomalous, or both in test and not; give name -> hash.

    With `hashes`, what this function gave before, no file is read again.
    """
    known = {} if hashes is None else hashes
    found: dict[str, str] = {}
    first: dict[str, dict[tuple[int, bool], Sample]] = {}
    for sample in sorted(samples, key=lambda s: s.name):
        content = found[sample.name] = known.get(sample.name) or digest(sample)
        kind = (sample.label, sample.split == "test")
        twins = first.setdefault(content, {})
        for other_kind, other in twins.items():
            if other_kind != kind:
                a, b = sorted((other, sample), key=lambda s: (s.split == "test", s.label))
                raise DataError(f"leakage: {a.name} is the same picture as {b.name}; remove one of them")
        twins.setdefault(kind, sample)
    return found


def check_numbers(known: int, seed: int, test_share: float) -> None:
    """ConfigError where one of them is out of range."""
    if known < 0 or seed < 0 or not 0 <= test_share < 1:
        raise ConfigError("known and seed must be 0 or more, and test_share 0 or more and below 1")


class Choice(NamedTuple):
    """What is to be done with the anomalies of a data set; those in neither list get no role."""

    known: list[Sample]
    test: list[Sample]
    why: dict[str, str]
    notes: list[str]


def make_split(
    dataset: Dataset,
    *,
    holdout: int | None = None,
    rate: float | None = None,
    seed: int = 0,
    known: int | None = None,
    test_share: float = 0.0,
) -> Split:
    """Give every image its role; depends on the names and the seed only.

    Normals outside of the test set are trained on, but for `holdout` of them (by default what `holdout_size` says
    for the distinct ones and the false-reject rate), and for `test_share` of them where the data set has no test
    split. Anomalies outside of the test set are known (or `known` of them); where there are none, `known` of the
    test anomalies are taken out of the test set, spread over the classes. A draw of fewer known anomalies is always
    the beginning of a draw of more.
    """
    check_numbers(known or 0, seed, test_share)
    if holdout is not None and holdout < 0:
        raise ConfigError(f"the number of held-out normals cannot be negative: {holdout}")
    hashes = check_leakage(dataset.samples)
    choice = _given(dataset, hashes, known, seed)
    outside = sum(s.label for s in dataset.samples if s.split != "train")
    drawn = bool(choice.known) and choice.known[0].split != "train" and len(choice.known) < outside
    protocol = "multi-class" if drawn else "given" if choice.known else "unsupervised"
    return assemble(
        dataset,
        hashes,
        choice,
        holdout=partial(holdout_size, rate=rate) if holdout is None else lambda _: holdout,
        seed=seed,
        test_share=test_share,
        protocol=protocol,
    )


def assemble(
    dataset: Dataset,
    hashes: dict[str, str],
    choice: Choice,
    *,
    holdout: Callable[[int], int],
    seed: int,
    test_share: float,
    protocol: str,
    known_class: str = "",
    subset: int = 0,
) -> Split:
    """The split with these anomalies; the roles of the normals do not depend on them.

    `holdout` says how many of so many normals to hold out for calibration. A normal that repeats another
    one's picture is dropped before any draw, so no copy of a training image is tested.
    """
    samples = sorted(dataset.samples, key=lambda s: s.name)
    why = dict(choice.why)
    pool, repeats = distinct([s for s in samples if not s.label and s.split != "test"], hashes)
    notes = [f"same picture twice: {name} repeats {first} and is not used" for name, first in repeats.items()]
    why |= {name: f"same picture as {first}" for name, first in repeats.items()}
    test = [s for s in samples if s.split == "test" and not s.label]
    why |= {s.name: "normal of the test set" for s in test}

    if test_share and not any(s.split == "test" for s in samples):
        if repeats:
            total = len(pool) + len(repeats)
            notes.append(
                f"{len(repeats)} of {total} normals repeat another: {len(pool)} are divided into train and test"
            )
        test = _draw(pool, max(1, round(test_share * len(pool))), seed, _TEST)
        why |= {s.name: "normal set aside for test" for s in test}
    pool = _without(pool, test)
    held_out = holdout(len(pool))
    if len(pool) <= held_out:
        raise DataError(f"{dataset.root}: {len(pool)} normals cannot spare {held_out} for calibration; add normals")
    calibration = _draw(pool, held_out, seed, _HOLDOUT)
    train = _without(pool, calibration)
    why |= {s.name: "held out for calibration" for s in calibration}
    why |= {s.name: f"normal of {s.name.rpartition('/')[0] or dataset.name}" for s in train}

    notes += choice.notes
    taken = {hashes[s.name]: s.name for s in choice.known}
    for sample in sorted(choice.test, key=lambda s: s.name):
        if hashes[sample.name] in taken:
            twin = taken[hashes[sample.name]]
            notes.append(f"left out of test: {sample.name} is the same picture as the known anomaly {twin}")
            why[sample.name] = f"same picture as {twin}"
        else:
            test.append(sample)
            why.setdefault(sample.name, "left for test")
    test.sort(key=lambda s: s.name)
    unused = _without(samples, [*train, *calibration, *choice.known, *test])
    return Split(
        train,
        calibration,
        choice.known,
        test,
        hashes,
        seed=seed,
        why=why,
        notes=notes,
        unused=unused,
        data=dataset.name,
        protocol=protocol,
        known_class=known_class,
        subset=subset,
    )


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
    need = normals_needed(rate)
    most = normals // 2
    if need > most:
        smallest = math.ceil(1e4 / (most + 1)) / 1e4  # rounded up, so that it works when typed back
        raise DataError(
            f"a false-reject rate of {rate:g} needs {need} held-out normals; this set has {normals}, of "
            f"which at most {most} can be held out (smallest rate: {smallest:g}). "
            "Add normals or ask for a higher rate."
        )
    return max(share, need)


def _given(dataset: Dataset, hashes: dict[str, str], known: int | None, seed: int) -> Choice:
    """The data set's own known anomalies, or some of the test set's."""
    anomalies = sorted((s for s in dataset.samples if s.label), key=lambda s: s.name)
    own = [s for s in anomalies if s.split != "test"]
    candidates, _ = distinct(own or anomalies, hashes)
    total = len(candidates)
    if known is None:
        known = total if own else min(DEFAULT_KNOWN, total // 2)
    if own and known > total:
        raise DataError(f"{dataset.root}: {known} known anomalies asked for, but there are {total}")
    if known and not own and known >= total:
        raise DataError(
            f"{dataset.root}: {known} known anomalies asked for, but the test set has {total} and keeps one"
        )
    drawn = spread(candidates, seed)[:known]
    why = {
        s.name: "known anomaly of the training set"
        if known == total and s.split == "train"
        else f"drawn as known anomaly {i + 1} of {known}"
        for i, s in enumerate(drawn)
    }
    rest = _without(anomalies, drawn)
    unused = [s for s in rest if s.split == "train"]
    why |= {s.name: NOT_DRAWN for s in unused}
    notes = [f"{len(unused)} training anomalies are not used: {known} known anomalies were asked for"]
    return Choice(drawn, _without(rest, unused), why, notes if unused and known < total else [])


def spread(samples: list[Sample], seed: int) -> list[Sample]:
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


def distinct(samples: Iterable[Sample], hashes: Mapping[str, str]) -> tuple[list[Sample], dict[str, str]]:
    """Each picture once, under its first name, and the other names -> that one."""
    first: dict[str, Sample] = {}
    repeats = {}
    for sample in samples:
        kept = first.setdefault(hashes[sample.name], sample)
        if kept is not sample:
            repeats[sample.name] = kept.name
    return list(first.values()), repeats


def _draw(samples: list[Sample], count: int, seed: int, stream: int) -> list[Sample]:
    order = np.random.default_rng([seed, stream]).permutation(len(samples))
    return [samples[i] for i in sorted(order[:count])]


def _without(samples: list[Sample], taken: list[Sample]) -> list[Sample]:
    names = {sample.name for sample in taken}
    return [sample for sample in samples if sample.name not in names]
