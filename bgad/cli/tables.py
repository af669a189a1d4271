"""The tables that commands print on a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from bgad.benchmark.published import OURS, PAPER
from bgad.benchmark.tables import FIGURES, Grid
from bgad.calibration import odds
from bgad.data.datasets.registry import Row
from bgad.data.layouts import some
from bgad.errors import printable
from bgad.evaluation.report.page import KEYS, METRICS, TIMES, cell_time, mean_cells
from bgad.inference.batch import Row as ScoreRow
from bgad.inference.batch import most_anomalous


def score_table(rows: Sequence[ScoreRow], held_out: int = 0) -> Table:
    """For the terminal, the strangest first; the path, however long, comes last."""
    drawn = Table("verdict", "score", "good parts\nso strange", "image", box=None, pad_edge=False)
    drawn.columns[1].justify = "right"
    drawn.columns[3].overflow = "fold"
    for row in most_anomalous(rows, len(rows)):
        if row["error"] is not None or row["p_value"] is None:
            drawn.add_row(Text("error", "red"), "", "", Text(printable(row["error"] or "")))
            continue
        verdict = Text("anomalous", "bold red") if row["is_anomaly"] else Text("normal", "green")
        drawn.add_row(verdict, f"{row['score']:.3f}", odds(row["p_value"], held_out), Text(printable(row["path"])))
    return drawn


def dataset_table(rows: Sequence[Row]) -> Table:
    """The list for the terminal."""
    drawn = Table("name", "what it is and where to get it", "licence", "on disk", box=None, padding=(0, 2, 1, 0))
    for column in drawn.columns[1:]:
        column.overflow = "fold"
    for row in rows:
        about = f"{row.entry.title}: {row.entry.about}\n{row.entry.source}"
        drawn.add_row(Text(row.entry.name, "bold"), Text(about), Text(row.entry.licence), Text(_on_disk(row)))
    return drawn


def _on_disk(row: Row) -> str:
    if row.place is None:
        return printable(row.problem) or "not found"
    if any(found.normal is None for found in row.found):
        counts = f"{sum(found.images for found in row.found)} images"
    else:
        normal, anomalous = (sum(getattr(found, kind) for found in row.found) for kind in ("normal", "anomalous"))
        counts = f"{normal} normal, {anomalous} anomalous"
    whole = len(row.found) + len(row.missing)
    lines = [row.where, (f"{len(row.found)} of {whole} categories: " if row.entry.categories else "") + counts]
    if row.missing:
        lines.append(f"missing: {some(row.missing, 20)}")
    for found in row.found:
        lines += [f"{found.category}: {note}" if row.entry.categories else note for note in found.notes]
    return "\n".join(printable(line) for line in lines)


def benchmark_table(grid: Grid) -> Table:
    """For the terminal: ours, the same methods as printed, and the papers that came after."""
    kept = [
        i
        for i, (name, source) in enumerate(grid.printed)
        if name in OURS or not source.startswith(PAPER) or name == "printed"
    ]
    first = len(grid.names) + len(grid.ours)
    chosen = [*range(first), *(first + i for i in kept), *([first + len(grid.printed)] if grid.timed else [])]
    drawn = Table(title=printable(grid.title), title_justify="left", box=None, padding=(0, 2, 0, 0))
    heads = grid.heads()
    for position in chosen:
        drawn.add_column(
            Text(printable(heads[position])), justify="left" if position < len(grid.names) else "right", overflow="fold"
        )
    for row, line in zip(grid.rows, grid.lines(), strict=True):
        drawn.add_row(*(Text(printable(line[i])) for i in chosen), style="bold" if row.mean else None)
    drawn.caption = printable(" / ".join(FIGURES[m] for m in grid.metrics))
    return drawn


def evaluation_table(cells: Sequence[Mapping[str, Any]]) -> Table:
    """The summary table for the terminal; names are shown as they are, never read as markup.

    Data set and protocol are only shown where they differ, so that a table of one fits into 80 columns.
    """
    keys = [k for k in KEYS if k not in ("data", "protocol") or len({str(cell.get(k)) for cell in cells}) > 1]
    grid = Table(header_style="bold", box=None, padding=(0, 1, 0, 0))
    for name in keys:
        grid.add_column(
            name.capitalize(), justify="right" if name in ("known", "seed") else "left", no_wrap=True, max_width=20
        )
    for name in METRICS.values():
        grid.add_column(name, justify="right", min_width=5)
    for name in TIMES:
        grid.add_column(name.capitalize(), justify="right", no_wrap=True)
    for position, cell in enumerate([*cells, *mean_cells(cells)]):
        metrics = cell.get("metrics") or {}
        values = [metrics.get(k) for k in METRICS]
        shown = ["–" if v is None or not math.isfinite(v) else f"{v:.3f}" for v in values]
        names, times = (Text(str(cell.get(k, ""))) for k in keys), (cell_time(cell, k) for k in TIMES)
        grid.add_row(*names, *shown, *times, style="bold" if position >= len(cells) else None)
    return grid
