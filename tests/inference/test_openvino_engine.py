"""In processes of their own: with OpenVINO loaded, a SIGINT in a later training (other tests send one) is fatal."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bgad import load
from bgad.artifact import folder as model_folder


def bgad(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bgad", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def exported(model: Path, data_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("openvino") / "copy.bgad"
    shutil.copytree(model, folder)
    done = bgad("export", folder, "--to", "openvino", "--check", data_set / "test")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == f"graph: {folder / 'model.xml'}"
    return folder


def test_scores_are_those_of_the_other_engines(exported: Path, data_set: Path) -> None:
    card = model_folder.read(exported, ("model.onnx", "model.xml", "model.bin"))
    assert card.exports.keys() == {"onnx", "openvino"}
    assert card.exports["openvino"].parity.images == 18
    files = sorted((data_set / "test").rglob("*.png"))
    expected = {str(path): s for path, s in zip(files, load(exported).score_many(files), strict=True)}
    tolerance = 1e-4 * float(np.ptp([s.score for s in expected.values()]))
    for threads in (1, 3):
        done = bgad("predict", exported, data_set / "test", "--engine", "openvino", "--threads", threads)
        assert done.returncode == 0, done.stderr
        rows = {row["path"]: row for row in map(json.loads, done.stdout.splitlines())}
        assert rows.keys() == expected.keys()
        for path, row in rows.items():
            assert row["score"] == pytest.approx(expected[path].score, abs=tolerance)
            assert row["parts"] == pytest.approx(dict(expected[path].parts), abs=tolerance)
            assert sum(row["parts"].values()) == pytest.approx(row["score"], rel=1e-5, abs=1e-5)
            assert row["reason"] == (expected[path].reason or None)


FIRST_ARRAYS = """
import faulthandler, sys, threading
import numpy as np
from bgad.inference.openvino_engine import OpenVino

faulthandler.dump_traceback_later(30, exit=True)
sys.setswitchinterval(1e-6)
scorer = OpenVino.load(sys.argv[1], threads=8)
together = threading.Barrier(8)

def work():
    scorer.start_thread()
    together.wait()
    scorer.run(np.zeros((1, scorer.card.config.backbone.size, scorer.card.config.backbone.size, 3), np.float32))

threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_threads_that_score_their_first_image_at_once_do_not_wait_for_each_other(exported: Path) -> None:
    for _ in range(3):  # it came in every second run
        command = [sys.executable, "-c", FIRST_ARRAYS, str(exported)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr


def test_what_is_wrong_is_one_line(model: Path, exported: Path, data_set: Path, tmp_path: Path) -> None:
    image = data_set / "test/good/000.png"
    broken = tmp_path / "broken.bgad"
    card, content = model_folder.read_all(exported)
    model_folder.write(broken, card, content | {"model.xml": b"<no>"})
    for folder, options, message in (
        (model, [], "has no model.xml: run `bgad export"),
        (exported, ["--device", "cuda"], "unknown device 'cuda' for OpenVINO: choose from auto, cpu"),
        (exported, ["--device", "npu", "--strict"], "OpenVINO finds no NPU here"),
        (broken, [], "OpenVINO cannot read model.xml"),
    ):
        done = bgad("predict", folder, image, "--engine", "openvino", *options)
        assert done.returncode == 2
        assert message in " ".join(done.stderr.split())
