"""Rescoring: a newly released version scores earlier images in the background, so that its lists are not empty.

It scores the reviewed images, the last images of the version before it, and the images that were being scored at the
moment of the release. A restarted service continues what the earlier process left.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from sqlalchemy.exc import SQLAlchemyError

from bgad.errors import BgadError, first_line
from bgad.service.blobs import BlobKind, BlobStore
from bgad.service.errors import MissingError
from bgad.service.registry import ModelRegistry
from bgad.service.scoring.batcher import decide_again
from bgad.service.scoring.model_cache import ModelCache
from bgad.service.scoring.thumbnails import Thumbnails
from bgad.service.store.scores import UnscoredImage
from bgad.service.store.store import Store
from bgad.service.store.versions import RELEASED, Version

T = TypeVar("T")

MAX_RECENT = 2000  # images of the previous version
RETRY_SECONDS = 5.0  # before a store that does not answer is asked again
COUNT_SECONDS = 1.0  # that a release waits for the number of images

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RescoringProgress:
    """How many of the earlier images a released version has scored; 0 of 0 if no rescoring runs."""

    done: int = 0
    total: int = 0


@dataclass
class _Run:
    version: int
    done: int = 0
    total: int = 0
    late: list[UnscoredImage] = field(default_factory=list)  # being scored at the release, so that no list has them
    counted: threading.Event = field(default_factory=threading.Event)


class Rescorer:
    """Threads that rescore images; at most one run for a model at a time."""

    def __init__(
        self, store: Store, registry: ModelRegistry, cache: ModelCache, blobs: BlobStore, thumbnails: Thumbnails
    ) -> None:
        self._store, self._registry, self._cache = store, registry, cache
        self._blobs, self._thumbnails = blobs, thumbnails
        self._runs: dict[str, _Run] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Continue what an earlier process left, one model after the other."""
        names = self._registry.names()

        def work() -> None:
            for name in names:
                with suppress(MissingError):  # the model has no released version any more
                    version = self._retry(name, partial(self._store.versions.released, name))
                    if version is not None and (run := self._enter(version)) is not None:
                        self._work(version, run)

        self._start_thread(work)

    def release(self, version: Version) -> None:
        """Begin with a version that has been released; the run of its model's earlier version ends."""
        run = self._enter(version)
        if run is not None:
            self._start_thread(lambda: self._work(version, run))
            run.counted.wait(COUNT_SECONDS)

    def add_late(self, version: Version, image: int) -> None:
        """Add an image that only another version scored, because it arrived at the moment of the release."""
        scores = self._store.scores.of_image(image)
        created = max(score.created for score in scores if score.model == version.name)
        run = self._enter(version, UnscoredImage(image, self._store.images.get(image).sha256, created))
        if run is not None:
            self._start_thread(lambda: self._work(version, run))

    def progress(self, name: str) -> RescoringProgress:
        """Return the progress of a model's run."""
        run = self._runs.get(name)
        return RescoringProgress() if run is None else RescoringProgress(run.done, run.total)

    def close(self) -> None:
        """Stop after the image that is being scored."""
        self._closed.set()
        for thread in self._threads:
            thread.join()

    def _start_thread(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name="rescore", daemon=True)
        thread.start()
        with self._lock:
            self._threads = [*(one for one in self._threads if one.is_alive()), thread]

    def _enter(self, version: Version, *late: UnscoredImage) -> _Run | None:
        """Begin a run for a version; if it has one already, add the late images to it and return None."""
        with self._lock:
            existing = self._runs.get(version.name)
            if existing is not None and existing.version == version.id:
                existing.late += late
                existing.total += len(late)
                return None
            inherited = [] if existing is None else existing.late
            self._runs[version.name] = run = _Run(version.id, late=[*inherited, *late])
            return run

    def _finish_if_empty(self, version: Version, run: _Run) -> bool:
        """End a run that has no late images left; from then on nobody can add to it."""
        with self._lock:
            current = self._is_current(version.name, run)
            if current and not run.late:
                del self._runs[version.name]
            return not current or not run.late

    def _work(self, version: Version, run: _Run) -> None:
        name = version.name
        try:
            while not self._closed.is_set() and self._is_current(name, run):
                self._retry(name, partial(self._score_all, version, run))
                if self._is_current(name, run):  # another version was released: the rest is for that one
                    version = self._retry(name, partial(self._store.versions.released, name)) or version
                    run = self._enter(version) or run
        except BgadError as error:
            logger.warning("rescoring of %s failed: %s", name, error)
        finally:
            run.counted.set()
            with self._lock:
                if self._is_current(name, run):
                    del self._runs[name]

    def _is_current(self, name: str, run: _Run) -> bool:
        return self._runs.get(name) is run

    def _retry(self, name: str, ask: Callable[[], T]) -> T | None:
        """Call `ask` until the store answers; return None if the service is stopped first."""
        while not self._closed.is_set():
            try:
                return ask()
            except SQLAlchemyError as error:
                logger.warning("rescoring of %s waits for the store: %s", name, first_line(error))
                self._closed.wait(RETRY_SECONDS)
        return None

    def _score_all(self, version: Version, run: _Run) -> None:
        previous = None
        with suppress(MissingError):
            previous = self._registry.previous(version.name).id
        images = self._store.scores.unscored(version, previous, MAX_RECENT)
        listed = {image.id for image in images}
        with self._lock:
            run.late = [image for image in run.late if image.id not in listed]
            run.done, run.total = 0, len(images) + len(run.late)
        run.counted.set()
        if run.total and not self._closed.is_set():
            self._cache.batcher(version)  # one error for a model that cannot be loaded, instead of one for each image
        for image in images:
            if not self._may_continue(version, run):
                return
            self._score(image, version)
            run.done += 1
        while self._may_continue(version, run) and not self._finish_if_empty(version, run):
            self._score(run.late[0], version)
            del run.late[0]
            run.done += 1

    def _may_continue(self, version: Version, run: _Run) -> bool:
        if self._closed.is_set() or not self._is_current(version.name, run):
            return False
        return self._store.versions.get(version.id).state == RELEASED

    def _score(self, image: UnscoredImage, version: Version) -> None:
        """Score an image and record the score at the time when the image was sent."""
        try:
            path = self._blobs.path(BlobKind.IMAGE, image.sha256)
            answer, scorer = self._cache.score(version, path, patient=True)
            scores = decide_again(answer.scores, scorer)
            self._store.scores.add_rescored(image.id, version.id, scores, image.created)
            self._thumbnails.draw(image.sha256, version.id, scores, scorer.card)
        except (BgadError, OSError) as error:
            if not self._closed.is_set():
                logger.warning("image %d is not rescored: %s", image.id, error)
        except SQLAlchemyError:
            raise  # the store is asked again
        except Exception:  # the other images do not suffer from one that nobody expected
            logger.exception("image %d is not rescored", image.id)
