"""Thumbnails of images with their anomaly maps, drawn while no request waits for a score.

The colours of a thumbnail begin at the map threshold of the time when it was drawn. Its file names this threshold in
a comment, so that it is drawn anew when somebody opens it after the false-reject rate has changed.
"""

from __future__ import annotations

import io
import logging
import queue
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from PIL import Image

from bgad.artifact.card import Card
from bgad.errors import BgadError, DataError
from bgad.io import images
from bgad.io import render as heat_maps
from bgad.service.blobs import BlobKind, BlobStore
from bgad.service.scoring.decoding import DecodingBudget
from bgad.service.threads import SupervisedThread
from bgad.types import FloatArray, Scores

MAX_SIDE = 192  # pixels
POLL_SECONDS = 0.05  # between two checks whether requests still wait
MAX_QUEUED = 256  # thumbnails beyond it are drawn when somebody opens them

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Drawing:
    sha256: str
    version: int
    scores: Scores  # with a small map
    card: Card


class Thumbnails:
    """One thumbnail for each image and version, and a thread that draws them."""

    def __init__(self, blobs: BlobStore, waiting: Callable[[], int], budget: DecodingBudget | None = None) -> None:
        """`waiting` returns the number of requests that wait to be scored; drawing gives way to them."""
        self._blobs, self._waiting, self._budget = blobs, waiting, budget or DecodingBudget()
        self._closed = False
        self._queue: queue.Queue[_Drawing | None] = queue.Queue(MAX_QUEUED)
        self.thread = SupervisedThread("thumbnails", self._work)
        self.thread.start()

    def close(self) -> None:
        """Stop the thread and abandon the queue."""
        self._closed = True
        with suppress(queue.Full):  # a full queue wakes the thread by itself
            self._queue.put_nowait(None)
        self.thread.stop()

    def read(self, sha256: str, version: int, map_threshold: float | None) -> bytes | None:
        """Return a thumbnail as JPEG; None if it has not been drawn with this map threshold (None: with any)."""
        try:
            content = self._blobs.location(BlobKind.THUMBNAIL, _name(sha256, version)).read_bytes()
        except OSError:  # a thumbnail that cannot be read is drawn again
            return None
        is_current = map_threshold is None or _map_threshold(content) == map_threshold
        return content if content and is_current else None

    def enqueue(self, sha256: str, version: int, scores: Scores, card: Card) -> None:
        """Draw a thumbnail when there is time; skip it if the queue is full."""
        if self._queue.full() or self.read(sha256, version, scores.map_threshold) is not None:
            return
        with suppress(queue.Full):
            self._queue.put_nowait(_Drawing(sha256, version, replace(scores, map=_small(scores.map), levels=()), card))

    def draw(self, sha256: str, version: int, scores: Scores, card: Card) -> bytes:
        """Draw a thumbnail now unless it exists, and return it."""
        drawn = self.read(sha256, version, scores.map_threshold)
        if drawn is not None:
            return drawn
        path = self._blobs.path(BlobKind.IMAGE, sha256)
        with self._budget.hold_file(path):
            content = render(path, scores, card)
        self._blobs.put_as(BlobKind.THUMBNAIL, _name(sha256, version), content)
        if not self._blobs.has(BlobKind.IMAGE, sha256):  # retention removed the image meanwhile
            self.remove(sha256, [version])
            raise DataError("the image file is not there any more")
        return content

    def remove(self, sha256: str, versions: Iterable[int]) -> int:
        """Remove an image's thumbnails by these versions; return the number of bytes freed."""
        return sum(self._blobs.remove(BlobKind.THUMBNAIL, _name(sha256, version)) for version in versions)

    def _work(self) -> None:
        while (drawing := self.thread.get(self._queue)) is not None:
            while self._waiting() and not self._closed:
                self.thread.beat()
                time.sleep(POLL_SECONDS)
            if self._closed:
                return
            try:
                self.draw(drawing.sha256, drawing.version, drawing.scores, drawing.card)
            except (BgadError, OSError) as error:  # whoever opens it later has it drawn again and sees the error
                logger.warning("no thumbnail of %s: %s", drawing.sha256[:12], error)


def render(path: Path, scores: Scores, card: Card) -> bytes:
    """Draw a small JPEG of an image with its anomaly map."""
    small_map = _small(scores.map)
    image = images.load(path).fit((small_map.shape[0], small_map.shape[1]), card.input.bits)
    overlay = heat_maps.overlay(image, small_map, scores.map_threshold, card.map.mean)
    return heat_maps.encode(overlay, "JPEG", quality=80, comment=repr(scores.map_threshold).encode())


def _small(map: FloatArray) -> FloatArray:
    return images.shrink_map(map, images.fit_shape(map.shape, MAX_SIDE))


def _map_threshold(content: bytes) -> float | None:
    """Return the map threshold that a thumbnail was drawn with; None where its file is damaged."""
    try:
        with Image.open(io.BytesIO(content), formats=("JPEG",)) as image:
            return float(image.info.get("comment", b""))
    except (OSError, SyntaxError, ValueError):
        return None


def _name(sha256: str, version: int) -> str:
    return f"{sha256}.{version}"
