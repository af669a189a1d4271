"""The check against anomalib: both sides have the same images, finished sides are kept, and failures are told."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmarks import anomalib_check as script
from benchmarks.anomalib_check import OURS, SYSTEMS, THEIRS, Schedule, check, prepare
from bgad import metrics
from bgad.config import override

SMALL = ("backbone.size=64", "baseline.channels=10")


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The jobs that anomalib is given; it answers that the mean of the pixels is the score."""
    given: list[dict[str, Any]] = []

    def answer(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        job = json.loads(Path(command[2]).read_bytes())
        given.append(job)
        if job["system"] == "cfa":
            return subprocess.CompletedProcess(command, 1, stderr="Traceback\nRuntimeError: too large\n")
        scores = np.load(job["pixels"])[job["test"]].mean((1, 2, 3)).tolist()
        Path(command[3]).write_text(json.dumps({"scores": scores, "seconds": {"fit": 1.0, "score": 2.0}}))
        return subprocess.CompletedProcess(command, 0, stderr="")

    monkeypatch.setattr(script, "subprocess", SimpleNamespace(run=answer, PIPE=subprocess.PIPE))
    monkeypatch.setattr(script, "anomalib_python", lambda: Path("python"))
    return given


def test_both_sides_have_the_same_images_and_are_kept(
    root: Path, tmp_path: Path, jobs: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = SYSTEMS["padim"]
    monkeypatch.setitem(SYSTEMS, "padim", script.System(entry.method, entry.note, (*entry.changes, *SMALL)))
    setting = prepare("carpet", root, tmp_path, Schedule(0, 5))
    found = check(["padim"], setting)["padim"]
    (job,) = jobs
    samples = [*setting.split.train, *setting.split.test]
    pixels = np.load(job["pixels"])
    assert pixels.shape == (len(samples), 64, 64, 3)
    assert (job["train"], job["test"][-1]) == (list(range(len(setting.split.train))), len(samples) - 1)
    means = [np.asarray(Image.open(sample.path)).mean() / 255 for sample in samples]
    np.testing.assert_allclose(pixels.mean((1, 2, 3)), means, atol=2e-3)  # they are resized
    assert len(job["picked"]) == len(set(job["picked"])) == 10
    labels = [sample.label for sample in setting.split.test]
    assert found[THEIRS]["image_auroc"] == metrics.auroc(found[THEIRS]["scores"], labels)
    difference = found[OURS]["image_auroc"] - found[THEIRS]["image_auroc"]
    assert f"| {difference:+.4f} |" in (tmp_path / script.PAGE).read_text()
    monkeypatch.setattr(script, "run", lambda *_, **__: pytest.fail("our side ran again"))
    assert check(["padim"], setting)["padim"] == found
    assert len(jobs) == 1
    (tmp_path / "padim-anomalib.json").write_text("{")  # torn
    assert check(["padim"], setting)["padim"] == found
    assert len(jobs) == 2


def test_a_side_that_fails_is_told_and_the_other_is_kept(
    root: Path, tmp_path: Path, jobs: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = {"scores": [0.5] * 9, "seconds": {"fit": 3.0, "score": 1.0}}
    setting = prepare("carpet", root, tmp_path, Schedule(7, 5))
    monkeypatch.setattr(script, "ours", lambda *_: scores | {"scores": [0.5] * len(setting.split.test)})
    results = check(["cfa"], setting)
    assert results["cfa"][THEIRS] == {"reason": "anomalib's cfa failed: RuntimeError: too large"}
    text = (tmp_path / script.PAGE).read_text()
    assert "| cfa | `cfa` | 7 steps of 4 images | 0.5000 | – | – | 4 | – |" in text
    assert "- cfa, anomalib: anomalib's cfa failed: RuntimeError: too large" in text
    assert jobs[0]["steps"] == 7


def test_the_epochs_of_draem_are_in_the_table(root: Path, tmp_path: Path) -> None:
    setting = prepare("carpet", root, tmp_path, Schedule(0, 16))
    normals = len(setting.split.train)
    assert setting.steps(setting.config("draem")) == 2 * normals  # 16 epochs in steps of 8 images
    assert f"{2 * normals} steps of 8 images (16 epochs)" in script.page({"draem": {}}, setting)
    assert setting.key("draem", OURS) != prepare("carpet", root, tmp_path, Schedule(0, 8)).key("draem", OURS)


def test_every_recipe_is_one_that_our_side_takes(root: Path, tmp_path: Path) -> None:
    setting = prepare("carpet", root, tmp_path, Schedule(3, 1))
    for system, entry in SYSTEMS.items():
        assert override(setting.config(system), []).method == entry.method
