"""Ctrl-C and closed pipes, in processes of their own: quiet, with the right exit code, and nothing is lost."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from bgad.cli import console, interrupts
from bgad.cli.main import main
from bgad.config import to_toml
from tests.conftest import tiny_config

IMPORT_TIME = "import time:"  # how lines of `python -X importtime` begin
IMAGES = 60
HELD = """
import select
import sys
from itertools import count
from bgad.__main__ import run
from bgad.inference import batch
make, numbers = batch._row, count(1)
def row(*words):
    if next(numbers) > 30:
        reader = select.poll()
        reader.register(sys.stdout, 0)
        reader.poll(90_000)
    return make(*words)
batch._row = row
raise SystemExit(run())
"""  # stops scoring halfway until the reader of its output goes, or a signal comes
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="module")
def many(data_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough images that a run is still busy after its first row."""
    folder = tmp_path_factory.mktemp("many")
    for i in range(IMAGES):
        shutil.copy(data_set / f"test/good/{i % 10:03d}.png", folder / f"{i:03d}.png")
    return folder


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts the command line in a process, which ends with the test."""
    processes: list[subprocess.Popen[str]] = []

    def popen(*command: object, python: tuple[str, ...] = ("-m", "bgad")) -> subprocess.Popen[str]:
        words = [sys.executable, *python, *map(str, command)]
        processes.append(subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return processes[-1]

    yield popen
    for process in processes:
        process.kill()
        process.communicate()


def interrupt(process: subprocess.Popen[str], times: int) -> tuple[str, str]:
    """Press Ctrl-C so often, as an impatient person does; the rest of both streams."""
    for _ in range(times):
        process.send_signal(signal.SIGINT)
        time.sleep(0.1)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 130
    for word in ("Traceback", "Exception ignored", "Error", "terminate called", "Fatal"):
        assert word not in stderr
    return stdout, stderr


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("moment", ["numpy.exceptions", "rich.segment", "torch.torch_version"])
def test_during_imports(start: Start, moment: str, times: int, data_set: Path, tmp_path: Path) -> None:
    process = start("train", data_set, "--out", tmp_path / "m.bgad", python=("-X", "importtime", "-m", "bgad"))
    assert process.stderr is not None
    for line in process.stderr:
        assert line.startswith(IMPORT_TIME)
        if line.split()[-1] == moment:
            break
    stdout, stderr = interrupt(process, times)
    assert stdout == ""
    assert [line for line in stderr.splitlines() if not line.startswith(IMPORT_TIME)] == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("times", [1, 3])
def test_during_scoring(start: Start, times: int, model: Path, many: Path, tmp_path: Path) -> None:
    command = ("predict", model, many, "--threads", "1", "--out", tmp_path / "scored")
    process = start(*command, python=("-c", HELD))
    assert process.stdout is not None
    first = process.stdout.readline()
    stdout, stderr = interrupt(process, times)
    rows = [json.loads(line) for line in (first + stdout).splitlines()]
    assert 1 <= len(rows) < IMAGES
    assert "run the same command to continue" in stderr
    again = start(*command)
    stdout, stderr = again.communicate(timeout=120)
    assert again.returncode == 0
    assert "have their rows in" in stderr
    assert [json.loads(line)["path"] for line in stdout.splitlines()][: len(rows)] == [row["path"] for row in rows]
    assert len(stdout.splitlines()) == IMAGES


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 90
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)


STEPS = """
from pathlib import Path
from bgad.__main__ import run
from bgad.training.loop import TrainingLoop
step = TrainingLoop.run_step
TrainingLoop.run_step = lambda *words: (Path(WORK, "begun").touch(), step(*words))[1]
raise SystemExit(run())
"""  # marks the work folder when the first step begins


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("moment", ["features", "steps"])
def test_during_training(start: Start, moment: str, times: int, data_set: Path, tmp_path: Path) -> None:
    recipe, model = tmp_path / "recipe.toml", tmp_path / "m.bgad"
    recipe.write_text(to_toml(tiny_config(train={"steps": 20_000, "push_steps": 2, "lr": 1e-4})))
    command = ("train", data_set, "--config", recipe, "--no-export", "--out", model)
    work = tmp_path / "m.bgad.work"
    if moment == "features":
        process = start(*command)
        wait_for((work / "run.json").exists, process)
    else:
        process = start(*command, python=("-c", STEPS.replace("WORK", repr(str(work)))))
        wait_for((work / "begun").exists, process)
    _, stderr = interrupt(process, times)
    assert "and --resume" in stderr
    assert (work / "checkpoint.safetensors").exists() or moment == "features"
    assert not model.exists()


def test_a_closed_pipe_ends_quietly(model: Path, many: Path, tmp_path: Path) -> None:
    for command in (
        f"predict {model} {many} --threads 1",
        f"predict {model} {many} --threads 1 --out {tmp_path / 'scored'}",
        "train --help",
        "datasets",
    ):
        python = f"-c {shlex.quote(HELD)}" if "predict" in command else "-m bgad"
        shell = f"{sys.executable} {python} {command} | head -c 1 > /dev/null; exit ${{PIPESTATUS[0]}}"
        found = subprocess.run(["bash", "-c", shell], stderr=subprocess.PIPE, text=True, timeout=120)
        assert found.returncode in ((141,) if "predict" in command else (0, 141))  # a short text fits into the pipe
        assert "Traceback" not in found.stderr
        assert "rror" not in found.stderr
    assert (tmp_path / "scored/scores.jsonl").read_text().count("\n") >= 1


def test_help_for_a_reader_that_has_gone() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    words = [sys.executable, "-m", "bgad", "train", "--help"]
    found = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writer)
    assert found.returncode in (0, 141)  # argparse ignores what it cannot write
    assert found.stderr == ""


def test_cleaning_up_is_not_disturbed_while_it_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    class EndedError(Exception):
        pass

    def end(code: int) -> None:
        raise EndedError(code)

    clock = iter([0.0, 1.0, 9.0, 11.0])
    monkeypatch.setattr(interrupts, "_ending_since", None)
    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    with pytest.raises(KeyboardInterrupt):
        interrupts.handle(signal.SIGINT, None)
    with pytest.raises(KeyboardInterrupt):  # a library has caught the first
        interrupts.handle(signal.SIGINT, None)
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        interrupts.handle(signal.SIGINT, None)
        with pytest.raises(EndedError, match="130"):
            interrupts.handle(signal.SIGINT, None)


def test_an_interrupt_that_a_library_catches_stops_the_training() -> None:
    with console.stop_on_interrupt() as stop:
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert stop.requested


def work() -> None:
    for _ in range(1000):
        time.sleep(0.01)


def test_work_that_has_begun_is_interrupted_after_an_import() -> None:
    code = compile(
        "import signal; signal.raise_signal(signal.SIGINT); imported.append(1)", "<frozen importlib>", "exec"
    )
    imported: list[int] = []
    with console.stop_on_interrupt():
        exec(code, {"imported": imported})
        assert imported == [1]
        with pytest.raises(KeyboardInterrupt):
            work()


def test_main_leaves_the_handler_of_its_caller(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGINT)
    assert main(["info", "gone"]) == 2
    assert signal.getsignal(signal.SIGINT) is before


def test_new_work_has_its_own_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Ctrl-C of earlier work in the same process does not end it; a second one of its own, much later, does."""
    ended: list[int] = []
    clock = [0.0]
    monkeypatch.setattr("bgad.cli.interrupts.os._exit", ended.append)
    monkeypatch.setattr("bgad.cli.interrupts.time.monotonic", lambda: clock[0])
    for _ in range(2):
        clock[0] += 60
        with console.stop_on_interrupt() as stop, stop.honour():
            signal.raise_signal(signal.SIGINT)
            assert stop.requested
    assert ended == []
    with console.stop_on_interrupt() as stop, stop.honour():
        signal.raise_signal(signal.SIGINT)
        clock[0] += interrupts.PATIENCE + 1
        signal.raise_signal(signal.SIGINT)
    assert ended == [130]
