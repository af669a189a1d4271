"""The documents state the printed figures as the benchmark has them."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from bgad.benchmark.paper_tables import IMAGE, PIXEL, PRO
from bgad.benchmark.published import UNSUPERVISED, best_printed

ROOT = Path(__file__).parents[2]
FIGURE = r"\d?\.\d{3}"
README_ROWS = [  # beginning of the row, data set, protocol, known anomalies, category
    ("ELPV solar cells, unseen type", "elpv", "one-class", 10, "elpv"),
    ("ELPV, all types", "elpv", "general", 10, "elpv"),
    ("ELPV, all types", "elpv", "general", 1, "elpv"),
    ("HeadCT", "headct", "general", 10, "headct"),
    ("HeadCT", "headct", "general", 1, "headct"),
    ("BrainMRI", "brainmri", "general", 10, "brainmri"),
    ("BrainMRI", "brainmri", "general", 1, "brainmri"),
    ("AITEX fabrics", "aitex", "one-class", 10, "aitex"),
    ("MVTec AD screw", "mvtec", "multi-class", 10, "screw"),
]
STUDY_ROWS = [  # beginning of the row, data set, protocol, known anomalies, category, known class
    ("ELPV one-class, 10:", "elpv", "one-class", 10, "elpv", ""),
    ("- mono known", "elpv", "one-class", 10, "elpv", "mono"),
    ("- poly known", "elpv", "one-class", 10, "elpv", "poly"),
    ("ELPV general, 10", "elpv", "general", 10, "elpv", ""),
    ("ELPV general, 1", "elpv", "general", 1, "elpv", ""),
    ("HeadCT general, 10", "headct", "general", 10, "headct", ""),
    ("HeadCT general, 1", "headct", "general", 1, "headct", ""),
    ("BrainMRI general, 10", "brainmri", "general", 10, "brainmri", ""),
    ("BrainMRI general, 1", "brainmri", "general", 1, "brainmri", ""),
    ("AITEX (a part) one-class, 10:", "aitex", "one-class", 10, "aitex", ""),
]
STUDY_MAP_ROWS = [
    ("AITEX (a part) one-class, 10:", "aitex", "one-class", 10, "aitex", ""),
    ("screw multi-class, 10", "mvtec", "multi-class", 10, "screw", ""),
]
STUDY_TABLES = [(0, (IMAGE,), *row) for row in STUDY_ROWS] + [(1, (PIXEL, PRO), *row) for row in STUDY_MAP_ROWS]


def table(path: str, head: str, number: int = 0) -> list[list[str]]:
    """Return the cells of the first table with such a head, or of a later one: the line of heads, then the rows."""
    lines = (ROOT / path).read_text("utf-8").splitlines()
    first = [i for i, line in enumerate(lines) if line.startswith("|") and head in line][number]
    last = next(i for i in range(first, len(lines)) if not lines[i].startswith("|"))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[first:last]]


def readme_row(begin: str, known: int) -> list[str]:
    """Return the cells of a row of the comparison in README.md."""
    rows = table("README.md", "best printed figure")
    (row,) = (row for row in rows if row[0].startswith(begin) and row[1] == str(known))
    return row


def short(value: float) -> str:
    """Return a figure as the documents write it."""
    return f"{value:.3f}".removeprefix("0")


def test_the_page_of_printed_figures_is_what_the_tool_writes() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "printed_figures.py"))
    text = tool["PAGE"].read_text("utf-8")
    assert tool["page"](text) == text, "run python tools/printed_figures.py"


@pytest.mark.parametrize(("begin", "data", "protocol", "known", "category"), README_ROWS)
def test_readme_has_the_best_printed_figures(begin: str, data: str, protocol: str, known: int, category: str) -> None:
    shown = readme_row(begin, known)[-1]
    best = best_printed(data, protocol, known, category)
    if best is None:
        assert shown == "-"
        return
    assert re.findall(FIGURE, shown) == [short(best.values[IMAGE])]
    assert best.column in shown
    assert ("no anomalies" in shown) == (best.column in UNSUPERVISED)


@pytest.mark.parametrize(("begin", "known"), [(row[0], row[3]) for row in README_ROWS])
def test_bold_is_the_best_of_a_row_in_readme(begin: str, known: int) -> None:
    cells = [cell for cell in readme_row(begin, known)[2:] if cell != "-"]
    figures = [float(re.findall(FIGURE, cell)[0]) for cell in cells]
    assert ["**" in cell for cell in cells] == [figure == max(figures) for figure in figures]


@pytest.mark.parametrize(
    ("number", "metrics", "begin", "data", "protocol", "known", "category", "known_class"), STUDY_TABLES
)
def test_the_marks_of_the_accuracy_study_are_the_best_printed_figures(
    number: int,
    metrics: tuple[str, ...],
    begin: str,
    data: str,
    protocol: str,
    known: int,
    category: str,
    known_class: str,
) -> None:
    heads, *rows = table("docs/studies/accuracy.md", "| mark |", number)
    exact = begin[-1].isdigit()  # not 10 for 1
    row = next(r for r in rows if (r[0] == begin if exact else r[0].startswith(begin)))
    default, mark = row[heads.index("mark") - 1], row[heads.index("mark")]
    shown, _, rest = mark.replace("**", "").partition(" (")
    bests = [best_printed(data, protocol, known, category, known_class, metric) for metric in metrics]
    figures = [short(best.values[m]) if best else "-" for m, best in zip(metrics, bests, strict=True)]
    assert shown.split(" / ") == figures
    assert rest.startswith(next(best.column for best in bests if best))
    if default == "-":
        assert "): " not in rest
        return
    verdicts = []
    for text, figure in zip(default.replace("**", "").split(" / "), figures, strict=True):
        missed = 0.0 if figure == "-" else float(figure) - float(text.split(" ± ")[0])
        verdicts.append("-" if figure == "-" else f"missed by {short(missed)}" if missed > 0 else "reached")
    assert rest.rpartition("): ")[2] == " / ".join(verdicts)
