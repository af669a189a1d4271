"""Tables for the terminal."""

from __future__ import annotations

import io

from rich.console import Console

from bgad.cli.tables import evaluation_table
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
