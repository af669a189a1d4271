"""The differences between SQLite and PostgreSQL: connection settings, upserts and locks."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from bgad.errors import ConfigError, first_line
from bgad.service.store.tables import images, scores, senders

# Errors of a database that does not answer at the moment; a later attempt may succeed.
UNAVAILABLE = (sa.exc.OperationalError, sa.exc.InterfaceError, sa.exc.TimeoutError)
DISK_FULL = "the disk of the store is full: free some space"
POSTGRESQL_DISK_FULL = "53100"  # SQLSTATE
BUSY_SECONDS = 30
RELAXED_SECONDS = 0.7  # that the write of a score waits for locks: a camera waits for it
WAL_PAGES = 50_000  # of 4 KiB: beyond that, writers wait while the write-ahead log is copied into the file
POOL_SIZE = 16
CACHE_KIB = 512  # of pages of an SQLite file that each connection keeps; the system's cache has the others
# A silent or dead server is noticed: at once when a connection is opened, otherwise within half a minute.
CONNECTION_TIMEOUTS = {
    "connect_timeout": 5,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,  # milliseconds
}

# The last id that a table's sequence has given out, and the announcements of those who insert above one.
_LAST_GIVEN = sa.text("SELECT coalesce(pg_sequence_last_value(CAST(:table || '_id_seq' AS regclass)), 0)")
_ANNOUNCE = sa.text(
    "SELECT pg_advisory_xact_lock_shared(hashtext('bgad inserts ' || :table || ' ' || coalesce(current_schema(), '')),"
    " CAST(coalesce(pg_sequence_last_value(CAST(:table || '_id_seq' AS regclass)), 0) AS integer))"
)
_FIRST_ANNOUNCED = sa.text(
    "SELECT min(CAST(objid AS bigint)) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND classid = CAST(hashtext('bgad inserts ' || :table || ' ' || coalesce(current_schema(), '')) AS oid)"
)


def url(address: str) -> sa.URL:
    """Parse the address of a store; ConfigError if it names no supported database."""
    try:
        parts = sa.make_url(address)
    except sa.exc.ArgumentError as error:
        raise ConfigError(f"{address!r} is no address of a store: give postgresql://user@host/name") from error
    backend = parts.get_backend_name()
    if backend not in ("postgresql", "sqlite"):
        raise ConfigError(f"{backend} is not supported as a store: use postgresql, or leave --store out")
    return parts.set(drivername="postgresql+psycopg") if backend == "postgresql" else parts


def engine(address: str, synchronous: str = "FULL", busy_seconds: float = BUSY_SECONDS) -> sa.Engine:
    """Create the connection pool of a database.

    `synchronous` is the SQLite pragma of that name, and `busy_seconds` how long SQLite waits for another writer.
    """
    parts = url(address)
    if parts.get_backend_name() == "postgresql":
        timeouts = {name: value for name, value in CONNECTION_TIMEOUTS.items() if name not in parts.query}
        return sa.create_engine(parts, pool_pre_ping=True, pool_size=POOL_SIZE, connect_args=timeouts)
    pool = sa.create_engine(parts, connect_args={"timeout": busy_seconds}, pool_size=POOL_SIZE)

    def prepare(connection: Any, _: object) -> None:
        cursor = connection.cursor()
        settings = ("journal_mode=WAL", f"synchronous={synchronous}", "foreign_keys=ON", f"cache_size=-{CACHE_KIB}")
        for pragma in settings:
            cursor.execute(f"PRAGMA {pragma}")
        # The database runs checkpoints in a thread of its own; this limit only applies if that thread falls behind.
        cursor.execute(f"PRAGMA wal_autocheckpoint={4 * WAL_PAGES}")
        cursor.close()

    sa.event.listen(pool, "connect", prepare)
    return pool


def close_returned(_: object, record: sa.pool.ConnectionPoolEntry) -> None:
    """Close a connection that comes back to its pool after the pool was disposed of."""
    record.close()


def is_disk_full(error: Exception) -> bool:
    """Return whether a database could not write because its disk is full."""
    cause = getattr(error, "orig", None)
    code = getattr(cause, "sqlite_errorcode", None)
    return code == sqlite3.SQLITE_FULL or getattr(cause, "sqlstate", None) == POSTGRESQL_DISK_FULL


def limit_waiting(connection: sa.Connection, seconds: float) -> None:
    """Let PostgreSQL end the statements of a transaction that wait longer; SQLite has a setting for a connection."""
    if connection.dialect.name == "postgresql":
        for setting in ("lock_timeout", "statement_timeout"):
            connection.execute(sa.text(f"SET LOCAL {setting} TO {round(1000 * seconds)}"))


@contextmanager
def busy_timeout(connection: sa.Connection, seconds: float) -> Iterator[None]:
    """Let SQLite wait for a lock of another program for `seconds` in the block; nothing changes for PostgreSQL."""
    if connection.dialect.name == "postgresql":
        yield
        return
    driver: Any = connection.connection.dbapi_connection  # no statement of the transaction, which may have failed
    driver.execute(f"PRAGMA busy_timeout={round(1000 * seconds)}").close()
    try:
        yield
    finally:
        driver.execute(f"PRAGMA busy_timeout={round(1000 * BUSY_SECONDS)}").close()


@contextmanager
def opening(address: str) -> Iterator[None]:
    """Turn the error of a database that is missing, damaged or refuses the login into a ConfigError of one line."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        reason = first_line(error.orig or error)
        raise ConfigError(f"cannot open the store {url(address).render_as_string()}: {reason}") from error


class Upserts(NamedTuple):
    """Insert statements that handle an existing row; they are built once because building is slower than running."""

    image: Any  # returns the id of the new or existing image
    replace_score: Any  # replaces the score of the same image and version
    keep_score: Any  # keeps the score of the same image and version
    sender: Any  # who sent an image


def upserts(backend: str) -> Upserts:
    """Build the upsert statements of a backend."""
    dialect: Any = sqlite if backend == "sqlite" else postgresql
    image = dialect.insert(images)
    image = image.on_conflict_do_update(
        index_elements=["sha256"], set_={"width": image.excluded.width, "dropped": None}
    )
    score, key = dialect.insert(scores), ["image", "version"]
    columns = ("score", "p_value", "threshold", "is_anomaly", "created", "parts", "region", "map_max")
    replace = score.on_conflict_do_update(index_elements=key, set_={name: score.excluded[name] for name in columns})
    keep = score.on_conflict_do_nothing(index_elements=key)
    sender = dialect.insert(senders).on_conflict_do_nothing()
    return Upserts(image.returning(images.c.id), replace, keep, sender)


def lock_for_writing(connection: sa.Connection, table: sa.Table) -> None:
    """Exclude other writers from a table until the transaction ends."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text(f"LOCK TABLE {table.name} IN SHARE ROW EXCLUSIVE MODE"))
    else:  # any write takes SQLite's only lock
        connection.execute(table.update().where(sa.false()).values(id=table.c.id))


def lock_content(connection: sa.Connection, sha256: str) -> None:
    """Exclude other services from recording or removing an image until the transaction ends.

    An SQLite file has one service, which needs no such lock.
    """
    if connection.dialect.name == "postgresql":
        key = int.from_bytes(bytes.fromhex(sha256[:16]), signed=True)
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": key})


def announce_insert(connection: sa.Connection, table: sa.Table) -> None:
    """Tell PostgreSQL's other sessions, until the transaction ends, that it inserts rows above the last id given out.

    Lists need it, because a row with a lower id than visible ones may still be uncommitted. The announcement is a
    shared advisory lock on that last id: it never waits, and nobody waits for it. SQLite has one writer at a time.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(_ANNOUNCE, {"table": table.name})


def highest_id(connection: sa.Connection, table: sa.Table, *, settled: bool) -> int:
    """Return the highest visible id of a table, 0 if there is none; with `settled`, no lower id can appear later."""
    query = sa.select(sa.func.max(table.c.id))
    if settled and connection.dialect.name == "postgresql":
        # The order matters: who announces an insert after the first statement inserts above its result.
        given = connection.execute(_LAST_GIVEN, {"table": table.name}).scalar_one()
        announced = connection.execute(_FIRST_ANNOUNCED, {"table": table.name}).scalar()
        query = query.where(table.c.id <= (given if announced is None else min(given, announced)))
    return connection.execute(query).scalar() or 0
