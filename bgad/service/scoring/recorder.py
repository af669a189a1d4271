"""Records scores in the store, and makes no camera wait for a store that does not answer.

Every write runs in a thread of the recorder, for which a request waits a short time. A store that is locked, away or
silent is noted as away: from then on no request waits for it, and a thread asks it until it can be written again.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

import sqlalchemy as sa

from bgad.errors import OutputError, first_line
from bgad.service.errors import StoreAwayError
from bgad.service.store import dialects
from bgad.service.store.database import Database
from bgad.service.threads import SupervisedThread

RECORD_SECONDS = 1.0  # that a request waits for the store
PROBE_SECONDS = 1.0  # between two questions to a store that is away
WRITERS = 8
CLOSE_SECONDS = 2.0  # for a write to end when the service is stopped

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Recorder:
    """Threads that write to the store, and what is known of it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queue: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._problem = ""  # why the store is away
        self._lock = threading.Lock()
        self._away, self._closed = threading.Event(), threading.Event()
        self._writing = 0
        self._writers = [threading.Thread(target=self._write, name="record", daemon=True) for _ in range(WRITERS)]
        self.thread = SupervisedThread("store probe", self._probe)
        for thread in self._writers:
            thread.start()
        self.thread.start()

    @property
    def problem(self) -> str:
        """Why the store cannot be written; empty if nothing is known against it."""
        return self._problem

    def run(self, write: Callable[[], T]) -> T:
        """Run a write and return its result.

        StoreAwayError if the store does not take it within RECORD_SECONDS, and at once if the store is away already;
        OutputError if its disk is full.
        """
        if self._problem:
            raise StoreAwayError(self._problem)
        future: Future[T] = Future()
        self._queue.put((write, future))
        try:
            return future.result(RECORD_SECONDS)
        except TimeoutError as error:
            may_be_written = not future.cancel()
            problem = f"no answer within {RECORD_SECONDS:g} s"
            self._note(problem)
            raise StoreAwayError(problem, may_be_written=may_be_written) from error
        except dialects.UNAVAILABLE as error:
            if dialects.is_disk_full(error):
                raise OutputError(dialects.DISK_FULL) from error
            problem = first_line(getattr(error, "orig", None) or error)
            self._note(problem)
            raise StoreAwayError(problem) from error

    def close(self) -> None:
        """End the threads; one that the store holds up is left behind."""
        self._closed.set()
        self._away.set()
        self.thread.stop(CLOSE_SECONDS)
        for _ in self._writers:
            self._queue.put(None)
        for thread in self._writers:
            thread.join(CLOSE_SECONDS / WRITERS)

    def _note(self, problem: str) -> None:
        with self._lock:
            if not self._problem:
                logger.warning("scores are given but not kept, because the store cannot be written: %s", problem)
            self._problem = problem
        self._away.set()

    def _write(self) -> None:
        while (item := self._queue.get()) is not None:
            write, future = item
            if not future.set_running_or_notify_cancel():
                continue
            with self._lock:
                self._writing += 1
            try:
                future.set_result(write())
            except BaseException as error:  # noqa: BLE001 - the request must learn of it, and the thread must survive
                future.set_exception(error)
            finally:
                with self._lock:
                    self._writing -= 1

    def _probe(self) -> None:
        """Ask a store that is away until it can be written and no write hangs in it any more."""
        while not self._closed.is_set():
            self.thread.wait(self._away)
            while not self._closed.is_set() and self._problem:
                self.thread.wait(self._closed, PROBE_SECONDS)
                with suppress(sa.exc.SQLAlchemyError):
                    self._database.check_writable()
                    self._note_return()

    def _note_return(self) -> None:
        with self._lock:
            if self._writing:
                return
            self._problem = ""
            self._away.clear()
        logger.warning("the store can be written again")
