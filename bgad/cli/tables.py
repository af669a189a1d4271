"""The tables that commands print on a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from bgad.benchmark.grid import Grid
from bgad.benchmark.published import METHOD_OF
from bgad.calibration import odds, percent
from bgad.data.datasets.registry import DatasetStatus
from bgad.errors import abbreviate, printable
from bgad.evaluation.cells import KEYS, METRIC_TITLES, TIME_TITLES, cell_time, mean_cells
from bgad.evaluation.decisions import share_words
from bgad.inference.batch import Row as ScoreRow
from bgad.inference.batch import most_anomalous

if TYPE_CHECKING:
    from bgad.benchmark.compare import Comparison
    from bgad.cluster.report import Summary


def score_table(rows: Sequence[ScoreRow], held_out: int = 0) -> Table:
    """Return the scores as a table, highest first; the path comes last, because it may be long."""
    drawn = Table("verdict", "score", "good parts\nas high", "why", "image", box=None, pad_edge=False)
    drawn.columns[1].justify = "right"
    drawn.columns[4].overflow = "fold"
    for row in most_anomalous(rows, len(rows)):
        if row["error"] is not None or row["p_value"] is None:
            drawn.add_row(Text("error", "red"), "", "", "", Text(printable(row["error"] or "")))
            continue
        verdict = Text("anomalous", "bold red") if row["is_anomaly"] else Text("normal", "green")
        why, name = Text(_why(row)), Text(printable(row["path"]))
        drawn.add_row(verdict, f"{row['score']:.3f}", odds(row["p_value"], held_out), why, name)
    return drawn


def archive_report(summary: Summary) -> Group:
    """Return the summary of a scoring job: counts, a histogram of p-values, the worst images and the first errors."""
    job, images = summary.job, max(summary.scored, 1)
    left = (
        f"; {job.shards - summary.finished} of {job.shards} shards are not finished"
        if summary.finished < job.shards
        else ""
    )
    counts = (
        f"{summary.scored + summary.failed} of {job.rows} images: {summary.anomalous} anomalous "
        f"({summary.anomalous / images:.2%} of those scored), {summary.failed} could not be scored{left}"
    )
    histogram = Table("p-value", "images", "if all were normal", "", box=None, pad_edge=False)
    bins = summary.p_values
    for k, (count, expected) in enumerate(zip(bins.tolist(), summary.expected.tolist(), strict=True)):
        low, high = k / len(bins), (k + 1) / len(bins)
        bar = "█" * round(40 * count / max(1, int(bins.max())))
        histogram.add_row(f"{low:.2f} to {high:.2f}", str(count), f"{expected:.0f}", bar)
    drift = f"drift: {summary.drift:.3f} (distance from the calibration normals; 0 is none, 1 the most)"
    worst = score_table([row | {"path": row["uri"], "region": None} for row in summary.worst])  # type: ignore[misc]
    errors = [Text(printable(row["error"]), "red") for row in summary.errors]
    return Group(counts, "", histogram, "", drift, "", worst, *errors)


def _why(row: ScoreRow) -> str:
    """Return the reason of a rejection, with the middle of the region that it speaks of."""
    reason, region = row["reason"] or "", row["region"]
    if region is None or not reason:
        return reason
    left, top, right, bottom = region
    return f"{reason} (at {(left + right) // 2}, {(top + bottom) // 2})"


def dataset_table(rows: Sequence[DatasetStatus]) -> Table:
    """Return the list of public data sets, and of what is on disk, as a table."""
    drawn = Table("name", "what it is and where to get it", "licence", "on disk", box=None, padding=(0, 2, 1, 0))
    for column in drawn.columns[1:]:
        column.overflow = "fold"
    for row in rows:
        about = f"{row.entry.title}: {row.entry.about}\n{row.entry.source}"
        drawn.add_row(Text(row.entry.name, "bold"), Text(about), Text(row.entry.licence), Text(_on_disk(row)))
    return drawn


def _on_disk(row: DatasetStatus) -> str:
    if row.place is None:
        return printable(row.problem) or "not found"
    if any(category.normal is None for category in row.categories):
        counts = f"{sum(category.images for category in row.categories)} images"
    else:
        normal, anomalous = (sum(getattr(c, label) for c in row.categories) for label in ("normal", "anomalous"))
        counts = f"{normal} normal, {anomalous} anomalous"
    total = len(row.categories) + len(row.missing)
    lines = [row.where, (f"{len(row.categories)} of {total} categories: " if row.entry.categories else "") + counts]
    if row.missing:
        lines.append(f"missing: {abbreviate(row.missing, 20)}")
    for category in row.categories:
        lines += [f"{category.category}: {note}" if row.entry.categories else note for note in category.notes]
    return "\n".join(printable(line) for line in lines)


def benchmark_table(grid: Grid) -> Table:
    """Return a benchmark table: our columns, the paper's own methods as printed, and the best printed figures."""
    first = len(grid.names) + len(grid.ours)
    kept = [first + i for i, (name, _) in enumerate(grid.printed) if name in METHOD_OF or name == "printed"]
    seconds = [first + len(grid.printed)] if grid.timed else []
    drawn = Table(title=printable(grid.title), title_justify="left", box=None, padding=(0, 2, 0, 0))
    heads = grid.heads()
    shown = [*(heads[i] for i in [*range(first), *kept]), *grid.best, *(heads[i] for i in seconds)]
    for i, head in enumerate(shown):
        drawn.add_column(Text(printable(head)), justify="left" if i < len(grid.names) else "right", overflow="fold")
    for row, line in zip(grid.rows, grid.lines(), strict=True):
        best = [entry.text(grid.metrics) for entry in row.best]
        words = [*(line[i] for i in [*range(first), *kept]), *best, *(line[i] for i in seconds)]
        drawn.add_row(*(Text(printable(word)) for word in words), style="bold" if row.mean else None)
    drawn.caption = printable(grid.metric_titles())
    return drawn


def cost_table(grid: Grid) -> Table | None:
    """Return what the models of each of our columns cost; None where no cell is finished."""
    heads, lines = grid.cost_lines()
    if not lines:
        return None
    drawn = Table(title="cost of one model", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for i, head in enumerate(heads):
        drawn.add_column(Text(printable(head)), justify="right" if i else "left", overflow="fold")
    for line in lines:
        drawn.add_row(*(Text(printable(word)) for word in line))
    return drawn


def comparison_table(comparison: Comparison) -> Table:
    """Return the methods of a comparison, best first; the recommended one is bold."""
    from bgad.benchmark.compare_page import HEADS, standing_line

    drawn = Table(box=None, padding=(0, 2, 0, 0))
    for i, head in enumerate(HEADS):
        drawn.add_column(Text(head), justify="right" if i else "left", overflow="fold")
    for standing in comparison.standings:
        style = "bold" if standing.method == comparison.recommended else None
        drawn.add_row(*(Text(word) for word in standing_line(standing)), style=style)
    return drawn


def evaluation_table(cells: Sequence[Mapping[str, Any]]) -> Table:
    """Return the summary of result cells as a table; names are never interpreted as markup.

    Data set and protocol are only shown where they differ, so that the table of one data set fits into 80 columns.
    """
    keys = [k for k in KEYS if k not in ("data", "protocol") or len({str(cell.get(k)) for cell in cells}) > 1]
    grid = Table(header_style="bold", box=None, padding=(0, 1, 0, 0))
    for name in keys:
        grid.add_column(
            name.capitalize(), justify="right" if name in ("known", "seed") else "left", no_wrap=True, max_width=20
        )
    for name in METRIC_TITLES.values():
        grid.add_column(name, justify="right", min_width=5)
    for name in TIME_TITLES:
        grid.add_column(name.capitalize(), justify="right", no_wrap=True)
    for position, cell in enumerate([*cells, *mean_cells(cells)]):
        metrics = cell.get("metrics") or {}
        values = [metrics.get(k) for k in METRIC_TITLES]
        shown = ["–" if v is None or not math.isfinite(v) else f"{v:.3f}" for v in values]
        names, times = (Text(str(cell.get(k, ""))) for k in keys), (cell_time(cell, k) for k in TIME_TITLES)
        grid.add_row(*names, *shown, *times, style="bold" if position >= len(cells) else None)
    return grid


def decision_table(cells: Sequence[Mapping[str, Any]]) -> Table:
    """Return the false rejects and misses of result cells at their thresholds, with 95 % intervals, as a table."""
    keys = [k for k in ("category", "method", "seed") if k == "category" or len({str(cell[k]) for cell in cells}) > 1]
    drawn = Table(header_style="bold", box=None, padding=(0, 2, 0, 0))
    for key in keys:
        drawn.add_column(key.capitalize(), no_wrap=True, max_width=20)
    for title in ("Promised", "False rejects", "95 % interval", "Misses", "95 % interval"):
        drawn.add_column(title, justify="right")
    for cell in cells:
        decisions = cell["decisions"]
        measured = (word for name in ("false_rejects", "misses") for word in _measured(decisions[name]))
        names = (Text(printable(str(cell[key]))) for key in keys)
        drawn.add_row(*names, percent(decisions["false_reject_rate"]), *measured)
    return drawn


def _measured(share: Mapping[str, Any]) -> tuple[str, str]:
    rate, interval = share_words(share["count"], share["of"])
    return f"{share['count']} of {share['of']} ({rate})" if share["of"] else rate, interval
