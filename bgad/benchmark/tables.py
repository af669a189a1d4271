"""Aggregates cells to tables in the paper's form: mean and deviation over the seeds, beside printed figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import mean, stdev
from typing import Any

from bgad.benchmark.grid import Cost, Entry, Grid, Row, Stat
from bgad.benchmark.notes import table_notes
from bgad.benchmark.paper_tables import Column, Matrix, PaperTable
from bgad.benchmark.plan import Outcome, RowKey, columns
from bgad.benchmark.printed_figures import PAPER, SOURCES
from bgad.benchmark.published import METHOD_OF, UNSUPERVISED, printed, printed_classes, printed_mean
from bgad.benchmark.recipes import recipe_lines
from bgad.config import Config
from bgad.data.cross_validation import CROSS_VALIDATION

ColumnKey = tuple[int, Column]  # number of known anomalies, column
PrintedColumn = tuple[str, str, int]  # column, source, number of known anomalies (0: the method uses none)
PRINTED_MEAN = "Mean, as printed"


def grids(table: PaperTable, outcomes: Sequence[Outcome], configs: Mapping[str, Config]) -> list[Grid]:
    """Return the tables of a run; where the paper prints only means, a table of means precedes the details.

    `configs` are the recipes of the methods.
    """
    made = []
    for number, matrix in enumerate(table.matrices):
        of_matrix = [outcome for outcome in outcomes if outcome.request.table == number]
        detail = _Detail(matrix, of_matrix).grid(of_matrix)
        recipes = recipe_lines(matrix, configs)
        if table.means:
            made.append(replace(_means(matrix, of_matrix, detail), recipes=recipes))
        made.append(replace(detail, recipes=recipes))
    return made


class _Cells:
    """The cells of one table by row, column and seed."""

    def __init__(self, matrix: Matrix, outcomes: Sequence[Outcome]) -> None:
        self.matrix = matrix
        self.by_seed: dict[tuple[RowKey, ColumnKey], dict[int, dict[str, Any]]] = {}
        self.reasons: dict[tuple[RowKey, ColumnKey], str] = {}  # why a cell is missing
        self.rows = list(dict.fromkeys(outcome.request.row for outcome in outcomes))
        for outcome in outcomes:
            request = outcome.request
            place = request.row, (request.known, request.column)
            if outcome.cell is not None:
                self.by_seed.setdefault(place, {})[request.seed] = outcome.cell
            else:
                self.reasons.setdefault(place, outcome.reason)

    def values(self, row: RowKey, column: ColumnKey, metric: str) -> dict[int, float]:
        """Return seed -> figure."""
        cells = self.by_seed.get((row, column), {})
        return {seed: value for seed, cell in cells.items() if (value := cell["metrics"].get(metric)) is not None}

    def common_seeds(self, rows: Sequence[RowKey]) -> set[int]:
        """Return the seeds that all these rows have in all columns; only means over the same seeds are comparable."""
        seeds = [
            set(self.values(row, column, self.matrix.metrics[0])) for row in rows for column in columns(self.matrix)
        ]
        return set.intersection(*seeds) if seeds else set()

    def complete(self, rows: Sequence[RowKey]) -> list[RowKey]:
        """Return the rows that have a figure in all columns for at least one common seed."""
        return [row for row in rows if self.common_seeds([row])]

    def mean_label(self, rows: Sequence[RowKey], total: int) -> str:
        """Return the name of the mean of these rows; it states how many of all rows and seeds, if not all."""
        seeds = len(self.common_seeds(rows))
        parts = [f" of {len(rows)} of {total} rows"] if len(rows) < total else []
        parts += [f" ({seeds} of {self.matrix.seeds} seeds)"] if rows and seeds < self.matrix.seeds else []
        return "Mean" + "".join(parts)

    def entry(self, rows: Sequence[RowKey], column: ColumnKey, seeds: set[int] | None = None) -> Entry:
        """Return the mean over rows for each seed, then mean and deviation over the seeds (all, or those given)."""
        stats = {}
        for metric in self.matrix.metrics:
            values = [self.values(row, column, metric) for row in rows]
            shared = set.intersection(*map(set, values)) if values else set()
            chosen = shared if seeds is None else shared & seeds
            means = [mean(row[seed] for row in values) for seed in sorted(chosen)]
            if means:
                stats[metric] = Stat(mean(means), stdev(means) if len(means) > 1 else None)
        return Entry(stats, "" if stats else "-")

    def means(self, rows: Sequence[RowKey]) -> list[Entry]:
        """Return the mean of these rows in every column, over their common seeds."""
        seeds = self.common_seeds(rows)
        return [self.entry(rows, column, seeds) for column in columns(self.matrix)]

    def seconds(self, row: RowKey) -> float | None:
        """Return the mean time of training and scoring a cell of the row."""
        cells = [c for (r, _), seeds in self.by_seed.items() if r == row for c in seeds.values()]
        times = [cell["seconds"]["train"] + cell["seconds"]["score"] for cell in cells]
        return mean(times) if times else None

    def cost(self, rows: Sequence[RowKey], column: ColumnKey) -> Cost:
        """Return the mean costs of the cells of these rows in a column."""
        return Cost.of([cell for row in rows for cell in self.by_seed.get((row, column), {}).values()])


class _Detail:
    """The detailed table of a matrix: rows are categories or known classes, columns are methods or settings."""

    def __init__(self, matrix: Matrix, outcomes: Sequence[Outcome]) -> None:
        self.matrix = matrix
        self.cells = _Cells(matrix, outcomes)
        self.columns = columns(matrix)
        self.printed = _printed_columns(matrix, self.cells.rows)
        self.several = len({data for data, _, _ in self.cells.rows}) > 1
        self.with_case = any(case for _, _, case in self.cells.rows)
        self.notes: list[str] = []

    def grid(self, outcomes: Sequence[Outcome]) -> Grid:
        """Return the table with its notes."""
        rows: list[Row] = []
        for data, categories in _by_category(self.cells.rows).items():
            rows += self._data_rows(data, categories)
        rows, best = self._with_best(rows)
        rows, shown = self._without_empty(rows)
        self.notes += table_notes(self.matrix, outcomes) + _source_notes(shown)
        several = len({known for known, _ in self.columns}) > 1
        heads = [(c, f"{source}, {n} known" if several and n else source) for c, source, n in shown]
        case_head = {"one-class": "Known class", CROSS_VALIDATION: "Fold"}.get(self.matrix.protocol, "Subset")
        names = ("Category", *([case_head] if self.with_case else []))
        ours = _heads(self.matrix)
        costs = [self.cells.cost(self.cells.rows, column) for column in self.columns]
        return Grid(_title(self.matrix), names, ours, heads, self.matrix.metrics, rows, self.notes, best, costs=costs)

    def _data_rows(self, data: str, categories: dict[str, list[RowKey]]) -> list[Row]:
        """Return the rows of one data set, with their means."""
        rows: list[Row] = []
        complete: list[RowKey] = []
        for category, keys in categories.items():
            for key in keys:
                ours = [self._marked(key, column) for column in self.columns]
                costs = [self.cells.cost([key], column) for column in self.columns]
                entries = [*ours, *self._printed(*key)]
                rows.append(Row(self._names(*key), entries, self.cells.seconds(key), costs=costs))
            complete += self.cells.complete(keys)
            if len(keys) > 1:
                rows += self._category_means(data, category, keys)
        if len(categories) > 1:
            label = self.cells.mean_label(complete, sum(map(len, categories.values())))
            label = f"{data} {label}" if self.several else label
            entries = [*self.cells.means(complete), *self._printed_means(complete)]
            rows.append(Row(self._head(label), entries, mean=True))
            if any(entry.stats for entry in self._printed(data)):
                rows.append(self._only_printed(self._head(PRINTED_MEAN), data))
        return rows

    def _category_means(self, data: str, category: str, keys: list[RowKey]) -> list[Row]:
        """Return the mean over the known classes or subsets of a category.

        The printed mean stands beside ours where it is over the same classes; otherwise it has its own row.
        """
        complete = self.cells.complete(keys)
        label = self.cells.mean_label(complete, len(keys))
        same = {case.lower() for _, _, case in complete} == printed_classes(data, self.matrix.protocol, category)
        beside = self._printed(data, category) if same else self._printed_means(complete)
        rows = [Row(self._names(data, category, label), [*self.cells.means(complete), *beside], mean=True)]
        if not same and any(entry.stats for entry in self._printed(data, category)):
            rows.append(self._only_printed(self._names(data, category, PRINTED_MEAN), data, category))
        return rows

    def _only_printed(self, names: tuple[str, ...], data: str, category: str = "") -> Row:
        """Return a row with printed means alone."""
        return Row(names, [*(Entry() for _ in self.columns), *self._printed(data, category)], mean=True)

    def _names(self, data: str, category: str, case: str) -> tuple[str, ...]:
        place = f"{data}/{category}" if self.several and data != category else category
        return (place, case) if self.with_case else (place,)

    def _head(self, label: str) -> tuple[str, ...]:
        return (label, "") if self.with_case else (label,)

    def _printed(self, data: str, category: str = "", case: str = "") -> list[Entry]:
        """Return the printed entries of a row, or of a mean where names are empty."""
        figures = [
            printed(data, self.matrix.protocol, known, category, case).get((column, source), {})
            for column, source, known in self.printed
        ]
        entries = []
        for values in figures:
            stats = {m: Stat(v) for m, v in values.items() if m in self.matrix.metrics}
            entries.append(Entry(stats, "" if stats else "-"))
        return entries

    def _printed_means(self, keys: Sequence[RowKey]) -> list[Entry]:
        """Return the means of the printed figures over the same rows as ours; none where a row lacks a figure."""
        rows = [self._printed(*key) for key in keys]
        entries = []
        for i in range(len(self.printed)):
            stats = {
                metric: Stat(mean(row[i].stats[metric].mean for row in rows))
                for metric in self.matrix.metrics
                if rows and all(metric in row[i].stats for row in rows)
            }
            entries.append(Entry(stats, "" if stats else "-"))
        return entries

    def _without_empty(self, rows: list[Row]) -> tuple[list[Row], list[PrintedColumn]]:
        """Return the rows and the printed columns without columns that have no figure in any row."""
        ours = len(self.columns)
        filled = [i for i in range(len(self.printed)) if any(row.entries[ours + i].stats for row in rows)]
        kept = [replace(row, entries=[*row.entries[:ours], *(row.entries[ours + i] for i in filled)]) for row in rows]
        return kept, [self.printed[i] for i in filled]

    def _with_best(self, rows: list[Row]) -> tuple[list[Row], list[str]]:
        """Return the rows with the best printed entries, supervised and not, and the heads of these.

        A column that only names methods of METHOD_OF is left out, because these have columns of their own.
        """
        known = dict.fromkeys(known for known, _ in self.columns if known)
        heads = {f"best supervised (printed{f', {n} known' if len(known) > 1 else ''})": n for n in known}
        best: dict[str, list[Entry]] = {}
        for head, number in (heads | {"best unsupervised (printed)": 0}).items():
            entries = [self._best(row.entries[len(self.columns) :], number) for row in rows]
            if {entry.remark for entry in entries} - {*METHOD_OF, "-"}:
                best[head] = entries
        return [replace(row, best=[column[i] for column in best.values()]) for i, row in enumerate(rows)], list(best)

    def _best(self, entries: Sequence[Entry], known: int) -> Entry:
        """Return the printed entry with the best figure of the first metric that is printed, and its method."""
        competing = [(c, e.stats) for (c, _, n), e in zip(self.printed, entries, strict=True) if n == known]
        for metric in self.matrix.metrics:
            if figures := [(stats[metric].mean, column, stats) for column, stats in competing if metric in stats]:
                _, column, stats = max(figures, key=lambda figure: figure[0])
                return Entry(stats, column)
        return Entry(remark="-")

    def _marked(self, key: RowKey, column: ColumnKey) -> Entry:
        """Return the entry of a row; a missing cell gets the number of the note with the reason."""
        entry = self.cells.entry([key], column)
        reason = self.cells.reasons.get((key, column))
        if reason is None:
            return entry
        if reason not in self.notes:
            self.notes.append(reason)
        number = f"[{self.notes.index(reason) + 1}]"
        return Entry(entry.stats, number if entry.stats else f"missing {number}")


def _means(matrix: Matrix, outcomes: Sequence[Outcome], detail: Grid) -> Grid:
    """Return the table of means: one row for each column of the matrix, ours and printed."""
    cells = _Cells(matrix, outcomes)
    complete = cells.complete(cells.rows)
    seeds = cells.common_seeds(complete)
    data_sets = {data for data, _, _ in cells.rows}
    rows = []
    for (known, column), head in zip(columns(matrix), detail.ours, strict=True):
        figures = printed_mean(next(iter(data_sets)), matrix.protocol, known, column) if len(data_sets) == 1 else {}
        paper = {m: Stat(value) for m, value in figures.items() if m in matrix.metrics}
        ours = cells.entry(complete, (known, column), seeds)
        rows.append(Row((head,), [ours, Entry(paper, "" if paper else "-")]))
    categories = len({category for _, category, _ in cells.rows})
    measured = len({category for _, category, _ in complete})
    note = (
        f"Means over {measured} of {categories} categories ({len(complete)} of {len(cells.rows)} rows: those that have "
        f"all columns) and {len(seeds)} of {matrix.seeds} seeds; the printed ones are over all."
    )
    return Grid(f"{detail.title}, means", ("",), ["ours"], [("printed", PAPER)], matrix.metrics, rows, [note])


def _title(matrix: Matrix) -> str:
    known = ", ".join(map(str, dict.fromkeys(known for known, _ in columns(matrix))))
    if matrix.protocol == CROSS_VALIDATION and known == "0":
        known = "all"
    return f"{matrix.title + ': ' if matrix.title else ''}{matrix.protocol}, {known} known"


def _heads(matrix: Matrix) -> list[str]:
    several = len(matrix.known) > 1
    return [f"{c.title} ({known} known)" if several else c.title for known, c in columns(matrix)]


def _by_category(rows: Sequence[RowKey]) -> dict[str, dict[str, list[RowKey]]]:
    """Return data set -> category -> rows."""
    nested: dict[str, dict[str, list[RowKey]]] = {}
    for row in rows:
        nested.setdefault(row[0], {}).setdefault(row[1], []).append(row)
    return nested


def _printed_columns(matrix: Matrix, rows: Sequence[RowKey]) -> list[PrintedColumn]:
    """Return the printed columns with a figure in any row or mean; those of methods that can be run come first."""
    heads: dict[PrintedColumn, None] = {}
    for known in dict.fromkeys([0, *(known for known, _ in columns(matrix))]):
        for data, category, case in rows:
            for names in ((category, case), (category, ""), ("", "")):
                for (column, source), values in printed(data, matrix.protocol, known, *names).items():
                    repeated = known > 0 and column in UNSUPERVISED
                    if not repeated and any(metric in values for metric in matrix.metrics):
                        heads[column, source, known] = None
    return sorted(heads, key=lambda head: head[0] not in METHOD_OF)


def _source_notes(heads: Sequence[PrintedColumn]) -> list[str]:
    """Return notes on the printed columns: their sources, and which methods use no anomaly."""
    sources = dict.fromkeys(source for _, source, _ in heads)
    notes = [f"({source}): {SOURCES[source]}" for source in sources]
    unsupervised = dict.fromkeys(column for column, _, known in heads if not known)
    return notes + ([f"printed without any known anomaly: {', '.join(unsupervised)}"] if unsupervised else [])
