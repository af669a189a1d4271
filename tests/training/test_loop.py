"""The training loop: it learns, its steps are balanced, and its log is complete."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bgad.config import METHODS
from bgad.errors import ModelError
from bgad.features.cache import Features
from bgad.methods.checkpoint import TRAINING_LOG
from bgad.training import loop as loop_module
from bgad.training.loop import TrainingLoop
from bgad.training.objective import objective, sample_anomalies
from tests.training.loops import (
    BRIEF,
    DEFECT,
    ELSEWHERE,
    SHORT,
    gaps,
    known,
    log_p,
    log_rows,
    make,
    run,
    same,
    state,
    store,
    watch_rows,
)


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> TrainingLoop:
    made = make(tmp_path_factory.mktemp("learnt"))
    run(made)
    return made


def test_training_moves_every_weight_and_learns_the_normals(learnt: TrainingLoop, tmp_path: Path) -> None:
    before = dict(make(tmp_path).model.levels.named_parameters())
    for name, after in learnt.model.levels.named_parameters():
        assert not torch.equal(after, before[name]), name
    rows = log_rows(learnt.work)
    likelihood = [float(row["likelihood"]) for row in rows[:80]]
    assert np.mean(likelihood[-10:]) < np.mean(likelihood[:10]) - 0.005


def test_known_anomalies_become_unlikely_and_only_with_them(learnt: TrainingLoop, tmp_path: Path) -> None:
    """The defects lie where normals do: likelihood alone cannot see them, the boundary-guided push can."""
    plain = make(tmp_path, method="nfad-plus")
    run(plain)
    for level in range(2):
        assert gaps(learnt)[level] > 1.5
        assert abs(gaps(plain)[level]) < 0.3


def test_wrong_labels_are_noticed(tmp_path: Path) -> None:
    """With masks that point at normal positions the separation is lost: it was the labels that gave it."""
    wrong = make(tmp_path, [known(ELSEWHERE)])
    run(wrong)
    assert max(gaps(wrong)) < 0.3


def test_the_boundary_parts_unseen_normals_and_defects(learnt: TrainingLoop) -> None:
    normal, bad = store(20, seed=8), store(20, seed=9, centre=1.0)
    for i, constants in enumerate(learnt.set_constants()):
        assert np.mean(log_p(learnt.model, normal.levels[i], i) < constants.boundary) < 0.15
        assert np.mean(log_p(learnt.model, bad.levels[i], i)[:, DEFECT[i]] < constants.boundary) > 0.9


def test_same_seed_same_bits(tmp_path: Path) -> None:
    first, second, other = (
        make(tmp_path / name, train=SHORT, seed=seed) for name, seed in (("a", 3), ("b", 3), ("c", 4))
    )
    for made in (first, second, other):
        made.work.mkdir()
        run(made)
    assert same(state(first), state(second))
    assert not same(state(first), state(other))
    assert (first.work / TRAINING_LOG).read_bytes() == (second.work / TRAINING_LOG).read_bytes()


@pytest.mark.parametrize(("push_lr", "steps"), [(1e-2, 3), (0.0, 7)])
def test_phase_two_with_its_own_schedule_begins_with_a_fresh_optimiser(
    tmp_path: Path, push_lr: float, steps: int
) -> None:
    made = make(tmp_path, train={"steps": 4, "push_steps": 3, "push_lr": push_lr})
    run(made)
    for optimiser in made.optimisers:
        assert {int(state["step"]) for state in optimiser.state_dict()["state"].values()} == {steps}


def test_log_tells_the_phases_apart(learnt: TrainingLoop) -> None:
    rows = log_rows(learnt.work)
    assert [int(row["step"]) for row in rows] == list(range(160))
    assert all(math.isnan(float(row["boundary0"])) for row in rows[:80])
    assert all(math.isfinite(float(row[f"boundary{i}"])) for row in rows[80:] for i in range(2))
    assert {float(row["push"]) for row in rows[:80]} == {0.0}
    assert max(float(row["push"]) for row in rows[80:]) > 0
    assert float(rows[8]["lr"]) == pytest.approx(1e-2)


def watch_draws(monkeypatch: pytest.MonkeyPatch) -> tuple[dict[tuple[int, int], int], list[tuple[int, int]]]:
    """Number of anomalous features drawn, by group and level, and sizes of the normal and anomalous side of a loss."""
    draws: dict[tuple[int, int], int] = {}
    sides: list[tuple[int, int]] = []
    sample, loss = sample_anomalies, objective

    def sampled(groups: Any, level: int, *rest: Any) -> Any:
        drawn = sample(groups, level, *rest)
        draws.update({(id(group.features), level): len(image) for group, image, _ in drawn})
        return drawn

    def counted(kind: str, config: Any, normal: Tensor, abnormal: Tensor | None, b_n: float | None) -> Any:
        sides.append((normal.numel(), 0 if abnormal is None else abnormal.numel()))
        return loss(kind, config, normal, abnormal, b_n)

    monkeypatch.setattr(loop_module, "sample_anomalies", sampled)
    monkeypatch.setattr(loop_module, "objective", counted)
    return draws, sides


def test_a_step_is_balanced_two_to_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as many normal as anomalous features; of these, the pseudo ones have their share."""
    real, pseudo = known(DEFECT), replace(known(DEFECT, seed=3), pseudo=True)
    made = make(tmp_path, [real, pseudo])
    draws, sides = watch_draws(monkeypatch)
    made.run_step(0)
    assert draws == {}  # phase 1: normals alone
    assert sorted(sides) == [(64, 0), (128, 0)]
    sides.clear()
    made.run_step(made.schedule.push_at)
    assert sorted(sides) == [(64, 32), (128, 64)]
    assert draws == {
        (id(real.features), 0): 48, (id(pseudo.features), 0): 16,
        (id(real.features), 1): 24, (id(pseudo.features), 1): 8,
    }  # fmt: skip


@pytest.mark.parametrize("pseudo", [False, True])
def test_one_kind_of_anomalies_fills_the_step_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pseudo: bool
) -> None:
    """Whatever the share: without known anomalies all come from the pseudo ones, and the other way round."""
    group = replace(known(DEFECT), pseudo=pseudo)
    made = make(tmp_path, [group])
    draws, _ = watch_draws(monkeypatch)
    made.run_step(made.schedule.push_at)
    assert draws == {(id(group.features), 0): 64, (id(group.features), 1): 32}


def test_a_feature_drawn_twice_is_computed_once_and_counts_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, pseudo = known(DEFECT), replace(known(DEFECT, seed=3), pseudo=True)
    made = make(tmp_path, [real, pseudo])
    drawn: list[Any] = []

    def sampled(*given: Any) -> Any:
        drawn.append(sample_anomalies(*given))
        return drawn[-1]

    monkeypatch.setattr(loop_module, "sample_anomalies", sampled)
    computed = watch_rows(made, monkeypatch)
    log_p = made._abnormal_log_p(0, 64, np.random.default_rng(0))
    assert log_p is not None
    rows = [group.features.rows(0, image, position) for group, image, position in drawn[0]]
    positions = np.concatenate([position for *_, position in drawn[0]])
    expected = made.levels[0](torch.from_numpy(np.concatenate(rows))[None], torch.from_numpy(positions))
    torch.testing.assert_close(log_p, expected, rtol=1e-5, atol=1e-5)
    assert log_p.shape == (1, 64)
    assert sum(len(position) for *_, position in computed) <= 24  # 2 groups of 6 images with 2 cells each


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if not method.uses_anomalies])
def test_methods_without_anomalies_never_look_at_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    made = make(tmp_path, method=method, train=SHORT)
    rows, sources = made._rows, set()

    def watched(source: Features, *rest: Any) -> Tensor:
        sources.add(id(source))
        return rows(source, *rest)

    monkeypatch.setattr(made, "_rows", watched)
    run(made)
    assert sources == {id(made.data.normals)}
    assert {float(row["push"]) for row in log_rows(tmp_path)} == {0.0}


def test_constants_are_those_of_the_normals(learnt: TrainingLoop) -> None:
    for i, found in enumerate(learnt.set_constants()):
        exact = log_p(learnt.model, learnt.data.normals.levels[i], i).astype(np.float64)
        assert found.centre == pytest.approx(exact.mean(), rel=1e-5)
        assert found.spread == pytest.approx(exact.std(), rel=1e-4)
        assert found.highest == pytest.approx(exact.max(), rel=1e-5)
        assert found.boundary == pytest.approx(np.quantile(exact, 0.01), rel=1e-4)


def test_features_are_standardised_unless_told_otherwise(tmp_path: Path) -> None:
    for _ in range(2):  # a file of another run in the folder changes nothing
        made = make(tmp_path, train=BRIEF)
        run(made)
        mean, std = made.data.normals.moments(0)
        assert np.array_equal(made.levels[0].mean.numpy(), mean)
        assert np.array_equal(made.levels[0].std.numpy(), std)
    plain = make(tmp_path, train=BRIEF, flow={"standardise": False})
    run(plain)
    assert set(plain.levels[0].std.tolist()) == {1.0}


def test_positions_far_from_the_region_are_not_learnt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[set[int]] = [set(), set()]
    rows = TrainingLoop._rows

    def watched(self: TrainingLoop, kept: Features, level: int, image: Any, position: Any) -> Tensor:
        if kept is self.data.normals:
            drawn[level] |= set(position.tolist())
        return rows(self, kept, level, image, position)

    monkeypatch.setattr(TrainingLoop, "_rows", watched)
    trained = [np.array([4, 5, 6, 8, 9]), np.array([2, 3])]
    inside = [np.array([5, 6]), np.array([3])]
    run(make(tmp_path, train=BRIEF, data={"roi_positions": inside, "trained_positions": trained}))
    assert drawn == [set(positions.tolist()) for positions in trained]


def test_a_run_that_diverges_says_so(tmp_path: Path) -> None:
    made = make(tmp_path)
    made.data.normals.levels[1][:] = np.nan
    with pytest.raises(ModelError, match=r"diverged at step 0: lower train\.lr"):
        run(made)
