from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

import bgad
from bgad.artifact import folder as model_folder
from bgad.cli.main import main
from bgad.errors import ConfigError, ModelError
from bgad.inference import load as loading
from bgad.inference import onnx_engine as runtime
from bgad.inference.onnx_engine import GRAPH, Runtime
from bgad.inference.torch_engine import Detector
from bgad.io.cpus import usable_cpus
from tests.export.test_onnx import without_graph


def test_scoring_imports_no_torch(model: Path, data_set: Path, tmp_path: Path) -> None:
    program = (
        "import json, sys\n"
        "from bgad.cli.main import main\n"
        "code = main(['predict', *sys.argv[1:]])\n"
        "heavy = {'torch', 'timm', 'torchvision', 'safetensors', 'scipy', 'sklearn'} & set(sys.modules)\n"
        "print(json.dumps([code, sorted(heavy)]))\n"
    )
    images = str(data_set / "test/good")
    for options in ([], ["--tile", "40", "--out", str(tmp_path)]):
        command = [sys.executable, "-c", program, str(model), images, *options]
        lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
        assert json.loads(lines[-1]) == [0, []]
        assert len(lines) == 11
    program = program.replace("predict", "evaluate")
    command = [sys.executable, "-c", program, str(model), str(data_set), "--out", str(tmp_path / "evaluated")]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert json.loads(lines[-1]) == [0, []]


def test_a_score_belongs_to_the_image(model: Path, data_set: Path) -> None:
    files = sorted((data_set / "test").rglob("*.png"))
    alone = Runtime.load(model)
    one_by_one = [alone.score(path).score for path in files]
    for threads in (None, 3, 1):
        scored = Runtime.load(model, threads=threads).score_many(files[::-1])[::-1]
        assert [s.score for s in scored] == one_by_one


@pytest.mark.parametrize("engine", ["onnx", "torch"])
def test_a_calibration_image_has_one_decision_in_every_batch(engine: str, model: Path, data_set: Path) -> None:
    content = json.loads((model / model_folder.SPLIT).read_bytes())
    files = [data_set / image["name"] for image in content["images"] if image["role"] == "calibration"]
    assert files
    rate = 1 / (len(files) + 1)  # the highest calibration score is the threshold
    scorer = bgad.load(model, engine=engine)
    scorer.set_rate(rate)
    for batch in (1, 2, len(files)):  # larger ones are those of accelerators
        scorer.batch = batch
        assert not any(scores.is_anomaly for scores in scorer.score_many(files))


def test_many_images_are_scored_one_on_each_core(
    model: Path, data_set: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[tuple[int, int]] = []
    plain = Runtime.run

    def watched(self: Runtime, pixels: np.ndarray) -> object:
        one_core = getattr(self._thread, "one_core", False)
        seen.append((len(pixels), 1 if one_core else self.threads))
        return plain(self, pixels)

    monkeypatch.setattr(Runtime, "run", watched)
    scorer = Runtime.load(model, threads=3, batch=5)
    assert scorer.session.get_session_options().intra_op_num_threads == 3
    files = sorted((data_set / "test").rglob("*.png"))
    scorer.score_many(files)
    assert seen == [(1, 1)] * len(files)
    assert "a batch of 5 has no effect: a CPU scores one image at a time on each core" in caplog.text
    seen.clear()
    scorer.score(files[0])
    assert seen == [(1, 3)]
    assert Runtime.load(model).threads == usable_cpus()


def test_load_takes_the_graph_where_there_is_one(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(bgad.load(model), Runtime)
    assert isinstance(bgad.load(model, engine="torch"), Detector)
    bare = without_graph(model, tmp_path / "bare.bgad")
    assert isinstance(bgad.load(bare), Detector)
    with pytest.raises(ModelError, match=r"has no model\.onnx.*`bgad export .*bare\.bgad`.*bgad\[train\]"):
        bgad.load(bare, engine="onnx")
    monkeypatch.setattr(loading, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"has no model\.onnx"):
        bgad.load(bare)
    with pytest.raises(ConfigError, match="unknown engine 'abacus': choose from auto, onnx, openvino, torch"):
        bgad.load(model, engine="abacus")


@pytest.mark.parametrize("engine", sorted(loading.ENGINES.keys() - {"openvino"}))  # that has a file of its own
def test_every_engine_scores_the_same(engine: str, model: Path, data_set: Path) -> None:
    """An engine is an entry of ENGINES; each scores images in batches and alone as the folder's graph does."""
    files = sorted((data_set / "test").rglob("*.png"))[::4]
    expected = [s.score for s in Runtime.load(model, "cpu").score_many(files)]
    scorer = bgad.load(model, "cpu", engine=engine)
    scores = [s.score for s in scorer.score_many(files)]
    assert scorer.score(files[0]).score == pytest.approx(scores[0], rel=1e-5, abs=1e-5)
    assert scores == pytest.approx(expected, abs=1e-4 * float(np.ptp(expected)))


def test_a_graph_that_does_not_belong_to_its_card(model: Path, tmp_path: Path) -> None:
    card, files = model_folder.read_all(model)
    broken = tmp_path / "broken.bgad"
    model_folder.write(broken, card, files | {GRAPH: b"not a graph"})
    with pytest.raises(ModelError, match=r"ONNX Runtime cannot load the graph of plate .*: export it again"):
        bgad.load(broken)
    wider = replace(card, input=replace(card.input, width=96))
    model_folder.write(tmp_path / "other.bgad", wider, files)
    with pytest.raises(ModelError, match=r"model\.onnx does not belong to its card"):
        bgad.load(tmp_path / "other.bgad")
    model_folder.write(tmp_path / "less.bgad", replace(card, levels=card.levels[:2]), files)
    with pytest.raises(ModelError, match="does not belong to its card"):
        bgad.load(tmp_path / "less.bgad")
    (model_copy := tmp_path / "changed.bgad").mkdir()
    for name, content in (files | {"card.json": (model / "card.json").read_bytes()}).items():
        (model_copy / name).write_bytes(content + b"x" if name == GRAPH else content)
    with pytest.raises(ModelError, match=r"model\.onnx has been changed: its sha256 does not match"):
        bgad.load(model_copy)


def test_the_torch_weights_are_not_opened(model: Path, data_set: Path, tmp_path: Path) -> None:
    """The graph is enough to score; `bgad info` verifies the rest."""
    bare = Path(shutil.copytree(model, tmp_path / "bare.bgad"))
    (bare / "flow.safetensors").unlink()
    (bare / "backbone.safetensors").write_bytes(b"changed")
    image = data_set / "test/blot/000.png"
    assert bgad.load(bare).score(image).score == bgad.load(model).score(image).score
    with pytest.raises(ModelError, match=r"cannot read flow\.safetensors|has been changed"):
        model_folder.verify(bare)
    with pytest.raises(ModelError, match=r"cannot read flow\.safetensors"):
        bgad.load(bare, engine="torch")


def test_providers(model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    scorer = Runtime.load(model, "cuda")
    assert scorer.device == "cpu"
    said = " ".join(capsys.readouterr().err.split())
    assert "cuda is not in this build of ONNX Runtime, which has cpu: scoring on the CPU" in said
    with pytest.raises(ConfigError, match=r"cuda is not in this build .*or choose another --device"):
        Runtime.load(model, "cuda", strict=True)
    with pytest.raises(ConfigError, match="unknown device 'abacus' for a graph: choose from auto, tensorrt, cuda"):
        Runtime.load(model, "abacus")
    # built in, but the machine has no such device: ONNX Runtime goes back to the CPU by itself
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: list(runtime.PROVIDERS.values()))
    assert runtime.provider("auto") == "cuda"
    with pytest.raises(ConfigError, match="cuda cannot be used here"), pytest.warns(UserWarning, match="CUDA"):
        Runtime.load(model, "cuda", strict=True)
    with pytest.warns(UserWarning, match="CUDA"):
        assert Runtime.load(model, "cuda").device == "cpu"


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "mps"])
def test_a_device_that_nobody_has_is_a_warning(
    model: Path, device: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    scorer = bgad.load(model, device)
    assert isinstance(scorer, Runtime)
    assert scorer.device == "cpu"
    missing = f"neither torch nor this build of ONNX Runtime can use {device} here"
    assert f"warning: {missing}: scoring on the CPU" in " ".join(capsys.readouterr().err.split())
    with pytest.raises(ConfigError, match=f"^{missing}: choose another --device$"):
        bgad.load(model, device, strict=True)
    with pytest.raises(ConfigError, match=rf"^device '{device}' is not usable here: choose auto or cpu, [a-z ]+$"):
        bgad.load(model, device, engine="torch")
    monkeypatch.setattr(loading, "find_spec", lambda name: None)
    assert bgad.load(model, device).threads == usable_cpus()  # without torch, too


def test_a_device_that_only_torch_has_is_given_to_torch(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    asked = []
    monkeypatch.setattr(Detector, "load", lambda folder, device, **_: asked.append(device))
    bgad.load(model, "cuda:1")
    assert asked == ["cuda:1"]


def test_the_commands_take_either_engine(
    model: Path, data_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {}
    for engine in ("onnx", "torch"):
        out = str(tmp_path / engine)
        command = ["evaluate", str(model), str(data_set), "--out", out, "--engine", engine, "--device", "cpu"]
        assert main(command) == 0
        found[engine] = json.loads((tmp_path / engine / "results.json").read_text())["cells"][0]["metrics"]
    assert found["onnx"] == pytest.approx(found["torch"], abs=1e-3)
    capsys.readouterr()
    rows = {}
    for engine in ("onnx", "torch"):
        assert main(["predict", str(model), str(data_set / "test"), "--engine", engine, "--threads", "1"]) == 0
        rows[engine] = [json.loads(line)["score"] for line in capsys.readouterr().out.splitlines()]
    assert rows["onnx"] == pytest.approx(rows["torch"], abs=1e-4 * float(np.ptp(rows["torch"])))
