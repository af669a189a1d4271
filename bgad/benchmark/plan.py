"""From tables to cells: which data is there, and which runs each table asks of it. Needs no torch."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bgad.benchmark.published import Column, Matrix, printed
from bgad.data import layouts
from bgad.data.datasets import registry
from bgad.data.protocols import Case, cases
from bgad.errors import DataError, abbreviate

NOT_RUN = "not run yet"


@dataclass(frozen=True)
class Request:
    """One run that a table asks for."""

    table: int  # number of the matrix
    data: str
    category: str
    protocol: str
    case: Case
    column: Column
    known: int
    seed: int

    def name(self, column: str | None = None) -> str:
        """What it is, in a form that fits a file name; an empty column is left out, as in the name of the split."""
        case = self.case.known_class or (f"subset{self.case.subset}" if self.case.subset else "")
        parts = [self.data, "" if self.category == self.data else self.category, self.protocol, case]
        parts += [self.column.title if column is None else column, f"known{self.known}", f"seed{self.seed}"]
        return "-".join(re.sub(r"[^\w.]+", "_", part, flags=re.ASCII).strip("_") for part in parts if part)

    def facts(self) -> dict[str, Any]:
        """The keys of a cell that say what was asked for."""
        return {
            "data": self.data,
            "category": self.category,
            "protocol": self.protocol,
            "method": self.column.method,
            "known": self.known,
            "seed": self.seed,
            "known_class": self.case.known_class,
            "subset": self.case.subset,
            "setting": self.column.title,
        }


@dataclass(frozen=True)
class Outcome:
    """What became of a request: a cell, or the reason why there is none."""

    request: Request
    cell: dict[str, Any] | None = None
    reason: str = ""
    failed: bool = False  # the data was there, and the run failed
    notes: tuple[str, ...] = ()  # on the data and the split of the cell


@dataclass
class Group:
    """All that is asked of one category; without a data set, the reason why it is not there."""

    data: str
    category: str
    dataset: layouts.Dataset | None
    reason: str
    requests: list[Request] = field(default_factory=list)
    impossible: list[Outcome] = field(default_factory=list)  # what this data cannot serve


def plan(matrices: Sequence[Matrix], root: Path | None = None) -> list[Group]:
    """The cells of the tables, by category, in an order in which neighbours share the most work."""
    groups: dict[tuple[str, str], Group] = {}
    there: dict[tuple[str, tuple[str, ...]], list[tuple[str, str]]] = {}
    for number, matrix in enumerate(matrices):
        for name, wanted in matrix.data.items():
            if (name, wanted) not in there:  # another matrix may want the same: it is read once
                there[name, wanted] = []
                for found in _find(name, wanted, root):
                    other = groups.setdefault((found.data, found.category), found)
                    if other.dataset and found.dataset and other.dataset.root != found.dataset.root:
                        both = f"{other.dataset.root} and {found.dataset.root}"
                        raise DataError(f"two data sets are called {found.data}/{found.category}: {both}; rename one")
                    there[name, wanted].append((found.data, found.category))
            for key in there[name, wanted]:
                _ask(groups[key], number, matrix)
    for group in groups.values():
        group.requests.sort(key=lambda r: r.seed)  # stable: the order of the tables stays within a seed
    return list(groups.values())


def _ask(group: Group, number: int, matrix: Matrix) -> None:
    """Add the requests of a matrix to a category."""
    reason, found = group.reason, [Case()]
    if group.dataset is not None:
        try:
            found = cases(matrix.protocol, group.dataset)
        except DataError as error:
            reason = str(error)
    requests = [
        Request(number, group.data, group.category, matrix.protocol, case, column, known, seed)
        for seed in range(matrix.seeds)
        for case in found
        for known, column in columns(matrix)
    ]
    if reason:
        group.impossible += [Outcome(request, reason=reason) for request in requests]
        return
    sizes = Counter(s.defect for s in group.dataset.samples if s.label) if group.dataset else Counter[str]()
    for request in requests:
        name, known = request.case.known_class, request.known
        # where no class has enough, or a paper has the row, it runs with what there is, and the table says so
        small = name and sizes[name] < known <= max(sizes.values())
        if small and not printed(group.data, matrix.protocol, known, group.category, name):
            why = f"{name} has {sizes[name]} images, fewer than {known} known anomalies"
            group.impossible.append(Outcome(request, reason=why))
        else:
            group.requests.append(request)


def unfinished(groups: Sequence[Group], done: Sequence[Outcome]) -> list[Outcome]:
    """What a run that has come so far has yet to do, after what is done, in the order of the plan."""
    planned = [
        outcome
        for group in groups
        for outcome in (*group.impossible, *(Outcome(request, reason=NOT_RUN) for request in group.requests))
    ]
    return planned[len(done) :]


def columns(matrix: Matrix) -> list[tuple[int, Column]]:
    """The columns of a table: (known, what to run)."""
    if matrix.protocol == "unsupervised":
        return [(0, column) for column in matrix.columns]
    pairs = [(known, column) for known in matrix.known for column in matrix.columns]
    return [(known if column.known is None else column.known, column) for known, column in pairs]


def _find(name: str, wanted: tuple[str, ...], root: Path | None) -> Iterator[Group]:
    """The categories of a data set, by its name in the catalog or as a folder, with what is on disk of each."""
    if name not in registry.DATASETS and Path(name).exists():
        yield from _folder(Path(name), wanted)
        return
    entry = registry.entry(name)
    try:
        home = registry.find(name, root)
    except DataError as error:
        yield from (Group(name, category, None, str(error)) for category in wanted or entry.categories or (name,))
        return
    there = entry.present(home)
    for category in wanted or entry.categories or (name,):
        try:
            if category in entry.categories and category not in there:
                raise DataError(f"not in {home}, which has {abbreviate(there, 20)}")
            yield Group(name, category, registry.load(name, category, root), "")
        except DataError as error:
            yield Group(name, category, None, str(error))


def _folder(path: Path, wanted: tuple[str, ...]) -> Iterator[Group]:
    """A folder in a layout that `folders.load` knows, or one that holds several of them."""
    name = path.resolve().name
    inner = [sub for sub in layouts.subfolders(path) if layouts.is_category(sub)] if path.is_dir() else []
    if not inner or layouts.is_category(path):
        dataset = layouts.load(path)
        if wanted and set(wanted) != {dataset.name}:
            raise DataError(f"{path}: is one data set, {dataset.name}, and has no category {', '.join(wanted)}")
        yield Group(dataset.name, dataset.name, dataset, "")
        return
    there = {sub.name: sub for sub in inner}
    for category in wanted or tuple(there):
        if category not in there:
            yield Group(name, category, None, f"{path}: no category {category}; found {abbreviate(list(there), 20)}")
            continue
        try:
            yield Group(name, category, replace(layouts.load(there[category]), name=category), "")
        except DataError as error:
            yield Group(name, category, None, str(error))
