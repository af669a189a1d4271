"""The terminal: log lines, progress bars with the time left, tables, and Ctrl-C during a training.

Messages and bars go to standard error, so that standard output stays data.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

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

from bgad.cli import interrupts
from bgad.errors import printable

if TYPE_CHECKING:
    from bgad.types import StopRequest

__all__ = ["console", "fail", "printable", "progress", "say", "show_log", "stdout_console", "stop_on_interrupt", "warn"]


class PipeConsole(Console):
    """A console that raises BrokenPipeError where its reader has gone; rich would end the process with 1."""

    def on_broken_pipe(self) -> None:
        """Raise the error that is being handled."""
        raise BrokenPipeError


console = PipeConsole(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)

SPEED_WINDOW = 3600.0  # seconds over which the time left is estimated; a training cell may take minutes per unit


def stdout_console() -> Console:
    """Return a console for tables on standard output; a pipe gets a fixed width that folds none of them."""
    width = None if sys.stdout and sys.stdout.isatty() else 200
    return PipeConsole(width=width, highlight=False, markup=False, emoji=False)


def say(message: str) -> None:
    """Print one plain line to standard error."""
    console.print(message)


def warn(message: str) -> None:
    """Print a warning line to standard error."""
    console.print(f"warning: {printable(message)}", style="yellow")


def fail(message: str) -> None:
    """Print the error line that ends a command."""
    console.print(f"bgad: error: {printable(message)}", style="red")


class LogHandler(logging.Handler):
    """Prints the package's log records: warnings marked as such, everything else as a plain line."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record."""
        (warn if record.levelno >= logging.WARNING else say)(record.getMessage())


def show_log() -> None:
    """Print the log of the package to standard error from now on; calling it again changes nothing."""
    logger = logging.getLogger("bgad")
    if not any(isinstance(handler, LogHandler) for handler in logger.handlers):
        logger.addHandler(LogHandler())
        logger.setLevel(logging.INFO)


class ProgressDisplay:
    """Progress callback that draws a bar for each task.

    The first task is the outermost: tasks that begin before it ends are further lines below its bar, and disappear
    when they end.
    """

    def __init__(self, *, show: bool = True) -> None:
        self._show = show
        self._live: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, task: str, done: int, total: int, note: str = "") -> None:
        """Draw the state of a task; see `bgad.types.Progress`."""
        if not self._show or total <= 0:
            return
        if self._live is None:
            self._live = _new_live()
            self._live.start()
        if task not in self._tasks:
            self._tasks[task] = self._live.add_task(task, total=total, completed=done, note=note)
        else:
            fields = {"note": note} if note else {}
            self._live.update(self._tasks[task], completed=done, total=total, **fields)  # type: ignore[arg-type]
        if done >= total:
            self._finish(task)

    def close(self) -> None:
        """Stop drawing; unfinished bars stay as they are."""
        if self._live is not None:
            self._live.stop()
        self._live, self._tasks = None, {}

    def _finish(self, task: str) -> None:
        if task == next(iter(self._tasks)):
            self.close()
        elif self._live is not None:
            self._live.remove_task(self._tasks.pop(task))


@contextmanager
def progress(*, show: bool = True) -> Iterator[ProgressDisplay]:
    """Give a progress callback that draws bars on standard error until the block ends."""
    display = ProgressDisplay(show=show)
    try:
        yield display
    finally:
        display.close()


def _new_live() -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    # redirect_stdout would print on the terminal what is meant for a pipe.
    return Progress(*columns, console=console, redirect_stdout=False, speed_estimate_period=SPEED_WINDOW)


@contextmanager
def stop_on_interrupt(*, terminate: bool = False) -> Iterator[StopRequest]:
    """Turn Ctrl-C into a request to stop while the work honours it, and into KeyboardInterrupt otherwise.

    `terminate` does the same with SIGTERM, which a scheduler sends before it kills.
    """
    from bgad.types import StopRequest

    stop = StopRequest()
    previous: dict[int, Any] = {}

    def handle(number: int, frame: FrameType | None) -> None:
        earlier = previous.get(number)
        stop.request()  # in any case: a library may catch the interrupt
        if number == signal.SIGINT:
            interrupts.end_if_overdue()
        if stop.honoured or interrupts.put_off(number, frame):
            return
        if callable(earlier):
            earlier(number, frame)
            return
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # Python sets handlers in the main thread only
        yield stop
        return
    signals = [signal.SIGINT, *([signal.SIGTERM] if terminate else [])]
    signals = [number for number in signals if signal.getsignal(number) is not signal.SIG_IGN]
    interrupts.forget()
    previous |= {number: signal.signal(number, handle) for number in signals}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
