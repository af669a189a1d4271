"""A semaphore that admits waiting threads strictly in order of arrival."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from bgad.service.errors import QUEUE_FULL, BusyError


class FairSemaphore:
    """Admits a fixed number of threads at a time; unlike `threading.Semaphore`, late arrivals never overtake."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._queue: deque[threading.Lock] = deque()
        self._lock = threading.Lock()

    @property
    def waiting(self) -> int:
        """Number of threads that wait for a place."""
        return len(self._queue)

    @property
    def is_full(self) -> bool:
        """Whether no place is free."""
        return self._free == 0

    @contextmanager
    def acquire(self, timeout: float | None = None) -> Iterator[None]:
        """Hold a place while the block runs; BusyError if none becomes free within `timeout` seconds."""
        if not self.enter(timeout):
            raise BusyError(QUEUE_FULL)
        try:
            yield
        finally:
            self.leave()

    def enter(self, timeout: float | None = None) -> bool:
        """Take a place, which `leave` gives back; returns whether one became free within `timeout` seconds."""
        with self._lock:
            if self._free:
                self._free -= 1
                return True
            ticket = threading.Lock()
            ticket.acquire()  # the thread that leaves a place releases it
            self._queue.append(ticket)
        try:
            return ticket.acquire(timeout=-1 if timeout is None else timeout) or not self._withdraw(ticket)
        except BaseException:  # a KeyboardInterrupt
            if not self._withdraw(ticket):
                self.leave()
            raise

    def leave(self) -> None:
        """Hand the place to the thread that waits longest."""
        with self._lock:
            if self._queue:
                self._queue.popleft().release()
            else:
                self._free += 1

    def _withdraw(self, ticket: threading.Lock) -> bool:
        """Wait no more; returns False where a place was handed over at the last moment."""
        with self._lock:
            if ticket not in self._queue:
                return False
            self._queue.remove(ticket)
            return True
