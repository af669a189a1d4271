"""Runs teaching jobs one at a time, each in a process of its own that can be followed and cancelled.

A job that crashes does not affect the service. A job that runs when the service ends is marked as interrupted and can
be resumed.
"""

from __future__ import annotations

import json
import queue
import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from bgad.config import check_updatable
from bgad.errors import ConfigError, OutputError, first_line
from bgad.service.blobs import BlobKind, BlobStore
from bgad.service.errors import MissingError
from bgad.service.folders import Folders
from bgad.service.free_space import FreeSpace
from bgad.service.registry import ModelRegistry
from bgad.service.store.dialects import UNAVAILABLE
from bgad.service.store.jobs import INTERRUPTED, Job
from bgad.service.store.reviews import DECIDED
from bgad.service.store.store import Store
from bgad.service.store.versions import CANDIDATE
from bgad.service.teaching.process import JobLimits, WorkerProcess, check_system, failure_reason, last_log_line
from bgad.service.teaching.task import COMPARISONS, LOG_FILE, RESULT_FILE, TASK_FILE, build_task
from bgad.service.threads import SupervisedThread

# Seconds between attempts to write to a store that does not answer; the last value repeats.
RETRY_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)

T = TypeVar("T")


class JobRunner:
    """Queues teaching jobs and runs them one after the other."""

    def __init__(
        self,
        store: Store,
        registry: ModelRegistry,
        blobs: BlobStore,
        folders: Folders,
        limits: JobLimits | None = None,
        free_space: FreeSpace | None = None,
    ) -> None:
        self._store, self._registry, self._blobs, self._folders = store, registry, blobs, folders
        self.limits, self._free_space = limits or JobLimits(), free_space or FreeSpace(folders.models)
        self._queue: queue.Queue[int | None] = queue.Queue()
        self._cancelled: set[int] = set()
        self._ending: set[int] = set()  # jobs whose process has ended: they can no longer be cancelled
        self._seconds_left: dict[int, float | None] = {}  # of running jobs, as their processes estimate it
        self._running: tuple[int, WorkerProcess] | None = None
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self.thread = SupervisedThread("jobs", self._work)

    def start(self) -> None:
        """Mark the unfinished jobs of an earlier process as interrupted, and begin to work."""
        self._store.jobs.interrupt_unfinished()
        self.thread.start()

    def stop(self) -> None:
        """End the running job; queued jobs are marked as interrupted at the next start."""
        with self._lock:
            self._stopped.set()
            running = self._running
        self._queue.put(None)
        if running is not None:
            running[1].terminate()
        self.thread.stop()

    def teach(self, name: str, chosen: Sequence[int] | None, who: str) -> Job:
        """Queue a job that teaches a model the chosen reviewed images, or all of them if None are chosen."""
        check_system()
        self._free_space.check()
        version = self._store.versions.released(name)
        check_updatable(self._registry.card(version).config)
        usable = {row.image for row in self._store.reviews.current(name) if row.verdict in DECIDED}
        images = sorted(usable) if chosen is None else list(dict.fromkeys(chosen))
        missing = next((image for image in images if image not in usable), None)
        if missing is not None:
            raise ConfigError(f"image {missing} has no verdict good or bad: review it first")
        if not images:
            raise ConfigError("no image has been reviewed as good or bad: there is nothing to teach")
        job = self._store.jobs.add("teach", version, images, who)
        self._queue.put(job.id)
        return job

    def resume(self, number: int, who: str) -> Job:
        """Queue a job anew that was interrupted, cancelled or failed."""
        check_system()
        old = self._store.jobs.get(number)
        if not old.is_finished or old.state == "done":
            raise ConfigError(f"job {number} is {old.state}: there is nothing to resume")
        version = self._store.versions.get(old.version)
        job = self._store.jobs.add(old.kind, version, old.images, who)
        self._queue.put(job.id)
        return job

    def cancel(self, number: int, who: str) -> None:
        """Cancel a job that waits or runs."""
        job = self._store.jobs.get(number)
        with self._lock:
            if job.is_finished or number in self._ending:
                state = job.state if job.is_finished else "ending"
                raise ConfigError(f"job {number} is {state}: it cannot be cancelled")
            self._cancelled.add(number)
            running = self._running
        self._store.history.add(who, "cancel", job.name, f"job {number}")
        if running is not None and running[0] == number:
            running[1].terminate()
        else:
            self._store.jobs.update(number, state="cancelled", message=f"cancelled by {who}")

    def seconds_left(self, number: int) -> float | None:
        """Return the estimated time left of a running job; None if it is unknown."""
        return self._seconds_left.get(number)

    def comparison_thumbnail(self, number: int, index: int, side: str) -> bytes:
        """Return the thumbnail of a validation image by the version `before` or `after` a job.

        The job drew it, because the image may no longer be where it was then.
        """
        job = self._store.jobs.get(number)
        rows = validation_rows(job.result)
        if not 0 <= index < len(rows) or "sha256" not in rows[index]:
            raise MissingError(f"job {number} has no validation image {index}")
        version = job.version if side == "before" else job.new_version
        return self._blobs.path(BlobKind.COMPARISON, f"{rows[index]['sha256']}.{version}").read_bytes()

    # --- background thread

    def _work(self) -> None:
        while (number := self.thread.get(self._queue)) is not None and not self._stopped.is_set():
            if number in self._cancelled:
                continue
            try:
                self._run(number)
            except Exception as error:  # noqa: BLE001 - one job must not end the others
                with suppress(SQLAlchemyError):  # a store that is gone for good must not end the thread
                    self._update(number, state="failed", message=f"{type(error).__name__}: {first_line(error)}")

    def _run(self, number: int) -> None:
        job = self._store.jobs.get(number)
        folder = self._folders.jobs / str(number)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        build_task(job, folder, self._store, self._blobs, self._folders).write(folder / TASK_FILE)
        self._store.jobs.update(number, state="running", message="starting")
        try:
            with (folder / LOG_FILE).open("w") as log, WorkerProcess(folder, log, self.limits) as process:
                with self._lock:
                    self._running = number, process
                    unwanted = number in self._cancelled or self._stopped.is_set()
                if unwanted:
                    process.terminate()
                reason = process.follow(partial(self._on_message, number), self.thread.beat)
        finally:
            with self._lock:
                self._running = None
            self._seconds_left.pop(number, None)
        self._conclude(job, folder, process.returncode, reason)

    def _on_message(self, number: int, line: str) -> None:
        try:
            message = json.loads(line)
        except ValueError:
            return
        if "progress" in message:
            self._seconds_left[number] = message.get("seconds_left")
            with suppress(SQLAlchemyError):  # the next message follows soon
                self._store.jobs.update(number, progress=float(message["progress"]), message=str(message["message"]))

    def _conclude(self, job: Job, folder: Path, code: int | None, reason: str) -> None:
        """Record how a job ended, and register the version that it made."""
        with self._lock:
            self._ending.add(job.id)
            is_cancelled = job.id in self._cancelled
        if is_cancelled:
            self._update(job.id, state="cancelled", message="cancelled")
            shutil.rmtree(folder, ignore_errors=True)
            return
        if self._stopped.is_set():
            self._update(job.id, state="interrupted", message=INTERRUPTED)
            return
        if reason or code or not (folder / RESULT_FILE).exists():
            message = reason or failure_reason(code, last_log_line(folder), folder)
            self._update(job.id, state="failed", message=message)
            return
        result = json.loads((folder / RESULT_FILE).read_text())
        path, checksum = self._registry.adopt(folder / "model.bgad", job.name)
        add = partial(self._store.versions.add, state=CANDIDATE, parent=job.version, who=job.who)
        made = self._retry(lambda: add(job.name, checksum, path))
        self._keep_comparisons(folder, {"before": job.version, "after": made.id})
        self._update(job.id, state="done", progress=1.0, message="done", result=result, new_version=made.id)
        shutil.rmtree(folder, ignore_errors=True)

    def _keep_comparisons(self, folder: Path, versions: dict[str, int]) -> None:
        """Keep the thumbnails of the validation images; a full disk only costs the comparison its thumbnails."""
        with suppress(OutputError):
            for thumbnail in folder.glob(f"{COMPARISONS}/*"):
                sha256, side = thumbnail.name.split(".")
                self._blobs.put_as(BlobKind.COMPARISON, f"{sha256}.{versions[side]}", thumbnail.read_bytes())

    def _update(self, number: int, **values: Any) -> None:
        self._retry(lambda: self._store.jobs.update(number, **values))

    def _retry(self, write: Callable[[], T]) -> T:
        """Write to the store however long it does not answer: the result of a job must not be lost.

        When the service is being stopped, the last attempt counts: the next process says what became of the job.
        """
        pauses = chain(RETRY_SECONDS, repeat(RETRY_SECONDS[-1]))
        while True:
            try:
                return write()
            except UNAVAILABLE:
                self.thread.beat()
                if self._stopped.wait(next(pauses)):
                    return write()


def validation_rows(result: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return the rows of the validation images in the result of a job."""
    rows: list[dict[str, Any]] = (result or {}).get("validation", {}).get("rows", [])
    return rows
