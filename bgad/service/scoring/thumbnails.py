"""Small pictures with their heat, drawn when nobody waits for a score."""

from __future__ import annotations

import io
import queue
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from bgad.artifact.card import Card
from bgad.cli import console
from bgad.errors import BgadError, DataError
from bgad.io import images, render
from bgad.service.blobs import Files
from bgad.service.scoring.batcher import fitted
from bgad.types import FloatArray

SIDE = 192  # pixels, the longer one
PAUSE = 0.05  # seconds between two looks whether there is time to draw
MOST = 256  # that wait to be drawn; what comes beyond is drawn when it is looked at


@dataclass(frozen=True)
class _Drawing:
    sha256: str
    version: int
    small: FloatArray  # the map, no larger than a thumbnail
    card: Card


class Thumbnails:
    """One for each picture and version; a thread that draws them."""

    def __init__(self, files: Files, waiting: Callable[[], int]) -> None:
        """`waiting` says how many pictures wait to be scored."""
        self.files, self.waiting = files, waiting
        self._closed = False
        self._queue: queue.Queue[_Drawing | None] = queue.Queue(MOST)
        self._thread = threading.Thread(target=self._work, name="thumbnails", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Leave what waits."""
        self._closed = True
        with suppress(queue.Full):  # then there is something to wake it up
            self._queue.put_nowait(None)
        self._thread.join()

    def has(self, sha256: str, version: int) -> bool:
        """Whether it has been drawn."""
        return self.files.has("thumbnails", _name(sha256, version))

    def read(self, sha256: str, version: int) -> bytes:
        """A JPEG."""
        return self.files.path("thumbnails", _name(sha256, version)).read_bytes()

    def later(self, sha256: str, version: int, map: FloatArray, card: Card) -> None:
        """Draw it when there is time; in vain where too many wait already."""
        if self._queue.full() or self.has(sha256, version):
            return
        small = images.resize_map(map, fitted(map.shape, SIDE))
        with suppress(queue.Full):
            self._queue.put_nowait(_Drawing(sha256, version, small, card))

    def draw(self, sha256: str, version: int, map: FloatArray, card: Card) -> None:
        """Draw it now, unless it is there."""
        if not self.has(sha256, version):
            content = drawn(self.files.path("pictures", sha256), map, card)
            self.files.put_as("thumbnails", _name(sha256, version), content)
            if not self.files.has("pictures", sha256):  # it was dropped meanwhile
                self.drop(sha256, [version])
                raise DataError("the picture is not there any more")

    def drop(self, sha256: str, versions: Iterable[int]) -> int:
        """Those of a picture by some versions; how many bytes they had."""
        return sum(self.files.drop("thumbnails", _name(sha256, version)) for version in versions)

    def _work(self) -> None:
        while (drawing := self._queue.get()) is not None:
            while self.waiting() and not self._closed:
                time.sleep(PAUSE)
            if self._closed:
                return
            try:
                self.draw(drawing.sha256, drawing.version, drawing.small, drawing.card)
            except (BgadError, OSError) as error:  # it is drawn when it is looked at, and then the error is heard
                console.warn(f"no thumbnail of {drawing.sha256[:12]}: {error}")


def drawn(path: Path, map: FloatArray, card: Card) -> bytes:
    """A small JPEG of a picture with its heat."""
    buffer = io.BytesIO()
    small = images.resize_map(map, fitted(map.shape, SIDE))
    picture = images.fit(images.read(path, bits=card.input.bits), small.shape)
    heat = render.overlay(picture, small, card.map.boundary, card.map.mean)
    Image.fromarray(heat).save(buffer, "JPEG", quality=80)
    return buffer.getvalue()


def _name(sha256: str, version: int) -> str:
    return f"{sha256}.{version}"
