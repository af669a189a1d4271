"""Ctrl-C during a training: the step ends and a checkpoint is saved before the command stops."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from bgad.training.stop import StopRequest


@contextmanager
def stop_on_interrupt() -> Iterator[StopRequest]:
    """Turn Ctrl-C into a request to stop while a training loop honours it, and into KeyboardInterrupt otherwise."""
    stop = StopRequest()

    def handle(number: int, frame: FrameType | None) -> None:
        if not stop.honoured:
            raise KeyboardInterrupt
        stop.request()

    if threading.current_thread() is not threading.main_thread():  # Python sets handlers in the main thread only
        yield stop
        return
    previous = signal.signal(signal.SIGINT, handle)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, previous)
