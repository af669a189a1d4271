"""Steps, phases and learning rates, and early stopping on validation normals."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bgad.config import TrainConfig
from bgad.features.cache import AnomalyFeatures, Features
from bgad.methods.checkpoint import LogRow
from bgad.training.loop import TrainingLoop
from bgad.training.schedule import EarlyStopping, Schedule
from tests.training.loops import (
    interrupted,
    log_p,
    log_rows,
    make,
    run,
    same,
    state,
    store,
)

BASE = TrainConfig(
    steps=100,
    push_steps=50,
    epochs=0,
    push_start=0.04,
    images_per_step=32,
    positions_per_image=(128, 32, 8),
    lr=1.0,
    push_lr=0.5,
    warmup=0.1,
    clip_norm=0.0,
)


def plan(images: int = 100, positions: int = 4096, **values: Any) -> Schedule:
    return Schedule.plan(replace(BASE, **values), images, positions)


def test_steps_and_phases() -> None:
    both = plan()
    assert (both.steps, both.push_at) == (150, 100)
    assert plan(push_steps=0).push_at == 100


def test_epochs_show_every_feature_once() -> None:
    # 100 images by 32: 4 steps; 4096 positions by 128: 32 steps; 128 steps an epoch
    schedule = plan(epochs=2)
    assert (schedule.steps, schedule.push_at) == (256, 10)  # 0.04 x 256 = 10.24
    assert plan(1, 1, epochs=1).push_at == 1  # phase 1 is never empty


def test_learning_rate_of_two_phases_by_hand() -> None:
    lr = plan().lr
    assert lr(0) == pytest.approx(0.1)
    assert lr(5) == pytest.approx(0.55)  # half of the warm-up from 0.1 to 1
    assert lr(10) == pytest.approx(1.0)
    assert lr(55) == pytest.approx(0.001 + 0.999 * 0.5)  # half of the cosine
    assert lr(85) == pytest.approx(0.001 + 0.999 * 0.5 * (1 + math.cos(math.pi * 75 / 90)))
    assert lr(100) == pytest.approx(0.05)  # phase 2 warms up again, to its own peak
    assert lr(105) == pytest.approx(0.5)
    assert lr(149) == pytest.approx(0.5 * (0.001 + 0.999 * 0.5 * (1 + math.cos(math.pi * 44 / 45))))
    assert all(lr(step) > lr(step + 1) for step in [*range(10, 99), *range(105, 149)])


def test_learning_rate_of_one_schedule() -> None:
    lr = plan(push_lr=0.0).lr
    assert lr(15) == pytest.approx(1.0)  # a tenth of all 150 steps
    assert all(lr(step) > lr(step + 1) for step in range(15, 149))


def overfitting(
    work: Path,
    *,
    best: bool,
    validation: Features,
    anomalies: list[AnomalyFeatures] | None = None,
    **values: Any,
) -> TrainingLoop:
    """Few normals and many steps: the flows learn them by heart."""
    train = {"steps": 200, "push_steps": 0, "images_per_step": 4, "lr": 1e-2, "restore_best": best, **values}
    return make(work, anomalies, data={"normals": store(4, seed=3), "validation": validation}, train=train)


def held_out_loss(made: TrainingLoop, i: int, validation: Features) -> float:
    values = torch.from_numpy(log_p(made.model, validation.levels[i], i))
    return float(-torch.nn.functional.logsigmoid(values).mean())


def test_a_level_goes_back_to_where_new_normals_were_most_likely(tmp_path: Path) -> None:
    validation = store(20, seed=4)
    made = {}
    for best in (True, False):
        folder = tmp_path / str(best)
        folder.mkdir()
        made[best] = overfitting(folder, best=best, validation=validation)
        run(made[best])
    losses = {best: [held_out_loss(loop, i, validation) for i in range(2)] for best, loop in made.items()}
    assert losses[True][1] < losses[False][1] - 0.05
    assert all(kept <= last + 1e-6 for kept, last in zip(losses[True], losses[False], strict=True))
    assert [b.weights for b in made[True].early_stopping.best] == [{}] * 2  # nothing is carried into the next phase


def test_a_killed_run_goes_back_to_the_same_state(tmp_path: Path) -> None:
    validation = store(20, seed=4)

    def fresh(name: str) -> TrainingLoop:
        (tmp_path / name).mkdir(exist_ok=True)
        return overfitting(tmp_path / name, best=True, validation=validation)

    whole = fresh("whole")
    run(whole)
    interrupted(fresh("piece"), 170)  # the best state is older than that
    last = fresh("piece")
    assert last.restore()
    assert last.early_stopping.best[-1].weights
    run(last)
    assert same(state(last), state(whole))


@pytest.mark.parametrize("pushed", [True, False])
def test_a_phase_that_pushes_is_not_judged_by_normals(tmp_path: Path, pushed: bool) -> None:
    anomalies: list[AnomalyFeatures] | None = None if pushed else []
    made = overfitting(tmp_path, best=True, validation=store(20, seed=4), steps=100, push_steps=60, anomalies=anomalies)
    held: dict[int, bool] = {}
    for number in (1, 2):
        for _ in made.phase(number):
            held[made.step] = bool(made.early_stopping.best[-1].weights)
    assert held[50] is True
    assert held[100] is False  # the phase has gone back and begins afresh
    assert held[101] is not pushed
    assert held[155] is not pushed
    assert held[160] is False


def test_a_level_stops_when_its_validation_loss_stays_higher(tmp_path: Path) -> None:
    validation = store(20, seed=4)
    made, steps = {}, {}
    for patience in (0, 50):
        folder = tmp_path / str(patience)
        folder.mkdir()
        made[patience] = overfitting(folder, best=True, validation=validation, steps=400, patience=patience)
        learnt = steps[patience] = [0, 0]
        before = made[patience]._level_step

        def counted(
            i: int, *rest: Any, loop: TrainingLoop = made[patience], learnt: list[int] = learnt, before: Any = before
        ) -> LogRow:
            learnt[i] += not loop.early_stopping.stopped[i]
            row: LogRow = before(i, *rest)
            return row

        made[patience]._level_step = counted  # type: ignore[method-assign, assignment]
        run(made[patience])
        assert made[patience].step == 400
        assert made[patience].log.count() == len(log_rows(folder)) == max(learnt)
        assert made[patience].early_stopping.stopped == [False, False]
    assert steps[0] == [400, 400]
    assert min(steps[50]) < 300
    assert max(steps[50]) <= 400
    # both have learnt more than enough, so that both go back to the same state
    stopped_state, other_state = (state(made[patience]) for patience in (50, 0))
    stopped = [i for i in range(2) if steps[50][i] < 400]
    for i in stopped:
        for key, value in stopped_state.items():
            if key.startswith(f"{i}.flow"):
                assert torch.equal(value, other_state[key])


def test_a_run_killed_while_a_level_is_stopped_goes_on_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    validation = store(20, seed=4)
    monkeypatch.setattr("bgad.training.loop.CHECK_STEPS", 5)
    check = EarlyStopping.check

    def stopping(self: EarlyStopping, step: int, *, phase_ends: bool) -> None:
        check(self, step, phase_ends=phase_ends)
        if step == 25:
            self.stopped[1] = True

    monkeypatch.setattr(EarlyStopping, "check", stopping)

    def fresh(name: str) -> TrainingLoop:
        (tmp_path / name).mkdir(exist_ok=True)
        return overfitting(tmp_path / name, best=True, validation=validation, steps=60, patience=1000)

    whole = fresh("whole")
    before = state(whole)
    run(whole)
    assert not same(state(whole), before)
    interrupted(fresh("piece"), 40)
    last = fresh("piece")
    assert last.restore()
    assert last.early_stopping.stopped == [False, True]
    run(last)
    assert same(state(last), state(whole))
