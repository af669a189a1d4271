from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

import bgad
from bgad import TrainOptions, train
from bgad.artifact import folder as model_folder
from bgad.cli.main import main
from bgad.config import Config, from_dict
from bgad.errors import ModelError
from bgad.export import export
from bgad.export.export import Parity
from bgad.inference import onnx_engine
from bgad.inference.onnx_engine import GRAPH, Runtime
from bgad.inference.torch_engine import Detector
from tests.conftest import tiny_config


@pytest.fixture(scope="module")
def detector(model: Path) -> Detector:
    return Detector.load(model, "cpu")


def test_training_writes_a_graph_that_agrees(model: Path, data_set: Path, detector: Detector) -> None:
    about = model_folder.read(model, (GRAPH,)).exports["onnx"]
    assert about.weights == "float32"
    assert about.parity.images == 23  # 4 known, 14 tested and 5 held out
    assert 0 < about.parity.score <= about.parity.tolerance == 1e-4
    runtime = Runtime.load(model, "cpu")
    files = sorted((data_set / "test").rglob("*.png"))
    ours, theirs = runtime.score_many(files), detector.score_many(files)
    spread = np.ptp([s.score for s in theirs])
    for a, b in zip(ours, theirs, strict=True):
        assert abs(a.score - b.score) <= 1e-4 * spread
        assert a.parts == pytest.approx(dict(b.parts), abs=1e-4 * spread)
        assert (a.reason, a.region) == (b.reason, b.region)
        np.testing.assert_allclose(a.map, b.map, atol=1e-4 * float(np.ptp(b.map)), rtol=0)
        for x, y in zip(a.levels, b.levels, strict=True):
            np.testing.assert_allclose(x, y, atol=1e-3, rtol=1e-4)
        assert a.is_anomaly == b.is_anomaly
        assert a.p_value == b.p_value


@pytest.mark.parametrize(
    "change",
    [
        {"score": {"level_prior_power": 0.0, "evidence_weight": 0.0}},
        {"score": {"fusion": "probability", "top_share": 0.0}},
        {"backbone": {"image_head_strides": []}},
        {"backbone": {"strides": [8, 16]}, "train": {"positions_per_image": [8, 8]}},
        # not a multiple of 32: every "same" convolution pads differently, that of stride 32 too
        {"backbone": {"size": 80, "image_head_strides": [16, 32]}},
        {"method": "nfad-plus"},
    ],
    ids=str,
)
def test_every_kind_of_score_is_exported(change: dict[str, object], data_set: Path, tmp_path: Path) -> None:
    short: Config = from_dict({"train": {"steps": 3, "push_steps": 2, "positions_per_image": [8, 8, 8]}}, tiny_config())
    train(data_set, tmp_path / "a.bgad", config=from_dict(change, short), options=TrainOptions(known=4, device="cpu"))
    parity = model_folder.read(tmp_path / "a.bgad", (GRAPH,)).exports["onnx"].parity
    assert parity.score <= 1e-4
    assert parity.map <= 1e-4


def test_a_backbone_that_cannot_be_written_does_not_cost_the_model(
    data_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no such operator\nand a page of text")

    monkeypatch.setattr(torch.onnx, "export", broken)
    short = from_dict({"train": {"steps": 3, "push_steps": 2}}, tiny_config())
    train(data_set, tmp_path / "a.bgad", config=short, options=TrainOptions(known=4, device="cpu"))
    said = " ".join(capsys.readouterr().err.split())
    assert "no graph is written: this model cannot be written as a graph (no such operator)" in said
    assert GRAPH not in model_folder.read(tmp_path / "a.bgad").files


def test_nothing_is_written_where_the_graph_differs(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "copy.bgad"
    shutil.copytree(model, folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.setattr(Parity, "holds", property(lambda _: False))
    with pytest.raises(ModelError, match=r"the exported graph differs from torch by .* of the range over 12 images"):
        export.export(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_export_command(plain_model: Path, data_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = tmp_path / "old.bgad"
    shutil.copytree(plain_model, old)
    scored = Detector.load(old, "cpu").score_many([data_set / "test/blot/000.png"])
    capsys.readouterr()
    assert main(["export", str(old), "--check", str(data_set / "test")]) == 0
    said = capsys.readouterr().err
    assert "on 18 images the graph is within" in said
    assert said.splitlines()[-1] == f"graph: {old / GRAPH}"
    card = model_folder.read(old, (GRAPH,))
    assert card.split["images"]
    again, graph = Detector.load(old, "cpu"), Runtime.load(old, "cpu")
    assert again.score_many([data_set / "test/blot/000.png"])[0].score == scored[0].score
    assert graph.score(data_set / "test/blot/000.png").score == pytest.approx(scored[0].score, rel=1e-4)
    assert main(["export", str(old)]) == 0  # over a graph that is there
    assert main(["export", str(tmp_path / "gone.bgad")]) == 2
    assert main(["export", str(old), "--check", str(tmp_path / "gone")]) == 2


def test_a_graph_with_weights_of_16_bits_is_refused(model: Path, tmp_path: Path) -> None:
    """Its card says float32, and the model was calibrated with that; here the weights are cast back when it is run."""
    card, files = model_folder.read_all(model)
    graph = onnx.load_from_string(files[GRAPH])
    largest = max(graph.graph.initializer, key=lambda stored: len(stored.raw_data))
    name, values = largest.name, numpy_helper.to_array(largest)
    largest.CopyFrom(numpy_helper.from_array(values.astype(np.float16), "short"))
    graph.graph.node.insert(0, helper.make_node("Cast", ["short"], [name], to=onnx.TensorProto.FLOAT))
    model_folder.write(tmp_path / "short.bgad", card, files | {GRAPH: graph.SerializeToString()})
    with pytest.raises(ModelError, match=r"^model\.onnx stores weights in float16, its card says float32: export it"):
        bgad.load(tmp_path / "short.bgad", "cpu")


def test_the_types_of_weights_are_those_that_onnx_reads(model: Path) -> None:
    content = (model / GRAPH).read_bytes()
    expected = {stored.data_type for stored in onnx.load_from_string(content).graph.initializer}
    assert onnx.TensorProto.FLOAT in expected
    assert onnx_engine._weight_types(content) == expected


def without_graph(model: Path, to: Path) -> Path:
    """A copy that has no graph."""
    card, files = model_folder.read_all(model)
    del files[GRAPH]
    model_folder.write(to, replace(card, exports={}), files)
    return to


def test_no_export(plain_model: Path) -> None:
    card = model_folder.read(plain_model)
    assert GRAPH not in card.files
    assert card.exports == {}


def test_an_export_does_not_undo_what_another_command_wrote_meanwhile(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "plate.bgad"
    shutil.copytree(model, folder)
    compared = export.checked_graph

    def slowly(*arguments: Any, **options: Any) -> Any:
        result = compared(*arguments, **options)
        card, files = model_folder.read_all(folder)
        model_folder.write(folder, replace(card, name="newer"), files)
        return result

    monkeypatch.setattr(export, "checked_graph", slowly)
    with pytest.raises(ModelError, match="was written by another command meanwhile"):
        export.export(folder)
    assert model_folder.verify(folder).name == "newer"
