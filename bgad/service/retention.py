"""Retention: removes the files of images that nobody reviews within a number of days, and of old finished jobs.

Scores, the drift test and the history stay. Reviewed images stay for good, and so do images that a model was taught
with. Every row stays: an image that is sent again keeps its id.

The clock must be plausible, an image must have been due for a grace period, and a sweep drops a limited number, so that
a wrong clock or option is noticed before much is lost.

An image is first marked as dropped in the store, so that nobody can review it any more; then its files are removed. The
table of leftovers lists the dropped images whose files may still exist, whatever interrupts the removal.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Sequence

import sqlalchemy as sa

from bgad.errors import BgadError, first_line
from bgad.service.blobs import BlobKind, BlobStore
from bgad.service.folders import Folders
from bgad.service.registry import ModelRegistry
from bgad.service.scoring.in_flight import UploadsInFlight
from bgad.service.scoring.thumbnails import Thumbnails
from bgad.service.store.dropped_images import DueImage, Leftover
from bgad.service.store.store import Store
from bgad.service.store.versions import DISCARDED
from bgad.service.sweep_clock import DAY, SweepClock
from bgad.service.threads import SupervisedThread
from bgad.types import TAUGHT

SWEEP_SECONDS = 3600.0  # between two sweeps
BATCH_SIZE = 100  # images that one transaction drops
PAUSE_SECONDS = 0.05  # between two transactions, for other writers
MAX_DROPPED = 1000  # images that a sweep drops, or else
MAX_DROPPED_SHARE = 0.05  # of all kept images, if that is more

logger = logging.getLogger(__name__)


class Retention:
    """Sweeps the store at intervals."""

    def __init__(
        self,
        store: Store,
        registry: ModelRegistry,
        blobs: BlobStore,
        thumbnails: Thumbnails,
        in_flight: UploadsInFlight,
        folders: Folders,
        days: float | None,
    ) -> None:
        """Keep unreviewed images for `days`, or for good if it is None."""
        self._store, self._registry, self._blobs, self._thumbnails = store, registry, blobs, thumbnails
        self._in_flight, self._folders, self.days = in_flight, folders, days
        self.dropped = 0  # images since the service started
        self._unreported, self._freed = 0, 0  # images and bytes that are not in the history yet
        self._removal_failed = False  # whether this sweep has warned of files that cannot be removed
        self._taught_by_version: dict[int, set[str]] = {}
        self.clock = SweepClock(store)
        self._closed = threading.Event()
        self.thread = SupervisedThread("retention", self._work)

    def start(self) -> None:
        """Sweep now and at intervals."""
        if self.days is not None:
            self.thread.start()

    def close(self) -> None:
        """Stop after the present batch."""
        self._closed.set()
        self.thread.stop()

    def _work(self) -> None:
        while not self._closed.is_set():
            try:
                self.sweep()
            except (BgadError, OSError, sa.exc.SQLAlchemyError) as error:
                logger.warning("old images stay for now: %s", first_line(error))
            self.thread.wait(self._closed, SWEEP_SECONDS)

    def sweep(self) -> int:
        """Drop images that are due, up to a limit, if the clock can be trusted; return their number."""
        if self.days is None:
            return 0
        self._removal_failed, dropped_before = False, self.dropped
        try:
            self._remove_leftovers(None)  # of an earlier sweep
            before = self.clock.due_before(self.days * DAY)
            if before is not None:
                self._remove_job_folders(before)
                self._drop(before, max(MAX_DROPPED, int(MAX_DROPPED_SHARE * self._store.dropped.count_kept())))
        finally:
            self._report()
        return self.dropped - dropped_before

    def _drop(self, before: float, limit: int) -> None:
        """Drop at most `limit` images that came before a time, the oldest first."""
        last, taught = (0.0, 0), self._taught_images()
        while limit > 0 and not self._closed.is_set():
            due = self._store.dropped.due(before, last, min(limit, BATCH_SIZE))
            if not due:
                return
            last = due[-1].received, due[-1].id
            marked = self._store.dropped.mark([i.id for i in due if self._is_unused(i, taught)], before)
            limit -= len(marked)
            self.dropped, self._unreported = self.dropped + len(marked), self._unreported + len(marked)
            self._remove_leftovers(marked)
            self.thread.beat()
            self._closed.wait(PAUSE_SECONDS)

    def _is_unused(self, image: DueImage, taught: set[str]) -> bool:
        with self._in_flight.paused(image.sha256) as uploads:
            return not uploads and image.sha256 not in taught

    def _taught_images(self) -> set[str]:
        """Return the sha256 of the images that any version was taught with: the next teaching needs them."""
        versions = [version for version in self._store.versions.all() if version.state != DISCARDED]
        for version in versions:
            if version.id not in self._taught_by_version and (self._folders.models / version.folder).exists():
                split = self._registry.card(version).split["images"]
                taught = {image["sha256"] for image in split if image["name"].startswith(f"{TAUGHT}/")}
                self._taught_by_version[version.id] = taught
        return {sha256 for version in versions for sha256 in self._taught_by_version.get(version.id, ())}

    def _remove_leftovers(self, numbers: Sequence[int] | None) -> None:
        """Remove the files of dropped images; a file that cannot be removed does not stop the others."""
        versions = [version.id for version in self._store.versions.all()]
        removed = []
        for leftover in self._store.dropped.leftovers(numbers):
            if self._closed.is_set():
                break
            try:
                freed = self._remove_files(leftover, versions)
            except OSError as error:
                if not self._removal_failed:  # one warning for a disk that is read-only
                    logger.warning("image %d was dropped, but its file cannot be removed: %s", leftover.id, error)
                self._removal_failed = True
                continue
            if freed is not None:
                removed.append(leftover.id)
                self._freed += freed
        if removed:
            self._store.dropped.clear(removed)

    def _remove_files(self, image: Leftover, versions: Sequence[int]) -> int | None:
        """Remove the files of an image and return the bytes freed; None if the image is being sent again."""
        with self._in_flight.paused(image.sha256) as uploads:
            if uploads:
                return None
            with self._store.images.removing(image.sha256) as unused:
                if not unused:  # it was sent again, and is not dropped any more
                    return 0
                freed = self._blobs.remove(BlobKind.IMAGE, image.sha256)
        return freed + self._thumbnails.remove(image.sha256, versions)

    def _report(self) -> None:
        """Record what was dropped in the history."""
        if self._unreported or self._freed:
            count, size = f"{self._unreported:,}", f"{self._freed / 1e6:,.3f} MB"
            detail = f"{count} images that nobody reviewed in {self.days:g} days, {size}"
            self._store.history.add("service", "drop", "", detail)
            self._unreported = self._freed = 0

    def _remove_job_folders(self, before: float) -> None:
        """Remove what finished jobs left, such as the log of a failed one."""
        for job in self._store.jobs.all():
            if job.is_finished and (job.ended or job.created) < before:
                shutil.rmtree(self._folders.jobs / str(job.id), ignore_errors=True)
