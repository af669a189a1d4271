"""Background threads that survive an error of their work and show when they were last alive."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from bgad.errors import first_line

BEAT_SECONDS = 15.0  # the longest time between two signs of life of a thread that waits
RESTART_SECONDS = 1.0  # before work that failed begins anew

T = TypeVar("T")

logger = logging.getLogger(__name__)


class SupervisedThread:
    """Runs work in a thread; an exception is logged and counted, and the work begins anew."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        """`work` returns when the thread is to end, and calls `beat`, `wait` or `get` in its loop."""
        self.name, self.failures = name, 0
        self._work, self._last_beat = work, time.monotonic()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self.beat()
        self._thread.start()

    def stop(self, timeout: float | None = None) -> None:
        """Let `wait` return at once from now on, begin no work anew, and wait for the thread to end."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    @property
    def is_running(self) -> bool:
        """Whether the thread has been started and has not ended."""
        return self._thread.is_alive()

    @property
    def silence(self) -> float:
        """Seconds since the last sign of life."""
        return time.monotonic() - self._last_beat

    def beat(self) -> None:
        """Give a sign of life."""
        self._last_beat = time.monotonic()

    def wait(self, event: threading.Event, seconds: float | None = None) -> bool:
        """Wait for an event, giving signs of life; return whether it is set."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while not self._closed.is_set():
            self.beat()
            left = BEAT_SECONDS if deadline is None else deadline - time.monotonic()
            if event.wait(max(0.0, min(BEAT_SECONDS, left))) or left <= 0:
                break
        self.beat()
        return event.is_set()

    def get(self, items: queue.Queue[T]) -> T:
        """Wait for the next item of a queue, giving signs of life."""
        while True:
            self.beat()
            try:
                return items.get(timeout=BEAT_SECONDS)
            except queue.Empty:
                continue

    def note_failure(self, error: Exception) -> None:
        """Log and count an error that nobody expected, for work that goes on by itself."""
        self.failures += 1
        logger.error("the thread %r goes on after an error: %s", self.name, first_line(error), exc_info=error)

    def _run(self) -> None:
        while True:
            try:
                self._work()
            except Exception as error:  # noqa: BLE001 - whatever it was, the next attempt may succeed
                self.note_failure(error)
                if self._closed.wait(RESTART_SECONDS):
                    return
            else:
                return
