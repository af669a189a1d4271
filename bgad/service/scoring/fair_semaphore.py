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

    @contextmanager
    def acquire(self, timeout: float | None = None) -> Iterator[None]:
        """Hold a place while the block runs; BusyError if none becomes free within `timeout` seconds."""
        with self._lock:
            ticket = None if self._free else threading.Lock()
            if ticket is None:
                self._free -= 1
            else:
                ticket.acquire()
                self._queue.append(ticket)
        # The thread that leaves a place releases the ticket of the next one.
        if ticket is not None and not ticket.acquire(timeout=-1 if timeout is None else timeout):
            self._give_up(ticket)
        try:
            yield
        finally:
            with self._lock:
                if self._queue:
                    self._queue.popleft().release()
                else:
                    self._free += 1

    def _give_up(self, ticket: threading.Lock) -> None:
        with self._lock:
            if ticket in self._queue:  # otherwise a place was handed over at the last moment
                self._queue.remove(ticket)
                raise BusyError(QUEUE_FULL)
