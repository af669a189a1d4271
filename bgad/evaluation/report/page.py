"""Writes evaluation results as one self-contained HTML page, without scripts and without network access."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bgad.evaluation.cells import KEYS, METRIC_TITLES, TIME_TITLES, cell_time, mean_cells
from bgad.evaluation.report.contents import Section
from bgad.evaluation.report.html import caption, number, table, text
from bgad.evaluation.report.section import missing_reason, render_section
from bgad.evaluation.report.style import STYLE
from bgad.io.files import write_atomic


def write(path: str | Path, title: str, sections: Sequence[Section], cells: Sequence[Mapping[str, Any]]) -> None:
    """Render the report to `path`; after a crash the old page or the new one is there."""
    write_atomic(Path(path), render(title, sections, cells).encode())


def render(title: str, sections: Sequence[Section], cells: Sequence[Mapping[str, Any]]) -> str:
    """Return the report as HTML: the table of result cells, then the sections."""
    links = "".join(f'<li><a href="#s{i}">{text(s.title)}</a></li>' for i, s in enumerate(sections))
    contents = f'<nav aria-label="Sections"><ul>{links}</ul></nav>' if len(sections) > 1 else ""
    body = "".join(render_section(s, f"s{i}") for i, s in enumerate(sections))
    return page(title, _summary(cells) + body, contents)


def page(title: str, body: str, contents: str = "") -> str:
    """Return a page around ready HTML; its security policy forbids scripts and requests."""
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{text(title)}</title><style>{STYLE}</style>'
    )
    top = f"<header><h1>{text(title)}</h1>{contents}</header>"
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{top}<main>{body}</main></body></html>\n'


def _summary(cells: Sequence[Mapping[str, Any]]) -> str:
    """Render the table of result cells, with a row of means for cells that belong together."""

    def row(cell: Mapping[str, Any]) -> list[str]:
        metrics = cell.get("metrics") or {}
        names, times = (text(cell.get(k, "")) for k in KEYS), (cell_time(cell, k) for k in TIME_TITLES)
        return [*names, *(number(metrics.get(k), missing_reason(k)) for k in METRIC_TITLES), *times]

    if not cells:
        return ""
    heads = [*(key.capitalize() for key in KEYS), *METRIC_TITLES.values(), *TIME_TITLES.values()]
    shown = table(heads, [row(c) for c in cells], 4, [row(c) for c in mean_cells(cells)])
    words = (
        "One row per model. 1.000 is perfect; an AUROC of 0.500 is chance. Image metrics measure whether anomalous "
        "images are detected, pixel metrics and PRO whether the defect is located."
    )
    return f'<section id="summary"><h2>Summary</h2>{caption(words)}{shown}</section>'
