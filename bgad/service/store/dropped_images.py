"""The images that retention drops: which are due, which are dropped, and whose files are still to be removed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from bgad.service.store.database import Database
from bgad.service.store.image_list import last_drop
from bgad.service.store.tables import images, leftovers, reviews, scores


@dataclass(frozen=True, slots=True)
class DueImage:
    """An unreviewed image that is older than the retention period."""

    id: int
    sha256: str
    received: float


@dataclass(frozen=True, slots=True)
class Leftover:
    """A dropped image whose files may still exist."""

    id: int
    sha256: str


class DroppedImages:
    """Marks images as dropped and remembers the files that are still to be removed."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def due(self, before: float, after: tuple[float, int], limit: int) -> list[DueImage]:
        """Return kept images that nobody reviewed and that were last sent `before` a time, oldest first.

        `after` is the time of arrival and the id of the last image of the preceding page.
        """
        return self._database.rows(DueImage, _due(before, after).limit(limit))

    def count_kept(self) -> int:
        """Return the number of images whose files are kept."""
        return self._database.count(sa.select(images.c.id).where(images.c.dropped.is_(None)))

    def mark(self, numbers: Sequence[int], before: float) -> list[int]:
        """Mark images as dropped unless they were reviewed or sent again meanwhile; return the ids of those marked.

        The time of a removal is later than that of all earlier ones, so that a list's snapshot can tell them apart.
        """
        with self._database.engine.connect() as connection:
            now = max(int(1000 * self._database.clock()), last_drop(connection) + 1) / 1000
        with self._database.begin_queued() as connection:
            # The update locks the rows: a review of these images waits until this transaction ends.
            connection.execute(images.update().where(images.c.id.in_(numbers)).values(id=images.c.id))
            marked = list(connection.execute(_due(before).where(images.c.id.in_(numbers))).scalars())
            chosen = images.c.id.in_(marked)
            connection.execute(images.update().where(chosen).values(dropped=now))
            connection.execute(leftovers.delete().where(leftovers.c.image.in_(marked)))
            connection.execute(leftovers.insert().from_select(["image"], sa.select(images.c.id).where(chosen)))
        return marked

    def leftovers(self, numbers: Sequence[int] | None = None) -> list[Leftover]:
        """Return the dropped images whose files may still exist: all of them, or those among `numbers`."""
        query = sa.select(images.c.id, images.c.sha256).join(leftovers, leftovers.c.image == images.c.id)
        if numbers is not None:
            query = query.where(leftovers.c.image.in_(numbers))
        return self._database.rows(Leftover, query.order_by(images.c.id))

    def clear(self, numbers: Sequence[int]) -> None:
        """Record that the files of these images are removed."""
        with self._database.begin_queued() as connection:
            connection.execute(leftovers.delete().where(leftovers.c.image.in_(numbers)))


def _due(before: float, after: tuple[float, int] = (0.0, 0)) -> sa.Select[Any]:
    beyond = sa.tuple_(images.c.received, images.c.id) > sa.tuple_(*(sa.literal(part) for part in after))
    return (
        sa.select(images.c.id, images.c.sha256, images.c.received)
        .where(
            images.c.dropped.is_(None),
            images.c.received < before,
            beyond,
            ~sa.exists().where(reviews.c.image == images.c.id),
            ~sa.exists().where(scores.c.image == images.c.id, scores.c.created >= before),
        )
        .order_by(images.c.received, images.c.id)
    )
