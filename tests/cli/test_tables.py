"""Tables for the terminal."""

from __future__ import annotations

import io

from rich.console import Console

from bgad.benchmark.grid import Entry, Grid, Row, Stat
from bgad.cli.tables import benchmark_table, evaluation_table
from tests.evaluation.report.pages import cell


def test_terminal_table() -> None:
    cells = [
        cell(category="[red]screw"),
        cell(category="cable", metrics={"image_auroc": 0.7}),
        cell(method="nfad"),
    ]
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(evaluation_table(cells))
    lines = console.export_text().splitlines()
    assert "[red]screw" in lines[1]
    assert "0.900" in lines[1]
    assert "120 s" in lines[1]
    assert "–" in lines[1]
    assert "mean of 2" in lines[-1]
    assert "0.800" in lines[-1]  # mean image AUROC of the two bgad cells
    assert "0.700" not in lines[-1]  # F1 is missing in one of them, so it has no mean


def test_terminal_table_of_a_benchmark_has_the_papers_methods_and_the_best_printed_figures() -> None:
    entries = [Entry({"image_auroc": Stat(value)}) for value in (0.9, 0.1, 0.2, 0.3)]
    best = [Entry({"image_auroc": Stat(0.95)}, "AHL (DRA)")]
    printed = [("NFAD", "paper"), ("DRA", "paper"), ("DRA", "CVPR 2024")]
    row = Row(("elpv",), entries, seconds=7, best=best)
    grid = Grid("title", ("Category",), ["bgad"], printed, ("image_auroc",), [row], [], best=["best supervised"])
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(benchmark_table(grid))
    heads, line = console.export_text().splitlines()[1:3]
    assert " ".join(heads.split()) == "Category bgad NFAD (paper) best supervised seconds"
    assert " ".join(line.split()) == "elpv 0.900 0.100 0.950 AHL (DRA) 7"
