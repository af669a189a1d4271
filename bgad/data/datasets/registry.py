"""Finds the public data sets of DATASETS on disk, loads them, and reports what is missing."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bgad.data.datasets import readers
from bgad.data.datasets.entries import DATASETS, Counts, Entry
from bgad.data.datasets.expected import CLASSES, SIZES
from bgad.data.layouts import Dataset, subfolders
from bgad.errors import DataError, abbreviate

__all__ = ["DATASETS", "DatasetStatus", "Entry", "categories", "default_root", "entry", "find", "inventory", "load"]

INSTALLED = "installed package"
MAX_NESTING = 4  # folders that an archive may put around the set: elpv-dataset-master/src/elpv_dataset/data


@dataclass(frozen=True)
class CategoryStatus:
    """One category on disk, with its counts; None where they are not known without decoding."""

    category: str
    normal: int | None
    anomalous: int | None
    images: int
    notes: list[str]


@dataclass(frozen=True)
class DatasetStatus:
    """One data set of the listing, and the part of it that is on disk."""

    entry: Entry
    place: Path | None
    where: str = ""  # the place for display: below the root, or the installed package
    categories: list[CategoryStatus] = field(default_factory=list)  # on disk
    missing: list[str] = field(default_factory=list)  # names of the other categories
    problem: str = ""  # a folder of that name that holds something else

    def to_json(self) -> dict[str, Any]:
        """Return the row as `bgad datasets --json` prints it."""
        about = {key: getattr(self.entry, key) for key in ("name", "title", "about", "licence", "source", "masks")}
        return {
            **about,
            "place": None if self.place is None else str(self.place),
            "found": [vars(category) for category in self.categories],
            "missing": self.missing,
            "problem": self.problem,
        }


def default_root() -> Path:
    """Return the folder that holds data sets: $BGAD_DATA, else ./data."""
    return Path(os.environ.get("BGAD_DATA") or "data")


def entry(name: str) -> Entry:
    """Return the entry of a name; the error for an unknown name suggests the nearest one."""
    if name not in DATASETS:
        near = get_close_matches(name.lower(), DATASETS, 1)
        guess = f" (did you mean {near[0]}?)" if near else ""
        raise DataError(f"unknown data set {name!r}{guess}: choose from {', '.join(DATASETS)}")
    return DATASETS[name]


def find(name: str, root: str | Path | None = None) -> Path:
    """Return the folder that holds a data set: the root, a folder below it, or an installed package."""
    wanted = entry(name)
    root = default_root() if root is None else Path(root)
    home, mismatch = _search(wanted, root)
    if home:
        return home
    if mismatch:
        raise DataError(_describe_mismatch(wanted, mismatch))
    where = f"does not have it{_looks_like(root)}" if root.is_dir() else "is no folder"
    raise DataError(
        f"{wanted.title} was not found: {root} {where}; get it from {wanted.source} and unpack it to "
        f"{root / wanted.name}, or give another --root (or BGAD_DATA)"
    )


def categories(name: str, root: str | Path | None = None) -> list[str]:
    """Return the categories of a data set that are on disk, in the order of its entry."""
    return entry(name).present(find(name, root))


def load(name: str, category: str = "", root: str | Path | None = None) -> Dataset:
    """Load the samples of one category, with notes on missing and unused files."""
    wanted, home = entry(name), find(name, root)
    root = default_root() if root is None else Path(root)
    present = wanted.present(home)
    if wanted.categories and not category:
        raise DataError(f"{name} has several categories: choose from {', '.join(present)}")
    category = category or name
    if category not in (wanted.categories or (name,)):
        near = get_close_matches(category, wanted.categories or (name,), 1)
        guess = f"; did you mean {near[0]}?" if near else ""
        raise DataError(f"{name} has no category {category!r}{guess}")
    if category not in present:
        others = [folder.name for folder in subfolders(home) if folder.name not in wanted.categories]
        hint = f"; folders that are no category: {abbreviate(others)}" if others else ""
        raise DataError(f"{home}: {category} is missing or not unpacked; found {abbreviate(present, 20)}{hint}")
    dataset = wanted.read(home, category)
    normal, anomalous = _labels(dataset)
    trainable = sum(s.label == 0 and s.split != "test" for s in dataset.samples)
    if not trainable or not anomalous:
        lacking = "normal images to train on" if not trainable else "anomalous images"
        why = f" ({dataset.notes[0]})" if dataset.notes else ""
        raise DataError(f"{dataset.root}: no {lacking}: {wanted.title} is incomplete{why}; expected {wanted.layout}")
    notes = _other_copy(wanted, _search(wanted, root)[1]) + dataset.notes + _gaps(wanted, category, dataset)
    counts = wanted.count(home) if wanted.count else (normal, anomalous, normal + anomalous)
    return replace(dataset, notes=notes + _incomplete(wanted, category, counts))


def inventory(root: str | Path | None = None) -> list[DatasetStatus]:
    """List every data set with its categories on disk; nothing is decoded."""
    return [_status(wanted, default_root() if root is None else Path(root)) for wanted in DATASETS.values()]


def _status(wanted: Entry, root: Path) -> DatasetStatus:
    home, mismatch = _search(wanted, root)
    if home is None:
        return DatasetStatus(wanted, None, problem=_describe_mismatch(wanted, mismatch) if mismatch else "")
    where = f"{home.relative_to(root).as_posix()}/" if home.is_relative_to(root) else INSTALLED
    present = wanted.present(home)
    missing = [category for category in wanted.categories if category not in present]
    on_disk = []
    for category in present:
        try:
            notes = _other_copy(wanted, mismatch)
            if wanted.count:
                counts = wanted.count(home)
            else:
                dataset = wanted.read(home, category)
                counts = (*_labels(dataset), len(dataset.samples))
                notes += dataset.notes + _gaps(wanted, category, dataset)
            on_disk.append(CategoryStatus(category, *counts, notes + _incomplete(wanted, category, counts)))
        except DataError as error:
            on_disk.append(CategoryStatus(category, None, None, 0, [str(error)]))
    return DatasetStatus(wanted, home, where, on_disk, missing)


def _labels(dataset: Dataset) -> tuple[int, int]:
    anomalous = sum(sample.label for sample in dataset.samples)
    return len(dataset.samples) - anomalous, anomalous


def _gaps(wanted: Entry, category: str, dataset: Dataset) -> list[str]:
    """Return notes on classes that were renamed or are missing, and on missing masks."""
    notes = []
    expected = CLASSES.get(wanted.name, {}).get(category)
    if expected:
        notes += readers.compare_classes({s.defect for s in dataset.samples if s.label}, expected)
    if wanted.masks and not any(s.mask for s in dataset.samples):
        notes.append("no masks found: pixel metrics cannot be computed")
    return notes


def _incomplete(wanted: Entry, category: str, counts: Counts) -> list[str]:
    """Return a note where the counts differ from those of the complete data set."""
    normal, anomalous, images = counts
    complete = SIZES[wanted.name][category]
    if images == sum(complete) and normal in (None, complete[0]):
        return []
    text = (
        f"{images} of {sum(complete)} images"
        if normal is None
        else f"{normal} of {complete[0]} normal and {anomalous} of {complete[1]} anomalous images"
    )
    return [f"{'incomplete' if images < sum(complete) else 'not the original set'}: {text}"]


def _letters(name: str) -> str:
    """Return the letters and digits of a name, in lower case."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _search(wanted: Entry, root: Path) -> tuple[Path | None, Path | None]:
    """Return the folder of a data set, and a folder below the root that has its name but another layout."""
    places = sorted(
        (folder for folder in subfolders(root) if _letters(folder.name) in wanted.folders),
        key=lambda folder: wanted.folders.index(_letters(folder.name)),
    )
    for place, depth in [(root, 0), *((place, MAX_NESTING) for place in places)]:
        if home := _home(wanted, place, depth):
            return home, None
    return _installed(wanted), places[0] if places else None


def _other_copy(wanted: Entry, mismatch: Path | None) -> list[str]:
    """Return a note where the installed package is read although a folder has the name of the data set."""
    return [f"the {INSTALLED} is read, because {_describe_mismatch(wanted, mismatch)}"] if mismatch else []


def _describe_mismatch(wanted: Entry, place: Path) -> str:
    content = abbreviate([f"{folder.name}/" for folder in subfolders(place)], 8) or "no folders"
    return (
        f"{place}: is not {wanted.title}, or not completely unpacked: expected {wanted.layout}; "
        f"found {content}{_looks_like(place)}"
    )


def _home(wanted: Entry, place: Path, depth: int) -> Path | None:
    """Return the nearest folder at or below a place that has the layout of the data set."""
    level = [place]
    for _ in range(depth + 1):
        for folder in level:
            if wanted.present(folder):
                return folder
        level = [inner for folder in level for inner in subfolders(folder)]
    return None


def _installed(wanted: Entry) -> Path | None:
    spec = find_spec(wanted.package) if wanted.package else None
    return _home(wanted, Path(spec.origin).parent, 1) if spec and spec.origin else None


def _looks_like(folder: Path) -> str:
    others = [other.name for other in DATASETS.values() if other.present(folder)]
    return f"; that looks like {' or '.join(others)}" if others else ""
