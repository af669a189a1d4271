"""How long pictures are kept: what nobody has reviewed goes after so many days, and with it the files of jobs and of
discarded versions of that age. Scores stay, and so do the drift test and the history.

A picture that was reviewed stays for good, as a model may have learnt from it. So does every row: a picture that is
sent again is the image that it was.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from bgad import console
from bgad.service.store import UNFINISHED
from bgad.service.tables import images, jobs, reviews, scores
from bgad.service.teach import validated

if TYPE_CHECKING:
    from bgad.service.workbench import Workbench

DAY = 86400.0
PAUSE = 3600.0  # seconds between two sweeps
AT_ONCE = 100  # images for which others wait


class Keeping:
    """Drops what is old, now and then and beside everything else."""

    def __init__(self, bench: Workbench, days: float | None) -> None:
        """Without a number of days, everything is kept."""
        self.bench, self.days = bench, days
        self.dropped = 0  # pictures, since the service began
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
            except (OSError, sa.exc.SQLAlchemyError) as error:
                console.warn(f"old pictures stay for now: {str(error).splitlines()[0]}")
            self._ended.wait(PAUSE)

    def sweep(self) -> int:
        """Drop what is too old; how many pictures that were."""
        if self.days is None:
            return 0
        before = self.bench.store.clock() - self.days * DAY
        count = freed = 0
        shown = versions = None
        while not self._ended.is_set() and (found := self.bench.store.all(_old(before).limit(AT_ONCE))):
            if shown is None or versions is None:
                shown, versions = self._shown(), [v["id"] for v in self.bench.store.versions()]
            gone, size = self._drop([row["id"] for row in found], before, shown, versions)
            count, freed = count + gone, freed + size
            self.dropped += gone
            if not gone:  # they are being sent again: they are not old
                break
        if count:
            said = f"{count:,} pictures that nobody reviewed in {self.days:g} days, {freed / 2**20:,.1f} MB"
            self.bench.store.log("service", "drop", "", said)
        self._drop_folders(before)
        return count

    def _drop(self, numbers: Sequence[int], before: float, shown: set[str], versions: Sequence[int]) -> tuple[int, int]:
        """Files first: a service that ends in between finds the rows again. Nobody can review them meanwhile, or send
        one without writing it anew."""
        with self.bench.store.engine.begin() as connection:
            chosen = images.c.id.in_(numbers)
            connection.execute(images.update().where(chosen).values(id=images.c.id))  # who writes first has the lock
            rows = connection.execute(_old(before).where(chosen)).mappings().all()  # a review may have come before it
            freed = {row["id"]: self._drop_files(row["sha256"], shown, versions) for row in rows}
            gone = {number: size for number, size in freed.items() if size is not None}
            connection.execute(
                images.update().where(images.c.id.in_(list(gone))).values(dropped=self.bench.store.clock())
            )
        return len(gone), sum(gone.values())

    def _drop_files(self, sha256: str, shown: set[str], versions: Sequence[int]) -> int | None:
        """Bytes; nothing where the picture is being sent right now."""
        with self.bench.unsent(sha256) as unsent:
            if not unsent:
                return None
            freed = self.bench.files.drop("pictures", sha256)
        return freed if sha256 in shown else freed + self.bench.thumbnails.drop(sha256, versions)

    def _shown(self) -> set[str]:
        """What comparisons show: their small pictures stay."""
        rows = self.bench.store.all(sa.select(jobs.c.result).where(jobs.c.result.is_not(None)))
        return {test["sha256"] for row in rows for test in validated(row["result"]) if "sha256" in test}

    def _drop_folders(self, before: float) -> None:
        """Of jobs that have ended, and of versions that nobody wants or learns from."""
        every = self.bench.store.all_jobs()
        for job in every:
            if job["state"] not in UNFINISHED and (job["ended"] or job["created"]) < before:
                shutil.rmtree(self.bench.own("jobs") / str(job["id"]), ignore_errors=True)
        needed = {job["version"] for job in every if job["state"] in UNFINISHED}
        for version in self.bench.store.versions():
            folder, own = self.bench.models / version["folder"], self.bench.own("versions")
            unwanted = version["state"] == "discarded" and version["created"] < before
            if unwanted and version["id"] not in needed and folder.parent == own:
                shutil.rmtree(folder, ignore_errors=True)


def _old(before: float) -> sa.Select[Any]:
    """Images whose pictures are there, were last sent before then, and that nobody has reviewed; the oldest first."""
    return (
        sa.select(images.c.id, images.c.sha256)
        .where(
            images.c.dropped.is_(None),
            images.c.received < before,
            ~sa.exists().where(reviews.c.image == images.c.id),
            ~sa.exists().where(scores.c.image == images.c.id, scores.c.created >= before),
        )
        .order_by(images.c.received, images.c.id)
    )
