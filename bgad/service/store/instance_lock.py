"""The instance lock: a store has at most one main service, and all services of a store have the same version of bgad.

Two main services would mark each other's jobs as interrupted, and neither would notice the other's releases. Scorers
hold no lock but that of their version, so that there may be any number of them, with and without a main service.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import sqlalchemy as sa

from bgad.errors import ConfigError
from bgad.io import files
from bgad.service.role import Role
from bgad.service.store import dialects, schema
from bgad.service.threads import SupervisedThread

CHECK_SECONDS = 5.0  # between two checks that the lock is still held
# PostgreSQL keeps the lock of a machine that lost power until it notices: after a minute with these, not two hours.
KEEPALIVE_SETTINGS = ("tcp_keepalives_idle=30", "tcp_keepalives_interval=10", "tcp_keepalives_count=3")
ACQUIRE = "SELECT pg_try_advisory_lock(hashtext('bgad serve'), hashtext(coalesce(current_schema(), '')))"


@contextmanager
def hold(address: str, role: Role = Role.MAIN) -> Iterator[None]:
    """Hold the instance lock of a store for a role; ConfigError if another service is in the way.

    If the lock is lost because another service took it while the server was down, the main thread is interrupted as by
    Ctrl-C.
    """
    url = dialects.url(address)
    if url.get_backend_name() == "postgresql":
        lock = AdvisoryLock(address, _thread.interrupt_main, role)
        try:
            yield
        finally:
            lock.release()
        if lock.problem is not None:
            raise lock.problem
        return
    if role is Role.SCORER:
        raise ConfigError(
            "an SQLite file has one service, and no scorer beside it: give --store postgresql://user@host/name"
        )
    file = Path(url.database or "")
    with files.locked(file.parent, "service", "--store", f".{file.name}.lock"):
        yield


class AdvisoryLock:
    """The advisory locks of a service on PostgreSQL, which end with their connection.

    A thread checks the connection and acquires the locks again when the server returns. It calls `on_loss` if another
    main service, or a service of another version, has come meanwhile.
    """

    def __init__(self, address: str, on_loss: Callable[[], None], role: Role = Role.MAIN) -> None:
        self.problem: ConfigError | None = None
        self._on_loss, self._role = on_loss, role
        self._engine = dialects.engine(address)
        self._shown_address = dialects.url(address).render_as_string()
        self._released = threading.Event()
        self._connection: sa.Connection | None = None
        try:
            with dialects.opening(address):
                self._acquire()
        except ConfigError:
            self._disconnect()
            self._engine.dispose()
            raise
        self._thread = SupervisedThread("instance lock", self._check)
        self._thread.start()

    def release(self) -> None:
        """Release the locks for the next service."""
        self._released.set()
        self._thread.stop(CHECK_SECONDS)
        self._disconnect()
        self._engine.dispose()

    def _acquire(self) -> None:
        connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        try:
            self._lock(connection)
        except BaseException:
            _close(connection)
            raise
        self._connection = connection

    def _lock(self, connection: sa.Connection) -> None:
        for setting in KEEPALIVE_SETTINGS:
            connection.exec_driver_sql(f"SET {setting}")
        schema.announce_version(connection)
        if self._role is Role.SCORER:
            schema.check_current(connection)
        elif not connection.exec_driver_sql(ACQUIRE).scalar_one():
            raise ConfigError(
                f"the store {self._shown_address} is in use by another service: end it, or give another --store"
            )

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            _close(connection)

    def _check(self) -> None:
        while not self._released.wait(CHECK_SECONDS):
            try:
                if self._connection is None:
                    self._acquire()
                else:
                    self._connection.exec_driver_sql("SELECT 1")
            except sa.exc.SQLAlchemyError:  # the server is down, and the lock is gone with it
                self._disconnect()
            except ConfigError as error:
                self._disconnect()
                self.problem = error
                self._on_loss()
                return
        self._disconnect()  # also what was opened while `release` waited


def _close(connection: sa.Connection) -> None:
    with suppress(sa.exc.SQLAlchemyError):
        connection.invalidate()  # a pooled connection would keep the lock
        connection.close()
