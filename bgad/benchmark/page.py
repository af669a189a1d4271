"""Renders benchmark.html: tables, learning curves and cells of a run, without scripts and network access."""

from __future__ import annotations

from collections.abc import Sequence

from bgad.benchmark.grid import Cost, Grid
from bgad.benchmark.output import cell_lines
from bgad.benchmark.paper_tables import PaperTable
from bgad.benchmark.plan import Outcome
from bgad.evaluation.report import page as report
from bgad.evaluation.report.charts import Line, Marker, line_chart
from bgad.evaluation.report.html import caption, empty, table, text

CELL_NAMES = 5  # columns of text before the numbers of a cell


def render(paper_table: PaperTable, grids: Sequence[Grid], outcomes: Sequence[Outcome]) -> str:
    """Return the page as HTML."""
    parts = [_grid(grid, f"t{i}") for i, grid in enumerate(grids)]
    parts.append(_curves(outcomes))
    notes = "".join(f"<li>{text(note)}</li>" for note in paper_table.notes)
    parts.append(f'<ul class="notes">{notes}</ul>' if notes else "")
    heads, lines = cell_lines(outcomes)
    if lines:
        shown = table([text(head) for head in heads], [[text(word) for word in line] for line in lines], CELL_NAMES)
        parts.append(f'<section id="cells"><h2>Cells</h2>{shown}</section>')
    return report.page(f"bgad benchmark: {paper_table.about}", "".join(parts))


def _grid(grid: Grid, key: str) -> str:
    rows = [
        [f"<b>{text(cell)}</b>" if row.mean and cell else text(cell) for cell in line]
        for row, line in zip(grid.rows, grid.lines(), strict=True)
    ]
    how = (
        f"{grid.metric_titles()}. Mean ± standard deviation over the seeds; seconds: training and scoring of one cell."
    )
    notes = "".join(f"<li>{text(note)}</li>" for note in grid.notes)
    shown = table([text(head) for head in grid.heads()], rows, len(grid.names))
    listed = f'<ol class="notes">{notes}</ol>' if notes else ""
    recipes = "".join(map(caption, grid.recipes))
    content = f"{caption(how)}{shown}{recipes}{listed}{_costs(grid)}"
    return f'<section id="{key}"><h2>{text(grid.title)}</h2>{content}</section>'


def _costs(grid: Grid) -> str:
    heads, lines = grid.cost_lines()
    if not lines:
        return ""
    shown = table([text(head) for head in heads], [[text(word) for word in line] for line in lines], 1)
    return f"<h3>Cost</h3>{caption(Cost.EXPLANATION)}{shown}"


def _curves(outcomes: Sequence[Outcome]) -> str:
    """Render pixel AUROC against the training step, with the methods of one category and seed in one chart."""
    groups: dict[tuple[str, str, int], list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.cell is not None and "curve" in outcome.cell:
            request = outcome.request
            groups.setdefault((request.data, request.category, request.seed), []).append(outcome)
    figures = []
    for i, ((_, category, seed), members) in enumerate(groups.items()):
        series, starts = [], set()
        for member in members:
            points = [p for p in (member.cell or {})["curve"] if p["pixel_auroc"] is not None]
            starts |= {max((p["step"] for p in points if p["phase"] == 1), default=0)}
            steps, values = [p["step"] for p in points], [p["pixel_auroc"] for p in points]
            series.append(Line(member.request.column.title, steps, values))
        title = f"{category}, seed {seed}"
        if not any(line.x for line in series):
            figures.append(empty(f"{title}: no masks, so there is no pixel AUROC to draw."))
            continue
        marks = [Marker(max(starts), "phase 2 begins")]
        chart = line_chart(f"curve{i}", f"Pixel AUROC of {title}", series, ("training step", "pixel AUROC"), marks)
        figures.append(f"<figure><h4>{text(title)}</h4>{chart}</figure>")
    if not figures:
        return ""
    how = "Measured on the test images during training, for inspection: no model was chosen by it."
    return (
        f'<section id="curves"><h2>Learning efficiency</h2>{caption(how)}'
        f'<div class="charts">{"".join(figures)}</div></section>'
    )
