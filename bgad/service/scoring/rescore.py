"""What a version that was released scores again, beside everything else: what has been reviewed, the last of what the
version before it has scored, and what was under way meanwhile, so that the page stays full. What a service did not get
to is done by the next one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from bgad.cli import console
from bgad.errors import BgadError
from bgad.service.scoring.batcher import judged
from bgad.service.store.store import MissingError, Row

if TYPE_CHECKING:
    from bgad.service.workbench import Workbench

T = TypeVar("T")

AGAIN = 2000  # images of the version before
PAUSE = 5.0  # seconds until a store that does not answer is asked again
COUNTING = 1.0  # seconds that a release waits to hear how many they are


@dataclass
class _Run:
    version: int
    done: int = 0
    total: int = 0
    late: list[Row] = field(default_factory=list)  # what was under way at the release, and so not listed
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
        names = self.bench.names()

        def work() -> None:
            for name in names:
                with suppress(MissingError):  # no version of it is released any more
                    version = self._patiently(name, partial(self.bench.store.released, name))
                    if version is not None and (run := self._enter(version)) is not None:
                        self._work(version, run)

        self._begin(work)

    def release(self, version: Row) -> None:
        """Begin with a version that has been released; what runs for its model ends."""
        run = self._enter(version)
        if run is not None:
            self._begin(lambda: self._work(version, run))
            run.counted.wait(COUNTING)

    def also(self, version: Row, image: int) -> None:
        """A picture that was under way when the version was released, and that only another one has scored."""
        found = self.bench.store.image(image)
        created = max(said["created"] for said in found["scores"] if said["model"] == version["name"])
        run = self._enter(version, {"id": image, "sha256": found["sha256"], "created": created})
        if run is not None:
            self._begin(lambda: self._work(version, run))

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

    def _enter(self, version: Row, *late: Row) -> _Run | None:
        """A run; none where the version has one already."""
        with self._lock:
            there = self._runs.get(version["name"])
            if there is not None and there.version == version["id"]:
                there.late += late
                there.total += len(late)
                return None
            before = [] if there is None else there.late
            self._runs[version["name"]] = run = _Run(version["id"], late=[*before, *late])
            return run

    def _ends(self, version: Row, run: _Run) -> bool:
        """Where nothing is left; nobody can add to it from then on."""
        with self._lock:
            current = self._current(version["name"], run)
            if current and not run.late:
                del self._runs[version["name"]]
            return not current or not run.late

    def _work(self, version: Row, run: _Run) -> None:
        name = version["name"]
        try:
            while not self._ended.is_set() and self._current(name, run):
                self._patiently(name, partial(self._score_all, version, run))
                if self._current(name, run):  # another version has been released: what is left is for that one
                    version = self._patiently(name, partial(self.bench.store.released, name)) or version
                    run = self._enter(version) or run
        except BgadError as error:
            console.warn(f"nothing is scored again for {name}: {error}")
        finally:
            run.counted.set()
            with self._lock:
                if self._current(name, run):
                    del self._runs[name]

    def _current(self, name: str, run: _Run) -> bool:
        return self._runs.get(name) is run

    def _patiently(self, name: str, ask: Callable[[], T]) -> T | None:
        """What the store says, however often it must be asked; nothing where the service ends first."""
        while not self._ended.is_set():
            try:
                return ask()
            except SQLAlchemyError as error:
                reason = str(error).splitlines()[0]
                console.warn(f"scoring again for {name} waits for the store: {reason}")
                self._ended.wait(PAUSE)
        return None

    def _score_all(self, version: Row, run: _Run) -> None:
        before = None
        with suppress(MissingError):
            before = self.bench.before(version["name"])["id"]
        rows = self.bench.store.unscored(version, before, AGAIN)
        listed = {row["id"] for row in rows}
        with self._lock:
            run.late = [row for row in run.late if row["id"] not in listed]
            run.done, run.total = 0, len(rows) + len(run.late)
        run.counted.set()
        if run.total and not self._ended.is_set():
            self.bench.batcher(version)  # one warning where it cannot be opened
        for row in rows:
            if not self._goes_on(version, run):
                return
            self._score(row, version)
            run.done += 1
        while self._goes_on(version, run) and not self._ends(version, run):
            self._score(run.late[0], version)
            del run.late[0]
            run.done += 1

    def _goes_on(self, version: Row, run: _Run) -> bool:
        if self._ended.is_set() or not self._current(version["name"], run):
            return False
        return bool(self.bench.store.version(version["id"])["state"] == "released")

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
