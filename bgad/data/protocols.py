"""The paper's protocols: which anomalies a model may know, and which it is tested on.

All of them divide the normals in the same way; `bgad compare` adds the folds of a cross-validation. Tiles that a data
set cuts from one image are drawn like single images, as in the literature: neighbours of a training tile may be in the
test set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from bgad.data.cross_validation import CROSS_VALIDATION, FOLDS, fold_count, fold_split
from bgad.data.layouts import Dataset
from bgad.data.split import (
    NOT_DRAWN,
    Choice,
    Setting,
    Split,
    assemble,
    check_leakage,
    check_numbers,
    distinct,
    holdout_size,
    shuffle_by_class,
)
from bgad.errors import ConfigError, DataError
from bgad.types import Sample

PROTOCOLS = {
    "multi-class": "known anomalies of all classes; the others are tested",
    "general": "what other papers call multi-class",
    "one-class": "known anomalies of one class; the other classes are tested",
    "hard": "known anomalies of MVTec AD's hard classes; the others of them are tested",
    "unseen": "known anomalies of MVTec AD's easy classes; the hard ones are tested",
    "unsupervised": "no known anomalies; all are tested",
}

TEST_SHARE = 0.25  # of the normals of a data set without a test split: the share of the literature

# Category -> easy and hard classes of the first subset (by detection), then of the second (by localisation).
_SUBSETS = {
    "carpet": ("color cut hole metal_contamination", "thread", "color cut hole metal_contamination", "thread"),
    "grid": ("broken metal_contamination thread", "glue bent", "bent broken glue metal_contamination", "thread"),
    "leather": ("color fold glue poke", "cut", "color cut glue poke", "fold"),
    "tile": ("crack glue_strip gray_stroke oil", "rough", "crack glue_strip gray_stroke oil", "rough"),
    "wood": ("color combined hole liquid", "scratch", "color combined hole liquid", "scratch"),
    "bottle": ("broken_large broken_small", "contamination", "broken_large broken_small", "contamination"),
    "cable": (
        "bent_wire combined cut_inner_insulation cut_outer_insulation missing_cable",
        "cable_swap missing_wire poke_insulation",
        "bent_wire cable_swap combined cut_inner_insulation missing_cable missing_wire poke_insulation",
        "cut_outer_insulation",
    ),
    "capsule": ("crack squeeze", "faulty_imprint poke scratch", "crack faulty_imprint poke scratch", "squeeze"),
    "hazelnut": ("crack hole print", "cut", "cut hole print", "crack"),
    "metal_nut": ("bent color flip", "scratch", "bent color scratch", "flip"),
    "pill": (
        "color combined contamination faulty_imprint pill_type",
        "crack scratch",
        "color combined contamination crack faulty_imprint scratch",
        "pill_type",
    ),
    "screw": (
        "scratch_head scratch_neck thread_top",
        "manipulated_front thread_side",
        "manipulated_front scratch_head scratch_neck thread_top",
        "thread_side",
    ),
    "toothbrush": ("defective", "defective", "defective", "defective"),  # its only class: easy and hard are the same
    "transistor": ("bent_lead cut_lead misplaced", "damaged_case", "bent_lead damaged_case misplaced", "cut_lead"),
    "zipper": (
        "broken_teeth combined fabric_border rough split_teeth",
        "fabric_interior squeezed_teeth",
        "broken_teeth combined fabric_border fabric_interior split_teeth squeezed_teeth",
        "rough",
    ),
}


class Subset(NamedTuple):
    """The defect classes of a category, divided by how hard they are to detect."""

    easy: frozenset[str]
    hard: frozenset[str]


SUBSETS: dict[str, tuple[Subset, Subset]] = {
    category: (
        Subset(frozenset(easy1.split()), frozenset(hard1.split())),
        Subset(frozenset(easy2.split()), frozenset(hard2.split())),
    )
    for category, (easy1, hard1, easy2, hard2) in _SUBSETS.items()
}


@dataclass(frozen=True)
class Case:
    """One run of a protocol: the known class of one-class, the subset (1 or 2) of hard and unseen, or a fold."""

    known_class: str = ""
    subset: int = 0
    fold: int = 0  # of a cross-validation: 1 to `folds`
    folds: int = 0

    def __str__(self) -> str:
        """Return the case as the row of a table names it; empty where a protocol has one case."""
        fold = f"fold {self.fold} of {self.folds}" if self.fold else ""
        return self.known_class or (str(self.subset) if self.subset else fold)


def cases(protocol: str, dataset: Dataset, *, folds: int = FOLDS, known: int = 0) -> list[Case]:
    """Return the runs that a protocol has on a data set; DataError where the data set cannot serve the protocol.

    A cross-validation has `folds`, or fewer where fewer anomalies take part: `known` of them, or all for 0.
    """
    if protocol == CROSS_VALIDATION:
        count = fold_count(dataset, folds, known)
        return [Case(fold=fold, folds=count) for fold in range(1, count + 1)]
    if runs := _cases(_check(protocol), dataset):
        return runs
    raise _cannot_serve(protocol, dataset)


def serves(dataset: Dataset) -> list[str]:
    """Return the protocols that a data set can serve."""
    return [protocol for protocol in PROTOCOLS if _cases(protocol, dataset)]


def protocol_split(
    dataset: Dataset,
    protocol: str,
    case: Case,
    *,
    known: int,
    seed: int,
    hashes: Mapping[str, str] | None = None,
) -> Split:
    """Divide a data set by a protocol, with `known` known anomalies (none for unsupervised).

    The roles of the normals depend on the seed alone, not on the protocol, the case or `known`. A draw of fewer known
    anomalies is the beginning of a draw of more. Where the data set has no test split, TEST_SHARE of the normals are
    tested. Known anomalies come from the training set where it has some of the right class, otherwise from the test
    set, of which at least half stays. Fewer than `known` available anomalies are a note, not an error. With the
    `hashes` of another split of the same data, no file is read again. A fold of a cross-validation divides the data as
    `fold_split` says.
    """
    check_numbers(known, seed, TEST_SHARE)
    if protocol == CROSS_VALIDATION:
        digests = check_leakage(dataset.samples, hashes)
        return fold_split(dataset, case.fold, case.folds, known=known, seed=seed, hashes=digests)
    _check_case(protocol, case)
    digests = check_leakage(dataset.samples, hashes)
    choice = _choose(dataset, protocol, case, digests, known, seed)
    setting = Setting(seed, TEST_SHARE, protocol, case.known_class, case.subset)
    return assemble(dataset, digests, choice, setting, holdout_size)


def _check(protocol: str) -> str:
    if protocol not in PROTOCOLS:
        raise ConfigError(f"unknown protocol {protocol!r}: choose from {', '.join(PROTOCOLS)}")
    return protocol


def _check_case(protocol: str, case: Case) -> None:
    if (_check(protocol) == "one-class") != bool(case.known_class):
        raise ConfigError(f"the protocol one-class, and no other, needs a known class, not {case.known_class!r}")
    if case.subset not in ((1, 2) if protocol in ("hard", "unseen") else (0,)):
        raise ConfigError(f"the protocols hard and unseen, and no other, need subset 1 or 2, not {case.subset}")


def _cases(protocol: str, dataset: Dataset) -> list[Case]:
    if protocol in ("hard", "unseen"):
        return [Case(subset=1), Case(subset=2)] if dataset.name in SUBSETS else []
    anomalies = [s for s in dataset.samples if s.label]
    if protocol == "one-class":
        testable = {s.defect for s in anomalies if s.split != "train"}
        return [Case(known_class=name) for name in sorted({s.defect for s in anomalies}) if testable - {name}]
    return [Case()] if anomalies or protocol == "unsupervised" else []


def _cannot_serve(protocol: str, dataset: Dataset) -> DataError:
    reason = {
        "one-class": "the test set needs anomalies of another class than the known one",
        "hard": "only the categories of MVTec AD have hard classes",
        "unseen": "only the categories of MVTec AD have easy and hard classes",
    }.get(protocol, "there are no anomalies")
    others = ", ".join(serves(dataset))
    return DataError(f"{dataset.root}: {dataset.name} cannot serve the protocol {protocol}: {reason}; use {others}")


def _choose(dataset: Dataset, protocol: str, case: Case, hashes: Mapping[str, str], known: int, seed: int) -> Choice:
    """Choose the known anomalies and the anomalies to test, and say why the others are neither."""
    if not _cases(protocol, dataset):
        raise _cannot_serve(protocol, dataset)
    anomalies = sorted((s for s in dataset.samples if s.label), key=lambda s: s.name)
    present = {s.defect for s in anomalies}
    known_classes, tested, notes = _classes(dataset, protocol, case, present)
    # the content of an image that is known and not tested must not be tested under another class either
    excluded = {hashes[s.name] for s in anomalies if s.defect in known_classes - tested}
    test = [s for s in anomalies if s.split != "train" and s.defect in tested and hashes[s.name] not in excluded]
    if not test and protocol != "unsupervised":
        raise DataError(f"{dataset.root}: the protocol {protocol} leaves no anomaly to test; {_names(present)} found")
    candidates = [s for s in anomalies if s.defect in known_classes]
    pool, _ = distinct([s for s in candidates if s.split == "train"] or candidates, hashes)
    order = shuffle_by_class(pool, seed)
    from_test = not {s.name for s in order}.isdisjoint(s.name for s in test)
    drawn = order[: min(known, len(order) // 2 if from_test else len(order))]
    if known_classes and len(drawn) < known:
        limit = "at least half of them stay in the test set" if from_test else "there are no more"
        notes.append(f"{len(drawn)} known anomalies instead of {known}: of {len(order)} {limit}")
    why = {s.name: f"drawn as known anomaly {i} of {len(drawn)}" for i, s in enumerate(drawn, start=1)}
    with_role = {*why, *(s.name for s in test)}
    left = {s.name: _reason(s, protocol, known_classes, tested) for s in anomalies if s.name not in with_role}
    notes += [f"{count} anomalies have no role: {reason}" for reason, count in Counter(left.values()).items()]
    return Choice(drawn, [s for s in test if s.name not in why], why | left, notes)


def _classes(
    dataset: Dataset, protocol: str, case: Case, present: Collection[str]
) -> tuple[frozenset[str], frozenset[str], list[str]]:
    """Return the classes to draw known anomalies from, the classes to test, and notes on those that do not fit."""
    on_disk = frozenset(present)
    if protocol == "unsupervised":
        return frozenset(), on_disk, []
    if protocol == "one-class":
        if case.known_class not in on_disk:
            raise DataError(f"{dataset.root}: no anomaly of class {case.known_class!r}; there are {_names(on_disk)}")
        return frozenset({case.known_class}), on_disk - {case.known_class}, []
    if protocol not in ("hard", "unseen"):
        return on_disk, on_disk, []
    easy, hard = SUBSETS[dataset.name][case.subset - 1]
    notes = []
    if missing := (easy | hard) - on_disk:
        notes.append(f"classes of the paper's list that are not on disk: {_names(missing)}")
    if unknown := on_disk - easy - hard:
        notes.append(f"classes that are not in the paper's list: {_names(unknown)}")
    for difficulty, classes in (("hard", hard), ("easy", easy if protocol == "unseen" else hard)):
        if not classes & on_disk:
            raise DataError(
                f"{dataset.root}: none of the {difficulty} classes of {dataset.name} is there: {_names(classes)}; "
                f"found {_names(on_disk)}"
            )
    return on_disk & (hard if protocol == "hard" else easy), on_disk & hard, notes


def _reason(sample: Sample, protocol: str, known_classes: frozenset[str], tested: frozenset[str]) -> str:
    """Say why an anomaly is neither known nor tested."""
    if protocol == "one-class" and sample.defect in known_classes:
        return f"of the known class {sample.defect}, which is not tested"
    if sample.defect not in known_classes | tested:
        return "of no hard class" if protocol == "hard" else "of a class that is not in the paper's list"
    if sample.split == "train":
        return NOT_DRAWN
    if sample.defect in tested:
        return "the same image is in a class that is not tested"
    return "of an easy class, which is not tested"


def _names(classes: Collection[str]) -> str:
    return ", ".join(sorted(classes)) or "no classes"
