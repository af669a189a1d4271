"""The uploads that are being scored, so that nobody removes their files meanwhile."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class UploadsInFlight:
    """Counts the uploads of each content that are being scored."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def upload(self, sha256: str) -> Iterator[None]:
        """Register an upload while the block runs."""
        with self._lock:
            self._counts[sha256] += 1
        try:
            yield
        finally:
            with self._lock:
                self._counts[sha256] -= 1
                if not self._counts[sha256]:
                    del self._counts[sha256]

    @contextmanager
    def paused(self, sha256: str) -> Iterator[int]:
        """Yield the number of uploads of a content; none can begin or end while the block runs."""
        with self._lock:
            yield self._counts.get(sha256, 0)
