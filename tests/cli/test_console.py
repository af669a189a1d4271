from __future__ import annotations

import io
import sys

import pytest
from rich.console import Console

from bgad.cli import console

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
    with console.bar("scoring", 2) as bar:
        bar.update()
        sys.stdout.write("data\n")
        bar.update(note="loss 1.5")
    assert capsys.readouterr().out == "data\n"
    assert "data" not in terminal.getvalue()
    assert "2/2" in terminal.getvalue()
    assert "loss 1.5" in terminal.getvalue()


def test_a_bar_into_a_file_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with console.bar("training", 50) as bar:
        for _ in range(50):
            bar.update()
    with console.bar("hidden", 1, show=False) as bar:
        bar.update()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("training")
    assert "50/50" in line


def test_a_bar_in_a_bar_is_a_line_of_it(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(console, "console", Console(file=terminal, force_terminal=True, width=80))
    with console.bar("cells", 3) as outer:
        for _ in range(2):
            with console.bar("training", 7) as inner:
                inner.update(7)
                terminal.truncate(0)
                console._active.refresh()  # type: ignore[union-attr]
                assert "7/7" in terminal.getvalue()
                assert "cells" in terminal.getvalue()
            outer.update()
    assert "2/3" in terminal.getvalue()
    with pytest.raises(KeyboardInterrupt), console.bar("cells", 3), console.bar("training", 7):
        raise KeyboardInterrupt
    with console.bar("scoring", 2) as bar:  # a bar of its own again
        bar.update(2)
    assert "2/2" in terminal.getvalue()
