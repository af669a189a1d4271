"""The study of the bias towards known anomalies: what is scored, and its figures."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import bias
from benchmarks.bias import FROZEN, OURS, Study, base_of, planned, recipe, run_study, with_gains
from bgad.benchmark import runner
from bgad.config import BASELINES, METHODS, override, preset_for
from bgad.errors import DataError
from bgad.inference.torch_engine import Detector
from tests.benchmark.runs import tiny


def row(column: str, known: float | None, unseen: float, seed: int = 0) -> dict[str, Any]:
    figures = {"known_auroc": known, "unseen_auroc": unseen}
    return {"data": "d", "category": "d", "known_class": "a", "seed": seed, "column": column} | figures


def test_a_base_uses_no_anomalies_and_has_the_features_of_its_method() -> None:
    for method in (*OURS, *FROZEN):
        config = recipe(method)
        column = base_of(method, config)
        base = override(recipe(column.method), list(column.changes))
        entry = METHODS.get(column.method) or BASELINES[column.method]
        assert not getattr(entry, "supervised", False)
        assert not base.uses_anomalies
        assert base.backbone == config.backbone
        if method in FROZEN:
            assert getattr(base.baseline, "strides", ()) == getattr(config.baseline, "strides", None)


def test_a_gain_is_over_the_base_of_the_same_cell() -> None:
    rows = [row("nfad", 0.5, 0.75), row("nfad", 0.25, 0.5, seed=1), row("bgad", 0.75, 0.5), row("bgad", None, 0.75, 1)]
    first, second = with_gains(rows, {"bgad": "nfad"})
    assert (first["known_gain"], first["unseen_gain"]) == (0.25, -0.25)
    assert (second["known_gain"], second["unseen_gain"]) == (None, 0.25)
    text = bias.markdown([first, second], 10, ["a: no data"])
    assert "| `bgad` | nfad | 1 | 0.750 | +0.250 | 0.500 | -0.250 |" in text  # the other cell lacks a figure
    assert "- a: no data" in text


def test_the_rest_of_the_known_class_is_scored_by_the_model_of_the_cell(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs = {method: tiny(method) for method in ("bgad-plus", "nfad-plus")}
    small = ["backbone.size=64", "baseline.steps=2", "baseline.images_per_step=4"]
    configs["devnet-frozen"] = override(preset_for("devnet-frozen", "smoke"), small)
    configs["patchcore"] = override(preset_for("patchcore", "smoke"), small[:1])
    study = Study(("bgad-plus", "devnet-frozen"), configs)
    table = study.table({"mvtec": ("carpet",)}, 2, 1)
    with pytest.raises(DataError, match="no known class blue: leave out --classes"):
        planned(table, root, ["blue"])
    groups = planned(table, root, ["color"])
    out = tmp_path / "out"
    run_study(study, table, groups, out, 2, root=root, device="cpu")
    rows = list(csv.DictReader((out / "bias.csv").read_text("utf-8").splitlines()))
    assert [(r["method"], r["base"]) for r in rows] == [
        ("bgad-plus", "nfad-plus"),
        ("devnet-frozen", "patchcore of strides 16 and 32"),
    ]
    for r in rows:  # of 3 anomalies of color, 2 are known; 2 classes of 3 are unseen
        assert (r["test_normals"], r["known_images"], r["unseen_images"]) == ("4", "1", "6")
        assert float(r["known_gain"]) == float(r["known_auroc"]) - float(r["base_known_auroc"])
    (cell,) = (json.loads(path.read_bytes()) for path in (out / "cells").glob("*-bgad_plus-*"))
    (known,) = (json.loads(path.read_bytes()) for path in (out / "known").glob("*-bgad_plus-*"))
    split = json.loads((out / cell["split"]).read_bytes())
    (left,) = (i["name"] for i in split["images"] if i["role"] == "unused" and i["defect"] == "color")
    (model,) = (out / "models").glob("*-bgad_plus-*")
    detector = Detector.load(model, "cpu")
    assert known["known"] == [pytest.approx(detector.score(root / "mvtec/carpet" / left).score, abs=1e-4)]
    before = (out / "bias.csv").read_bytes()
    with monkeypatch.context() as patch:  # the same command has nothing to do
        patch.setattr(runner, "new_fit", lambda *_, **__: pytest.fail("it was trained again"))
        patch.setattr(Detector, "load", lambda *_: pytest.fail("it was scored again"))
        run_study(study, table, groups, out, 2, root=root, device="cpu")
    assert (out / "bias.csv").read_bytes() == before
