"""Scores the images that clients send, and stores each image with its score."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from bgad.errors import ImageError, ModelError
from bgad.inference.base import BaseScorer
from bgad.io import images
from bgad.service.blobs import BlobKind, BlobStore, display_name
from bgad.service.errors import BusyError, StoreAwayError
from bgad.service.free_space import FreeSpace
from bgad.service.registry import ModelRegistry
from bgad.service.scoring.batcher import Answer, decide_again
from bgad.service.scoring.decoding import MAX_PIXELS
from bgad.service.scoring.in_flight import UploadsInFlight
from bgad.service.scoring.model_cache import ModelCache
from bgad.service.scoring.recorder import Recorder
from bgad.service.scoring.thumbnails import Thumbnails
from bgad.service.store.scores import NewImage
from bgad.service.store.store import Store
from bgad.service.store.versions import Version
from bgad.types import Scores


@dataclass(frozen=True)
class ImageLimits:
    """The largest image that the service accepts."""

    max_bytes: int = 64 * 2**20
    max_pixels: int = MAX_PIXELS

    def check(self, content: bytes) -> None:
        """Raise ImageError unless the bytes are an image within the limits; its pixels are not decoded."""
        if not content:
            raise ImageError("the image is empty: send its bytes")
        if len(content) > self.max_bytes:
            raise ImageError(f"the image has {len(content)} bytes, more than {self.max_bytes}: send a smaller one")
        images.check_bytes(content, max_pixels=self.max_pixels)


@dataclass(frozen=True)
class IngestChecks:
    """What an upload must pass: the limits of an image, free space on the disk, and a store that answers."""

    limits: ImageLimits
    free_space: FreeSpace
    recorder: Recorder


@dataclass(frozen=True)
class ScoredImage:
    """An image that was sent, and the scores of the version that was released then."""

    image: int | None  # None: the store did not answer, and the image is not kept
    version: Version
    scores: Scores


class Ingest:
    """Scores uploads with the released version of a model."""

    def __init__(
        self,
        store: Store,
        registry: ModelRegistry,
        cache: ModelCache,
        blobs: BlobStore,
        thumbnails: Thumbnails,
        in_flight: UploadsInFlight,
        checks: IngestChecks,
        *,
        releases_elsewhere: bool = False,
    ) -> None:
        """With `releases_elsewhere`, another service releases versions and sets their rates."""
        self._releases_elsewhere = releases_elsewhere
        self._store, self._registry, self._cache = store, registry, cache
        self._blobs, self._thumbnails, self._in_flight = blobs, thumbnails, in_flight
        self._limits, self._free_space = checks.limits, checks.free_space
        self._recorder = checks.recorder

    def score(self, model: str, content: bytes, name: str, *, patient: bool = False, sender: str = "") -> ScoredImage:
        """Score an image and store it with its score; a patient request waits for a place.

        `sender` is the token that may see the maps of the image because it sent it. If the store does not answer, the
        score is returned all the same, and nothing is kept.
        """
        self._limits.check(content)
        self._free_space.check()
        version = self._registry.released(model)
        self._cache.batcher(version)
        sha256 = hashlib.sha256(content).hexdigest()
        is_new = not self._blobs.has(BlobKind.IMAGE, sha256)
        with self._stored(sha256, content) as path:
            image = None
            while image is None:
                answer, scorer = self._score(version, path, content, patient=patient)
                # Another rate may have been set while the image was being scored.
                scores, (height, width) = decide_again(answer.scores, scorer), answer.shape
                new = NewImage(sha256, display_name(name), width, height, sender)
                try:
                    image = self._recorder.run(partial(self._record, new, version, scores))
                except StoreAwayError as error:
                    if is_new and not error.may_be_written:
                        self._remove_unkept(sha256)
                    return ScoredImage(None, version, scores)
                if image is None:  # released or changed by another service since the store was asked
                    self._registry.forget(version)
                    version = self._registry.released(model)
            if not self._blobs.has(BlobKind.IMAGE, sha256, len(content)):
                self._blobs.put_as(BlobKind.IMAGE, sha256, content)  # another service had just removed it
        self._thumbnails.enqueue(sha256, version.id, scores, scorer.card)
        return ScoredImage(image, version, scores)

    def _record(self, new: NewImage, version: Version, scores: Scores) -> int | None:
        """Store an image with its score; return None if the score is not that of the present decision rule."""
        if not self._releases_elsewhere:
            return self._store.scores.add_image(new, version.id, scores)
        if scores.threshold != self._registry.decision_rule(version).threshold:
            return None
        return self._store.scores.add_image_if_current(new, version, scores)

    def _score(self, version: Version, path: Path, content: bytes, *, patient: bool) -> tuple[Answer, BaseScorer]:
        try:
            try:
                return self._cache.score(version, path, patient=patient)
            except ImageError:
                if not self._blobs.repair(BlobKind.IMAGE, path.name, content):
                    raise
            # A power failure had damaged the stored file, or another service had just removed it.
            return self._cache.score(version, path, patient=patient)
        except ImageError as error:
            raise ImageError(str(error).replace(str(path), "image")) from error

    @contextmanager
    def _stored(self, sha256: str, content: bytes) -> Iterator[Path]:
        """Store the file of an upload; if the upload fails, remove it unless the image is known or uploaded twice."""
        with self._in_flight.upload(sha256):
            try:
                if not self._blobs.has(BlobKind.IMAGE, sha256, len(content)):
                    self._blobs.put_as(BlobKind.IMAGE, sha256, content)  # a review makes it durable
                yield self._blobs.path(BlobKind.IMAGE, sha256)
            except (ImageError, BusyError, ModelError):
                self._remove_unused(sha256)
                raise

    def _remove_unused(self, sha256: str) -> None:
        """Remove the file of this upload unless its image is known or uploaded twice, or the store does not say."""
        with self._in_flight.paused(sha256) as uploads, suppress(SQLAlchemyError):
            if uploads == 1:
                with self._store.images.removing(sha256) as unused:
                    if unused:
                        self._blobs.remove(BlobKind.IMAGE, sha256)

    def _remove_unkept(self, sha256: str) -> None:
        """Remove the file that this upload has written, while the store cannot say whether its image is known."""
        with self._in_flight.paused(sha256) as uploads:
            if uploads == 1:
                self._blobs.remove(BlobKind.IMAGE, sha256)
