"""How long pictures are kept: what nobody has reviewed goes after so many days, and with it what is left of jobs of
that age. Scores stay, and so do the drift test and the history.

A picture that was reviewed stays for good, as does one that a model was taught with. So does every row: a picture that
is sent again is the image that it was.

First the store says that pictures are dropped, so that nobody can review them any more; then their files are removed.
The table of leftovers has those whose files may still be there, whatever happens in between.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from bgad.cli import console
from bgad.errors import BgadError
from bgad.service.store import dialects
from bgad.service.store.store import UNFINISHED, Row
from bgad.service.store.tables import images, leftovers, reviews, scores
from bgad.types import TAUGHT

if TYPE_CHECKING:
    from bgad.service.workbench import Workbench

DAY = 86400.0
PAUSE = 3600.0  # seconds between two sweeps
AT_ONCE = 100  # images
REST = 0.05  # seconds between so many and the next ones: others write, too


class Keeping:
    """Drops what is old, now and then and beside everything else."""

    def __init__(self, bench: Workbench, days: float | None) -> None:
        """Without a number of days, everything is kept."""
        self.bench, self.days = bench, days
        self.dropped = 0  # pictures, since the service began
        self._untold, self._freed = 0, 0  # pictures and bytes that the history does not have yet
        self._stuck = False  # whether files could not be removed, which was said
        self._learnt: dict[int, set[str]] = {}  # by version: the pictures that it was taught with
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="keeping", daemon=True)

    def start(self) -> None:
        """Sweep, and go on."""
        if self.days is not None:
            self._thread.start()

    def close(self) -> None:
        """Stop after the pictures at hand."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _work(self) -> None:
        while not self._ended.is_set():
            try:
                self.sweep()
            except (BgadError, OSError, sa.exc.SQLAlchemyError) as error:
                console.warn(f"old pictures stay for now: {str(error).splitlines()[0]}")
            self._ended.wait(PAUSE)

    def sweep(self) -> int:
        """Drop what is too old; how many pictures that were."""
        if self.days is None:
            return 0
        before = self.bench.store.clock() - self.days * DAY
        began, last = self.dropped, (0.0, 0)
        self._stuck = False
        self._remove_jobs(before)
        try:
            self._remove(sa.true())  # what an earlier sweep left
            taught = self._taught()
            while not self._ended.is_set() and (found := self.bench.store.all(_old(before, last).limit(AT_ONCE))):
                last = found[-1]["received"], found[-1]["id"]
                gone = self._mark([row["id"] for row in found if self._unused(row, taught)], before)
                self.dropped, self._untold = self.dropped + len(gone), self._untold + len(gone)
                self._remove(leftovers.c.image.in_(gone))
                self._ended.wait(REST)
        finally:
            self._tell()
        return self.dropped - began

    def _unused(self, row: Row, taught: set[str]) -> bool:
        with self.bench.unsent(row["sha256"]) as unsent:
            return unsent and row["sha256"] not in taught

    def _taught(self) -> set[str]:
        """The pictures that models were taught with, whoever did it: the next teaching goes on from them."""
        needed = [version for version in self.bench.store.versions() if version["state"] != "discarded"]
        for version in needed:
            if version["id"] not in self._learnt and (self.bench.models / version["folder"]).exists():
                split = self.bench.card(version).split["images"]
                names = {image["sha256"] for image in split if image["name"].startswith(f"{TAUGHT}/")}
                self._learnt[version["id"]] = names
        return {sha256 for version in needed for sha256 in self._learnt.get(version["id"], ())}

    def _mark(self, numbers: Sequence[int], before: float) -> list[int]:
        """Say that they are dropped, but for those that were reviewed or sent meanwhile; which ones. The time is later
        than all before it, so that lists can go by it."""
        now = max(int(1000 * self.bench.store.clock()), dialects.last_drop(self.bench.store.engine) + 1) / 1000
        with self.bench.store.writing() as connection:
            chosen = images.c.id.in_(numbers)
            connection.execute(images.update().where(chosen).values(id=images.c.id))  # from now on who reviews waits
            gone = list(connection.execute(_old(before).where(chosen)).scalars())
            these = images.c.id.in_(gone)
            connection.execute(images.update().where(these).values(dropped=now))
            connection.execute(leftovers.delete().where(leftovers.c.image.in_(gone)))
            connection.execute(leftovers.insert().from_select(["image"], sa.select(images.c.id).where(these)))
        return gone

    def _remove(self, which: sa.ColumnElement[bool]) -> None:
        """The files of some of what was dropped; one that cannot be removed does not keep the others."""
        query = sa.select(images.c.id, images.c.sha256).join(leftovers, leftovers.c.image == images.c.id).where(which)
        versions = [version["id"] for version in self.bench.store.versions()]
        done = []
        for row in self.bench.store.all(query.order_by(images.c.id)):
            if self._ended.is_set():
                break
            try:
                freed = self._remove_files(row, versions)
            except OSError as error:
                if not self._stuck:  # one line is enough where a whole disk cannot be written to
                    console.warn(f"the picture of image {row['id']} was dropped, but cannot be removed: {error}")
                self._stuck = True
                continue
            if freed is not None:
                done.append(row["id"])
                self._freed += freed
        if done:
            with self.bench.store.writing() as connection:
                connection.execute(leftovers.delete().where(leftovers.c.image.in_(done)))

    def _remove_files(self, row: Row, versions: Sequence[int]) -> int | None:
        """Bytes; nothing where the picture is being sent right now."""
        sha256 = row["sha256"]
        with self.bench.unsent(sha256) as unsent:
            if not unsent:
                return None
            if self.bench.store.has_image(sha256):  # it was sent again: it is not dropped any more
                return 0
            freed = self.bench.files.drop("pictures", sha256)
        return freed + self.bench.thumbnails.drop(sha256, versions)

    def _tell(self) -> None:
        """The history."""
        if self._untold or self._freed:
            said = f"{self._untold:,} pictures that nobody reviewed in {self.days:g} days, {self._freed / 1e6:,.3f} MB"
            self.bench.store.log("service", "drop", "", said)
            self._untold = self._freed = 0

    def _remove_jobs(self, before: float) -> None:
        """What is left of jobs that have ended: the log of one that failed."""
        for job in self.bench.store.all_jobs():
            if job["state"] not in UNFINISHED and (job["ended"] or job["created"]) < before:
                shutil.rmtree(self.bench.own("jobs") / str(job["id"]), ignore_errors=True)


def _old(before: float, after: tuple[float, int] = (0.0, 0)) -> sa.Select[Any]:
    """Images whose pictures are kept, were last sent before then, and that nobody has reviewed; the oldest first, from
    a place in that order on."""
    place = sa.tuple_(images.c.received, images.c.id) > sa.tuple_(*(sa.literal(part) for part in after))
    return (
        sa.select(images.c.id, images.c.sha256, images.c.received)
        .where(
            images.c.dropped.is_(None),
            images.c.received < before,
            place,
            ~sa.exists().where(reviews.c.image == images.c.id),
            ~sa.exists().where(scores.c.image == images.c.id, scores.c.created >= before),
        )
        .order_by(images.c.received, images.c.id)
    )
