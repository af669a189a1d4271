"""Training loops over small random features, for several tests."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import safetensors
import torch
from torch import Tensor, nn

from bgad.config import Config, from_dict
from bgad.features.cache import AnomalyFeatures, Budget, Features, FeatureStore
from bgad.methods.checkpoint import CHECKPOINT, TRAINING_LOG, LogRow
from bgad.model.scoring import LevelModel
from bgad.training.loop import LoopData, TrainingLoop
from bgad.training.objective import REFRESH_STEPS
from bgad.training.shared_phases import SharedPhase
from bgad.types import FloatArray, RunControl, StopRequest

GRIDS, CHANNELS = [(4, 4), (2, 2)], [6, 8]
DEFECT = [[5, 6], [3]]  # positions that show the defect, per level
ELSEWHERE = [[0, 10], [0]]
EVERYWHERE = [list(range(16)), list(range(4))]
Rows = list[dict[str, str]]


class Stub(nn.Module):
    """A backbone that is never run: the features are made here."""

    channels, strides = CHANNELS, [4, 8]

    def grids(self, size: int) -> list[tuple[int, int]]:
        return GRIDS


def config(method: str = "bgad-plus", **values: Any) -> Config:
    """A recipe for two levels; of a method of the paper it has the objective alone, so it is not checked."""
    base = from_dict(
        {
            "backbone": {"strides": [4, 8], "image_head_strides": [], "size": 32},
            "flow": {"blocks": 4, "hidden_ratio": 0.5, "clamp": 1.9, "standardise": True},
            "loss": {
                "likelihood": "logsigmoid", "boundary": "set", "beta": 0.01, "tau": 0.1,
                "push_pull_weight": 1.0, "asymmetric_weights": True, "max_abnormal_weight": 20.0, "exclude_far": True,
                "instance_share": 0.125,
            },
            "pseudo": {"share": 0.25},
            "train": {
                "steps": 80, "push_steps": 80, "images_per_step": 16, "positions_per_image": [8, 4],
                "lr": 1e-2, "push_lr": 1e-2, "warmup": 0.1, "clip_norm": 1.0,
            },
        }
    )  # fmt: skip
    return replace(from_dict(values, base), method=method)


SHORT = {"steps": 6, "push_steps": 2 * REFRESH_STEPS + 6}

BRIEF = {"steps": 4, "push_steps": 6}


def store(count: int, seed: int, centre: float | None = None) -> FeatureStore:
    """Features of normals; with a centre, those at DEFECT are a small cluster there."""
    made = FeatureStore(count, GRIDS, CHANNELS, budget=Budget(1e9), folder=Path())
    rng = np.random.default_rng(seed)
    for level, defect in zip(made.levels, DEFECT, strict=True):
        level[:] = rng.normal(size=level.shape)
        if centre is not None:
            level[:, defect] = centre + 0.15 * rng.normal(size=(count, len(defect), level.shape[2]))
    return made


def known(cells: list[list[int]], marked: bool = True, centre: float = 1.0, seed: int = 2) -> AnomalyFeatures:
    return AnomalyFeatures(store(6, seed, centre), [[np.array(c)] * 6 for c in cells], [marked] * 6)


def make(
    work: Path,
    anomalies: list[AnomalyFeatures] | None = None,
    *,
    data: dict[str, Any] | None = None,
    shared_phases: dict[int, SharedPhase] | None = None,
    **values: Any,
) -> TrainingLoop:
    """A loop over 60 normals; `data` replaces fields of its features, `values` parts of the recipe."""
    stub: Any = Stub()
    fields: dict[str, Any] = {
        "normals": store(60, seed=1),
        "anomalies": [known(DEFECT)] if anomalies is None else anomalies,
    }
    return TrainingLoop(
        LevelModel(config(**values), stub),
        LoopData(**fields | (data or {})),
        work,
        torch.device("cpu"),
        shared_phases=shared_phases,
    )


def run(loop: TrainingLoop) -> None:
    """Run what is left of both phases."""
    for number in (1, 2):
        for _ in loop.phase(number):
            pass


def log_p(model: LevelModel, rows: npt.NDArray[np.float16], level: int) -> FloatArray:
    with torch.inference_mode():
        found: FloatArray = model.levels[level](torch.from_numpy(rows.astype(np.float32))).numpy()
    return found


def gaps(trained: TrainingLoop, centre: float = 1.0) -> list[float]:
    """How much less likely unseen defects are than unseen normals, mean log p / d, per level."""
    normal, bad = store(20, seed=8), store(20, seed=9, centre=centre)
    return [
        float(
            log_p(trained.model, normal.levels[i], i).mean() - log_p(trained.model, bad.levels[i], i)[:, cells].mean()
        )
        for i, cells in enumerate(DEFECT)
    ]


def state(trained: TrainingLoop) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in trained.model.levels.state_dict().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def log_rows(work: Path) -> Rows:
    with (work / TRAINING_LOG).open(newline="") as file:
        return list(csv.DictReader(file))


def watch_rows(made: TrainingLoop, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Features, int, Any, Any]]:
    """Source, level, images and positions of all features that its steps take from now on."""
    rows, taken = made._rows, []

    def watched(source: Features, level: int, image: Any, position: Any) -> Tensor:
        taken.append((source, level, image, position))
        return rows(source, level, image, position)

    monkeypatch.setattr(made, "_rows", watched)
    return taken


def interrupted(loop: TrainingLoop, at: int) -> None:
    """Run the loop with a request to stop during step `at`."""
    stop = StopRequest()
    loop.control = RunControl(stop=stop)
    run_step = loop.run_step

    def step(number: int) -> LogRow:
        if number == at:
            assert stop.honoured
            stop.request()
        return run_step(number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "run_step", step)
        with pytest.raises(KeyboardInterrupt):
            run(loop)
    assert not stop.honoured


def saved_step(work: Path) -> int:
    if not (work / CHECKPOINT).exists():
        return 0
    with safetensors.safe_open(work / CHECKPOINT, framework="np") as file:
        return int(json.loads(file.metadata()["note"])["step"])


DRIVER = """
import sys, time
from bgad.cli.main import main
from bgad.methods import checkpoint
from bgad.training.loop import TrainingLoop

checkpoint.CHECKPOINT_SECONDS = 0.05
run_step = TrainingLoop.run_step
wait_at = int(sys.argv.pop(1))

def slow(self, step):
    time.sleep(60 if step == wait_at else 0.03)
    return run_step(self, step)

TrainingLoop.run_step = slow
sys.exit(main(sys.argv[1:]))
"""
