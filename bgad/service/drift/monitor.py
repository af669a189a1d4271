"""Runs the drift test of every model in the background and records its alarms in the history.

The test of a version sees the images that it was the first of its model's versions to score, in order of arrival. Which
version scores an image is settled before the score is known. While parts stay as they were, these scores are therefore
an unbiased sample, whatever was released when and why. Rescored images are not: a person selected them, a model learnt
from them, or they were known when the release was decided.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from sqlalchemy.exc import SQLAlchemyError

from bgad.errors import BgadError, first_line
from bgad.service.drift import martingale
from bgad.service.drift.columns import Column, ScoreColumns
from bgad.service.drift.martingale import DriftResult, DriftTest
from bgad.service.errors import MissingError
from bgad.service.registry import ModelRegistry
from bgad.service.store.history import DRIFT_ALARM
from bgad.service.store.store import Store
from bgad.service.store.versions import Version
from bgad.service.threads import SupervisedThread
from bgad.types import Index

MIN_PAUSE = 5.0  # seconds between two updates
POLL_SECONDS = 15.0  # between two questions whether scorers have recorded scores
PAUSE_FACTOR = 20  # the pause is at least so many times as long as the update took

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TestedImage:
    """An image that the drift test has seen."""

    image: int
    created: float


@dataclass(frozen=True)
class DriftState:
    """The scores of a version in the order in which it first gave them, and the state of their drift test."""

    columns: dict[str, Column]
    tested: Index  # positions of the scores that the test has seen
    result: DriftResult

    @cached_property
    def times(self) -> npt.NDArray[np.float64]:
        """Times of arrival of the tested images; an image that was sent again arrived before those after it."""
        created = self.columns["created"][self.tested]
        return np.asarray(np.minimum.accumulate(created[::-1])[::-1], np.float64)

    def image(self, index: int) -> TestedImage:
        """Return an image by its index in the test."""
        return TestedImage(int(self.columns["image"][self.tested[index]]), float(self.times[index]))


class _VersionTest:
    """The running test of one version."""

    def __init__(self, store: Store, registry: ModelRegistry, version: Version) -> None:
        card = registry.card(version)
        self.version = version.id
        self.calibration, self.seed = card.calibration_at(version.precision).scores, version.id
        self._columns = ScoreColumns(store, version, card.used_sha256)
        self._test = DriftTest(self.calibration, seed=self.seed)

    def update(self) -> DriftState:
        """Continue with new scores; restart if earlier ones have changed."""
        if not self._columns.update():
            self._test = DriftTest(self.calibration, seed=self.seed)
        tested, scores = self._columns.tested, self._columns.columns["score"]
        self._test.update(scores[tested[len(self._test.levels) :]])
        return DriftState(self._columns.columns.copy(), tested, self._test.result())

    def level(self) -> float:
        """Return the present level of the test."""
        levels = self._test.levels  # read once: an update may replace the test
        return levels[-1] if levels else 0.0


class DriftMonitor:
    """The drift tests of all models, and a thread that continues them."""

    def __init__(self, store: Store, registry: ModelRegistry) -> None:
        self._store, self._registry = store, registry
        self._tests: dict[str, _VersionTest] = {}
        self._test_locks: dict[str, threading.Lock] = {}
        self._alarm_counts: dict[str, int] = {}  # alarms in the history, by model
        self._reported: dict[int, int] = {}  # by version: the last score whose alarms are in the history
        self._last_score: int | None = None  # id of the last score in the store, whichever service recorded it
        self._lock = threading.Lock()
        self._pending: set[str] = set()
        self._wake, self._closed = threading.Event(), threading.Event()
        self.thread = SupervisedThread("drift", self._work)

    def start(self) -> None:
        """Catch up with what an earlier process left, then wait for images."""
        for name in self._registry.names():
            self.notify(name)
        self.thread.start()

    def close(self) -> None:
        """Stop after the present update."""
        self._closed.set()
        self._wake.set()
        self.thread.stop()

    def notify(self, name: str) -> None:
        """Note that a model has new scores; returns at once."""
        with self._lock:
            self._pending.add(name)
        self._wake.set()

    def state(self, version: Version, since: float = 0.0) -> DriftState:
        """Return the up-to-date state of a version's test; with `since`, of a test that starts at that time."""
        with self._lock:
            lock = self._test_locks.setdefault(version.name, threading.Lock())
        with lock:
            test = self._tests.get(version.name)
            if test is None or test.version != version.id:
                test = self._tests[version.name] = _VersionTest(self._store, self._registry, version)
            try:
                state = test.update()
            except SQLAlchemyError:
                del self._tests[version.name]  # it may have been updated in part
                raise
        return _restrict(state, since, test) if since else state

    def figures(self) -> dict[str, tuple[float, int]]:
        """Return the level and the number of alarms in the history of each model whose alarms have been counted."""
        tests = self._tests.copy()
        return {
            name: (tests[name].level(), count) for name, count in self._alarm_counts.copy().items() if name in tests
        }

    # --- background thread

    def _work(self) -> None:
        while not self._closed.is_set():
            self.thread.wait(self._wake, POLL_SECONDS if self._store.database.is_shared else None)
            self._wake.clear()
            self._notice_scorers()
            with self._lock:
                names, self._pending = self._pending, set()
            began = time.monotonic()
            for name in sorted(names):
                self._update(name)
            self.thread.wait(self._closed, max(MIN_PAUSE, PAUSE_FACTOR * (time.monotonic() - began)))

    def _notice_scorers(self) -> None:
        """Note the models with scores that other services have recorded."""
        if not self._store.database.is_shared:
            return
        with suppress(SQLAlchemyError):  # the store is asked again soon
            last = self._store.scores.highest_id()
            names = set() if self._last_score in (None, last) else self._store.scores.models_after(self._last_score)
            self._last_score = last
            with self._lock:
                self._pending |= names

    def _update(self, name: str) -> None:
        try:
            self._report_alarms(self._store.versions.released(name))
        except MissingError:
            self._tests.pop(name, None)
        except BgadError as error:
            logger.warning("the drift test of %s stands still: %s", name, error)
        except SQLAlchemyError as error:
            logger.warning("the drift test of %s waits for the store: %s", name, first_line(error))
            self.notify(name)
        except Exception as error:  # noqa: BLE001 - the tests of the other models go on
            self._tests.pop(name, None)  # it may have been updated in part
            self.thread.note_failure(error)

    def _report_alarms(self, version: Version) -> None:
        """Record new alarms in the history. A verdict may shift earlier alarms, which were reported already."""
        state = self.state(version)
        ids, images = (state.columns[key][state.tested] for key in ("id", "image"))
        alarms = state.result.alarms
        if version.id not in self._reported:
            self._recall_reported(version, ids, images, alarms)
        for position in (position for position in alarms if ids[position] > self._reported[version.id]):
            detail = f"image {images[position]}: version {version.id}"
            self._store.history.add("service", DRIFT_ALARM, version.name, detail)
            self._alarm_counts[version.name] += 1
            self._reported[version.id] = int(ids[position])
        self._reported[version.id] = max(self._reported[version.id], *ids[-1:].tolist(), 0)

    def _recall_reported(self, version: Version, ids: Column, images: Column, alarms: list[int]) -> None:
        """Find out from the history which alarms of a version an earlier process reported."""
        events = self._store.history.events(version.name, what=DRIFT_ALARM)
        suffix = f": version {version.id}"
        reported_images = [e.image for e in events if e.image is not None and e.detail.endswith(suffix)]
        reported = [*ids[alarms[: len(reported_images)]], *ids[np.isin(images, reported_images)]]
        self._alarm_counts[version.name] = len(events)
        self._reported[version.id] = int(max(reported, default=0))


def _restrict(state: DriftState, since: float, test: _VersionTest) -> DriftState:
    """Run the test anew over the scores since a time."""
    inside = state.columns["created"] >= since
    tested = np.flatnonzero(np.isin(np.flatnonzero(inside), state.tested))
    columns = {name: column[inside] for name, column in state.columns.items()}
    return DriftState(columns, tested, martingale.run(test.calibration, columns["score"][tested], seed=test.seed))
