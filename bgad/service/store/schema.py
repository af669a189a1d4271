"""The schema of the database: its revision, the migration to this version of bgad, and who uses it.

Every service that uses a PostgreSQL store announces its version of bgad by a shared advisory lock. The lock ends with
the process, and `pg_locks` shows those of other versions. So no version migrates or writes a schema that another one
uses.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path

import alembic.command
import alembic.config
import sqlalchemy as sa
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from bgad._version import __version__
from bgad.errors import ConfigError


class Age(Enum):
    """How the schema of a database compares with that of this version of bgad."""

    EMPTY = "no tables"
    OLDER = "of an older version"
    CURRENT = "of this version"
    NEWER = "of a newer version"


_ANNOUNCE = sa.text(
    "SELECT pg_advisory_lock_shared(hashtext('bgad version ' || coalesce(current_schema(), '')), hashtext(:version))"
)
_ANNOUNCE_UNTIL_COMMIT = sa.text(str(_ANNOUNCE).replace("pg_advisory_lock", "pg_advisory_xact_lock"))
_OTHERS = sa.text(
    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 2"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND classid = CAST(hashtext('bgad version ' || coalesce(current_schema(), '')) AS oid)"
    " AND objid <> CAST(hashtext(:version) AS oid)"
)


def head() -> str:
    """Return the revision of the schema that this version of bgad uses."""
    revision = ScriptDirectory.from_config(_config()).get_current_head()
    assert revision is not None  # noqa: S101 - there is at least one migration
    return revision


def revision(connection: sa.Connection) -> str | None:
    """Return the revision of the schema of a database; None if it has no tables yet."""
    return MigrationContext.configure(connection).get_current_revision()


def age(connection: sa.Connection) -> Age:
    """Compare the schema of a database with that of this version of bgad."""
    present = revision(connection)
    if present is None:
        return Age.EMPTY
    if present == head():
        return Age.CURRENT
    known = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
    return Age.OLDER if present in known else Age.NEWER


def upgrade(connection: sa.Connection) -> None:
    """Migrate a database; ConfigError if services of another version use it."""
    if connection.dialect.name == "postgresql" and revision(connection) != head():
        announce_version(connection, until_commit=True)
    config = _config()
    config.attributes["connection"] = connection
    alembic.command.upgrade(config, "head")


def check_current(connection: sa.Connection) -> None:
    """Raise ConfigError unless a database has the schema of this version of bgad."""
    found = age(connection)
    if found is not Age.CURRENT:
        remedy = {
            Age.EMPTY: "start the main service first",
            Age.OLDER: "run `bgad store upgrade` with the same --models and --store, or install the version before",
            Age.NEWER: "a newer bgad made it, so update bgad",
        }[found]
        raise ConfigError(f"the store {shown(connection)} does not have the schema of bgad {__version__}: {remedy}")


def announce_version(connection: sa.Connection, *, until_commit: bool = False) -> None:
    """Announce this version to other services, until the connection ends; ConfigError if another version is in use.

    The lock is taken before the others are looked for. Of two versions that start at the same time, at least one
    therefore sees the other.
    """
    version = {"version": f"{__version__} {head()}"}
    connection.execute(_ANNOUNCE_UNTIL_COMMIT if until_commit else _ANNOUNCE, version)
    if connection.execute(_OTHERS, version).scalar_one():
        raise ConfigError(
            f"the store {shown(connection)} is in use by services of another version than bgad {__version__}: end all "
            "of them first, or install their version"
        )


def shown(connection: sa.Connection) -> str:
    """Return the address of a database without its password."""
    return connection.engine.url.render_as_string()


def _config() -> alembic.config.Config:
    config = alembic.config.Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")))
    return config
