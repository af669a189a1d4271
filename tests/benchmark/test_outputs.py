"""What tables and pages say about data that is incomplete or has no masks."""

from __future__ import annotations

from pathlib import Path

import pytest

from bgad.cli.main import main
from tests.benchmark.runs import CLASSES, TINY, category, results


def test_notes_on_the_data_stand_below_every_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, (name, classes) in enumerate(CLASSES.items()):
        category(tmp_path / "data/mvtec" / name, classes, number)
    (tmp_path / "data/mvtec/carpet/ground_truth/hole/0_mask.png").unlink()
    (tmp_path / "data/mvtec/carpet/test/color/1.png").write_bytes(b"cut off")
    options = ["--data", "mvtec", "--category", "cable,carpet", "--protocol", "one-class", "--methods", "nfad-plus"]
    options += ["--known", "3", "--seeds", "2", "--root", str(tmp_path / "data"), "--out", str(tmp_path / "out")]
    for _ in range(2):  # computed, then read from the files of the cells
        assert main(["benchmark", *options, *TINY]) == 0
        out = capsys.readouterr().out
        page, markdown = ((tmp_path / "out" / name).read_text() for name in ("benchmark.html", "table.md"))
        for text in (out, page, markdown):
            for note in (
                "carpet: incomplete: 12 of 308 normal and 9 of 89 anomalous images",
                "carpet: anomaly without a mask: test/hole/0.png",
                "carpet: 1 unreadable images skipped: test/color/1.png",
                "fewer known anomalies than requested: carpet color: 2",
            ):
                assert text.count(note) == 1, note
            assert "have no role" not in text
            assert "instead of" not in text


def test_pixel_figures_that_cannot_be_given_are_explained(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--data", "brainmri", "--protocol", "general", "--known", "1,20", "--seeds", "2"]
    options += ["--methods", "bgad-plus"]
    assert main(["benchmark", *options, "--root", str(root), "--out", str(tmp_path), *TINY]) == 0
    out = capsys.readouterr().out
    assert "no pixel metrics for brainmri: no masks of the test images" in out
    assert "fewer known anomalies than requested: brainmri: 2" in out
    assert "bgad-plus (1 known)" in out
    assert "best supervised (printed, 1 known)" in out  # there are printed figures for 1, not for 20
    assert "0.866 / - / - AHL (DevNet)" in out
    cells = results(tmp_path)["cells"]
    assert [(cell["known"], cell["drawn"]) for cell in cells] == [(1, 1), (20, 2)] * 2
    assert {cell["metrics"]["pixel_auroc"] for cell in cells} == {None}


def test_a_folder_is_a_data_set_too(root: Path, tmp_path: Path) -> None:
    place = str(root / "mvtec")
    options = ["--seeds", "1", "--methods", "nfad-plus", "--known", "1", "--out", str(tmp_path), *TINY]
    assert main(["benchmark", "--data", place, *options]) == 0
    assert [(c["data"], c["category"]) for c in results(tmp_path)["cells"]] == [("mvtec", n) for n in CLASSES]
    assert main(["benchmark", "--data", f"{place}/carpet,{root / 'brainmri'}", *options]) == 0
    assert [c["category"] for c in results(tmp_path)["cells"]] == ["carpet", "brainmri"]
    category(tmp_path / "other/carpet", CLASSES["carpet"], 1)
    assert main(["benchmark", "--data", f"{place}/carpet,{tmp_path / 'other/carpet'}", *options]) == 2
    assert main(["benchmark", "--data", place, "--category", "carpet,rug", *options]) == 0
    assert [m["reason"] for m in results(tmp_path)["missing"]] == [f"{place}: no category rug; found cable, carpet"]
