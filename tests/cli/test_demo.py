from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from bgad.artifact import folder as model_folder
from bgad.cli import demo
from bgad.cli.main import main
from bgad.config import METHODS, Config, preset_for
from bgad.data.synthetic.demo import write_demo
from tests.conftest import printed_config, tiny_config


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo with few small images and a recipe of seconds."""

    def config(method: str, preset: None) -> Config:
        short = {"train": {"steps": 4, "push_steps": 2}, "pseudo": {"count": 2}}
        made = printed_config(method, **short) if METHODS[method].is_printed else tiny_config(method=method, **short)
        # the demo itself must take the backbone that is installed with the package
        return replace(made, backbone=replace(made.backbone, name=preset_for(method, preset).backbone.name))

    monkeypatch.setattr(demo, "preset_for", config)
    monkeypatch.setattr(demo, "write_demo", partial(write_demo, size=64, normals=8, test_normals=3, per_class=2))


@pytest.mark.usefixtures("small")
def test_demo_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "bgad-demo"
    assert main(["demo", "--methods", "bgad, bgad-plus", "--known", "4"]) == 0
    said = capsys.readouterr()
    assert sorted(path.name for path in out.iterdir()) == [
        "data",
        "fabric-bgad-0.bgad",
        "fabric.bgad",
        "report.html",
        "results.json",
        "washer-bgad-0.bgad",
        "washer.bgad",
    ]
    stored = json.loads((out / "results.json").read_text())
    keys = ("data", "category", "protocol", "method", "known", "seed")
    assert [tuple(cell[key] for key in keys) for cell in stored["cells"]] == [
        ("demo", "fabric", "multi-class", "bgad", 4, 0),
        ("demo", "washer", "multi-class", "bgad", 4, 0),
        ("demo", "fabric", "multi-class", "bgad-plus", 4, 0),
        ("demo", "washer", "multi-class", "bgad-plus", 4, 0),
    ]
    for cell in stored["cells"]:
        assert set(cell["metrics"]) == {"image_auroc", "image_ap", "image_f1_max", "pixel_auroc", "pixel_ap", "pro"}
        assert all(0 <= value <= 1 for value in cell["metrics"].values())
        assert set(cell["seconds"]) == {"train", "score"}
    for name in ("fabric", "washer"):
        assert model_folder.read(out / f"{name}.bgad").config.method == "bgad-plus"
        assert f"{name} (bgad-plus, 4 known anomalies, seed 0)" in (out / "report.html").read_text(encoding="utf-8")
    assert said.out.count("washer") == 2 * 2  # metrics and decisions
    assert "mean of 2" in said.out
    assert "report:  bgad-demo/report.html" in said.err
    assert "resume" not in said.err  # a first run has nothing to go on with

    # the command that it names next works word for word
    words = said.err.splitlines()[-1].removeprefix("next: bgad ").split()
    assert main(words) == 0
    assert len(list((out / "scored").glob("*.overlay.png"))) == 2

    assert main(["demo", "--seeds", "2", "--known", "4"]) == 0  # over the old one: the images stay
    assert len(json.loads((out / "results.json").read_text())["cells"]) == 4
    assert (out / "washer-bgad-plus-1.bgad").exists()


@pytest.mark.usefixtures("small")
def test_demo_does_not_touch_other_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data/fabric").mkdir(parents=True)
    (tmp_path / "data/fabric/mine.txt").write_text("precious")
    assert main(["demo", "--out", str(tmp_path)]) == 2
    assert "holds other data than this demo set" in capsys.readouterr().err.splitlines()[-1]
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["mine.txt"]
