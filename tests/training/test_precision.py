"""Precisions of a model: calibrated at export, chosen at load, refused where they were not calibrated."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bgad.artifact import folder as model_folder
from bgad.artifact.card import FLOAT32
from bgad.methods import checkpoint
from tests.precisions import (
    COMMAND,
    STAND_IN,
    bgad,
    calibrated,
    error_of,
    in_one_process,
    need_bf16,
    run_python,
    stand_in,
)

Rows = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def both(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return calibrated(model, tmp_path_factory.mktemp("both") / "plate.bgad")


def names(folder: Path, *roles: str) -> list[str]:
    return [image["name"] for image in model_folder.read(folder).split["images"] if image["role"] in roles]


def predicted(folder: Path, paths: list[Path], *options: str, **environment: str) -> Rows:
    done = stand_in("predict", folder, *paths, *options, **environment)
    assert done.returncode == 0, done.stderr
    return {Path(row["path"]).as_posix(): row for row in map(json.loads, done.stdout.splitlines())}


def test_a_precision_has_a_calibration_of_its_own(both: Path, model: Path) -> None:
    card = model_folder.verify(both)
    before, after = card.calibration[FLOAT32], card.calibration["bf16"]
    assert before == model_folder.read(model).calibration_at()
    assert after.scores == pytest.approx(1.5 * np.array(before.scores) + 1, abs=2e-3 * np.ptp(before.scores))
    assert after.map_maxima == pytest.approx(2 * np.array(before.map_maxima) + 1, rel=2e-3)
    for key in ("false_reject_rate", "is_default_rate", "confidence"):
        assert getattr(after, key) == getattr(before, key)
    assert after.threshold == after.calibration().threshold > before.threshold + 0.5
    assert after.map_threshold == after.map_calibration().threshold > before.map_threshold
    for name, limit in before.part_limits.items():
        assert after.part_limits[name] == pytest.approx(1.5 * limit, rel=1e-3)
    found = card.agreement["bf16"]
    assert found.images == len(names(both, "calibration", "known"))
    assert (found.rank_correlation, found.changed_decisions, found.device) == (1.0, 0, "CPU")
    assert found.known_auroc is not None
    assert found.test_auroc is not None
    assert found.known_auroc[0] == found.known_auroc[1]
    assert card.exports["openvino"].weights == FLOAT32


def test_update_still_finds_the_images_of_the_model(both: Path, model: Path) -> None:
    checksums = [model_folder.read(folder).checksum for folder in (model, both)]
    assert checksums[0] != checksums[1]
    assert checkpoint.recall(checksums[1]) == checkpoint.recall(checksums[0]) is not None


def test_each_precision_decides_by_its_own_threshold(both: Path, data_set: Path) -> None:
    card = model_folder.read(both)
    paths = [data_set / name for name in names(both, "calibration", "test")]
    rows = {precision: predicted(both, paths, "--precision", precision) for precision in (FLOAT32, "bf16")}
    held_out = [(data_set / name).as_posix() for name in names(both, "calibration")]
    for precision, own in rows.items():
        calibration = card.calibration[precision]
        assert {row["precision"] for row in own.values()} == {precision}
        assert {row["threshold"] for row in own.values()} == {calibration.threshold}
        assert {row["map_threshold"] for row in own.values()} == {calibration.map_threshold}
        rejected = sum(own[path]["is_anomaly"] for path in held_out)
        with_contour = sum(own[path]["map_max"] > calibration.map_threshold for path in held_out)
        assert max(rejected, with_contour) <= calibration.false_reject_rate * (len(held_out) + 1) - 1
    spread = float(np.std(card.calibration["bf16"].scores))
    for path, row in rows[FLOAT32].items():
        other = rows["bf16"][path]
        assert other["score"] == pytest.approx(1.5 * row["score"] + 1, abs=1e-4 * spread)
        assert (other["is_anomaly"], other["p_value"]) == (row["is_anomaly"], row["p_value"])


def test_another_rate_moves_the_thresholds_of_the_precision_in_use(both: Path, data_set: Path) -> None:
    own = model_folder.read(both).calibration["bf16"]
    (row,) = predicted(
        both, [data_set / "test/good/000.png"], "--precision", "bf16", "--false-reject-rate", "0.5"
    ).values()
    assert row["threshold"] == own.calibration(0.5).threshold != own.threshold
    assert row["map_threshold"] == own.map_calibration(0.5).threshold


def test_auto_takes_what_was_measured_to_be_faster(both: Path, data_set: Path, tmp_path: Path) -> None:
    image, state = [data_set / "test/good/000.png"], {"BGAD_STATE": str(tmp_path)}
    (row,) = predicted(both, image, "--precision", "auto", **state).values()
    (note,) = (tmp_path / "precision").iterdir()
    content = json.loads(note.read_text())
    assert content["of"]["model"] == model_folder.read(both).checksum
    rates = content["images_per_second"]
    assert rates.keys() == {FLOAT32, "bf16"}
    assert row["precision"] == ("bf16" if rates["bf16"] > 1.1 * rates[FLOAT32] else FLOAT32)
    for rate, expected in ((50.0, "bf16"), (10.5, FLOAT32), (1.0, FLOAT32)):  # remembered: nothing is measured again
        note.write_text(json.dumps({"images_per_second": {FLOAT32: 10.0, "bf16": rate}}))
        (row,) = predicted(both, image, "--precision", "auto", **state).values()
        assert row["precision"] == expected
    assert list((tmp_path / "precision").iterdir()) == [note]
    # a machine or an engine without the precision scores in float32
    for options, environment in (((), {"CAPABILITY": "NONE"}), (("--engine", "onnx"), {})):
        note.write_text(json.dumps({"images_per_second": {FLOAT32: 10.0, "bf16": 50.0}}))
        (row,) = predicted(both, image, "--precision", "auto", *options, **state, **environment).values()
        assert row["precision"] == FLOAT32


def test_auto_measures_nothing_without_a_choice(model: Path, data_set: Path, tmp_path: Path) -> None:
    (row,) = predicted(
        model, [data_set / "test/good/000.png"], "--precision", "auto", BGAD_STATE=str(tmp_path)
    ).values()
    assert row["precision"] == FLOAT32
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_used_is_refused_in_one_line(both: Path, model: Path, data_set: Path, tmp_path: Path) -> None:
    image = data_set / "test/good/000.png"
    card, files = model_folder.read_all(both)
    other = tmp_path / "gpu.bgad"
    on_gpu = replace(card.agreement["bf16"], device="GPU")
    model_folder.write(other, replace(card, agreement={"bf16": on_gpu}), files)
    commands = (
        ("predict", model, image, "--precision", "bf16"),
        ("predict", both, image, "--precision", "bf16", "--engine", "onnx"),
        ("predict", other, image, "--precision", "bf16"),
        ("export", model, "--precision", "bf16", "--device", "npu"),
    )
    uncalibrated, of_onnx, on_cpu, on_npu = map(error_of, in_one_process(*commands))
    assert uncalibrated == (
        f"{model} is not calibrated for bf16 (it is for: float32): run `bgad export {model} --precision bf16` first"
    )
    assert of_onnx == "the engine onnx computes in float32: give --engine openvino for bf16"
    assert on_cpu == "plate is calibrated for bf16 on a GPU, not on a CPU: choose another --device or --precision"
    assert on_npu.startswith("OpenVINO finds no NPU here")
    lacks = r" does not compute in bf16: leave out --precision bf16, or use a machine that does"
    commands_of_bf16 = (("predict", both, image, "--precision", "bf16"), ("export", both, "--precision", "bf16"))
    for refused in map(error_of, in_one_process(*commands_of_bf16, CAPABILITY="NONE")):
        assert refused.startswith("the CPU of this machine (")
        assert refused.endswith(lacks)


def test_the_plain_install_scores_what_was_exported_elsewhere(both: Path, model: Path, data_set: Path) -> None:
    """With the extra `openvino`, without those that train."""
    missing = ("torch", "timm", "torchvision", "safetensors", "onnx")
    program = f"import sys\nfor name in {missing}:\n    sys.modules[name] = None\n{STAND_IN}{COMMAND}"
    image = data_set / "test/good/000.png"
    done = run_python(program, "predict", both, image, "--precision", "bf16")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["precision"] == "bf16"
    assert "is not calibrated for bf16" in error_of(run_python(program, "predict", model, image, "--precision", "bf16"))


def test_options_that_do_not_go_together(model: Path) -> None:
    cases = {
        ("--data", "x"): "--data is for --precision",
        ("--device", "cpu"): "--device is for --precision",
        ("--precision", "bf16", "--to", "onnx"): "ONNX Runtime computes in float32 only: leave out --to onnx",
        ("--precision", "float32"): "invalid choice: 'float32'",
    }
    results = in_one_process(*(("export", model, *options) for options in cases))
    for message, done in zip(cases.values(), results, strict=True):
        assert message in error_of(done)


def test_a_precision_that_orders_images_otherwise_is_not_added(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "plate.bgad"
    shutil.copytree(model, folder)
    refused = error_of(stand_in("export", folder, "--precision", "bf16", SHUFFLE="1"))
    assert refused.startswith("bf16 does not agree with float32 on the 9 calibration normals and known anomalies: ")
    assert "the rank correlation of their scores is" in refused
    assert refused.endswith("the model stays as it was: score it in float32")
    assert model_folder.verify(folder) == model_folder.verify(model)


def test_images_are_found_by_their_content(model: Path, data_set: Path, tmp_path: Path) -> None:
    folder = tmp_path / "plate.bgad"
    shutil.copytree(model, folder)
    held_out = names(model, "calibration")
    elsewhere, without_one = tmp_path / "line 3", tmp_path / "line 2"
    for number, name in enumerate(held_out):
        for root in (elsewhere, without_one)[: 2 if number else 1]:
            (root / "good").mkdir(parents=True, exist_ok=True)
            shutil.copy(data_set / name, root / "good" / f"part-{number}.png")
    command = ("export", folder, "--precision", "bf16")
    commands = (command, (*command, "--data", without_one), (*command, "--data", elsewhere))
    unknown, lacking, done = in_one_process(*commands, BGAD_STATE=str(tmp_path / "another machine"))
    assert error_of(unknown) == (
        "the images that calibrated the model are needed: say where its data set is with --data"
    )
    assert error_of(lacking) == (
        f"{without_one} lacks 1 of the images that calibrated {folder}, the first: {held_out[0]}; "
        "give the data set that it was trained on with --data"
    )
    assert done.returncode == 0, done.stderr
    found = model_folder.read(folder).agreement["bf16"]
    assert (found.images, found.known_auroc, found.test_auroc) == (len(held_out), None, None)


def test_another_graph_takes_its_calibrations_away(both: Path, tmp_path: Path) -> None:
    folder = tmp_path / "plate.bgad"
    shutil.copytree(both, folder)
    assert bgad("export", folder).returncode == 0  # the graph of another engine
    assert model_folder.read(folder).agreement.keys() == {"bf16"}
    assert checkpoint.recall(model_folder.read(folder).checksum) is not None
    card, files = model_folder.read_all(folder)
    files["model.bin"] += b"an earlier version of OpenVINO wrote more"
    model_folder.write(folder, card, files)
    done = bgad("export", folder, "--to", "openvino")
    assert "the new graph is not calibrated for bf16: run `bgad export` again with --precision" in done.stderr
    card = model_folder.read(folder)
    assert (list(card.calibration), card.agreement) == ([FLOAT32], {})


def test_info_evaluation_and_archive_say_the_precision(both: Path, data_set: Path, tmp_path: Path) -> None:
    said = bgad("info", both).stdout
    card = model_folder.read(both)
    own = card.calibration["bf16"]
    assert f"precision   bf16 on CPU: threshold {own.threshold:.6g}, map threshold {own.map_threshold:.6g}" in said
    out = tmp_path / "results"
    done = stand_in("evaluate", both, data_set, "--out", out, "--precision", "bf16")
    assert done.returncode == 0, done.stderr
    results = json.loads((out / "results.json").read_text())
    assert (results["subject"]["precision"], results["cells"][0]["precision"]) == ("bf16", "bf16")
    assert results["cells"][0]["decisions"]["threshold"] == own.threshold
    assert "<dt>precision</dt><dd>bf16</dd>" in (out / "report.html").read_text().replace("\n", "")
    refused = error_of(stand_in("evaluate", both, data_set, "--out", out))
    assert "holds the results in bf16" in refused
    log = tmp_path / "log"
    assert stand_in("predict", both, data_set / "test/good", "--out", log, "--precision", "bf16").returncode == 0
    refused = error_of(stand_in("predict", both, data_set / "test/good", "--out", log))
    assert "holds scores of another model or with other options" in refused


def test_bfloat16(model: Path, data_set: Path, tmp_path: Path) -> None:
    """The real one: it moves scores, keeps their order, and its calibration images stay below its own threshold."""
    need_bf16()
    folder = tmp_path / "plate.bgad"
    shutil.copytree(model, folder)
    paths = [data_set / name for name in names(folder, "calibration")]
    predict = ("predict", folder, *paths, "--precision", "bf16", "--threads")
    commands = (("export", folder, "--precision", "bf16"), (*predict, 1), (*predict, 2))
    exported, *predictions = in_one_process(*commands, program="")
    assert exported.returncode == 0, exported.stderr
    card = model_folder.read(folder)
    before, after = card.calibration[FLOAT32], card.calibration["bf16"]
    differences = np.abs(np.array(before.scores) - np.array(after.scores))
    assert 1e-4 * np.ptp(before.scores) < differences.max() < 0.5 * np.ptp(before.scores)
    for done in predictions:
        assert done.returncode == 0, done.stderr
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        scores = sorted(row["score"] for row in rows)
        assert scores == pytest.approx(after.scores, abs=1e-3 * float(np.std(after.scores)))
        assert all(score <= raised for score, raised in zip(scores, after.scores, strict=True))
        assert not any(row["is_anomaly"] for row in rows)  # one of five would be more than the rate
