from __future__ import annotations

import csv
import json
import math
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import safetensors
import torch
from torch import Tensor, nn

from bgad.cli.main import main
from bgad.config import Config, from_dict, to_toml
from bgad.errors import ModelError
from bgad.features.cache import Budget, Features, FeatureStore
from bgad.model.scoring import ScoringModel
from bgad.training import loop as trainer
from bgad.training.loop import CHECKPOINT, FULL_PUSH_SHARE, INSTANCE_REFRESH, LOG, Anomalies, PhaseOne, Trainer
from bgad.types import FloatArray
from tests.conftest import tiny_config

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


def config(**values: Any) -> Config:
    base = from_dict(
        {
            "backbone": {"strides": [4, 8], "image_head_strides": [], "size": 32},
            "flow": {"blocks": 4, "hidden_ratio": 0.5, "clamp": 1.9, "standardise": True},
            "loss": {
                "method": "bgad", "likelihood": "logsigmoid", "boundary": "set", "beta": 0.01, "tau": 0.1,
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
    return from_dict(values, base)


SHORT = {"steps": 6, "push_steps": 2 * INSTANCE_REFRESH + 6}


def store(count: int, seed: int, centre: float | None = None) -> FeatureStore:
    """Features of normals; with a centre, those at DEFECT are a small cluster there."""
    made = FeatureStore(count, GRIDS, CHANNELS, budget=Budget(1e9), folder=Path())
    rng = np.random.default_rng(seed)
    for level, defect in zip(made.levels, DEFECT, strict=True):
        level[:] = rng.normal(size=level.shape)
        if centre is not None:
            level[:, defect] = centre + 0.15 * rng.normal(size=(count, len(defect), level.shape[2]))
    return made


def known(cells: list[list[int]], marked: bool = True, centre: float = 1.0, seed: int = 2) -> Anomalies:
    return Anomalies(store(6, seed, centre), [[np.array(c)] * 6 for c in cells], [marked] * 6)


def make(work: Path, anomalies: list[Anomalies] | None = None, key: str = "run", **values: Any) -> Trainer:
    chosen = config(**values)
    stub: Any = Stub()
    return Trainer(
        ScoringModel(chosen, stub),
        store(60, seed=1),
        [known(DEFECT)] if anomalies is None else anomalies,
        work=work,
        device=torch.device("cpu"),
        run_key=key,
    )


def log_p(model: ScoringModel, rows: npt.NDArray[np.float16], level: int) -> FloatArray:
    with torch.inference_mode():
        found: FloatArray = model.levels[level](torch.from_numpy(rows.astype(np.float32))).numpy()
    return found


def gaps(trained: Trainer, centre: float = 1.0) -> list[float]:
    """How much less likely unseen defects are than unseen normals, mean log p / d, per level."""
    normal, bad = store(20, seed=8), store(20, seed=9, centre=centre)
    return [
        float(
            log_p(trained.model, normal.levels[i], i).mean() - log_p(trained.model, bad.levels[i], i)[:, cells].mean()
        )
        for i, cells in enumerate(DEFECT)
    ]


def state(trained: Trainer) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in trained.model.levels.state_dict().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def log_rows(work: Path) -> Rows:
    with (work / LOG).open(newline="") as file:
        return list(csv.DictReader(file))


# --- learning


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    made = make(tmp_path_factory.mktemp("learnt"))
    made.run()
    return made


def test_training_moves_every_weight_and_learns_the_normals(learnt: Trainer, tmp_path: Path) -> None:
    before = dict(make(tmp_path).model.levels.named_parameters())
    for name, after in learnt.model.levels.named_parameters():
        assert not torch.equal(after, before[name]), name
    rows = log_rows(learnt.work)
    likelihood = [float(row["likelihood"]) for row in rows[:80]]
    assert np.mean(likelihood[-10:]) < np.mean(likelihood[:10]) - 0.005


def test_known_anomalies_become_unlikely_and_only_with_them(learnt: Trainer, tmp_path: Path) -> None:
    """The defects lie where normals do: likelihood alone cannot see them, the boundary-guided push can."""
    plain = make(tmp_path, loss={"method": "nfad"})
    plain.run()
    for level in range(2):
        assert gaps(learnt)[level] > 1.5
        assert abs(gaps(plain)[level]) < 0.3


def test_wrong_labels_are_noticed(tmp_path: Path) -> None:
    """With masks that point at normal positions the separation is lost: it was the labels that gave it."""
    wrong = make(tmp_path, [known(ELSEWHERE)])
    wrong.run()
    assert max(gaps(wrong)) < 0.3


def test_the_boundary_parts_unseen_normals_and_defects(learnt: Trainer) -> None:
    normal, bad = store(20, seed=8), store(20, seed=9, centre=1.0)
    for i, constants in enumerate(learnt.constants()):
        assert np.mean(log_p(learnt.model, normal.levels[i], i) < constants.boundary) < 0.15
        assert np.mean(log_p(learnt.model, bad.levels[i], i)[:, DEFECT[i]] < constants.boundary) > 0.9


def test_same_seed_same_bits(tmp_path: Path) -> None:
    first, second, other = (
        make(tmp_path / name, train=SHORT, seed=seed) for name, seed in (("a", 3), ("b", 3), ("c", 4))
    )
    for made in (first, second, other):
        made.work.mkdir()
        made.run()
    assert same(state(first), state(second))
    assert not same(state(first), state(other))
    assert (first.work / LOG).read_bytes() == (second.work / LOG).read_bytes()


@pytest.mark.parametrize(("push_lr", "steps"), [(1e-2, 3), (0.0, 7)])
def test_phase_two_with_its_own_schedule_begins_with_a_fresh_optimiser(
    tmp_path: Path, push_lr: float, steps: int
) -> None:
    made = make(tmp_path, train={"steps": 4, "push_steps": 3, "push_lr": push_lr})
    made.run()
    for optimiser in made.optimisers:
        assert {int(state["step"]) for state in optimiser.state_dict()["state"].values()} == {steps}


def test_log_tells_the_phases_apart(learnt: Trainer) -> None:
    rows = log_rows(learnt.work)
    assert [int(row["step"]) for row in rows] == list(range(160))
    assert all(math.isnan(float(row["boundary0"])) for row in rows[:80])
    assert all(math.isfinite(float(row[f"boundary{i}"])) for row in rows[80:] for i in range(2))
    assert {float(row["push"]) for row in rows[:80]} == {0.0}
    assert max(float(row["push"]) for row in rows[80:]) > 0
    assert float(rows[8]["lr"]) == pytest.approx(1e-2)


def test_a_step_is_balanced_two_to_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as many normal as anomalous features; of these, the pseudo ones have their share."""
    real, pseudo = known(DEFECT), replace(known(DEFECT, seed=3), pseudo=True)
    made = make(tmp_path, [real, pseudo])
    taken: dict[tuple[int, int], int] = {}
    rows = made._rows

    def counted(source: Features, level: int, image: Any, position: Any) -> Tensor:
        found = rows(source, level, image, position)
        taken[id(source), level] = taken.get((id(source), level), 0) + found.numel() // CHANNELS[level]
        return found

    monkeypatch.setattr(made, "_rows", counted)
    made._one_step(0)
    assert taken == {(id(made.normals), 0): 128, (id(made.normals), 1): 64}  # phase 1: normals alone
    taken.clear()
    made._one_step(made.schedule.push_at)
    assert taken == {
        (id(made.normals), 0): 128, (id(real.store), 0): 48, (id(pseudo.store), 0): 16,
        (id(made.normals), 1): 64, (id(real.store), 1): 24, (id(pseudo.store), 1): 8,
    }  # fmt: skip


@pytest.mark.parametrize("pseudo", [False, True])
def test_one_kind_of_anomalies_fills_the_step_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pseudo: bool
) -> None:
    """Whatever the share: without known anomalies all come from the pseudo ones, and the other way round."""
    group = replace(known(DEFECT), pseudo=pseudo)
    made = make(tmp_path, [group])
    rows, taken = made._rows, [0, 0]

    def counted(source: FeatureStore, level: int, image: Any, position: Any) -> Tensor:
        if source is group.store:
            taken[level] += len(position)
        return rows(source, level, image, position)

    monkeypatch.setattr(made, "_rows", counted)
    made._one_step(made.schedule.push_at)
    assert taken == [64, 32]


@pytest.mark.parametrize("method", ["nfad", "bgad-wo"])
def test_methods_without_anomalies_never_look_at_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    made = make(tmp_path, loss={"method": method}, train=SHORT)
    rows, sources = made._rows, set()

    def watched(source: Features, *rest: Any) -> Tensor:
        sources.add(id(source))
        return rows(source, *rest)

    monkeypatch.setattr(made, "_rows", watched)
    made.run()
    assert sources == {id(made.normals)}
    assert {float(row["push"]) for row in log_rows(tmp_path)} == {0.0}


# --- anomalies without masks


def test_without_a_mask_the_least_likely_positions_are_taken(tmp_path: Path) -> None:
    group = known(EVERYWHERE, marked=False, centre=4.0)
    group.marked[2] = True
    for level, cells in zip(group.cells, ELSEWHERE, strict=True):
        level[2] = np.array(cells)
    made = make(tmp_path, [group], loss={"instance_share": 0.125})
    made._choose_instances()
    for i in range(2):
        found = log_p(made.model, group.store.levels[i], i)
        for image in range(6):
            if image == 2:
                assert group.cells[i][image].tolist() == ELSEWHERE[i]  # has a mask: left as it is
            else:
                count = 2 if i == 0 else 1  # an eighth of 16; of 4, at least one
                assert sorted(group.cells[i][image]) == sorted(np.argsort(found[image])[:count])
                assert sorted(group.cells[i][image]) == DEFECT[i]  # the cluster is far away, so it is found


def test_only_those_positions_are_pushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = known(EVERYWHERE, marked=False, centre=4.0)
    made = make(tmp_path, [group], train=SHORT)
    rows = made._rows
    used: dict[int, set[int]] = {0: set(), 1: set()}

    def watched(source: Features, level: int, image: Any, position: Any) -> Tensor:
        if source is group.store:
            used[level] |= set(position.tolist())
        return rows(source, level, image, position)

    monkeypatch.setattr(made, "_rows", watched)
    made._one_step(made.schedule.push_at)
    assert used == {0: {5, 6}, 1: {3}}


def test_bad_images_without_masks_teach_too(tmp_path: Path) -> None:
    marked_by_hand = make(tmp_path / "plain", [known(EVERYWHERE, centre=1.5)], loss={"method": "nfad"})
    without = make(tmp_path / "without", [known(EVERYWHERE, marked=False, centre=1.5)])
    for made in (marked_by_hand, without):
        made.work.mkdir()
        made.run()
    for level in range(2):
        assert gaps(without, 1.5)[level] > gaps(marked_by_hand, 1.5)[level] + 0.7


def watch_rows(made: Trainer, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Features, int, Any, Any]]:
    """Source, level, images and positions of all features that its steps take from now on."""
    rows, taken = made._rows, []

    def watched(source: Features, level: int, image: Any, position: Any) -> Tensor:
        taken.append((source, level, image, position))
        return rows(source, level, image, position)

    monkeypatch.setattr(made, "_rows", watched)
    return taken


def test_without_a_share_unmarked_anomalies_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Phase 2 then runs without a push, and makes the model that it makes of normals alone."""
    trained = {}
    unmarked = known(EVERYWHERE, marked=False)
    for name, groups, method in (("unmarked", [unmarked], "bgad"), ("none", [], "bgad"), ("wo", [], "bgad-wo")):
        (tmp_path / name).mkdir()
        made = make(tmp_path / name, groups, loss={"instance_share": 0.0, "method": method}, train=SHORT)
        taken = watch_rows(made, monkeypatch)
        made.run()
        assert {id(source) for source, *_ in taken} == {id(made.normals)}
        trained[name] = state(made)
        logged = log_rows(made.work)
        assert {float(row["push"]) for row in logged} == {0.0}
        assert all(math.isfinite(float(row["boundary0"])) for row in logged[SHORT["steps"] :])
        assert max(float(row["pull"]) for row in logged[SHORT["steps"] :]) > 0
    assert same(trained["unmarked"], trained["none"])
    assert same(trained["unmarked"], trained["wo"])


@pytest.mark.parametrize(("share", "counts"), [(0.0, [2, 1]), (0.25, [4, 1])])
def test_the_method_without_a_boundary_pushes_a_tenth_of_them(tmp_path: Path, share: float, counts: list[int]) -> None:
    """Unless a share is given; of 4 positions, at least one."""
    group = known(EVERYWHERE, marked=False, centre=4.0)
    made = make(tmp_path, [group], loss={"method": "bgad-full-push", "instance_share": share})
    assert made.instance_share == (share or FULL_PUSH_SHARE)
    row = made._one_step(made.schedule.push_at)
    assert row["push"] > 0
    assert [[len(cells) for cells in level] for level in group.cells] == [[count] * 6 for count in counts]


def test_of_a_mix_only_the_marked_are_pushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = known(EVERYWHERE, marked=False)
    own = {1: [[5, 6], [3]], 4: [[9], [0, 2]]}  # image -> positions of each level
    for image, places in own.items():
        group.marked[image] = True
        for level, place in zip(group.cells, places, strict=True):
            level[image] = np.array(place)
    for share, images in ((0.0, {1, 4}), (0.5, set(range(6)))):
        made = make(tmp_path, [group], loss={"instance_share": share})
        taken = watch_rows(made, monkeypatch)
        made._one_step(made.schedule.push_at)
        for i in range(2):
            ((image_index, position),) = [
                (source.index[chosen], at)
                for source, level_index, chosen, at in taken
                if level_index == i and source is not made.normals
            ]
            used = set(zip(image_index.tolist(), position.tolist(), strict=True))
            assert {image for image, _ in used} == images
            marked = {(image, place) for image, place in used if image in own}
            assert marked == {(image, place) for image, places in own.items() for place in places[i]}


def test_the_marked_alone() -> None:
    group = replace(known(DEFECT), pseudo=True, marked=[False, True, False, True, True, False])
    (chosen,) = group.only_marked()
    assert chosen.pseudo
    assert chosen.marked == [True] * 3
    assert [len(level) for level in chosen.cells] == [3, 3]
    every = np.arange(3)
    assert np.array_equal(chosen.store.rows(1, every), group.store.rows(1, np.array([1, 3, 4])))
    assert known(DEFECT, marked=False).only_marked() == []


# --- phase 1, shared


BRIEF = {"steps": 4, "push_steps": 6}


def test_a_shared_phase_one_makes_the_same_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    one_step = Trainer._one_step

    def counted(self: Trainer, step: int) -> dict[str, float]:
        steps.append(step)
        return one_step(self, step)

    monkeypatch.setattr(Trainer, "_one_step", counted)
    share = PhaseOne(tmp_path / "shared/phase.safetensors", "same")
    alone = {}
    for method in ("nfad", "bgad-wo", "bgad-full-push", "bgad"):
        for name, phase_one in (("alone", None), ("shared", share)):
            (tmp_path / f"{method}-{name}").mkdir()
            made = make(tmp_path / f"{method}-{name}", train=BRIEF, loss={"method": method})
            made = Trainer(
                made.model, made.normals, made.anomalies, work=made.work, device=made.device, run_key="run",
                phase_one=phase_one,
            )  # fmt: skip
            steps.clear()
            made.run()
            assert steps[0] == (BRIEF["steps"] if phase_one and method != "nfad" else 0)
            assert made.seconds > 0
            if phase_one is None:
                alone[method] = state(made), (made.work / LOG).read_bytes()
            else:
                assert same(state(made), alone[method][0])
                assert (made.work / LOG).read_bytes() == alone[method][1]
    assert not same(alone["nfad"][0], alone["bgad"][0])  # they do part in phase 2


def test_phase_one_of_another_run_is_not_used(tmp_path: Path) -> None:
    def run(name: str, key: str, seed: int) -> Trainer:
        (tmp_path / name).mkdir()
        made = make(tmp_path / name, train=BRIEF, seed=seed)
        shared = PhaseOne(tmp_path / "phase.safetensors", key)
        made = Trainer(
            made.model, made.normals, made.anomalies, work=made.work, device=made.device, run_key=name, phase_one=shared
        )
        made.run()
        return made

    first, other = run("first", "a", 3), run("other", "b", 4)
    assert not same(state(first), state(other))
    assert same(state(run("again", "a", 3)), state(first))  # the file was b's: trained anew


def test_interrupted_after_a_shared_phase_one(tmp_path: Path) -> None:
    def fresh(name: str) -> Trainer:
        (tmp_path / name).mkdir(exist_ok=True)
        made = make(tmp_path / name, train=BRIEF)
        made.phase_one = PhaseOne(tmp_path / "phase.safetensors", "same")
        return made

    whole = fresh("whole")
    whole.run()
    piece = fresh("piece")
    interrupted(piece, BRIEF["steps"] + 3)
    last = fresh("piece")
    assert last.restore()
    last.run()
    assert same(state(last), state(whole))
    assert (last.work / LOG).read_bytes() == (whole.work / LOG).read_bytes()


# --- what the model remembers


def test_constants_are_those_of_the_normals(learnt: Trainer) -> None:
    for i, found in enumerate(learnt.constants()):
        exact = log_p(learnt.model, learnt.normals.levels[i], i).astype(np.float64)
        assert found.centre == pytest.approx(exact.mean(), rel=1e-5)
        assert found.spread == pytest.approx(exact.std(), rel=1e-4)
        assert found.highest == pytest.approx(exact.max(), rel=1e-5)
        assert found.boundary == pytest.approx(np.quantile(exact, 0.01), rel=1e-4)


def test_features_are_standardised_unless_told_otherwise(tmp_path: Path) -> None:
    for name in ("first", "again"):  # a file of another run in the folder changes nothing
        made = make(tmp_path, key=name, train=BRIEF)
        made.run()
        mean, std = made.normals.moments(0)
        assert np.array_equal(made.levels[0].mean.numpy(), mean)
        assert np.array_equal(made.levels[0].std.numpy(), std)
    plain = make(tmp_path, train=BRIEF, flow={"standardise": False})
    plain.run()
    assert set(plain.levels[0].std.tolist()) == {1.0}


def test_positions_that_nobody_looks_at_are_not_learnt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[set[int]] = [set(), set()]
    rows = Trainer._rows

    def watched(self: Trainer, kept: Features, level: int, image: Any, position: Any) -> Tensor:
        if kept is self.normals:
            drawn[level] |= set(position.tolist())
        return rows(self, kept, level, image, position)

    monkeypatch.setattr(Trainer, "_rows", watched)
    made = make(tmp_path, train=BRIEF)
    near = [np.array([4, 5, 6, 8, 9]), np.array([2, 3])]
    made = Trainer(
        made.model, made.normals, made.anomalies, work=tmp_path, device=made.device, run_key="run",
        inside=[np.array([5, 6]), np.array([3])], near=near,
    )  # fmt: skip
    made.run()
    assert drawn == [set(places.tolist()) for places in near]


def test_a_run_that_diverges_says_so(tmp_path: Path) -> None:
    made = make(tmp_path)
    made.normals.levels[1][:] = np.nan
    with pytest.raises(ModelError, match=r"diverged at step 0: lower train\.lr"):
        made.run()


# --- stopping and going on


def interrupted(made: Trainer, at: int) -> None:
    """Ctrl-C during step `at`."""
    one_step = made._one_step

    def step(number: int) -> dict[str, float]:
        if number == at:
            signal.raise_signal(signal.SIGINT)
        return one_step(number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(made, "_one_step", step)
        with pytest.raises(KeyboardInterrupt):
            made.run()


@pytest.mark.parametrize("marked", [True, False])
def test_stopping_again_and_again_changes_nothing(tmp_path: Path, marked: bool) -> None:
    def fresh(name: str) -> Trainer:
        (tmp_path / name).mkdir(exist_ok=True)
        cells = DEFECT if marked else EVERYWHERE
        return make(tmp_path / name, [known(cells, marked, centre=1.5)], train=SHORT)

    whole = fresh("whole")
    whole.run()
    # in phase 1, at its end, at the first step of phase 2, and around a new choice of instances
    before = signal.getsignal(signal.SIGINT)
    for at in (2, 5, 6, 6 + INSTANCE_REFRESH - 1, 6 + INSTANCE_REFRESH + 3):
        piece = fresh("pieces")
        piece.restore()
        interrupted(piece, at)
        assert piece.step == at + 1  # the step was ended, not torn
    last = fresh("pieces")
    assert last.restore()
    assert last.step == 6 + INSTANCE_REFRESH + 4
    last.run()
    assert same(state(last), state(whole))
    assert (last.work / LOG).read_bytes() == (whole.work / LOG).read_bytes()
    assert signal.getsignal(signal.SIGINT) is before


def test_rows_logged_after_the_checkpoint_come_once(tmp_path: Path) -> None:
    first = make(tmp_path, train=SHORT)
    interrupted(first, 7)
    checkpoint = (tmp_path / CHECKPOINT).read_bytes()
    second = make(tmp_path, train=SHORT)
    second.restore()
    interrupted(second, 11)
    (tmp_path / CHECKPOINT).write_bytes(checkpoint)  # killed between log and checkpoint, and in the middle of a row
    with (tmp_path / LOG).open("a") as file:
        file.write("12,0.00")
    third = make(tmp_path, train=SHORT)
    third.restore()
    assert third.step == 8
    third.run()
    assert [int(row["step"]) for row in log_rows(tmp_path)] == list(range(52))


def test_a_run_killed_before_its_first_checkpoint_starts_its_log_again(tmp_path: Path) -> None:
    first = make(tmp_path, train=SHORT)
    interrupted(first, 3)
    (tmp_path / CHECKPOINT).unlink()
    second = make(tmp_path, train=SHORT)
    assert not second.restore()
    second.run()
    assert [int(row["step"]) for row in log_rows(tmp_path)] == list(range(52))


def test_another_run_is_not_taken_for_this_one(tmp_path: Path) -> None:
    interrupted(make(tmp_path, train=SHORT), 3)
    with pytest.raises(ModelError, match="other data or settings"):
        make(tmp_path, key="another", train=SHORT).restore()


def test_checkpoints_are_saved_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "CHECKPOINT_SECONDS", 0.0)
    made = make(tmp_path, train=SHORT)
    steps = []
    made.watch = lambda run, row: steps.append((run.step, saved_step(tmp_path)))
    made.run()
    assert steps == [(i, i - 1) for i in range(1, 53)]  # each step finds the one before saved


def saved_step(work: Path) -> int:
    if not (work / CHECKPOINT).exists():
        return 0
    with safetensors.safe_open(work / CHECKPOINT, framework="np") as file:
        return int(json.loads(file.metadata()["note"])["step"])


DRIVER = """
import sys, time
from bgad.cli.main import main
from bgad.training import loop as trainer

trainer.CHECKPOINT_SECONDS = 0.05
one_step = trainer.Trainer._one_step
wait_at = int(sys.argv.pop(1))

def slow(self, step):
    time.sleep(60 if step == wait_at else 0.03)
    return one_step(self, step)

trainer.Trainer._one_step = slow
sys.exit(main(sys.argv[1:]))
"""


def test_killed_twice_and_interrupted_once_it_is_the_same_model(
    data_set: Path,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """From the command line; `model` was trained with the same recipe in one go."""
    recipe, out, work = tmp_path / "recipe.toml", tmp_path / "plate.bgad", tmp_path / "plate.bgad.work"
    recipe.write_text(to_toml(tiny_config()))
    arguments = ["train", str(data_set), "--out", str(out), "--config", str(recipe), "--known", "4", "--device", "cpu"]

    def killed_at(step: int, *options: str) -> str:
        command = [sys.executable, "-c", DRIVER, str(step + 10), *arguments, "--memory", "0.000001", *options]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            end = time.monotonic() + 140
            while saved_step(work) < step and process.poll() is None and time.monotonic() < end:
                time.sleep(0.01)
            time.sleep(random.uniform(0, 0.15))  # in the middle of whatever it does then
            process.kill()
            _, said = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL, said
        return said

    killed_at(4)
    first = saved_step(work)
    assert 4 <= first < 30  # phase 1
    said = killed_at(33, "--resume")
    assert 33 <= saved_step(work) < 46  # phase 2
    assert f"going on from step {first} of 50" in said

    one_step = Trainer._one_step

    def step(self: Trainer, number: int) -> dict[str, float]:
        if number == 46:
            signal.raise_signal(signal.SIGINT)
        return one_step(self, number)

    monkeypatch.setattr(Trainer, "_one_step", step)
    assert main([*arguments, "--resume"]) == 130
    assert f"what was learnt is in {work}: go on with the same command" in capsys.readouterr().err
    assert saved_step(work) == 47
    assert not out.exists()

    monkeypatch.undo()
    assert main([*arguments, "--resume"]) == 0
    assert (out / "flow.safetensors").read_bytes() == (model / "flow.safetensors").read_bytes()
    assert (out / LOG).read_bytes() == (model / LOG).read_bytes()
    assert not work.exists()


# --- normals that no level learns


def overfitting(tmp_path: Path, *, best: bool, unseen: Features | None = None, **values: Any) -> Trainer:
    """Few normals and many steps: the flows learn them by heart."""
    train = {"steps": 200, "push_steps": 0, "images_per_step": 4, "lr": 1e-2, "restore_best": best, **values}
    made = make(tmp_path, train=train)
    made.normals = store(4, seed=3)
    made.unseen = unseen
    return made


def held_out_loss(made: Trainer, i: int, unseen: Features) -> float:
    values = torch.from_numpy(log_p(made.model, unseen.levels[i], i))
    return float(-torch.nn.functional.logsigmoid(values).mean())


def test_a_level_goes_back_to_where_new_normals_were_most_likely(tmp_path: Path) -> None:
    unseen = store(20, seed=4)
    made = {}
    for best in (True, False):
        folder = tmp_path / str(best)
        folder.mkdir()
        made[best] = overfitting(folder, best=best, unseen=unseen)
        made[best].run()
    losses = {best: [held_out_loss(trainer, i, unseen) for i in range(2)] for best, trainer in made.items()}
    assert losses[True][1] < losses[False][1] - 0.05
    assert all(kept <= last + 1e-6 for kept, last in zip(losses[True], losses[False], strict=True))
    assert [b.weights for b in made[True].best] == [{}] * 2  # nothing is carried into the next phase


def test_a_killed_run_goes_back_to_the_same_state(tmp_path: Path) -> None:
    unseen = store(20, seed=4)

    def fresh(name: str) -> Trainer:
        (tmp_path / name).mkdir(exist_ok=True)
        return overfitting(tmp_path / name, best=True, unseen=unseen)

    whole = fresh("whole")
    whole.run()
    interrupted(fresh("piece"), 170)  # the best state is older than that
    last = fresh("piece")
    assert last.restore()
    assert last.best[-1].weights
    last.run()
    assert same(state(last), state(whole))


@pytest.mark.parametrize("pushed", [True, False])
def test_a_phase_that_pushes_is_not_judged_by_normals(tmp_path: Path, pushed: bool) -> None:
    made = overfitting(tmp_path, best=True, unseen=store(20, seed=4), steps=100, push_steps=60)
    if not pushed:
        made.anomalies = []
    held: dict[int, bool] = {}
    made.watch = lambda trainer, _: held.update({trainer.step: bool(trainer.best[-1].weights)})
    made.run()
    assert held[50] is True
    assert held[100] is False  # the phase has gone back and begins afresh
    assert held[101] is not pushed
    assert held[155] is not pushed
    assert held[160] is False


def test_a_level_rests_when_new_normals_become_no_likelier(tmp_path: Path) -> None:
    unseen = store(20, seed=4)
    made, steps = {}, {}
    for patience in (0, 50):
        folder = tmp_path / str(patience)
        folder.mkdir()
        made[patience] = overfitting(folder, best=True, unseen=unseen, steps=400, patience=patience)
        learnt = steps[patience] = [0, 0]
        before = made[patience]._level_step

        def counted(
            i: int, *rest: Any, trainer: Trainer = made[patience], learnt: list[int] = learnt, before: Any = before
        ) -> dict[str, float]:
            learnt[i] += not trainer.resting[i]
            found: dict[str, float] = before(i, *rest)
            return found

        made[patience]._level_step = counted  # type: ignore[method-assign, assignment]
        made[patience].run()
        assert made[patience].step == 400
        assert made[patience].steps_run() == len(log_rows(folder)) == max(learnt)
        assert made[patience].resting == [False, False]
    assert steps[0] == [400, 400]
    assert min(steps[50]) < 300
    assert max(steps[50]) <= 400
    # both have learnt more than enough, so that both go back to the same state
    resting, tireless = (state(made[patience]) for patience in (50, 0))
    stopped = [i for i in range(2) if steps[50][i] < 400]
    for i in stopped:
        for key, value in resting.items():
            if key.startswith(f"{i}.flow"):
                assert torch.equal(value, tireless[key])


def test_a_run_killed_while_a_level_rests_goes_on_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unseen = store(20, seed=4)
    monkeypatch.setattr("bgad.training.loop.LOOK_BACK", 5)

    def tired(trainer: Trainer, _: dict[str, float]) -> None:
        if trainer.step == 25:
            trainer.resting[1] = True

    def fresh(name: str) -> Trainer:
        (tmp_path / name).mkdir(exist_ok=True)
        made = overfitting(tmp_path / name, best=True, unseen=unseen, steps=60, patience=1000)
        made.watch = tired
        return made

    whole = fresh("whole")
    before = state(whole)
    whole.run()
    assert not same(state(whole), before)
    interrupted(fresh("piece"), 40)
    last = fresh("piece")
    assert last.restore()
    assert last.resting == [False, True]
    last.run()
    assert same(state(last), state(whole))
