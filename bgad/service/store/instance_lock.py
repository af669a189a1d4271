"""One service for one store: two of them would call each other's jobs interrupted, and know nothing of each other's
releases."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import sqlalchemy as sa

from bgad.errors import ConfigError
from bgad.io import files as output_files
from bgad.service.store import dialects

LOOK_SECONDS = 5.0  # between two looks whether the store still knows us
# A machine that lost its power holds a lock until the server notices: after a minute, not after its two hours.
NOTICE = ("tcp_keepalives_idle=30", "tcp_keepalives_interval=10", "tcp_keepalives_count=3")
LOCK = "SELECT pg_try_advisory_lock(hashtext('bgad serve'), hashtext(coalesce(current_schema(), '')))"


@contextmanager
def claimed(address: str) -> Iterator[None]:
    """Keep other services from a store; ConfigError where one has it. Where another service was quicker after an outage
    of the server, this one is stopped as by Ctrl-C."""
    url = dialects.url(address)
    if url.get_backend_name() == "postgresql":
        claim = Claim(address, _thread.interrupt_main)
        try:
            yield
        finally:
            claim.close()
        if claim.problem is not None:
            raise claim.problem
        return
    file = Path(url.database or "")
    with output_files.locked(file.parent, "service", "--store", f".{file.name}.lock"):
        yield


class Claim:
    """A lock of PostgreSQL, which ends with its connection; a thread takes it again after an outage, and calls `lost`
    where that is not possible any more."""

    def __init__(self, address: str, lost: Callable[[], None]) -> None:
        self.lost, self.problem = lost, None  # type: Callable[[], None], ConfigError | None
        self._engine = dialects.engine(address)
        self._shown = dialects.url(address).render_as_string()
        self._ended = threading.Event()
        self._connection: sa.Connection | None = None
        try:
            with dialects.opening(address):
                self._take()
        except ConfigError:
            self._drop()
            self._engine.dispose()
            raise
        self._thread = threading.Thread(target=self._watch, name="claim", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Let the next service have it."""
        self._ended.set()
        self._thread.join(LOOK_SECONDS)
        self._drop()
        self._engine.dispose()

    def _take(self) -> None:
        connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        self._connection = connection
        for line in NOTICE:
            connection.exec_driver_sql(f"SET {line}")
        if not connection.exec_driver_sql(LOCK).scalar_one():
            self._drop()
            raise ConfigError(f"the store {self._shown} is in use by another service: end it, or give another --store")

    def _drop(self) -> None:
        if self._connection is not None:
            with suppress(sa.exc.SQLAlchemyError):
                self._connection.invalidate()  # not back to the pool, where it would keep the lock
                self._connection.close()
            self._connection = None

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            try:
                if self._connection is None:
                    self._take()
                else:
                    self._connection.exec_driver_sql("SELECT 1")
            except sa.exc.SQLAlchemyError:  # the server is away, and the lock with it
                self._drop()
            except ConfigError as error:
                self.problem = error
                self.lost()
                return
