"""Connections, transactions and migrations of the database: an SQLite file beside the models, or a PostgreSQL server.

A committed transaction is durable: SQLite syncs every commit, and so does PostgreSQL by default. Only scores, which can
be computed again, use relaxed durability: they survive a killed service, but not a power failure.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import alembic.util
import sqlalchemy as sa

from bgad.errors import ConfigError
from bgad.service.errors import MissingError
from bgad.service.fair_semaphore import FairSemaphore
from bgad.service.store import dialects, schema, upgrade
from bgad.service.store.tables import scores
from bgad.service.threads import SupervisedThread

CHECKPOINT_SECONDS = 10  # between two checkpoints of SQLite's write-ahead log

R = TypeVar("R")


class Database:
    """A database with the schema of this version; safe to use from many threads."""

    def __init__(self, address: str, clock: Callable[[], float] = time.time, *, migrate: bool = True) -> None:
        """Open `address`, an SQLAlchemy URL such as `sqlite:///file` or `postgresql://user@host/name`.

        The database is migrated unless `migrate` is false; then its schema must be that of this version of bgad.
        """
        self.clock = clock
        self.copy: Path | None = None  # of an SQLite file that was migrated, as it was before
        self.engine = dialects.engine(address)
        embedded = self.engine.dialect.name == "sqlite"
        self._relaxed = dialects.engine(address, "NORMAL", dialects.RELAXED_SECONDS) if embedded else self.engine
        # SQLite admits one writer at a time. Queueing here is faster than SQLite's own polling for its file lock, and
        # fair: polling starves a writer among busy ones. Durable writers have a queue of their own, because a score
        # must not wait as long as they do for a file that another program has locked.
        self._writers = FairSemaphore(1) if embedded else None
        self._durable_writers = FairSemaphore(1) if embedded else None
        self._closed = threading.Event()
        self.thread: SupervisedThread | None = None
        try:
            with dialects.opening(address):
                self._prepare(migrate)
        except alembic.util.CommandError as error:
            self.close()
            raise ConfigError(
                f"the store {self.engine.url.render_as_string()} was made by a newer bgad ({error}): update bgad"
            ) from error
        except BaseException:
            self.close()
            raise
        if embedded:
            self.thread = SupervisedThread("store", self._checkpoint)
            self.thread.start()

    def close(self) -> None:
        """Close all connections; one that a thread still uses is closed when the thread returns it."""
        self._closed.set()
        if self.thread is not None:
            self.thread.stop()
        for engine in (self.engine, self._relaxed):
            sa.event.listen(engine, "checkin", dialects.close_returned)
            engine.dispose()

    @property
    def is_shared(self) -> bool:
        """Whether other services can use the database at the same time."""
        return self.engine.dialect.name == "postgresql"

    def alive(self) -> bool:
        """Return whether the database answers and can be written."""
        try:
            self.check_writable()
        except sa.exc.SQLAlchemyError:
            return False
        return True

    @contextmanager
    def begin(self) -> Iterator[sa.Connection]:
        """Open a durable transaction. It must not be opened inside another one.

        On SQLite, it waits for BUSY_SECONDS in all: for its turn, and for other programs.
        """
        with _turn(self._durable_writers) as seconds, self._begin_within(seconds) as connection:
            yield connection

    @contextmanager
    def begin_queued(self) -> Iterator[sa.Connection]:
        """Open a durable transaction that also takes its turn among the writers of scores, within the same time."""
        with (
            _turn(self._durable_writers) as seconds,
            _turn(self._writers, seconds) as seconds_left,
            self._begin_within(seconds_left) as connection,
        ):
            yield connection

    @contextmanager
    def begin_relaxed(self) -> Iterator[sa.Connection]:
        """Open a transaction that a power failure may undo; for data that can be computed again.

        When its turn has come, it waits for the database's locks for a short time only.
        """
        with _turn(self._writers), self._relaxed.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(sa.text("SET LOCAL synchronous_commit TO off"))
                dialects.limit_waiting(connection, dialects.RELAXED_SECONDS)
            yield connection

    @contextmanager
    def _begin_within(self, seconds: float) -> Iterator[sa.Connection]:
        """Open a durable transaction whose turn has come, and which waits for SQLite's file lock for `seconds`."""
        with self.engine.begin() as connection, dialects.busy_timeout(connection, seconds):
            yield connection

    def check_writable(self) -> None:
        """Raise the database's error unless a score could be written now; nothing is written."""
        with self.begin_relaxed() as connection:
            if connection.dialect.name == "sqlite":
                connection.exec_driver_sql("BEGIN IMMEDIATE")
                connection.exec_driver_sql("ROLLBACK")
            else:
                connection.execute(scores.update().where(sa.false()).values(id=scores.c.id))

    def rows(self, kind: Callable[..., R], query: sa.Select[Any]) -> list[R]:
        """Return every row of a query as an instance of `kind`, whose fields are the selected columns."""
        with self.engine.connect() as connection:
            return [kind(**row) for row in connection.execute(query).mappings()]

    def row(self, kind: Callable[..., R], query: sa.Select[Any], description: str) -> R:
        """Return the first row of a query; MissingError names `description` if there is none."""
        rows = self.rows(kind, query.limit(1))
        if not rows:
            raise MissingError(f"there is no {description}")
        return rows[0]

    def values(self, query: sa.Select[Any]) -> list[Any]:
        """Return the first column of a query."""
        with self.engine.connect() as connection:
            return list(connection.execute(query).scalars())

    def count(self, query: sa.Select[Any]) -> int:
        """Return the number of rows of a query."""
        with self.engine.connect() as connection:
            return int(connection.execute(sa.select(sa.func.count()).select_from(query.subquery())).scalar_one())

    def _prepare(self, migrate: bool) -> None:
        with self.engine.begin() as connection:
            if not migrate:
                schema.check_current(connection)
                return
            if connection.dialect.name == "sqlite":
                # Without it each statement commits by itself, and an interrupted migration cannot be repeated.
                connection.exec_driver_sql("BEGIN IMMEDIATE")
                self.copy = upgrade.copy_sqlite(connection)
            schema.upgrade(connection)

    def _checkpoint(self) -> None:
        """Copy SQLite's write-ahead log into the database file at intervals.

        A writer that runs the checkpoint itself waits for the disk and delays all other writers. If the log keeps
        growing under constant writes, one checkpoint runs while writers wait.
        """
        thread = self.thread
        assert thread is not None  # noqa: S101 - this runs in it
        while not thread.wait(self._closed, CHECKPOINT_SECONDS):
            with suppress(sa.exc.SQLAlchemyError), self._relaxed.connect() as connection:
                row = connection.exec_driver_sql("PRAGMA wal_checkpoint(PASSIVE)").one()
                if row[1] > dialects.WAL_PAGES:
                    with _turn(self._writers):
                        connection.exec_driver_sql("PRAGMA wal_checkpoint(PASSIVE)")


@contextmanager
def _turn(queue: FairSemaphore | None, seconds: float | None = None) -> Iterator[float]:
    """Hold the turn of a queue, if there is one; the block gets what waiting has left of `seconds`.

    sqlalchemy.exc.TimeoutError, as of a database that does not answer, if the turn does not come in that time.
    """
    seconds = dialects.BUSY_SECONDS if seconds is None else seconds
    if queue is None:
        yield seconds
        return
    deadline = time.monotonic() + seconds
    if not queue.enter(seconds):
        raise sa.exc.TimeoutError(f"other writes of this service took more than {seconds:.3g} s")
    try:
        yield max(0.0, deadline - time.monotonic())
    finally:
        queue.leave()


def insert(connection: sa.Connection, table: sa.Table, values: dict[str, Any]) -> int:
    """Insert a row and return its id."""
    key = connection.execute(table.insert().values(**values)).inserted_primary_key
    assert key is not None  # noqa: S101 - every table has a primary key
    return int(key[0])
