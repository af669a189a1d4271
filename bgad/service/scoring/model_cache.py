"""The versions in memory: loaded on demand, the least recently used one unloaded when there are too many."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import Counter, OrderedDict, defaultdict
from functools import partial
from pathlib import Path

from bgad.artifact.card import Card
from bgad.errors import ModelError
from bgad.inference import load as loading
from bgad.inference.base import BaseScorer
from bgad.service.errors import BusyError, ClosedError, EngineUnavailableError
from bgad.service.scoring.batcher import Answer, Batcher
from bgad.service.scoring.decoding import DecodingBudget
from bgad.service.store.versions import RELEASED, Version, Versions

MAX_MODELS = 16  # released versions in memory
MAX_OTHERS = 2  # other versions in memory: candidates that are being reviewed, and retired ones
MAX_HANGING = 3  # engines of a version that hang and keep their memory; at so many, no further one is loaded

logger = logging.getLogger(__name__)


class ModelCache:
    """Batchers of versions, ready to score; safe to use from many threads."""

    def __init__(
        self,
        models: Path,
        versions: Versions,
        max_models: int = MAX_MODELS,
        budget: DecodingBudget | None = None,
    ) -> None:
        """Keep at most `max_models` released versions in memory; all of them share one decoding `budget`, and another
        one of the same size for images that are cut into tiles."""
        self._budget = budget or DecodingBudget()
        self.tile_budget = DecodingBudget(self._budget.capacity // 2)
        self._models, self._versions, self._max_models = models, versions, max_models
        self._batchers: OrderedDict[int, Batcher] = OrderedDict()  # the most recently used one is the last
        self._loading: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)  # one lock for each version
        self.replaced: Counter[str] = Counter()  # engines that hung, by model
        # A thread that hangs holds its batcher. When its call returns, the thread ends and the batcher is freed.
        self._hanging: dict[int, tuple[Version, list[weakref.ref[Batcher]]]] = {}  # by version
        self._lock = threading.Lock()
        self._closed = False

    def batcher(self, version: Version) -> Batcher:
        """Return the batcher of a version; loading it does not delay requests for other versions."""
        with self._lock:
            batcher, loading_lock = self._cached(version.id), self._loading[version.id]
        if batcher is not None:
            if version.rate is not None and version.rate != batcher.scorer.calibration.rate:
                self._apply_rate(batcher.scorer, version)  # another service has set it
            return batcher
        with loading_lock:
            with self._lock:
                batcher = self._cached(version.id)
            return batcher or self._open(version)

    def score(
        self,
        version: Version,
        path: Path,
        *,
        patient: bool,
        timeout: float | None = None,
        full_size_map: bool = False,
    ) -> tuple[Answer, BaseScorer]:
        """Score an image file with a version, which is loaded again if it was unloaded meanwhile.

        The anomaly map has the model's input size, or the image's with `full_size_map`. A patient request waits for a
        place, for at most `timeout` seconds.
        """
        while True:
            batcher = self.batcher(version)
            max_map_side = 0 if full_size_map else batcher.scorer.card.config.backbone.size
            try:
                answer = batcher.score(path, patient=patient, timeout=timeout, max_map_side=max_map_side)
            except ClosedError:
                continue
            return answer, batcher.scorer

    def is_full(self, version: Version) -> bool:
        """Return whether a version has no room for another request at the moment; never waits."""
        batcher = self._batchers.get(version.id)
        return batcher is not None and batcher.is_full

    def hanging(self) -> dict[str, int]:
        """Return the number of engines that hang, by model; one whose call has returned is not counted any more."""
        counts: Counter[str] = Counter()
        for version, count in self._hanging_versions():
            counts[version.name] += count
        return dict(counts)

    def check_available(self, version: Version) -> None:
        """Raise EngineUnavailableError if too many engines of a version hang; never waits."""
        for other, count in self._hanging_versions():
            if other.id == version.id and count >= MAX_HANGING:
                raise EngineUnavailableError(_refusal(version, count))

    def problem(self) -> str:
        """Return why images cannot be scored with a released version: its engines hang. It may ask the store."""
        refused = [(version, count) for version, count in self._hanging_versions() if count >= MAX_HANGING]
        released = {v.id for v in self._versions.all() if v.state == RELEASED} if refused else set()
        return next((_refusal(version, count) for version, count in refused if version.id in released), "")

    def _hanging_versions(self) -> list[tuple[Version, int]]:
        """Return the versions of which engines hang, each with their number, and forget the others."""
        with self._lock:
            for number, (version, refs) in list(self._hanging.items()):
                still = [ref for ref in refs if (batcher := ref()) and batcher.is_hanging]
                if still:
                    self._hanging[number] = version, still
                else:
                    del self._hanging[number]
            return [(version, len(refs)) for version, refs in self._hanging.values()]

    def cached_scorer(self, number: int) -> BaseScorer | None:
        """Return the scorer of a version if it is in memory."""
        with self._lock:
            batcher = self._batchers.get(number)
        return None if batcher is None else batcher.scorer

    def waiting(self) -> int:
        """Return the number of requests that wait to be scored."""
        with self._lock:
            return sum(batcher.waiting for batcher in self._batchers.values())

    def close(self) -> None:
        """Answer all admitted requests and unload all models."""
        with self._lock:
            self._closed = True
            batchers = list(self._batchers.values())
            self._batchers.clear()
        for batcher in batchers:
            batcher.close()

    def _cached(self, number: int) -> Batcher | None:
        """Return a batcher and mark it as recently used; the caller holds the lock."""
        if self._closed:
            raise BusyError("the service is being stopped")
        if number in self._batchers:
            self._batchers.move_to_end(number)
        return self._batchers.get(number)

    def _open(self, version: Version) -> Batcher:
        self.check_available(version)
        scorer = self._load(version)
        released = {v.id for v in self._versions.all() if v.state == RELEASED}
        with self._lock:
            self._cached(version.id)  # raises if the service is being stopped
            on_stuck = partial(self._drop_stuck, version)
            batcher = Batcher(scorer, budget=self._budget, tile_budget=self.tile_budget, on_stuck=on_stuck)
            self._batchers[version.id] = batcher
            evicted = [self._batchers.pop(number) for number in self._surplus(released)]
        try:
            # Once more: the rate may have been set between loading the model and entering it in the cache.
            self._apply_rate(scorer, version)
        finally:
            for old in evicted:  # they answer their requests while all other models go on
                old.close()
        return batcher

    def _drop_stuck(self, version: Version, batcher: Batcher) -> None:
        """Forget a batcher whose engine hangs; the next request loads the version anew."""
        logger.error("the engine of %s, version %d, hangs and is replaced", version.name, version.id)
        with self._lock:
            self.replaced[version.name] += 1
            self._hanging.setdefault(version.id, (version, []))[1].append(weakref.ref(batcher))
            if self._batchers.get(version.id) is batcher:
                del self._batchers[version.id]

    def _surplus(self, released: set[int]) -> list[int]:
        """Return the least recently used versions beyond the limits; released and other versions count separately."""
        in_use = [number for number in self._batchers if number in released]
        others = [number for number in self._batchers if number not in released]
        return in_use[: max(0, len(in_use) - self._max_models)] + others[: max(0, len(others) - MAX_OTHERS)]

    def _load(self, version: Version) -> BaseScorer:
        folder = self._models / version.folder
        scorer = loading.load_exported(folder, version.precision)
        check_unchanged(folder, scorer.card, version)
        self._apply_rate(scorer, version)
        return scorer

    def _apply_rate(self, scorer: BaseScorer, version: Version) -> None:
        rate = self._versions.get(version.id).rate  # the given row may be older than the last change
        if rate is not None and rate != scorer.calibration.rate:
            scorer.set_rate(rate)


def _refusal(version: Version, count: int) -> str:
    return (
        f"{count} engines of the model {version.name}, version {version.id}, hang, and no other is loaded: wait, or "
        "restart the service"
    )


def check_unchanged(folder: Path, card: Card, version: Version) -> None:
    """Raise ModelError if a folder no longer holds the model that the version was registered with."""
    if card.checksum != version.checksum:
        raise ModelError(f"{folder} is not the model that it was: put it back, or start the service again")
