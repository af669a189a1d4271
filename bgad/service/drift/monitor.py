"""Have the parts changed, for every model: the drift test goes on, beside everything else, while pictures come; who
asks finds it where it is. An alarm is written into the history, once.

In the test of a version are the pictures that it was the first of its model's versions to score, in the order in which
they came. Which version that is was settled before the score was known, so while the parts stay as they were, these
scores are a sample like any other, whatever was released when and why. What is scored again after a release is not:
it was chosen by a person, or learnt from, or seen before the release was decided on."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from sqlalchemy.exc import SQLAlchemyError

from bgad.cli import console
from bgad.errors import BgadError
from bgad.service.drift.columns import Column, Readings
from bgad.service.drift.statistic import Drift, Jumper, watch
from bgad.service.store.store import MissingError, Row

if TYPE_CHECKING:
    from bgad.service.workbench import Workbench

PAUSE = 5.0  # seconds between two looks, at least
REST = 20  # times as long as a look took is waited until the next one
ALARM = "drift alarm"
EVERY = 10**6  # alarms, more than there are


@dataclass(frozen=True)
class Seen:
    """The scores of a version, in the order in which it gave them first, and how the test of them stands."""

    columns: dict[str, Column]
    tested: npt.NDArray[np.int64]  # places of what the test saw
    found: Drift

    @cached_property
    def times(self) -> npt.NDArray[np.float64]:
        """When the images of the test came: one that was sent again had come before those after it."""
        created = self.columns["created"][self.tested]
        return np.asarray(np.minimum.accumulate(created[::-1])[::-1], np.float64)

    def row(self, number: int) -> Row:
        """An image of the test, by its number there."""
        image = self.columns["image"][self.tested[number]]
        return {"image": int(image), "created": float(self.times[number])}


class _Kept:
    """What is known of a version, for the next look."""

    def __init__(self, bench: Workbench, version: Row) -> None:
        card = bench.card(version)
        self.key = _key(version)
        self.calibration, self.seed = card.calibration_at().scores, version["id"]
        self.readings = Readings(bench.store, version, card.used_sha256)
        self.test = Jumper(self.calibration, seed=self.seed)

    def look(self) -> Seen:
        """Go on with what is new; anew where what came before is not what it was."""
        if not self.readings.update():
            self.test = Jumper(self.calibration, seed=self.seed)
        tested, scores = self.readings.tested, self.readings.columns["score"]
        self.test.feed(scores[tested[len(self.test.levels) :]])
        return Seen(self.readings.columns.copy(), tested, self.test.found())

    def level(self) -> float:
        """The last one."""
        levels = self.test.levels  # once: a look may begin another test
        return levels[-1] if levels else 0.0


class Watch:
    """The tests of all models, and a thread that looks."""

    def __init__(self, bench: Workbench) -> None:
        self.bench = bench
        self._kept: dict[str, _Kept] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._alarms: dict[str, int] = {}  # in the history
        self._heard: dict[int, int] = {}  # by version, up to which score alarms have been written down
        self._lock = threading.Lock()
        self._fresh: set[str] = set()
        self._came, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="drift", daemon=True)

    def start(self) -> None:
        """Catch up with what an earlier service left, then wait for pictures."""
        for name in self.bench.names():
            self.came(name)
        self._thread.start()

    def close(self) -> None:
        """Stop after the look at hand."""
        self._ended.set()
        self._came.set()
        if self._thread.is_alive():
            self._thread.join()

    def came(self, name: str) -> None:
        """There is something to look at; what takes time happens elsewhere."""
        with self._lock:
            self._fresh.add(name)
        self._came.set()

    def look(self, version: Row, since: float = 0.0) -> Seen:
        """How the test of a version stands; of what came since a time alone, where there is one."""
        name = version["name"]
        with self._lock:
            lock = self._locks.setdefault(name, threading.Lock())
        with lock:
            kept = self._kept.get(name)
            if kept is None or kept.key != _key(version):
                kept = self._kept[name] = _Kept(self.bench, version)
            try:
                seen = kept.look()
            except SQLAlchemyError:
                del self._kept[name]  # who knows how far it came
                raise
        return _since(seen, since, kept) if since else seen

    def figures(self) -> dict[str, tuple[float, int]]:
        """By model: the level of its test, and the alarms in its history; not before these were counted."""
        kept = self._kept.copy()
        return {name: (kept[name].level(), alarms) for name, alarms in self._alarms.copy().items() if name in kept}

    # --- the thread

    def _work(self) -> None:
        while not self._ended.is_set():
            self._came.wait()
            self._came.clear()
            with self._lock:
                names, self._fresh = self._fresh, set()
            began = time.monotonic()
            for name in sorted(names):
                self._try(name)
            self._ended.wait(max(PAUSE, REST * (time.monotonic() - began)))

    def _try(self, name: str) -> None:
        try:
            self._tell(self.bench.store.released(name))
        except MissingError:
            self._kept.pop(name, None)
        except BgadError as error:
            console.warn(f"nobody watches {name}: {error}")
        except SQLAlchemyError as error:
            console.warn(f"the watch over {name} waits for the store: {str(error).splitlines()[0]}")
            self.came(name)

    def _tell(self, version: Row) -> None:
        """Write down the alarms of what has come since the last look. A verdict may move earlier ones: they have been
        heard."""
        name, number = version["name"], version["id"]
        seen = self.look(version)
        ids, images = (seen.columns[key][seen.tested] for key in ("id", "image"))
        alarms = seen.found.alarms
        if number not in self._heard:  # an earlier service may have written
            events = self.bench.store.history(name, EVERY, what=ALARM)
            told = [int(e["detail"].split()[1][:-1]) for e in events if e["detail"].endswith(f": version {number}")]
            heard = [*ids[alarms[: len(told)]], *ids[np.isin(images, told)]]
            self._alarms[name], self._heard[number] = len(events), int(max(heard, default=0))
        for place in (place for place in alarms if ids[place] > self._heard[number]):
            self.bench.store.log("service", ALARM, name, f"image {images[place]}: version {number}")
            self._alarms[name], self._heard[number] = self._alarms[name] + 1, int(ids[place])
        self._heard[number] = max(self._heard[number], *ids[-1:].tolist(), 0)


def _key(version: Row) -> tuple[int, float | None]:
    """Another rate judges anew."""
    return version["id"], version["rate"]


def _since(seen: Seen, since: float, kept: _Kept) -> Seen:
    inside = seen.columns["created"] >= since
    tested = np.flatnonzero(np.isin(np.flatnonzero(inside), seen.tested))
    columns = {name: column[inside] for name, column in seen.columns.items()}
    return Seen(columns, tested, watch(kept.calibration, columns["score"][tested], seed=kept.seed))
