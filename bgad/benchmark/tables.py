"""Cells -> tables in the paper's form: mean and spread over the seeds, beside what was printed."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import mean, stdev
from typing import Any

from bgad.benchmark.plan import Outcome, Request, columns
from bgad.benchmark.published import (
    OURS,
    PAPER,
    SOURCES,
    Column,
    Matrix,
    PaperTable,
    printed,
    printed_classes,
    printed_mean,
)
from bgad.errors import printable
from bgad.metrics import METRICS

FIGURES = {name: metric.label for name, metric in METRICS.items()}
Key = tuple[str, str, str]  # data, category, case
MAX_NOTES = 8  # on one category; the cells have them all
# what the protocol's name says anyway, and what `_reduced` tells shorter
TOLD = re.compile(r"\d+ anomalies have no role: (of|anomaly of) |\d+ known anomalies instead of ")


@dataclass(frozen=True)
class Stat:
    """A figure over the seeds."""

    mean: float
    spread: float | None = None  # standard deviation, where there are several

    def __str__(self) -> str:
        return f"{self.mean:.3f}" if self.spread is None else f"{self.mean:.3f}±{self.spread:.3f}"


@dataclass(frozen=True)
class Entry:
    """What stands at a row and a column: figures by metric, and a word on what is not there."""

    stats: dict[str, Stat] = field(default_factory=dict)
    word: str = ""

    def text(self, metrics: Sequence[str]) -> str:
        """The figures with slashes between, as the paper has them."""
        if not self.stats:
            return self.word
        figures = " / ".join(str(self.stats[m]) if m in self.stats else "-" for m in metrics)
        return f"{figures} {self.word}".rstrip()


@dataclass(frozen=True)
class Row:
    """One line of a table."""

    names: tuple[str, ...]
    entries: list[Entry]  # ours, then the printed ones
    seconds: float | None = None  # of a cell, on average
    mean: bool = False


@dataclass(frozen=True)
class Grid:
    """One table, ready to be written in any form."""

    title: str
    names: tuple[str, ...]  # heads of the row names
    ours: list[str]
    printed: list[tuple[str, str]]  # column, source
    metrics: tuple[str, ...]
    rows: list[Row]
    notes: list[str]

    def heads(self) -> list[str]:
        """All columns: row names, ours, printed, and the seconds of a cell."""
        beside = [f"{name} ({source})" for name, source in self.printed]
        return [*self.names, *self.ours, *beside, *(["seconds"] if self.timed else [])]

    @property
    def timed(self) -> bool:
        """True where rows are cells, and not means of them."""
        return any(row.seconds is not None for row in self.rows)

    def lines(self) -> list[list[str]]:
        """The rows as text, beside the heads."""
        found = []
        for row in self.rows:
            seconds = ["" if row.seconds is None else f"{row.seconds:.0f}"] if self.timed else []
            found.append([*row.names, *(entry.text(self.metrics) for entry in row.entries), *seconds])
        return found


def grids(table: PaperTable, outcomes: Sequence[Outcome]) -> list[Grid]:
    """The tables of a run; where the paper prints means only, these come first."""
    found = []
    for number, matrix in enumerate(table.matrices):
        own = [outcome for outcome in outcomes if outcome.request.table == number]
        detail = _detail(matrix, own)
        if table.means:
            found.append(_means(matrix, own, detail))
        found.append(detail)
    return found


def _title(matrix: Matrix) -> str:
    known = ", ".join(map(str, dict.fromkeys(known for known, _ in columns(matrix))))
    return f"{matrix.title + ': ' if matrix.title else ''}{matrix.protocol}, {known} known"


def _heads(matrix: Matrix) -> list[str]:
    several = len(matrix.known) > 1
    return [f"{c.title} ({known} known)" if several else c.title for known, c in columns(matrix)]


def _key(request: Request) -> Key:
    case = request.case.known_class or (str(request.case.subset) if request.case.subset else "")
    return request.data, request.category, case


def _column(request: Request) -> tuple[int, Column]:
    return request.known, request.column


class _Cells:
    """The cells of one table by row, column and seed."""

    def __init__(self, matrix: Matrix, outcomes: Sequence[Outcome]) -> None:
        self.matrix = matrix
        self.seeds: dict[tuple[Key, tuple[int, Column]], dict[int, dict[str, Any]]] = {}
        self.reasons: dict[tuple[Key, tuple[int, Column]], str] = {}
        self.keys = list(dict.fromkeys(_key(o.request) for o in outcomes))
        for outcome in outcomes:
            place = _key(outcome.request), _column(outcome.request)
            if outcome.cell is not None:
                self.seeds.setdefault(place, {})[outcome.request.seed] = outcome.cell
            else:
                self.reasons.setdefault(place, outcome.reason)

    def values(self, key: Key, column: tuple[int, Column], metric: str) -> dict[int, float]:
        """Seed -> figure."""
        cells = self.seeds.get((key, column), {})
        return {seed: value for seed, cell in cells.items() if (value := cell["metrics"].get(metric)) is not None}

    def common(self, keys: Sequence[Key]) -> set[int]:
        """The seeds that all these rows have in all columns: a mean over other ones would compare unlike things."""
        wanted = columns(self.matrix)
        found = [set(self.values(key, column, self.matrix.metrics[0])) for key in keys for column in wanted]
        return set.intersection(*found) if found else set()

    def over(self, keys: Sequence[Key], rows: int) -> str:
        """The name of the mean of these rows, with what it is over where that is not everything."""
        seeds = len(self.common(keys))
        parts = [f" of {len(keys)} of {rows} rows"] if len(keys) < rows else []
        parts += [f" ({seeds} of {self.matrix.seeds} seeds)"] if keys and seeds < self.matrix.seeds else []
        return "Mean" + "".join(parts)

    def entry(self, keys: Sequence[Key], column: tuple[int, Column], seeds: set[int] | None = None) -> Entry:
        """The mean over rows, seed by seed, then over the seeds (all, or these); one row is its own mean."""
        stats = {}
        for metric in self.matrix.metrics:
            rows = [self.values(key, column, metric) for key in keys]
            shared = set.intersection(*map(set, rows)) if rows else set()
            chosen = shared if seeds is None else shared & seeds
            means = [mean(row[seed] for row in rows) for seed in sorted(chosen)]
            if means:
                stats[metric] = Stat(mean(means), stdev(means) if len(means) > 1 else None)
        return Entry(stats, "" if stats else "-")

    def seconds(self, key: Key) -> float | None:
        """Training and scoring of a cell of the row, on average."""
        cells = [c for (k, _), seeds in self.seeds.items() if k == key for c in seeds.values()]
        times = [cell["seconds"]["train"] + cell["seconds"]["score"] for cell in cells]
        return mean(times) if times else None


def _detail(matrix: Matrix, outcomes: Sequence[Outcome]) -> Grid:
    """Rows are categories or known classes, columns are methods or settings."""
    cells = _Cells(matrix, outcomes)
    wanted = columns(matrix)
    notes: list[str] = []
    several = len({data for data, _, _ in cells.keys}) > 1
    with_case = any(case for _, _, case in cells.keys)
    beside = _beside(matrix, cells.keys)

    def names(data: str, category: str, case: str) -> tuple[str, ...]:
        place = f"{data}/{category}" if several and data != category else category
        return (place, case) if with_case else (place,)

    def foreign(data: str, category: str = "", case: str = "") -> list[Entry]:
        figures = [
            printed(data, matrix.protocol, known, category, case).get((column, source), {})
            for column, source, known in beside
        ]
        values = [{m: v for m, v in one.items() if m in matrix.metrics} for one in figures]
        return [Entry({m: Stat(v) for m, v in one.items()}, "" if one else "-") for one in values]

    rows: list[Row] = []
    for data, categories in _nested(cells.keys).items():
        complete: list[Key] = []
        for category, keys in categories.items():
            for key in keys:
                ours = [_mark(cells, key, column, notes) for column in wanted]
                rows.append(Row(names(*key), [*ours, *foreign(*key)], cells.seconds(key)))
            done = [key for key in keys if cells.common([key])]
            complete += done
            if len(keys) > 1:
                label, seeds = cells.over(done, len(keys)), cells.common(done)
                means = [cells.entry(done, column, seeds) for column in wanted]
                same = {case.lower() for _, _, case in done} == printed_classes(data, matrix.protocol, category)
                beside_means = foreign(data, category) if same else _same_rows(matrix, beside, done, foreign)
                rows.append(Row(names(data, category, label), [*means, *beside_means], mean=True))
                if not same and any(entry.stats for entry in foreign(data, category)):
                    head = names(data, category, "Mean, as printed")
                    rows.append(Row(head, [*(Entry() for _ in wanted), *foreign(data, category)], mean=True))
        if len(categories) > 1:
            label, seeds = cells.over(complete, sum(map(len, categories.values()))), cells.common(complete)
            label = f"{data} {label}" if several else label
            overall = [cells.entry(complete, column, seeds) for column in wanted]
            head = (label, "") if with_case else (label,)
            rows.append(Row(head, [*overall, *_same_rows(matrix, beside, complete, foreign)], mean=True))
            if any(entry.stats for entry in foreign(data)):
                head = ("Mean, as printed", "") if with_case else ("Mean, as printed",)
                rows.append(Row(head, [*(Entry() for _ in wanted), *foreign(data)], mean=True))
    notes += _why_no_pixels(matrix, outcomes) + _reduced(outcomes) + _on_data(outcomes)
    notes += [f"({source}): {SOURCES[source]}" for source in dict.fromkeys(source for _, source, _ in beside)]
    several_known = len({known for known, _ in wanted}) > 1
    heads = [(c, f"{source}, {known} known" if several_known else source) for c, source, known in beside]
    case_head = ("Known class" if matrix.protocol == "one-class" else "Subset",) if with_case else ()
    return Grid(_title(matrix), ("Category", *case_head), _heads(matrix), heads, matrix.metrics, rows, notes)


def _nested(keys: Sequence[Key]) -> dict[str, dict[str, list[Key]]]:
    found: dict[str, dict[str, list[Key]]] = {}
    for key in keys:
        found.setdefault(key[0], {}).setdefault(key[1], []).append(key)
    return found


def _beside(matrix: Matrix, keys: Sequence[Key]) -> list[tuple[str, str, int]]:
    """The printed columns (column, source, known) that some row has: those of our methods first."""
    found: dict[tuple[str, str, int], None] = {}
    for known in dict.fromkeys(known for known, _ in columns(matrix)):
        for data, category, case in keys:
            for names in ((category, case), (category, ""), ("", "")):
                for (column, source), values in printed(data, matrix.protocol, known, *names).items():
                    if any(metric in values for metric in matrix.metrics):
                        found[column, source, known] = None
    return sorted(found, key=lambda head: head[0] not in OURS)


def _same_rows(
    matrix: Matrix,
    beside: Sequence[tuple[str, str, int]],
    keys: Sequence[Key],
    foreign: Callable[[str, str, str], list[Entry]],
) -> list[Entry]:
    """The mean of what was printed over the same rows as ours; no figure where a row has none."""
    rows = [foreign(*key) for key in keys]
    entries = []
    for i in range(len(beside)):
        stats = {
            metric: Stat(mean(row[i].stats[metric].mean for row in rows))
            for metric in matrix.metrics
            if rows and all(metric in row[i].stats for row in rows)
        }
        entries.append(Entry(stats, "" if stats else "-"))
    return entries


def _mark(cells: _Cells, key: Key, column: tuple[int, Column], notes: list[str]) -> Entry:
    """A row's entry; what is not there gets the number of a note that says why."""
    entry = cells.entry([key], column)
    reason = cells.reasons.get((key, column))
    if reason is None:
        return entry
    if reason not in notes:
        notes.append(reason)
    number = f"[{notes.index(reason) + 1}]"
    return Entry(entry.stats, number if entry.stats else f"missing {number}")


def _why_no_pixels(matrix: Matrix, outcomes: Sequence[Outcome]) -> list[str]:
    """Which data has no pixel figures, said once."""
    if not {"pixel_auroc", "pro"} & set(matrix.metrics):
        return []
    bare = dict.fromkeys(
        o.request.category for o in outcomes if o.cell is not None and o.cell["metrics"]["pixel_auroc"] is None
    )
    return [f"- : no pixel figures for {', '.join(bare)}: no masks of the test images"] if bare else []


def _reduced(outcomes: Sequence[Outcome]) -> list[str]:
    """Where a class had fewer anomalies to spare than were asked for."""
    cells = [o.cell for o in outcomes if o.cell is not None and o.cell["drawn"] < o.cell["known"]]
    cases = [c["known_class"] or (f"subset {c['subset']}" if c["subset"] else "") for c in cells]
    places = [
        " ".join(filter(None, (c["category"], case))) + f": {c['drawn']}" for c, case in zip(cells, cases, strict=True)
    ]
    return [f"fewer known anomalies than asked for: {', '.join(dict.fromkeys(places))}"] if places else []


def _on_data(outcomes: Sequence[Outcome]) -> list[str]:
    """What the cells note on their data and splits, each once, with the categories or cases that say it."""
    done = [o for o in outcomes if o.cell is not None]
    said: dict[str, dict[str, set[str]]] = {}  # note -> category -> cases
    cases: dict[str, set[str]] = {}
    for outcome in done:
        _, category, case = _key(outcome.request)
        cases.setdefault(category, set()).add(case)
        for note in outcome.notes:
            if not TOLD.match(note):
                said.setdefault(note, {}).setdefault(category, set()).add(case)
    shown: dict[str, list[str]] = {}  # places -> notes
    for note, places in said.items():
        names = [
            category if seen == cases[category] else f"{category} {', '.join(sorted(seen))}"
            for category, seen in places.items()
        ]
        shown.setdefault("; ".join(names), []).append(note)
    found = []
    for place, notes in shown.items():
        found += [f"{place}: {note}" for note in notes[:MAX_NOTES]]
        if len(notes) > MAX_NOTES:
            found.append(f"{place}: {len(notes) - MAX_NOTES} more notes are in the files of its cells")
    return found


def _means(matrix: Matrix, outcomes: Sequence[Outcome], detail: Grid) -> Grid:
    """One line for each column: means over the data set, ours and printed."""
    cells = _Cells(matrix, outcomes)
    wanted = columns(matrix)
    done = [key for key in cells.keys if cells.common([key])]
    seeds = cells.common(done)
    names = {data for data, _, _ in cells.keys}
    rows = []
    for (known, column), head in zip(wanted, detail.ours, strict=True):
        figures = printed_mean(next(iter(names)), matrix.protocol, known, column) if len(names) == 1 else {}
        paper = {m: Stat(value) for m, value in figures.items() if m in matrix.metrics}
        ours = cells.entry(done, (known, column), seeds)
        rows.append(Row((head,), [ours, Entry(paper, "" if paper else "-")]))
    categories = len({category for _, category, _ in cells.keys})
    found = len({category for _, category, _ in done})
    note = (
        f"Means over {found} of {categories} categories ({len(done)} of {len(cells.keys)} rows: those that have all "
        f"columns) and {len(seeds)} of {matrix.seeds} seeds; the printed ones are over all."
    )
    return Grid(f"{detail.title}, means", ("",), ["ours"], [("printed", PAPER)], matrix.metrics, rows, [note])


def markdown(table: PaperTable, found: Sequence[Grid], outcomes: Sequence[Outcome]) -> str:
    """table.md: all tables, then every cell with its time."""
    parts = [f"# {table.about}", ""]
    for grid in found:
        figures = " / ".join(FIGURES[m] for m in grid.metrics)
        parts += [f"## {grid.title}", "", f"{figures}; mean ± standard deviation over the seeds.", ""]
        parts += [*_md_table(grid.heads(), grid.lines()), ""]
        parts += [f"{i}. {_md(note)}" for i, note in enumerate(grid.notes, start=1)] + [""] * bool(grid.notes)
    parts += [*(f"- {note}" for note in table.notes), ""] if table.notes else []
    heads, lines = cell_lines(outcomes)
    if lines:
        parts += ["## Cells", "", *_md_table(heads, lines), ""]
    return "\n".join(parts)


def cell_lines(outcomes: Sequence[Outcome]) -> tuple[list[str], list[list[str]]]:
    """Every cell on a line: what it is, its figures, and how long it took."""
    words = ["data", "category", "protocol", "known class or subset", "setting", "known", "seed"]
    lines = []
    for outcome in outcomes:
        if (cell := outcome.cell) is None:
            continue
        request = outcome.request
        what = [request.data, request.category, request.protocol, _key(request)[2], request.column.title]
        figures = [cell["metrics"].get(metric) for metric in FIGURES]
        times = [f"{cell['seconds'][part]:.1f}" for part in ("train", "score")]
        shown = ["-" if value is None else f"{value:.4f}" for value in figures]
        lines.append([*what, str(request.known), str(request.seed), *shown, *times])
    return [*words, *FIGURES.values(), "training, s", "scoring, s"], lines


def _md(value: str) -> str:
    return printable(value).replace("|", "\\|")


def _md_table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    rows = [heads, ["---"] * len(heads), *lines]
    return ["| " + " | ".join(map(_md, row)) + " |" for row in rows]


def csv_text(found: Sequence[Grid]) -> str:
    """table.csv: one line for each row of each table, one column for each figure."""
    lines: list[dict[str, str]] = []
    for grid in found:
        for row in grid.rows:
            line = {"table": grid.title} | dict(zip(grid.names, row.names, strict=True))
            for head, entry in zip(grid.heads()[len(grid.names) :], row.entries, strict=False):
                for metric in grid.metrics:
                    if stat := entry.stats.get(metric):
                        line[f"{head}: {metric}"] = f"{stat.mean:.6f}"
                        if stat.spread is not None:
                            line[f"{head}: {metric} std"] = f"{stat.spread:.6f}"
                if entry.word not in ("", "-"):
                    line[head] = entry.word
            if row.seconds is not None:
                line["seconds"] = f"{row.seconds:.3f}"
            lines.append(line)
    names = list(dict.fromkeys(key for line in lines for key in line))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return buffer.getvalue()
