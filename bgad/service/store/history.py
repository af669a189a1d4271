"""The history: who did what and when."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from bgad.service.store.database import Database
from bgad.service.store.tables import events, images

DRIFT_ALARM, RELEASE, REVIEW, UNDO_REVIEW = "drift alarm", "release", "review", "undo review"
ROLL_BACK, THRESHOLD = "roll back", "threshold"
SERVICE = "bgad"  # who did what the service or a command did by itself
ABOUT_IMAGES = (REVIEW, UNDO_REVIEW, DRIFT_ALARM)
_IMAGE_DETAIL = re.compile(r"image (\d+): ")  # how the detail of an event about an image begins


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of the history."""

    id: int
    who: str
    what: str
    name: str  # of the model, or empty
    detail: str
    created: float
    image: int | None  # id of the image that the event is about
    image_name: str  # name of that image, or empty


@dataclass(frozen=True)
class EventFilter:
    """Which events are wanted; an empty field matches all."""

    names: tuple[str, ...] = ()  # of models
    what: tuple[str, ...] = ()
    search: str = ""  # text that occurs in a field or in the name of the image, in any case
    since: float = 0.0
    until: float = 0.0

    def conditions(self) -> list[sa.ColumnElement[bool]]:
        """Return the conditions of a query."""
        conditions: list[sa.ColumnElement[bool]] = []
        if self.names:
            conditions.append(events.c.name.in_(self.names))
        if self.what:
            conditions.append(events.c.what.in_(self.what))
        if self.since:
            conditions.append(events.c.created >= self.since)
        if self.until:
            conditions.append(events.c.created < self.until)
        if self.search:
            columns = (*(events.c[key] for key in ("who", "what", "name", "detail")), images.c.name)
            conditions.append(sa.or_(*(column.icontains(self.search, autoescape=True) for column in columns)))
        return conditions


class History:
    """Reads and writes the history."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, who: str, what: str, name: str = "", detail: str = "") -> None:
        """Record an event in a transaction of its own."""
        with self._database.begin() as connection:
            record(connection, self._database.clock(), who, what, name, detail)

    def events(self, name: str = "", limit: int | None = None, *, what: str = "") -> list[Event]:
        """Return the events of a model or of a kind, newest first."""
        return self.page(EventFilter((name,) if name else (), (what,) if what else ()), limit)

    def page(self, wanted: EventFilter, limit: int | None, before: int | None = None) -> list[Event]:
        """Return events, newest first; `before` is the id of the last event of the page before."""
        query: sa.Select[Any] = (
            sa.select(events, sa.func.coalesce(images.c.name, "").label("image_name"))
            .outerjoin(images, images.c.id == events.c.image)
            .where(*wanted.conditions())
        )
        if before is not None:
            query = query.where(events.c.id < before)
        return self._database.rows(Event, query.order_by(events.c.id.desc()).limit(limit))


def record(connection: sa.Connection, created: float, who: str, what: str, name: str, detail: str) -> None:
    """Record an event as part of the caller's transaction."""
    match = _IMAGE_DETAIL.match(detail) if what in ABOUT_IMAGES else None
    values = {"who": who, "what": what, "name": name, "detail": detail, "created": created}
    connection.execute(events.insert().values(**values, image=int(match[1]) if match else None))
