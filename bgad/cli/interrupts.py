"""Ctrl-C in a process of the command line: the first ends the work, and those that follow do not disturb its end.

The module imports nothing heavy, because it must be in force while everything else is imported.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

EXIT_INTERRUPTED = 130
PATIENCE = 10.0  # seconds that the work has to end; a Ctrl-C after them ends the process at once
RETRY = 0.1  # seconds

_ending_since: float | None = None  # when the first Ctrl-C came
_is_repeated = False  # the signal that comes next was put off before


def install() -> None:
    """Handle Ctrl-C of this process from now on."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as a shell sets it for background jobs
        signal.signal(signal.SIGINT, handle)
    sys.unraisablehook = _unraisable


def ignore() -> None:
    """Ignore Ctrl-C from now on: the work is done, and the interpreter would show a traceback on its way out."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def handle(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, but not into code that cleans up after an earlier one, unless that takes too long."""
    end_if_overdue()
    if _is_importing(frame):  # extension modules do not survive an exception
        os._exit(EXIT_INTERRUPTED)
    if not _is_being_handled():
        raise KeyboardInterrupt


def end_if_overdue() -> None:
    """Note the first Ctrl-C, and end the process at a further one that comes more than PATIENCE after it."""
    global _ending_since, _is_repeated
    if _is_repeated:
        _is_repeated = False
        return
    now = time.monotonic()
    _ending_since = now if _ending_since is None else _ending_since
    if now - _ending_since > PATIENCE:
        os._exit(EXIT_INTERRUPTED)


def forget() -> None:
    """Forget a Ctrl-C of earlier work: new work has PATIENCE of its own."""
    global _ending_since, _is_repeated
    _ending_since, _is_repeated = None, False


def put_off(number: int, frame: FrameType | None) -> bool:
    """Deliver a signal again a little later where it would strike an import; returns whether it does.

    Work that has begun ends in order then, unlike with `handle`.
    """
    if not _is_importing(frame):
        return False
    timer = threading.Timer(RETRY, _repeat, (number,))
    timer.daemon = True
    timer.start()
    return True


def _repeat(number: int) -> None:
    global _is_repeated
    _is_repeated = number == signal.SIGINT  # `end_if_overdue` is asked about SIGINT alone
    _thread.interrupt_main(signal.Signals(number))


def _is_being_handled() -> bool:
    """Tell whether the interrupted code is cleaning up after a KeyboardInterrupt."""
    error = sys.exc_info()[1]
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _unraisable(unraisable: Any) -> None:
    """End the process where a KeyboardInterrupt struck code that cannot raise, such as a finaliser."""
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        os._exit(EXIT_INTERRUPTED)
    sys.__unraisablehook__(unraisable)
