"""The table of retention's sweeps, and the times of the newest rows, against which a clock can be checked."""

from __future__ import annotations

import sqlalchemy as sa

from bgad.service.store.database import Database
from bgad.service.store.tables import events, images, reviews, scores, sweeps, versions


class Sweeps:
    """Reads and writes sweeps. `before` is the time before which an image was due in a sweep."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, created: float, before: float) -> None:
        """Record a sweep; sweeps from the future, which a wrong clock left, are forgotten."""
        with self._database.begin_queued() as connection:
            connection.execute(sweeps.delete().where(sweeps.c.created > created))
            connection.execute(sweeps.insert().values(created=created, before=before))

    def due_since(self, time: float) -> float | None:
        """Return the `before` of the last sweep up to a time, None if there was none; older sweeps are forgotten."""
        query = sa.select(sweeps).where(sweeps.c.created <= time).order_by(sweeps.c.created.desc(), sweeps.c.id.desc())
        with self._database.begin_queued() as connection:
            row = connection.execute(query.limit(1)).first()
            if row is None:
                return None
            connection.execute(sweeps.delete().where(sweeps.c.created <= time, sweeps.c.id != row.id))
            return float(row.before)

    def clear(self) -> None:
        """Forget all sweeps: from now on, every image is due anew."""
        with self._database.begin_queued() as connection:
            connection.execute(sweeps.delete())

    def newest_row(self) -> float:
        """Return the time of the newest image, score, review or event; 0 if there is none."""
        queries = [sa.select(sa.func.max(images.c.received)).where(images.c.dropped.is_(None))]
        queries += [
            sa.select(table.c.created).order_by(table.c.id.desc()).limit(1) for table in (events, reviews, scores)
        ]
        # One query a version, because the index on the time of a score begins with the version.
        numbers = self._database.values(sa.select(versions.c.id))
        queries += [sa.select(sa.func.max(scores.c.created)).where(scores.c.version == number) for number in numbers]
        times = [time for query in queries for time in self._database.values(query)]
        return max((time for time in times if time is not None), default=0.0)
