from __future__ import annotations

import io
import logging
import signal
import sys
import threading
import time
from contextlib import suppress

import pytest
from rich.console import Console

from bgad.cli import console, interrupts
from bgad.types import ProgressTask

HOSTILE = "[red]a[/red] :smile: \x1b[31m b\nc \udcff é"
SHOWN = "[red]a[/red] :smile: \\x1b[31m b\\nc \\udcff é"


def test_messages_are_one_line_and_mean_what_they_say(capsys: pytest.CaptureFixture[str]) -> None:
    console.warn(HOSTILE)
    console.fail(f"{HOSTILE} {'long ' * 60}end")
    warning, error = capsys.readouterr().err.splitlines()
    assert warning == f"warning: {SHOWN}"
    assert error == f"bgad: error: {SHOWN} {'long ' * 60}end"


def test_a_bar_on_the_terminal_leaves_stdout_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(console, "console", Console(file=terminal, force_terminal=True, width=80))
    with console.progress() as progress:
        progress("scoring", 1, 2)
        sys.stdout.write("data\n")
        progress("scoring", 2, 2, "loss 1.5")
    assert capsys.readouterr().out == "data\n"
    assert "data" not in terminal.getvalue()
    assert "2/2" in terminal.getvalue()
    assert "loss 1.5" in terminal.getvalue()


def test_a_bar_into_a_file_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with console.progress() as progress:
        task = ProgressTask(progress, "training", 50)
        for _ in range(50):
            task.advance()
    with console.progress(show=False) as progress:
        progress("hidden", 1, 1)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("training")
    assert "50/50" in line


def test_a_bar_in_a_bar_is_a_line_of_it(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(console, "console", Console(file=terminal, force_terminal=True, width=80))
    with console.progress() as progress:
        for cell in range(3):
            progress("cells", cell, 3)
            for step in (0, 6):
                progress("training", step, 7)
            terminal.truncate(0)
            assert progress._live is not None
            progress._live.refresh()
            assert "6/7" in terminal.getvalue()
            assert f"{cell}/3" in terminal.getvalue()
            progress("training", 7, 7)
            terminal.truncate(0)
            progress._live.refresh()
            assert "training" not in terminal.getvalue()
        progress("cells", 3, 3)
        assert "3/3" in terminal.getvalue()
        assert progress._live is None
        terminal.truncate(0)
        progress("scoring", 2, 2)  # a bar of its own again
        assert "2/2" in terminal.getvalue()
        assert "cells" not in terminal.getvalue()
    with suppress(KeyboardInterrupt), console.progress() as progress:
        progress("cells", 1, 3)
        raise KeyboardInterrupt
    assert progress._live is None


def test_the_log_of_the_package_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    console.show_log()
    logging.getLogger("bgad.training.pipeline").info("model: gear.bgad")
    logging.getLogger("bgad.io.images").warning("2 files\nnot used")
    assert capsys.readouterr().err.splitlines() == ["model: gear.bgad", "warning: 2 files\\nnot used"]


def test_ctrl_c_is_a_request_while_a_loop_honours_it_and_an_interrupt_otherwise() -> None:
    before = signal.getsignal(signal.SIGINT)
    with console.stop_on_interrupt() as stop:
        with stop.honour():
            signal.raise_signal(signal.SIGINT)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_outside_of_the_main_thread_the_handler_stays() -> None:
    before = signal.getsignal(signal.SIGINT)
    during: list[object] = []

    def work() -> None:
        with console.stop_on_interrupt() as stop:
            during.extend([signal.getsignal(signal.SIGINT), stop.requested])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert during == [before, False]


def wait_in_short_sleeps() -> None:
    """Wait half a minute; unlike Ctrl-C itself, a signal that is delivered again does not cut a sleep short."""
    for _ in range(3000):
        time.sleep(0.01)


def test_a_signal_that_was_put_off_by_an_import_is_no_further_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the import takes, one Ctrl-C lets the work end in order."""
    ended: list[int] = []
    clock = [0.0]
    monkeypatch.setattr("bgad.cli.interrupts.os._exit", ended.append)
    monkeypatch.setattr("bgad.cli.interrupts.time.monotonic", lambda: clock[0])
    importing = compile("strike()", "<frozen importlib._bootstrap>", "exec")
    with console.stop_on_interrupt() as stop:
        exec(importing, {"strike": lambda: signal.raise_signal(signal.SIGINT)})
        assert stop.requested
        clock[0] += interrupts.PATIENCE + 1
        with pytest.raises(KeyboardInterrupt):
            wait_in_short_sleeps()
    assert ended == []
