"""Where SQLite and PostgreSQL differ: how they are opened, written to at once, and kept from other writers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from bgad.errors import ConfigError
from bgad.service.store.tables import images, scores

GONE = (sa.exc.OperationalError, sa.exc.InterfaceError, sa.exc.TimeoutError)  # it does not answer; it may again
BUSY_SECONDS = 30
LOG_PAGES = 50_000  # of 4 KiB
POOL = 16  # connections that are kept
# A server that is silent or gone is noticed: at once when it is asked first, else within half a minute.
WIRE = {
    "connect_timeout": 5,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,  # milliseconds
}


def url(address: str) -> sa.URL:
    """An address in its parts; ConfigError where it is none of a store."""
    try:
        parts = sa.make_url(address)
    except sa.exc.ArgumentError as error:
        raise ConfigError(f"{address!r} is no address of a store: give postgresql://user@host/name") from error
    kind = parts.get_backend_name()
    if kind not in ("postgresql", "sqlite"):
        raise ConfigError(f"{kind} is not supported as a store: use postgresql, or leave --store out")
    return parts.set(drivername="postgresql+psycopg") if kind == "postgresql" else parts


def engine(address: str, synchronous: str = "FULL") -> sa.Engine:
    """Connections to a database; `synchronous` is SQLite's."""
    parts = url(address)
    if parts.get_backend_name() == "postgresql":
        wire = {name: value for name, value in WIRE.items() if name not in parts.query}
        return sa.create_engine(parts, pool_pre_ping=True, pool_size=POOL, connect_args=wire)
    made = sa.create_engine(parts, connect_args={"timeout": BUSY_SECONDS}, pool_size=POOL)

    def prepare(connection: Any, _: object) -> None:
        cursor = connection.cursor()
        for line in ("journal_mode=WAL", f"synchronous={synchronous}", "foreign_keys=ON"):
            cursor.execute(f"PRAGMA {line}")
        cursor.execute(f"PRAGMA wal_autocheckpoint={4 * LOG_PAGES}")  # the store does it; this is for when it does not
        cursor.close()

    sa.event.listen(made, "connect", prepare)
    return made


@contextmanager
def opening(address: str) -> Iterator[None]:
    """One line of what a database says that is not there, does not let us in, or is damaged."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        reason = (str(error.orig).strip().splitlines() or [type(error.orig).__name__])[0]
        raise ConfigError(f"cannot open the store {url(address).render_as_string()}: {reason}") from error


def upserts(kind: str) -> tuple[Any, Any, Any]:
    """Built once, as building one takes longer than running it: an image, whose number comes back also where it is
    there already; a score in place of that of the same version; a score that does not replace one."""
    dialect: Any = sqlite if kind == "sqlite" else postgresql
    image = dialect.insert(images)
    image = image.on_conflict_do_update(
        index_elements=["sha256"], set_={"width": image.excluded.width, "dropped": None}
    )
    score, key = dialect.insert(scores), ["image", "version"]
    columns = ("score", "p_value", "threshold", "is_anomaly", "distance", "created")
    again = score.on_conflict_do_update(index_elements=key, set_={name: score.excluded[name] for name in columns})
    return image.returning(images.c.id), again, score.on_conflict_do_nothing(index_elements=key)


def alone(connection: sa.Connection, table: sa.Table) -> None:
    """Keep other writers from a table until the end of the transaction."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text(f"LOCK TABLE {table.name} IN SHARE ROW EXCLUSIVE MODE"))
    else:
        connection.execute(table.update().where(sa.false()).values(id=table.c.id))  # SQLite has one lock for all


def newest(engine: sa.Engine, table: sa.Table, settled: bool) -> int:
    """The highest number of a table, 0 where it is empty; `settled`: nothing with a lower one comes later."""
    with engine.begin() as connection:
        if settled and connection.dialect.name == "postgresql":  # who writes has a number before it can be seen
            connection.execute(sa.text(f"LOCK TABLE {table.name} IN SHARE MODE"))
        return connection.execute(sa.select(sa.func.max(table.c.id))).scalar() or 0


def last_drop(engine: sa.Engine) -> int:
    """When a picture was last dropped, in milliseconds; each drop is later than those before it."""
    query = sa.select(sa.func.max(images.c.dropped)).where(images.c.dropped.is_not(None))
    with engine.connect() as connection:
        return round(1000 * (connection.execute(query).scalar() or 0.0))


def count(connection: sa.Connection, query: sa.Select[Any]) -> int:
    """How many rows it has."""
    return int(connection.execute(sa.select(sa.func.count()).select_from(query.subquery())).scalar_one())


def new(connection: sa.Connection, table: sa.Table, values: dict[str, Any]) -> int:
    """Insert a row; its number."""
    key = connection.execute(table.insert().values(**values)).inserted_primary_key
    assert key is not None  # noqa: S101 - every table here has one
    return int(key[0])
