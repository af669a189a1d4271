"""The table of model versions: which versions exist, which one is released, and their false-reject rates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa

from bgad.artifact.card import FLOAT32
from bgad.errors import ConfigError
from bgad.service.errors import MissingError
from bgad.service.store import dialects, history
from bgad.service.store.database import Database
from bgad.service.store.tables import versions

RELEASED, CANDIDATE, RETIRED, DISCARDED = "released", "candidate", "retired", "discarded"


class OperatingPoint(NamedTuple):
    """A false-reject rate and its threshold."""

    rate: float
    threshold: float


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a model."""

    id: int
    name: str  # of the model
    checksum: str  # of the model card
    folder: str  # relative to the folder of the models
    parent: int | None
    state: str  # released, candidate, retired, discarded
    rate: float | None  # false-reject rate set in the service; None: the model card's
    created: float
    threshold: float | None = None  # of that rate; None: the model card's
    precision: str = FLOAT32  # in which it scores


class Versions:
    """Reads and writes model versions."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(
        self,
        name: str,
        checksum: str,
        folder: str,
        *,
        state: str,
        parent: int | None = None,
        who: str = "bgad",
        precision: str = FLOAT32,
    ) -> Version:
        """Add a version; an existing one with the same name, checksum and precision is returned unchanged."""
        identity = {"name": name, "checksum": checksum, "precision": precision}
        with self._database.begin() as connection:
            return self._add(connection, identity, {"folder": folder, "parent": parent, "state": state}, who)

    def _add(self, connection: sa.Connection, identity: dict[str, str], values: dict[str, Any], who: str) -> Version:
        same = sa.select(versions).filter_by(**identity)
        row = connection.execute(same).mappings().first()
        if row is None:
            now = self._database.clock()
            connection.execute(versions.insert().values(**identity, **values, created=now))
            precision = "" if identity["precision"] == FLOAT32 else f" in {identity['precision']}"
            detail = f"{identity['checksum'][:12]}{precision}"
            history.record(connection, now, who, f"model {values['state']}", identity["name"], detail)
            row = connection.execute(same).mappings().one()
        return Version(**row)

    def all(self, name: str | None = None) -> list[Version]:
        """Return all versions, or those of one model, oldest first."""
        query = sa.select(versions).order_by(versions.c.id)
        return self._database.rows(Version, query if name is None else query.where(versions.c.name == name))

    def get(self, number: int) -> Version:
        """Return one version."""
        return self._database.row(Version, sa.select(versions).where(versions.c.id == number), f"version {number}")

    def released(self, name: str) -> Version:
        """Return the released version of a model."""
        query = sa.select(versions).where(versions.c.name == name, versions.c.state == RELEASED)
        return self._database.row(Version, query, f"released model {name!r}")

    def names(self) -> list[str]:
        """Return the names of the models that have a released version."""
        query = sa.select(versions.c.name).where(versions.c.state == RELEASED)
        return sorted(set(self._database.values(query)))

    def release(self, number: int, who: str, what: str = history.RELEASE) -> Version:
        """Release a version and retire the one that was released; `what` is how the history calls it."""
        with self._database.begin() as connection:
            version = _locked(connection, number)
            if version.state == DISCARDED:
                raise ConfigError(f"version {number} has been discarded: release another one")
            self._release(connection, version, who, what)
        return self.get(number)

    def _release(self, connection: sa.Connection, version: Version, who: str, what: str) -> None:
        others = versions.update().where(versions.c.name == version.name, versions.c.state == RELEASED)
        connection.execute(others.values(state=RETIRED))
        _set_state(connection, version.id, RELEASED)
        history.record(connection, self._database.clock(), who, what, version.name, f"version {version.id}")

    def change_precision(self, old: Version, precision: str, threshold: float | None) -> Version:
        """Release the model of a released version at another precision, with the rate that was set for the old one.

        `threshold` is that of the rate at the new precision, None where no rate was set in the service.
        """
        identity = {"name": old.name, "checksum": old.checksum, "precision": precision}
        values = {"folder": old.folder, "parent": old.id, "state": CANDIDATE}
        with self._database.begin() as connection:
            dialects.lock_for_writing(connection, versions)
            version = self._add(connection, identity, values, history.SERVICE)
            change = versions.update().where(versions.c.id == version.id)
            connection.execute(change.values(rate=old.rate, threshold=threshold))
            self._release(connection, version, history.SERVICE, history.RELEASE)
        return self.get(version.id)

    def discard(self, number: int, who: str) -> Version:
        """Discard a version that is not released."""
        with self._database.begin() as connection:
            version = _locked(connection, number)
            if version.state == RELEASED:
                raise ConfigError(f"version {number} is released: release another one first")
            _set_state(connection, number, DISCARDED)
            history.record(connection, self._database.clock(), who, "discard", version.name, f"version {number}")
        return self.get(number)

    def mark_replaced(self, number: int) -> None:
        """Discard a version whose folder now holds another model."""
        self._change(number, DISCARDED, "model replaced")

    def restore(self, number: int) -> None:
        """Release a version whose folder has come back, where no other version is released."""
        self._change(number, RELEASED, "model restored")

    def _change(self, number: int, state: str, what: str) -> None:
        """Set the state of a version as its folder says, and record that if it is new."""
        with self._database.begin() as connection:
            version = _locked(connection, number)
            if version.state != state:
                _set_state(connection, number, state)
                history.record(connection, self._database.clock(), "bgad", what, version.name, f"version {number}")

    def set_rate(self, number: int, old: OperatingPoint, new: OperatingPoint, who: str) -> None:
        """Set the false-reject rate of a version; decisions on its scores follow, and no score is written."""
        change = versions.update().where(versions.c.id == number).values(rate=new.rate, threshold=new.threshold)
        detail = (
            f"version {number}: false-reject rate {old.rate:g} -> {new.rate:g}, "
            f"threshold {old.threshold:.6g} -> {new.threshold:.6g}"
        )
        with self._database.begin_queued() as connection:
            connection.execute(change)
            name = connection.execute(sa.select(versions.c.name).where(versions.c.id == number)).scalar_one()
            history.record(connection, self._database.clock(), who, history.THRESHOLD, name, detail)


def is_current(connection: sa.Connection, version: Version) -> bool:
    """Return whether a version is released with the given false-reject rate.

    On PostgreSQL, neither can change until the caller's transaction ends.
    """
    row = connection.execute(
        sa.select(versions.c.state, versions.c.rate).where(versions.c.id == version.id).with_for_update(read=True)
    ).one()
    return (row.state, row.rate) == (RELEASED, version.rate)


def _set_state(connection: sa.Connection, number: int, state: str) -> None:
    connection.execute(versions.update().where(versions.c.id == number).values(state=state))


def _locked(connection: sa.Connection, number: int) -> Version:
    """Return a version whose state no other transaction can change until this one ends."""
    dialects.lock_for_writing(connection, versions)
    row = connection.execute(sa.select(versions).where(versions.c.id == number)).mappings().first()
    if row is None:
        raise MissingError(f"there is no version {number}")
    return Version(**row)
