"""The versions of models that are in memory: loaded when they are needed, put away when there are too many."""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict
from pathlib import Path

from bgad.artifact.card import Card
from bgad.errors import ModelError
from bgad.inference import load as loading
from bgad.inference.base import BaseScorer
from bgad.service.scoring.batcher import Batcher, BusyError
from bgad.service.store.store import Row, Store

LOADED = 16  # released versions that are kept
BESIDE = 2  # other versions: candidates that are looked at, and those that were released before


class Loaded:
    """Ready to score; may be used from many threads."""

    def __init__(self, models: Path, store: Store, most: int = LOADED) -> None:
        """`most` released versions are kept."""
        self.models, self.store, self.most = models, store, most
        self._open: OrderedDict[int, Batcher] = OrderedDict()  # what was used last is the last
        self._opening: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)  # one for each version
        self._lock = threading.Lock()
        self._closed = False

    def batcher(self, version: Row) -> Batcher:
        """Of a version; who wants another one does not wait while it is loaded."""
        number = version["id"]
        with self._lock:
            found, opening = self._used(number), self._opening[number]
        if found is not None:
            return found
        with opening:
            with self._lock:
                found = self._used(number)
            return found or self._opened(version)

    def scorer(self, number: int) -> BaseScorer | None:
        """Of a version that is in memory now."""
        with self._lock:
            found = self._open.get(number)
        return None if found is None else found.scorer

    def waiting(self) -> int:
        """Pictures that wait to be scored."""
        with self._lock:
            return sum(batcher.waiting for batcher in self._open.values())

    def close(self) -> None:
        """Finish what waits."""
        with self._lock:
            self._closed = True
            batchers = list(self._open.values())
            self._open.clear()
        for batcher in batchers:
            batcher.close()

    def _used(self, number: int) -> Batcher | None:
        """What is there, under the lock."""
        if self._closed:
            raise BusyError("the service is being stopped")
        if number in self._open:
            self._open.move_to_end(number)
        return self._open.get(number)

    def _opened(self, version: Row) -> Batcher:
        scorer = self._load(version)
        released = {v["id"] for v in self.store.versions() if v["state"] == "released"}
        with self._lock:
            self._used(version["id"])  # says so where the service is being stopped
            made = self._open[version["id"]] = Batcher(scorer)
            away = [self._open.pop(number) for number in self._too_many(released)]
        try:
            self._use_rate(scorer, version)  # again: it may have been set while nobody could tell this one
        finally:
            for batcher in away:  # which finish what they have, while all others go on
                batcher.close()
        return made

    def _too_many(self, released: set[int]) -> list[int]:
        """Those that were not used for longest; a released one goes for other released ones alone."""
        kept = [number for number in self._open if number in released]
        beside = [number for number in self._open if number not in released]
        return kept[: max(0, len(kept) - self.most)] + beside[: max(0, len(beside) - BESIDE)]

    def _load(self, version: Row) -> BaseScorer:
        folder = self.models / version["folder"]
        scorer = loading.load(folder, engine="onnx")
        same(folder, scorer.card, version)
        self._use_rate(scorer, version)
        return scorer

    def _use_rate(self, scorer: BaseScorer, version: Row) -> None:
        rate = self.store.version(version["id"])["rate"]  # the row at hand may be from before it was set
        if rate is not None and rate != scorer.calibration.rate:
            scorer.set_rate(rate)


def same(folder: Path, card: Card, version: Row) -> None:
    """That the folder holds what it held when the version was taken up."""
    if card.checksum != version["checksum"]:
        raise ModelError(f"{folder} is not the model that it was: put it back, or start the service again")
