"""Upgrades a store of an older version: only on demand, only after a copy was made, and never while others use it."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from shlex import quote

import sqlalchemy as sa

from bgad.errors import OutputError, first_line
from bgad.service.store import dialects, schema
from bgad.service.store.schema import Age


def age_of(address: str) -> Age:
    """Compare the schema of the store at an address with that of this version."""
    with dialects.opening(address), _connection(address) as connection:
        return schema.age(connection)


def dump_command(address: str) -> str:
    """Return the command that copies a store on PostgreSQL to a file."""
    url = dialects.url(address).set(drivername="postgresql", password=None)
    return f"pg_dump --format=custom --file=bgad-store.dump {quote(url.render_as_string())}"


def copy_sqlite(connection: sa.Connection) -> Path | None:
    """Copy the file of an SQLite store whose schema is older; return the path of the copy, or None for others.

    The caller holds the write lock, so that nothing is written between the copy and the migration.
    """
    file = Path(connection.engine.url.database or "")
    if connection.dialect.name != "sqlite" or schema.age(connection) is not Age.OLDER:
        return None
    copy = file.with_name(f"{file.name}.{schema.revision(connection)}-{time.strftime('%Y%m%d-%H%M%S')}.backup")
    partial = copy.with_name(f"{copy.name}.part")
    try:
        with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(partial)) as target:
            source.backup(target)
        partial.rename(copy)
    except (sqlite3.Error, OSError) as error:
        partial.unlink(missing_ok=True)
        raise OutputError(f"no copy of {file} can be made before its upgrade: {first_line(error)}") from error
    return copy


@contextmanager
def _connection(address: str) -> Iterator[sa.Connection]:
    engine = dialects.engine(address)
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()
