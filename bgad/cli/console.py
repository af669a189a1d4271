"""The terminal: progress bars with the time left and messages, all on stderr so that stdout stays data."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

console = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)


def printable(text: str) -> str:
    """Control characters and broken ones, which a file name may hold, as escapes: the line stays one line.

    >>> print(printable("a\\nb\\x1b[31m"))
    a\\nb\\x1b[31m
    """
    return re.sub(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", lambda found: repr(found[0])[1:-1], text)


def page() -> Console:
    """Stdout for tables; a pipe has no width, so it gets one that folds none of them."""
    width = None if sys.stdout and sys.stdout.isatty() else 200
    return Console(width=width, highlight=False, markup=False, emoji=False)


def say(message: str) -> None:
    """Print one plain line for the person at the terminal."""
    console.print(message)


def warn(message: str) -> None:
    """Print one line that asks for attention."""
    console.print(f"warning: {printable(message)}", style="yellow")


def fail(message: str) -> None:
    """Print the one line that ends a command that could not do its work."""
    console.print(f"bgad: error: {printable(message)}", style="red")


class Bar:
    """One line of progress; `update` moves it and may change the text at its end."""

    def __init__(self, progress: Progress, task: TaskID, title: str, total: int, done: int) -> None:
        self._progress, self._task = progress, task
        self._title, self._total, self._done = title, total, done

    def update(self, advance: int = 1, note: str | None = None) -> None:
        """Move on by `advance` and, if given, replace the note."""
        fields = {} if note is None else {"note": note}
        self._progress.update(self._task, advance=advance, **fields)  # type: ignore[arg-type]
        self._done += advance
        if _listener is not None:
            _listener(self._title, self._done, self._total)


def listen(listener: Callable[[str, int, int], None] | None) -> None:
    """Let a program follow the bars of this process: title, done, total; None ends it."""
    global _listener
    _listener = listener


SLOWEST = 3600.0  # seconds that one piece of work may take without losing the time left
_listener: Callable[[str, int, int], None] | None = None
_active: Progress | None = None  # bars inside of a bar are further lines of it


@contextmanager
def bar(title: str, total: int, done: int = 0, *, show: bool = True) -> Iterator[Bar]:
    """A progress bar with count, elapsed time, time left and a free note."""
    global _active
    if _active is not None and show:
        task = _active.add_task(title, total=total, completed=done, note="")
        try:
            yield Bar(_active, task, title, total, done)
        finally:
            _active.remove_task(task)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    # rich would take stdout over and print what is meant for a pipe on the terminal
    with Progress(
        *columns, console=console, redirect_stdout=False, disable=not show, speed_estimate_period=SLOWEST
    ) as progress:
        task = progress.add_task(title, total=total, completed=done, note="")
        if show:
            _active = progress
        try:
            yield Bar(progress, task, title, total, done)
        finally:
            if show:
                _active = None
