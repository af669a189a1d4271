"""Writes benchmark tables as Markdown (table.md) and CSV (table.csv)."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from bgad.benchmark.grid import Cost, Grid
from bgad.benchmark.paper_tables import PaperTable
from bgad.benchmark.plan import Outcome
from bgad.errors import printable
from bgad.evaluation.cells import METRIC_TITLES


def markdown(table: PaperTable, grids: Sequence[Grid], outcomes: Sequence[Outcome]) -> str:
    """Return table.md: all tables with their costs, then every cell with its own."""
    parts = [f"# {table.about}", ""]
    for grid in grids:
        parts += [f"## {grid.title}", "", f"{grid.metric_titles()}; mean ± standard deviation over the seeds.", ""]
        parts += [*_markdown_table(grid.heads(), grid.lines()), ""]
        for line in grid.recipes:
            parts += [_escaped(line), ""]
        heads, lines = grid.cost_lines()
        parts += [Cost.EXPLANATION, "", *_markdown_table(heads, lines), ""] if lines else []
        parts += [f"{i}. {_escaped(note)}" for i, note in enumerate(grid.notes, start=1)] + [""] * bool(grid.notes)
    parts += [*(f"- {note}" for note in table.notes), ""] if table.notes else []
    heads, lines = cell_lines(outcomes)
    if lines:
        parts += ["## Cells", "", *_markdown_table(heads, lines), ""]
    return "\n".join(parts)


def cell_lines(outcomes: Sequence[Outcome]) -> tuple[list[str], list[list[str]]]:
    """Return heads and lines of the list of cells: what each one is, its figures, and its costs."""
    heads = ["data", "category", "protocol", "known class, subset or fold", "setting", "known", "seed"]
    lines = []
    for outcome in outcomes:
        if (cell := outcome.cell) is None:
            continue
        request = outcome.request
        names = [request.data, request.category, request.protocol, request.row[2], request.column.title]
        figures = [cell["metrics"].get(metric) for metric in METRIC_TITLES]
        shown = ["-" if value is None else f"{value:.4f}" for value in figures]
        costs = Cost.of([cell]).texts()
        lines.append([*names, str(request.known), str(request.seed), *shown, *costs])
    return [*heads, *METRIC_TITLES.values(), *Cost.TITLES.values()], lines


def csv_text(grids: Sequence[Grid]) -> str:
    """Return table.csv: one line for each row of each table, one column for each figure."""
    lines: list[dict[str, str]] = []
    for grid in grids:
        for row in grid.rows:
            line = {"table": grid.title} | dict(zip(grid.names, row.names, strict=True))
            for head, entry in zip(grid.heads()[len(grid.names) :], row.entries, strict=False):
                for metric in grid.metrics:
                    if stat := entry.stats.get(metric):
                        line[f"{head}: {metric}"] = f"{stat.mean:.6f}"
                        if stat.spread is not None:
                            line[f"{head}: {metric} std"] = f"{stat.spread:.6f}"
                if entry.remark not in ("", "-"):
                    line[head] = entry.remark
            for head, cost in zip(grid.ours, row.costs, strict=False):
                line |= {f"{head}: {key}": f"{value:.3f}" for key, value in cost.values().items()}
            if row.seconds is not None:
                line["seconds"] = f"{row.seconds:.3f}"
            lines.append(line)
    names = list(dict.fromkeys(key for line in lines for key in line))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return buffer.getvalue()


def _escaped(value: str) -> str:
    return printable(value).replace("|", "\\|")


def _markdown_table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    rows = [heads, ["---"] * len(heads), *lines]
    return ["| " + " | ".join(map(_escaped, row)) + " |" for row in rows]
