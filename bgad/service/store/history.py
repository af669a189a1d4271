"""The history: who did what and when."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import sqlalchemy as sa

from bgad.service.store.database import Database
from bgad.service.store.tables import events, images

DRIFT_ALARM, RELEASE, REVIEW, UNDO_REVIEW = "drift alarm", "release", "review", "undo review"
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
    image: int | None = None  # id of the image that the event is about
    image_name: str = ""  # name of that image


class History:
    """Reads and writes the history."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, who: str, what: str, name: str = "", detail: str = "") -> None:
        """Record an event in a transaction of its own."""
        with self._database.begin() as connection:
            record(connection, self._database.clock(), who, what, name, detail)

    def events(self, name: str = "", limit: int | None = None, *, what: str = "") -> list[Event]:
        """Return the events of a model or of a kind, newest first; an event about an image carries its id and name."""
        query = sa.select(events).order_by(events.c.id.desc()).limit(limit)
        filters = [column == value for column, value in ((events.c.name, name), (events.c.what, what)) if value]
        rows = [_with_image_id(event) for event in self._database.rows(Event, query.where(*filters))]
        names = self._image_names({event.image for event in rows if event.image is not None})
        return [
            event if event.image is None else replace(event, image_name=names.get(event.image, "")) for event in rows
        ]

    def _image_names(self, numbers: set[int]) -> dict[int, str]:
        query = sa.select(images.c.id, images.c.name).where(images.c.id.in_(numbers))
        with self._database.engine.connect() as connection:
            return {row.id: row.name for row in connection.execute(query)}


def record(connection: sa.Connection, created: float, who: str, what: str, name: str, detail: str) -> None:
    """Record an event as part of the caller's transaction."""
    connection.execute(events.insert().values(who=who, what=what, name=name, detail=detail, created=created))


def _with_image_id(event: Event) -> Event:
    match = _IMAGE_DETAIL.match(event.detail) if event.what in ABOUT_IMAGES else None
    return replace(event, image=int(match[1])) if match else event
