"""A lock for writers that is given in the order in which they asked for it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa


class WriteQueue:
    """Admits one thread at a time; unlike `threading.Lock`, late arrivals never overtake."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tickets: deque[threading.Lock] = deque()  # the first one's thread has the turn

    @contextmanager
    def turn(self, seconds: float) -> Iterator[float]:
        """Hold the turn while the block runs; the block gets what waiting has left of `seconds`.

        sqlalchemy.exc.TimeoutError, as of a database that does not answer, if the turn does not come in that time. The
        thread that has the turn must not ask for another one.
        """
        deadline, ticket = time.monotonic() + seconds, threading.Lock()
        ticket.acquire()  # whoever makes this ticket the first one releases it
        with self._lock:
            self._tickets.append(ticket)
            is_first = len(self._tickets) == 1
        try:
            if not is_first and not ticket.acquire(timeout=seconds):
                raise sa.exc.TimeoutError(f"other writes of this service took more than {seconds:.3g} s")
            yield max(0.0, deadline - time.monotonic())
        finally:
            self._leave(ticket)

    def _leave(self, ticket: threading.Lock) -> None:
        """Take out the ticket of a thread that has had its turn, or waits no more."""
        with self._lock:
            had_turn = self._tickets[0] is ticket
            self._tickets.remove(ticket)
            if had_turn and self._tickets:
                self._tickets[0].release()
