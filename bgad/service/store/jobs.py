"""The table of teaching jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from bgad.service.store import history
from bgad.service.store.database import Database, insert
from bgad.service.store.tables import jobs
from bgad.service.store.versions import Version

UNFINISHED = ("queued", "running")
INTERRUPTED = "the service ended before the job did"


@dataclass(frozen=True, slots=True)
class Job:
    """One teaching job."""

    id: int
    kind: str
    name: str  # of the model
    version: int  # that the job starts from
    state: str  # queued, running, done, failed, cancelled, interrupted
    progress: float  # 0 to 1
    message: str
    images: list[int]  # to learn from
    new_version: int | None  # version that the job made
    who: str
    created: float
    ended: float | None
    result: dict[str, Any] | None = None  # how the new version compares with the old one; None in lists

    @property
    def is_finished(self) -> bool:
        """Whether the job neither waits nor runs."""
        return self.state not in UNFINISHED


class Jobs:
    """Reads and writes teaching jobs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, kind: str, version: Version, images: Sequence[int], who: str) -> Job:
        """Add a queued job."""
        now = self._database.clock()
        values = {"kind": kind, "name": version.name, "version": version.id, "images": list(images)}
        values |= {"state": "queued", "progress": 0.0, "message": "", "who": who, "created": now}
        with self._database.begin() as connection:
            number = insert(connection, jobs, values)
            history.record(connection, now, who, f"{kind} job", version.name, f"job {number}, {len(images)} images")
        return self.get(number)

    def get(self, number: int) -> Job:
        """Return one job with its result."""
        return self._database.row(Job, sa.select(jobs).where(jobs.c.id == number), f"job {number}")

    def all(self, name: str = "") -> list[Job]:
        """Return all jobs, or those of one model, newest first and without their results, which are large."""
        query = sa.select(*(column for column in jobs.c if column.name != "result")).order_by(jobs.c.id.desc())
        return self._database.rows(Job, query.where(jobs.c.name == name) if name else query)

    def unfinished(self, name: str) -> list[int]:
        """Return the ids of a model's jobs that wait or run."""
        query = sa.select(jobs.c.id).where(jobs.c.name == name, jobs.c.state.in_(UNFINISHED))
        return self._database.values(query.order_by(jobs.c.id))

    def update(self, number: int, **values: Any) -> bool:
        """Change state, progress, message, result or resulting version of a job, unless it has ended; return whether
        it had not."""
        if values.get("state") not in (None, *UNFINISHED):
            values["ended"] = self._database.clock()
        with self._database.begin() as connection:
            unfinished = jobs.update().where(jobs.c.id == number, jobs.c.state.in_(UNFINISHED))
            return bool(connection.execute(unfinished.values(**values)).rowcount)

    def interrupt_unfinished(self) -> list[int]:
        """Mark the unfinished jobs of an earlier process as interrupted, so that a person can resume them."""
        numbers = self._database.values(sa.select(jobs.c.id).where(jobs.c.state.in_(UNFINISHED)).order_by(jobs.c.id))
        for number in numbers:
            self.update(number, state="interrupted", message=INTERRUPTED)
        return numbers
