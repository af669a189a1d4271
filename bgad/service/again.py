"""What a version that was released scores again, beside everything else: what has been reviewed, and the last of what
the version before it has scored, so that the page stays full. What a service did not get to is done by the next one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError

from bgad import console
from bgad.errors import BgadError
from bgad.service.scoring import judged
from bgad.service.store import MissingError, Row

if TYPE_CHECKING:
    from bgad.service.workbench import Workbench

AGAIN = 2000  # images of the version before
PAUSE = 5.0  # seconds until a store that does not answer is asked again
COUNTING = 1.0  # seconds that a release waits to hear how many they are


@dataclass
class _Run:
    version: int
    done: int = 0
    total: int = 0
    counted: threading.Event = field(default_factory=threading.Event)


class Again:
    """Threads that score; one run for a model at a time."""

    def __init__(self, bench: Workbench) -> None:
        self.bench = bench
        self._runs: dict[str, _Run] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Go on with what an earlier service left, one model after the other."""
        released = [version for version in self.bench.store.versions() if version["state"] == "released"]

        def work() -> None:
            for version in released:
                if (run := self._enter(version)) is not None:
                    self._work(version, run)

        self._begin(work)

    def release(self, version: Row) -> None:
        """Begin with a version that has been released; what runs for its model ends."""
        run = self._enter(version)
        if run is not None:
            self._begin(lambda: self._work(version, run))
            run.counted.wait(COUNTING)

    def state(self, name: str) -> dict[str, int]:
        """How far the released version of a model is."""
        run = self._runs.get(name)
        return {"done": 0, "total": 0} if run is None else {"done": run.done, "total": run.total}

    def close(self) -> None:
        """Stop after the image at hand."""
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _begin(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name="score again", daemon=True)
        thread.start()
        with self._lock:
            self._threads = [*(one for one in self._threads if one.is_alive()), thread]

    def _enter(self, version: Row) -> _Run | None:
        """A run; none where the version has one already."""
        with self._lock:
            there = self._runs.get(version["name"])
            if there is not None and there.version == version["id"]:
                return None
            self._runs[version["name"]] = run = _Run(version["id"])
            return run

    def _work(self, version: Row, run: _Run) -> None:
        name = version["name"]
        try:
            while not self._ended.is_set():
                try:
                    self._score_all(version, run)
                    return
                except SQLAlchemyError as error:
                    reason = str(error).splitlines()[0]
                    console.warn(f"scoring again for {name} waits for the store: {reason}")
                    self._ended.wait(PAUSE)
        except BgadError as error:
            console.warn(f"nothing is scored again for {name}: {error}")
        finally:
            run.counted.set()
            with self._lock:
                if self._runs.get(name) is run:
                    del self._runs[name]

    def _score_all(self, version: Row, run: _Run) -> None:
        before = None
        with suppress(MissingError):
            before = self.bench.before(version["name"])["id"]
        rows = self.bench.store.unscored(version, before, AGAIN)
        run.done, run.total = 0, len(rows)
        run.counted.set()
        if rows and not self._ended.is_set():
            self.bench.batcher(version)  # one warning where it cannot be opened
        for row in rows:
            current = self._runs.get(version["name"]) is run
            if self._ended.is_set() or not current or self.bench.store.version(version["id"])["state"] != "released":
                return
            self._score(row, version)
            run.done += 1

    def _score(self, row: Row, version: Row) -> None:
        """At its old time, as that is when the part was there."""
        try:
            path = self.bench.files.path("pictures", row["sha256"])
            answer, scorer = self.bench.answer(version, path, patient=True)
            self.bench.store.add_score(row["id"], version["id"], judged(answer.scores, scorer), row["created"])
            self.bench.thumbnails.draw(row["sha256"], version["id"], answer.scores.map, scorer.card)
        except (BgadError, OSError) as error:
            if not self._ended.is_set():
                console.warn(f"image {row['id']} is not scored again: {error}")
