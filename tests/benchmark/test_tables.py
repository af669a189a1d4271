from __future__ import annotations

import csv
import io
from dataclasses import replace

import numpy as np
import pytest

from bgad.benchmark.grid import Cost
from bgad.benchmark.output import csv_text, markdown
from bgad.benchmark.paper_tables import Matrix, PaperTable, methods
from bgad.benchmark.plan import Outcome, Request
from bgad.benchmark.tables import grids
from bgad.config import METHODS
from bgad.data.protocols import Case
from tests.benchmark.outcomes import outcome
from tests.benchmark.runs import tiny

CONFIGS = {method: tiny(method) for method in METHODS}


def test_means_and_spreads_by_hand() -> None:
    nfad, bgad = methods("nfad", "bgad")
    table = PaperTable("x", (Matrix({"mvtec": ()}, "one-class", (nfad, bgad), seeds=2, metrics=("image_auroc",)),))
    outcomes = [
        *(outcome("screw", nfad, seed, value, "thread_top") for seed, value in ((0, 0.8), (1, 0.9))),
        *(outcome("screw", nfad, seed, value, "thread_side") for seed, value in ((0, 0.6), (1, 0.9))),
        *(outcome("screw", bgad, seed, 0.95, "thread_top") for seed in (0, 1)),
        *(outcome("screw", bgad, seed, 0.97, "thread_side") for seed in (0, 1)),
        outcome("carpet", nfad, 0, 0.5, "color"),
        Outcome(Request(0, "mvtec", "carpet", "one-class", Case("color"), bgad, 10, 0), reason="lost | found"),
    ]
    (grid,) = grids(table, outcomes, CONFIGS)
    rows = {row.names: row for row in grid.rows}
    first = rows["screw", "thread_top"]
    stat = first.entries[0].stats["image_auroc"]
    assert [stat.mean, stat.spread] == pytest.approx([0.85, 0.1 / np.sqrt(2)])
    assert first.seconds == pytest.approx(12.5)
    # the mean row: 0.7 with seed 0, 0.9 with seed 1
    stat = rows["screw", "Mean"].entries[0].stats["image_auroc"]
    assert [stat.mean, stat.spread] == pytest.approx([0.8, 0.2 / np.sqrt(2)])
    assert rows["screw", "Mean"].entries[1].text(grid.metrics) == "0.960±0.000"
    printed = dict(zip(grid.printed, first.entries[2:], strict=True))
    assert printed["NFAD", "paper"].text(grid.metrics) == "0.878"
    # the paper's mean is over three more classes, so it has a line of its own
    printed = dict(zip(grid.printed, rows["screw", "Mean"].entries[2:], strict=True))
    assert printed["BGAD", "paper"].text(grid.metrics) == "0.954"
    printed = dict(zip(grid.printed, rows["screw", "Mean, as printed"].entries[2:], strict=True))
    assert printed["BGAD", "paper"].text(grid.metrics) == "0.947"
    # carpet lacks a method, so the mean is over screw alone, ours and theirs
    overall = rows["Mean of 2 of 3 rows", ""]
    assert overall.entries[0].text(grid.metrics) == "0.800±0.141"
    assert overall.entries[2].stats["image_auroc"].mean == pytest.approx((0.878 + 0.927) / 2)
    assert rows["carpet", "color"].entries[1].text(grid.metrics) == "missing [1]"
    assert grid.notes[0] == "lost | found"
    assert "lost \\| found" in markdown(table, [grid], outcomes)
    lines = list(csv.DictReader(io.StringIO(csv_text([grid]))))
    assert lines[0]["nfad: image_auroc"] == "0.850000"
    assert lines[0]["nfad: image_auroc std"] == "0.070711"
    assert lines[0]["BGAD (paper): image_auroc"] == "0.943000"


def test_a_mean_compares_the_same_rows_and_seeds() -> None:
    """bgad lacks seed 1 of one row: neither column may use it, and the row says so."""
    nfad, bgad = methods("nfad", "bgad")
    matrix = Matrix({"mvtec": ()}, "one-class", (nfad, bgad), seeds=2, metrics=("image_auroc",))
    outcomes = [
        *(outcome("screw", nfad, seed, value, "thread_top") for seed, value in ((0, 0.8), (1, 0.2))),
        *(outcome("screw", nfad, seed, value, "thread_side") for seed, value in ((0, 0.6), (1, 0.2))),
        *(outcome("screw", bgad, seed, 0.9, "thread_top") for seed in (0, 1)),
        outcome("screw", bgad, 0, 0.7, "thread_side"),
        Outcome(Request(0, "mvtec", "screw", "one-class", Case("thread_side"), bgad, 10, 1), reason="not run yet"),
    ]
    (grid,) = grids(PaperTable("x", (matrix,)), outcomes, CONFIGS)
    rows = {row.names[1]: [entry.text(grid.metrics) for entry in row.entries[:2]] for row in grid.rows}
    assert rows["Mean (1 of 2 seeds)"] == ["0.700", "0.800"]
    assert rows["thread_side"][1] == "0.700 [1]"
    means, _ = grids(PaperTable("x", (matrix,), means=True), outcomes, CONFIGS)
    assert [row.entries[0].text(means.metrics) for row in means.rows] == ["0.700", "0.800"]
    assert "1 of 1 categories (2 of 2 rows: those that have all columns) and 1 of 2 seeds" in means.notes[0]

    # without thread_side of bgad, the printed figures beside the mean are those of the other row alone
    lost = Outcome(Request(0, "mvtec", "screw", "one-class", Case("thread_side"), bgad, 10, 0), reason="lost")
    (grid,) = grids(PaperTable("x", (matrix,)), [*outcomes[:6], lost], CONFIGS)
    found = {row.names[1]: dict(zip(grid.heads()[2:], row.entries, strict=False)) for row in grid.rows}
    assert found["Mean of 1 of 2 rows"]["NFAD (paper)"].text(grid.metrics) == "0.878"
    assert found["Mean, as printed"]["NFAD (paper)"].text(grid.metrics) == "0.885"
    assert found["Mean of 1 of 2 rows"]["nfad"].text(grid.metrics) == "0.500±0.424"


def test_a_printed_mean_stands_beside_ours_where_the_rows_are_the_same() -> None:
    (bgad,) = methods("bgad")
    matrix = Matrix({"elpv": ()}, "one-class", (bgad,), seeds=1, metrics=("image_auroc",))
    outcomes = [
        Outcome(Request(0, "elpv", "elpv", "one-class", Case(case), bgad, 10, 0), outcome("elpv", bgad, 0, value).cell)
        for case, value in (("mono", 0.9), ("poly", 0.8))
    ]
    (grid,) = grids(PaperTable("x", (matrix,)), outcomes, CONFIGS)
    assert [row.names[1] for row in grid.rows] == ["mono", "poly", "Mean"]
    shown = dict(zip(grid.heads(), grid.lines()[-1], strict=True))
    assert [shown[head] for head in ("bgad", "BGAD (paper)", "AHL (DRA) (CVPR 2024)")] == ["0.850", "0.882", "0.788"]


def test_printed_figures_stand_with_their_number_of_known_anomalies() -> None:
    (bgad,) = methods("bgad")
    matrix = Matrix({"elpv": ()}, "general", (bgad,), known=(10, 1), metrics=("image_auroc",))
    outcomes = [Outcome(Request(0, "elpv", "elpv", "general", Case(), bgad, n, 0), reason="lost") for n in (10, 1)]
    outcomes[0] = replace(outcomes[0], cell=outcome("elpv", bgad, 0, 0.9).cell, reason="")
    (grid,) = grids(PaperTable("x", (matrix,)), outcomes, CONFIGS)
    (line,) = grid.lines()
    shown = dict(zip(grid.heads(), line, strict=True))
    assert shown["bgad (10 known)"] == "0.900"
    assert shown["bgad (1 known)"] == "missing [1]"
    assert [shown[f"AHL (DRA) (CVPR 2024, {n} known)"] for n in (10, 1)] == ["0.850", "0.723"]
    assert [shown[f"DRA (CVPR 2024, {n} known)"] for n in (10, 1)] == ["0.843", "0.676"]
    assert shown["PatchCore (CVPR 2024)"] == "0.916"  # it uses none
    assert "printed without any known anomaly: KDAD, PatchCore" in grid.notes
    assert dict(zip(grid.best, [entry.text(grid.metrics) for entry in grid.rows[0].best], strict=True)) == {
        "best supervised (printed, 10 known)": "0.850 AHL (DRA)",
        "best supervised (printed, 1 known)": "0.828 AHL (DevNet)",
        "best unsupervised (printed)": "0.916 PatchCore",
    }


def test_the_best_printed_columns_name_other_methods_than_the_papers() -> None:
    """Where only NFAD and BGAD are best, a column of the best would repeat theirs."""
    (bgad,) = methods("bgad")
    table = PaperTable("x", (Matrix({"mvtec": ()}, "one-class", (bgad,), seeds=1, metrics=("image_auroc",)),))
    (grid,) = grids(table, [outcome("screw", bgad, 0, 0.9, "thread_top")], CONFIGS)
    assert (grid.best, [row.best for row in grid.rows]) == ([], [[]])
    matrix = Matrix({"mvtec": ()}, "multi-class", (bgad,), seeds=1)
    names = ("cable", "capsule", "transistor")
    requests = [Request(0, "mvtec", name, "multi-class", Case(), bgad, 10, 0) for name in names]
    outcomes = [Outcome(r, outcome(r.category, bgad, 0, 0.9).cell) for r in requests]
    (grid,) = grids(PaperTable("x", (matrix,)), outcomes, CONFIGS)
    best = {row.names[0]: [entry.text(grid.metrics) for entry in row.best] for row in grid.rows}
    assert grid.best == ["best unsupervised (printed)"]
    assert best == {
        "cable": ["- / 0.987 / 0.931 CFA"],
        "capsule": ["- / 0.992 / 0.959 BGAD w/o"],
        "transistor": ["- / 0.985 / 0.960 CFA"],
        "Mean": ["- / 0.987 / 0.945 CFA"],
        "Mean, as printed": ["0.992 / - / - PatchCore"],
    }


def test_a_seed_that_failed_is_marked() -> None:
    (bgad,) = methods("bgad")
    matrix = Matrix({"mvtec": ()}, "one-class", (bgad,), seeds=2, metrics=("image_auroc",))
    second = Outcome(Request(0, "mvtec", "screw", "one-class", Case("thread_top"), bgad, 10, 1), reason="diverged")
    outcomes = [outcome("screw", bgad, 0, 0.9, "thread_top"), replace(second, failed=True)]
    (grid,) = grids(PaperTable("x", (matrix,)), outcomes, CONFIGS)
    assert grid.lines()[0][2] == "0.900 [1]"


def test_costs_are_means_over_the_cells_of_a_column() -> None:
    (bgad,) = methods("bgad")
    matrix = Matrix({"mvtec": ()}, "one-class", (bgad,), seeds=2, metrics=("image_auroc",))
    table = PaperTable("x", (matrix,))
    outcomes = [outcome("screw", bgad, seed, 0.9, name) for name in ("thread_top", "thread_side") for seed in (0, 1)]
    (grid,) = grids(table, outcomes, CONFIGS)
    # the second seed does not tell its memory, so that of the first counts alone
    assert grid.costs == [Cost(fit_seconds=10.5, image_ms=20.5, model_mb=14.0, fit_mb=300.0)]
    assert grid.cost_lines()[1] == [["bgad", "10.5", "20.5", "14.0", "300"]]
    assert "| bgad | 10.5 | 20.5 | 14.0 | 300 |" in markdown(table, [grid], outcomes)
    lines = list(csv.DictReader(io.StringIO(csv_text([grid]))))
    assert (lines[0]["bgad: image_ms"], lines[0]["bgad: fit_seconds"]) == ("20.500", "10.500")
    assert lines[2]["bgad: image_ms"] == ""  # of the mean
    lost = Outcome(outcomes[0].request, reason="lost")
    (grid,) = grids(table, [lost], CONFIGS)
    assert grid.cost_lines()[1] == []


def test_a_printed_column_without_a_figure_in_the_table_is_left_out() -> None:
    """AHL prints only the mean of MVTec AD, which has a row only where there are several categories."""
    (nfad,) = methods("nfad")
    matrix = Matrix({"mvtec": ()}, "multi-class", (nfad,), seeds=1)

    def printed(*categories: str) -> list[tuple[str, str]]:
        outcomes = [outcome(category, nfad, 0, 0.9) for category in categories]
        made = [replace(one, request=replace(one.request, protocol="multi-class")) for one in outcomes]
        (grid,) = grids(PaperTable("x", (matrix,)), made, CONFIGS)
        assert all(len(row.entries) == 1 + len(grid.printed) for row in grid.rows)
        assert any("CVPR 2024" in note for note in grid.notes) == any("2024" in source for _, source in grid.printed)
        return grid.printed

    assert ("AHL (DRA)", "CVPR 2024") not in printed("screw")
    assert ("AHL (DRA)", "CVPR 2024") in printed("screw", "carpet")
    assert ("PaDiM", "paper") in printed("screw")
