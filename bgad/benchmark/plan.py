"""Plans the cells of benchmark tables: which data is on disk, and which runs each table needs. Needs no torch."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bgad.benchmark.paper_tables import Column, Matrix
from bgad.benchmark.published import printed
from bgad.data import layouts
from bgad.data.datasets import registry
from bgad.data.protocols import Case, cases
from bgad.errors import DataError, abbreviate

NOT_RUN = "not run yet"
RowKey = tuple[str, str, str]  # data set, category, known class, subset or fold: one row of a table


@dataclass(frozen=True)
class Request:
    """One run of a table: the training and evaluation of one model."""

    table: int  # number of the matrix
    data: str
    category: str
    protocol: str
    case: Case
    column: Column
    known: int
    seed: int

    def name(self, column: str | None = None) -> str:
        """Return the name of the run for files; with another `column`, or without one if it is empty."""
        case = f"subset{self.case.subset}" if self.case.subset else str(self.case)
        parts = [self.data, "" if self.category == self.data else self.category, self.protocol, case]
        parts += [self.column.title if column is None else column, f"known{self.known}", f"seed{self.seed}"]
        return "-".join(re.sub(r"[^\w.]+", "_", part, flags=re.ASCII).strip("_") for part in parts if part)

    @property
    def row(self) -> RowKey:
        """The row of the table that the run belongs to."""
        return self.data, self.category, str(self.case)

    def facts(self) -> dict[str, Any]:
        """Return the keys of a cell that state what was requested."""
        return {
            "data": self.data,
            "category": self.category,
            "protocol": self.protocol,
            "method": self.column.method,
            "known": self.known,
            "seed": self.seed,
            "known_class": self.case.known_class,
            "subset": self.case.subset,
            "fold": self.case.fold,
            "setting": self.column.title,
        }


@dataclass(frozen=True)
class Outcome:
    """The result of a request: a cell, or the reason why there is none."""

    request: Request
    cell: dict[str, Any] | None = None
    reason: str = ""
    failed: bool = False  # the data is on disk, but the run failed
    notes: tuple[str, ...] = ()  # on the data and the split of the cell
    file: str = ""  # of the cell, in the folder of the run


@dataclass
class Group:
    """The requests of one category, with its data set, or the reason why it cannot be loaded."""

    data: str
    category: str
    dataset: layouts.Dataset | None
    reason: str
    requests: list[Request] = field(default_factory=list)
    impossible: list[Outcome] = field(default_factory=list)  # requests that this data cannot serve


def plan(matrices: Sequence[Matrix], root: Path | None = None) -> list[Group]:
    """Return the requests of the tables by category, in an order in which neighbours share the most work."""
    groups: dict[tuple[str, str], Group] = {}
    located: dict[tuple[str, tuple[str, ...]], list[tuple[str, str]]] = {}
    for number, matrix in enumerate(matrices):
        for name, wanted in matrix.data.items():
            if (name, wanted) not in located:  # data that several matrices need is read once
                located[name, wanted] = []
                for group in _find(name, wanted, root):
                    other = groups.setdefault((group.data, group.category), group)
                    if other.dataset and group.dataset and other.dataset.root != group.dataset.root:
                        both = f"{other.dataset.root} and {group.dataset.root}"
                        raise DataError(f"two data sets are called {group.data}/{group.category}: {both}; rename one")
                    located[name, wanted].append((group.data, group.category))
            for key in located[name, wanted]:
                _add_requests(groups[key], number, matrix)
    for group in groups.values():
        group.requests.sort(key=lambda r: r.seed)  # stable: the order of the tables stays within a seed
    return list(groups.values())


def plan_dataset(matrix: Matrix, dataset: layouts.Dataset) -> list[Group]:
    """Return the requests of one table on a data set that is read already; DataError where it cannot serve them."""
    group = Group(dataset.name, dataset.name, dataset, "")
    _add_requests(group, 0, matrix)
    if not group.requests:
        raise DataError(group.impossible[0].reason)
    return [group]


def _add_requests(group: Group, number: int, matrix: Matrix) -> None:
    """Add the requests of a matrix to a category."""
    reason, runs = group.reason, [Case()]
    if group.dataset is not None:
        try:
            runs = cases(matrix.protocol, group.dataset, folds=matrix.folds, known=min(matrix.known))
        except DataError as error:
            reason = str(error)
    requests = [
        Request(number, group.data, group.category, matrix.protocol, case, column, known, seed)
        for seed in range(matrix.seeds)
        for case in runs
        for known, column in columns(matrix)
    ]
    if reason:
        group.impossible += [Outcome(request, reason=reason) for request in requests]
        return
    sizes = Counter(s.defect for s in group.dataset.samples if s.label) if group.dataset else Counter[str]()
    for request in requests:
        name, known = request.case.known_class, request.known
        # where no class has enough, or a paper has the row, the cell runs with fewer, and the table notes it
        too_few = name and sizes[name] < known <= max(sizes.values())
        if too_few and not printed(group.data, matrix.protocol, known, group.category, name):
            reason = f"{name} has {sizes[name]} images, fewer than {known} known anomalies"
            group.impossible.append(Outcome(request, reason=reason))
        else:
            group.requests.append(request)


def in_order(groups: Sequence[Group], done: Mapping[Request, Outcome]) -> list[Outcome]:
    """Return the outcomes of the plan in its order; what is not done yet has not been run."""
    return [
        outcome
        for group in groups
        for outcome in (
            *group.impossible,
            *(done.get(request) or Outcome(request, reason=NOT_RUN) for request in group.requests),
        )
    ]


def columns(matrix: Matrix) -> list[tuple[int, Column]]:
    """Return the columns of a table with their numbers of known anomalies."""
    if matrix.protocol == "unsupervised":
        return [(0, column) for column in matrix.columns]
    pairs = [(known, column) for known in matrix.known for column in matrix.columns]
    return [(known if column.known is None else column.known, column) for known, column in pairs]


def _find(name: str, wanted: tuple[str, ...], root: Path | None) -> Iterator[Group]:
    """Yield the categories of a public data set, or of a folder, with the data on disk."""
    if name not in registry.DATASETS and Path(name).exists():
        yield from _folder(Path(name), wanted)
        return
    entry = registry.entry(name)
    try:
        home = registry.find(name, root)
    except DataError as error:
        yield from (Group(name, category, None, str(error)) for category in wanted or entry.categories or (name,))
        return
    present = entry.present(home)
    for category in wanted or entry.categories or (name,):
        try:
            if category in entry.categories and category not in present:
                raise DataError(f"not in {home}, which has {abbreviate(present, 20)}")
            yield Group(name, category, registry.load(name, category, root), "")
        except DataError as error:
            yield Group(name, category, None, str(error))


def _folder(path: Path, wanted: tuple[str, ...]) -> Iterator[Group]:
    """Yield the data set of a folder, or of each category in it."""
    name = path.resolve().name
    inner = [sub for sub in layouts.subfolders(path) if layouts.is_category(sub)] if path.is_dir() else []
    if not inner or layouts.is_category(path):
        dataset = layouts.load(path)
        if wanted and set(wanted) != {dataset.name}:
            raise DataError(f"{path}: is one data set, {dataset.name}, and has no category {', '.join(wanted)}")
        yield Group(dataset.name, dataset.name, dataset, "")
        return
    present = {sub.name: sub for sub in inner}
    for category in wanted or tuple(present):
        if category not in present:
            yield Group(name, category, None, f"{path}: no category {category}; found {abbreviate(list(present), 20)}")
            continue
        try:
            yield Group(name, category, replace(layouts.load(present[category]), name=category), "")
        except DataError as error:
            yield Group(name, category, None, str(error))
