"""Limits the memory of decoding: small files may hold large images."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bgad.io import images

MAX_PIXELS = 50_000_000  # of one image, unless the operator says otherwise


class DecodingBudget:
    """Limits the pixels in memory of all images that are being decoded, whatever model they are for.

    There is room for two of the largest images. Whoever waits is admitted in order of arrival, so that a large image is
    not overtaken for ever by small ones.
    """

    def __init__(self, max_pixels: int = MAX_PIXELS) -> None:
        """`max_pixels` is the size of the largest image."""
        self.capacity = 2 * max_pixels
        self.used = 0
        self._queue: deque[object] = deque()
        self._changed = threading.Condition()

    @contextmanager
    def hold(self, pixels: int) -> Iterator[None]:
        """Count an image of so many pixels while the block runs; wait until there is room for it."""
        pixels, ticket = min(pixels, self.capacity), object()
        with self._changed:
            self._queue.append(ticket)
            self._changed.wait_for(lambda: self._queue[0] is ticket and self.used + pixels <= self.capacity)
            self._queue.popleft()
            self.used += pixels
            self._changed.notify_all()  # the next one may fit as well
        try:
            yield
        finally:
            with self._changed:
                self.used -= pixels
                self._changed.notify_all()

    @contextmanager
    def hold_file(self, path: Path) -> Iterator[None]:
        """Count an image file by the size in its header while the block runs."""
        height, width = images.read_shape(path)
        with self.hold(height * width):
            yield
