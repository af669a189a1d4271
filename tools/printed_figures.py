"""Write the tables of docs/studies/printed-figures.md anew: `python tools/printed_figures.py`.

The tables stand between two comments and come from `bgad.benchmark.published`; the text around them stays as it is. A
test fails where the page and the figures differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bgad.benchmark.paper_tables import IMAGE
from bgad.benchmark.printed_figures import PAPER, PRINTED_SETTINGS, PRINTED_TABLES, SOURCES, PrintedTable
from bgad.benchmark.published import PUBLISHED, UNSUPERVISED, Published, best_printed
from bgad.evaluation.cells import METRIC_TITLES

PAGE = Path(__file__).resolve().parents[1] / "docs" / "studies" / "printed-figures.md"
BEGIN, END = "<!-- begin: written by tools/printed_figures.py -->", "<!-- end -->"
TITLES = {"aitex": "AITEX", "elpv": "ELPV", "brainmri": "BrainMRI", "headct": "HeadCT", "mvtec": "MVTec AD (mean)"}
HEADINGS = {PAPER: "BGAD (CVPR 2023)", "CVPR 2024": "AHL (CVPR 2024)"}
MARKS = [  # protocol, data sets
    ("general", ("aitex", "elpv", "brainmri", "headct", "mvtec")),
    ("one-class", ("aitex", "elpv")),
]


def tables() -> str:
    """Return the generated part of the page."""
    parts = ["## Best printed figure of a row", "", *_best(), ""]
    for source, heading in HEADINGS.items():
        parts += [f"## {heading}", "", f"Source: {SOURCES[source]}.", ""]
        for table in PRINTED_TABLES:
            if table.source == source:
                parts += [f"### {_title(table)}", "", *_table(table), ""]
        if source == PAPER:
            for settings in PRINTED_SETTINGS:
                parts += [f"### {settings.place}: MVTec AD, {settings.about}", ""]
                rows = [[title, figures] for title, figures in settings.figures.items()]
                parts += [*_markdown(["setting", "Image AUROC / Pixel AUROC / PRO"], rows), ""]
    return "\n".join(parts)


def page(text: str) -> str:
    """Return the text of the page with its tables written anew."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{tables()}\n{END}{after}"


def _best() -> list[str]:
    """Return the table of the best printed image AUROCs."""
    rows = []
    for protocol, names in MARKS:
        for data in names:
            for known in (10, 1):
                best = best_printed(data, protocol, known, "" if data == "mvtec" else data)
                assert best is not None
                method = best.column + (", no anomaly" if best.column in UNSUPERVISED else "")
                where = f"{HEADINGS[best.source]}, {best.table.place}"
                rows.append([TITLES[data], protocol, str(known), _figure(best.values[IMAGE]), method, where])
    return _markdown(["data", "protocol", "known", "image AUROC", "method", "source"], rows)


def _title(table: PrintedTable) -> str:
    """Return the heading of a table: place, data, protocol and number of known anomalies."""
    parts = [table.about]
    parts += [table.protocol] if table.source == PAPER and table.protocol not in table.about else []
    parts += [f"{table.known} known"] if table.known else []
    return f"{table.place}: {', '.join(parts)}"


def _table(table: PrintedTable) -> list[str]:
    """Return a printed table; row names that are the same in all lines are left out."""
    rows: dict[tuple[str, ...], dict[str, Published]] = {}
    for entry in PUBLISHED:
        if entry.table is table:
            rows.setdefault(_names(entry), {})[entry.column] = entry
    methods = list(dict.fromkeys(column for row in rows.values() for column in row))
    heads = ["known", "category", "known class"]
    kept = [i for i in range(len(heads)) if len({names[i] for names in rows}) > 1 or heads[i] == "category"]
    lines = []
    for names, row in rows.items():
        figures = [_figures(row[m], table.metrics) if m in row else "-" for m in methods]
        lines.append([*(names[i] for i in kept), *figures])
    metrics = " / ".join(METRIC_TITLES[metric] for metric in table.metrics)
    return [f"{metrics}.", "", *_markdown([*(heads[i] for i in kept), *methods], lines)]


def _names(entry: Published) -> tuple[str, ...]:
    """Return number of known anomalies, category and known class of an entry."""
    category = TITLES[entry.data] if entry.category in ("", entry.data) and entry.data in TITLES else entry.category
    classes = any(e.known_class for e in PUBLISHED if e.table is entry.table)
    return str(entry.known), category or "mean", entry.known_class or ("mean" if classes else "")


def _figures(entry: Published, metrics: Sequence[str]) -> str:
    """Return the figures of an entry, separated by slashes."""
    if not entry.values:
        return "-"
    return "/".join(_figure(entry.values[m]) if m in entry.values else "-" for m in metrics)


def _figure(value: float) -> str:
    """Return a figure with three digits, or with four where it was printed so."""
    return f"{value:.{3 if round(value, 3) == value else 4}f}".removeprefix("0")


def _markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(row) + " |" for row in (heads, ["---"] * len(heads), *rows)]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
