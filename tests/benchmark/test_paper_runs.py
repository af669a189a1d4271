"""Every table of the paper runs on made-up data."""

from __future__ import annotations

from pathlib import Path

import pytest

from bgad.benchmark.paper_tables import TABLES
from bgad.cli.main import main
from tests.benchmark.runs import PRINTED_TINY, results
from tests.evaluation.report.pages import Page


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared")


ROWS = {  # table -> cells with the made data, cells without
    "main": (2 * 3, 13 * 3),
    "supervised": (2, 13),
    "btad": (2, 2 * 2),
    "other": (2, 3 * 2),
    "one-class": (3 * 2, 11 * 2),
    "subsets": (2 + 2 * 2 + 2 * 2, 0),
    "semi-push-pull": (3 * 3, 9 * 3),
    "ablation": (6, 0),
    "pseudo": (3, 0),
    "lambda": (2 * 3, 0),
    "beta-tau": (9, 0),
    "efficiency": (2, 0),
}


@pytest.mark.parametrize("name", TABLES)
def test_every_table_of_the_paper_runs(name: str, root: Path, shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--paper", name, "--seeds", "1", "--root", str(root), "--out", str(shared), *PRINTED_TINY]
    if TABLES[name].means:
        options += ["--data", "mvtec", "--category", "carpet"]  # many columns: one category will do
    code = main(["benchmark", *options])
    said = capsys.readouterr()
    assert code == 0, said.err
    stored = results(shared)
    assert (len(stored["cells"]), len(stored["missing"])) == ROWS[name]
    assert all("not in" in m["reason"] or "was not found" in m["reason"] for m in stored["missing"])
    assert not any(m["failed"] for m in stored["missing"])
    metrics = {metric for matrix in TABLES[name].matrices for metric in matrix.metrics}
    for cell in stored["cells"]:
        assert {"data", "category", "protocol", "method", "known", "seed", "known_class", "subset"} <= set(cell)
        wanted = metrics if cell["data"] != "brainmri" else {"image_auroc"}
        assert all(0 <= cell["metrics"][metric] <= 1 for metric in wanted)
    page = (shared / "benchmark.html").read_text()
    markdown = (shared / "table.md").read_text()
    tables = len(TABLES[name].matrices) * (1 + TABLES[name].means)
    for text in (said.out, page, markdown):
        assert text.count("Recipe: paper-fast, lite0 at 64 x 64, 2 + 1 steps; ") == tables
    for matrix in TABLES[name].matrices:
        for column in matrix.columns:
            assert column.title in said.out
            assert column.title in page
            assert f"| {column.title} |" in markdown or f" {column.title} |" in markdown
    if stored["missing"]:
        assert "missing [1]" in said.out
        assert stored["missing"][0]["reason"] in said.out
    if TABLES[name].means:
        assert "printed (paper)" in said.out
    Page(page)  # well formed
    assert ("<polyline" in page) == (name == "efficiency")
    assert "<script" not in page


def test_the_curve_has_a_point_for_every_part_of_the_training(root: Path, shared: Path) -> None:
    main(["benchmark", "--paper", "efficiency", "--root", str(root), "--out", str(shared), *PRINTED_TINY])
    for cell in results(shared)["cells"]:
        assert [(point["step"], point["phase"]) for point in cell["curve"]] == [(1, 1), (2, 1), (3, 2)]
        assert all(0 <= point["pixel_auroc"] <= 1 for point in cell["curve"])
        # the image level is fitted after the training: an image AUROC on the way would be of the map alone
        assert all(set(point) == {"step", "phase", "pixel_auroc"} for point in cell["curve"])
