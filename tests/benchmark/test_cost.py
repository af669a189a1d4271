from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bgad.benchmark import cost, runner
from bgad.benchmark.cost import FitMemory, fit_memory, model_cost
from bgad.cli.main import main
from bgad.config import Config
from bgad.data import layouts
from bgad.data.sample_io import ImageCache
from bgad.data.split import Split
from bgad.inference.base import Outputs
from bgad.inference.torch_engine import Detector
from bgad.model.scoring import weight_files
from bgad.training.feature_pool import FeaturePool
from bgad.training.fit_model import TrainingRun
from bgad.training.pipeline import new_fit
from bgad.training.training_set import TrainingSet
from bgad.types import FloatArray
from tests.benchmark.runs import TINY, fast, results

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak of a part of a process")


@linux
def test_the_memory_of_a_fit_is_what_it_held_at_its_peak() -> None:
    before = np.ones(40_000_000)  # 320 MB that the fit does not take
    with fit_memory() as measured:
        block = np.ones(10_000_000)  # 80 MB, freed before the end
        del block
    assert measured.megabytes is not None
    assert 75 < measured.megabytes < 120
    del before
    with fit_memory() as measured:
        pass
    assert measured.megabytes is not None
    assert measured.megabytes < 10


def test_a_system_that_does_not_tell_its_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cost, "_CLEAR", tmp_path / "missing/clear_refs")
    with fit_memory() as measured:
        pass
    assert measured.megabytes is None


def test_time_of_an_image_is_the_median_of_single_images(
    model: Path, data_set: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    detector = Detector.load(model, "cpu")
    batches: list[int] = []
    clock = [0.0]
    run = detector.run

    def counted(pixels: FloatArray) -> Outputs:
        batches.append(len(pixels))
        clock[0] += (9.0, 1.0, 5.0, 2.0, 3.0, 100.0)[len(batches) - 1]  # the first only warms up
        return run(pixels)

    monkeypatch.setattr(detector, "run", counted)
    monkeypatch.setattr("bgad.benchmark.cost.time.perf_counter", lambda: clock[0])
    samples = layouts.load(data_set).samples
    images = ImageCache(detector.card.config.backbone.size)
    found = model_cost(detector, samples, [(64, 64)] * len(samples), images, FitMemory(12.5))
    assert batches == [1] * 6
    assert (found["image_ms"], found["fit_mb"]) == (3000.0, 12.5)
    stored = sum(map(len, weight_files(detector.model).values()))
    assert found["model_mb"] == pytest.approx(stored / 1e6, rel=0.02)  # the files have a head, too


def test_features_and_pseudo_anomalies_are_not_in_the_time_of_the_fit(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Methods share them, so that the first method would pay for all."""
    built: list[float] = []
    began: list[float] = []
    training_set = FeaturePool.training_set

    def slow(pool: FeaturePool, split: Split, config: Config) -> TrainingSet:
        time.sleep(0.2)
        made = training_set(pool, split, config)
        built.append(time.monotonic())
        return made

    def recorded(job: TrainingRun, *rest: Any, **options: Any) -> Any:
        began.append(job.started)
        return new_fit(job, *rest, **options)

    monkeypatch.setattr(FeaturePool, "training_set", slow)
    monkeypatch.setattr(runner, "new_fit", recorded)
    outcomes = fast(tmp_path, root, "bgad-plus")
    assert outcomes
    assert all(end <= start for end, start in zip(built, began, strict=True))
    assert all(outcome.cell["seconds"]["features"] > 0.2 for outcome in outcomes if outcome.cell)


@linux
def test_cells_tell_their_costs(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--data", "mvtec", "--category", "carpet", "--known", "2", "--seeds", "1", "--root", str(root)]
    assert main(["benchmark", *options, "--out", str(tmp_path), *TINY]) == 0
    for cell in results(tmp_path)["cells"]:
        assert all(cell["cost"][key] > 0 for key in ("image_ms", "model_mb", "fit_mb"))
    shown = [capsys.readouterr().out, *((tmp_path / name).read_text() for name in ("table.md", "benchmark.html"))]
    for text in shown:
        for head in ("fit, s", "ms per image", "model, MB", "memory of the fit, MB"):
            assert head in text
    assert "bgad-plus: image_ms" in (tmp_path / "table.csv").read_text()


@linux
def test_a_cell_that_takes_over_trained_flows_does_not_tell_the_memory_of_the_fit(root: Path, tmp_path: Path) -> None:
    outcomes = fast(tmp_path, root, "nfad")
    memory = [outcome.cell["cost"]["fit_mb"] for outcome in outcomes if outcome.cell]
    assert [value is None for value in memory] == [False, True, True]
