"""A run that is stopped or killed, and a phase 1 that runs share, give the same bits as a run in one go."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from bgad.cli.main import main
from bgad.config import to_toml
from bgad.methods import checkpoint
from bgad.methods.checkpoint import CHECKPOINT, TRAINING_LOG, LogRow
from bgad.training.loop import TrainingLoop
from bgad.training.objective import REFRESH_STEPS
from bgad.training.shared_phases import SharedPhase
from tests.conftest import tiny_config
from tests.training.loops import (
    BRIEF,
    DEFECT,
    DRIVER,
    EVERYWHERE,
    SHORT,
    interrupted,
    known,
    log_rows,
    make,
    run,
    same,
    saved_step,
    state,
)


def test_a_shared_phase_one_makes_the_same_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    run_step = TrainingLoop.run_step

    def counted(self: TrainingLoop, step: int) -> LogRow:
        steps.append(step)
        return run_step(self, step)

    monkeypatch.setattr(TrainingLoop, "run_step", counted)
    share = SharedPhase(tmp_path / "shared/phase.safetensors", "same")
    alone = {}
    for method in ("nfad-plus", "bgad-wo", "bgad-full-push", "bgad-plus"):
        for name, phases in (("alone", None), ("shared", {1: share})):
            (tmp_path / f"{method}-{name}").mkdir()
            folder = tmp_path / f"{method}-{name}"
            made = make(folder, train=BRIEF, method=method, shared_phases=phases)
            steps.clear()
            run(made)
            assert steps[0] == (BRIEF["steps"] if phases and method != "nfad-plus" else 0)
            assert made.seconds > 0
            if phases is None:
                alone[method] = state(made), (made.work / TRAINING_LOG).read_bytes()
            else:
                assert same(state(made), alone[method][0])
                assert (made.work / TRAINING_LOG).read_bytes() == alone[method][1]
    assert not same(alone["nfad-plus"][0], alone["bgad-plus"][0])  # they do part in phase 2


def test_a_shared_phase_two_makes_the_same_flows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of another recipe of the score, which keeps the score weights that it has fitted between the phases."""
    steps: list[int] = []
    run_step = TrainingLoop.run_step

    def counted(self: TrainingLoop, step: int) -> LogRow:
        steps.append(step)
        return run_step(self, step)

    monkeypatch.setattr(TrainingLoop, "run_step", counted)
    phases = {n: SharedPhase(tmp_path / f"shared/{n}.safetensors", "same") for n in (1, 2)}
    first = make(tmp_path, train=BRIEF, shared_phases=phases)
    run(first)
    log = (tmp_path / TRAINING_LOG).read_bytes()
    steps.clear()
    second = make(tmp_path / "second", train=BRIEF, score={"level_prior_power": 1.0}, shared_phases=phases)
    (tmp_path / "second").mkdir()
    for _ in second.phase(1):
        pytest.fail("trained again")
    assert second.step == BRIEF["steps"]
    second.model.score_weights.fill_(0.25)
    for _ in second.phase(2):
        pytest.fail("trained again")
    assert steps == []
    assert second.step == second.schedule.steps
    assert second.model.score_weights.tolist() == [0.25] * len(second.model.score_weights)
    flows = second.model.levels.state_dict()
    assert all(torch.equal(value, flows[name]) for name, value in first.model.levels.state_dict().items())
    assert (tmp_path / "second" / TRAINING_LOG).read_bytes() == log


def test_phase_one_of_another_run_is_not_used(tmp_path: Path) -> None:
    def trained(name: str, key: str, seed: int) -> TrainingLoop:
        (tmp_path / name).mkdir()
        shared = SharedPhase(tmp_path / "phase.safetensors", key)
        made = make(tmp_path / name, train=BRIEF, seed=seed, shared_phases={1: shared})
        run(made)
        return made

    first, other = trained("first", "a", 3), trained("other", "b", 4)
    assert not same(state(first), state(other))
    assert same(state(trained("again", "a", 3)), state(first))  # the file was b's: trained anew


def test_interrupted_after_a_shared_phase_one(tmp_path: Path) -> None:
    def fresh(name: str) -> TrainingLoop:
        (tmp_path / name).mkdir(exist_ok=True)
        shared = SharedPhase(tmp_path / "phase.safetensors", "same")
        return make(tmp_path / name, train=BRIEF, shared_phases={1: shared})

    whole = fresh("whole")
    run(whole)
    piece = fresh("piece")
    interrupted(piece, BRIEF["steps"] + 3)
    last = fresh("piece")
    assert last.restore()
    run(last)
    assert same(state(last), state(whole))
    assert (last.work / TRAINING_LOG).read_bytes() == (whole.work / TRAINING_LOG).read_bytes()


@pytest.mark.parametrize("marked", [True, False])
def test_stopping_again_and_again_changes_nothing(tmp_path: Path, marked: bool) -> None:
    def fresh(name: str) -> TrainingLoop:
        (tmp_path / name).mkdir(exist_ok=True)
        cells = DEFECT if marked else EVERYWHERE
        return make(tmp_path / name, [known(cells, marked, centre=1.5)], train=SHORT)

    whole = fresh("whole")
    run(whole)
    # in phase 1, at its end, at the first step of phase 2, and around a new choice of instances
    for at in (2, 5, 6, 6 + REFRESH_STEPS - 1, 6 + REFRESH_STEPS + 3):
        piece = fresh("pieces")
        piece.restore()
        interrupted(piece, at)
        assert piece.step == at + 1  # the step was ended, not torn
    last = fresh("pieces")
    assert last.restore()
    assert last.step == 6 + REFRESH_STEPS + 4
    run(last)
    assert same(state(last), state(whole))
    assert (last.work / TRAINING_LOG).read_bytes() == (whole.work / TRAINING_LOG).read_bytes()


def test_rows_logged_after_the_checkpoint_come_once(tmp_path: Path) -> None:
    first = make(tmp_path, train=SHORT)
    interrupted(first, 7)
    checkpoint = (tmp_path / CHECKPOINT).read_bytes()
    second = make(tmp_path, train=SHORT)
    second.restore()
    interrupted(second, 11)
    (tmp_path / CHECKPOINT).write_bytes(checkpoint)  # killed between log and checkpoint, and in the middle of a row
    with (tmp_path / TRAINING_LOG).open("a") as file:
        file.write("12,0.00")
    third = make(tmp_path, train=SHORT)
    third.restore()
    assert third.step == 8
    run(third)
    assert [int(row["step"]) for row in log_rows(tmp_path)] == list(range(52))


def test_a_run_killed_before_its_first_checkpoint_starts_its_log_again(tmp_path: Path) -> None:
    first = make(tmp_path, train=SHORT)
    interrupted(first, 3)
    (tmp_path / CHECKPOINT).unlink()
    second = make(tmp_path, train=SHORT)
    assert not second.restore()
    run(second)
    assert [int(row["step"]) for row in log_rows(tmp_path)] == list(range(52))


def test_checkpoints_are_saved_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "CHECKPOINT_SECONDS", 0.0)
    made = make(tmp_path, train=SHORT)
    steps = [(made.step, saved_step(tmp_path)) for number in (1, 2) for _ in made.phase(number)]
    assert steps == [(i, i - 1) for i in range(1, 53)]  # each step finds the one before saved


def test_killed_and_interrupted_it_is_the_same_model(
    data_set: Path,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """From the command line; `model` was trained with the same recipe in one go."""
    recipe, out, work = tmp_path / "recipe.toml", tmp_path / "plate.bgad", tmp_path / "plate.bgad.work"
    recipe.write_text(to_toml(tiny_config()))
    arguments = [
        "train",
        str(data_set),
        "--out",
        str(out),
        "--config",
        str(recipe),
        "--known",
        "4",
        "--device",
        "cpu",
        "--no-export",
    ]

    command = [sys.executable, "-c", DRIVER, "14", *arguments, "--memory", "0.000001"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        end = time.monotonic() + 140
        while saved_step(work) < 4 and process.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(random.uniform(0, 0.15))  # in the middle of whatever it does then
        process.kill()
        _, said = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, said
    killed_at = saved_step(work)
    assert 4 <= killed_at < 30  # phase 1

    run_step = TrainingLoop.run_step

    def step(self: TrainingLoop, number: int) -> LogRow:
        if number == 46:
            signal.raise_signal(signal.SIGINT)
        return run_step(self, number)

    monkeypatch.setattr(TrainingLoop, "run_step", step)
    assert main([*arguments, "--resume"]) == 130
    said = capsys.readouterr().err
    assert f"going on from step {killed_at} of 50" in said
    assert f"what was learnt is in {work}: go on with the same command\n" in said
    assert "Traceback" not in said
    assert saved_step(work) == 47
    assert not out.exists()
    assert main(arguments) == 2
    assert "holds an unfinished run: go on with --resume" in capsys.readouterr().err

    monkeypatch.undo()
    assert main([*arguments, "--resume"]) == 0
    assert "going on from step 47 of 50" in capsys.readouterr().err
    assert (out / "flow.safetensors").read_bytes() == (model / "flow.safetensors").read_bytes()
    assert (out / TRAINING_LOG).read_bytes() == (model / TRAINING_LOG).read_bytes()
    assert not work.exists()
