"""Requests of many clients, scored together: a bounded number of them before one model.

A request that finds no place is turned away at once instead of making all of them late. Who is patient (a batch, a map
that somebody looks at, what is scored again) waits in the order of coming for one of a few places of its own: so it
neither takes a place from a camera nor waits for as long as cameras come. Reading and resizing happen in the threads of
the requests. One picture that comes alone gets all cores; where several wait, threads of one core each take them in
batches, as `score_stream` does.
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from bgad.errors import BgadError
from bgad.inference.base import BaseScorer
from bgad.io import images
from bgad.types import FloatArray, Scores, Shape

BATCH, WAITING = 2, 64  # on a CPU larger batches are no faster, and one in a hundred waits longer
PATIENT = 8  # places of those who are patient: under overload they get one score in nine

TOO_MANY = "too many pictures wait to be scored: try again later"

Found = tuple[FloatArray, FloatArray, list[FloatArray]]


class BusyError(BgadError):
    """Too many requests wait already."""


class ClosedError(BusyError):
    """The model is being put away."""


@dataclass(frozen=True)
class Answer:
    """What is said of a picture."""

    scores: Scores
    shape: Shape  # of the picture; its map may be smaller


@dataclass(order=True)
class _Request:
    number: int  # who came first is scored first, however long its picture took to read
    pixels: FloatArray = field(compare=False)
    done: Future[Found] = field(default_factory=Future, compare=False)


class Turns:
    """So many at a time, strictly in the order in which they came: a semaphore lets late comers overtake who waits."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting: deque[threading.Lock] = deque()
        self._lock = threading.Lock()

    @property
    def waiting(self) -> int:
        """Who has no place yet."""
        return len(self._waiting)

    @contextmanager
    def turn(self, seconds: float | None = None) -> Iterator[None]:
        """Wait for a place, and give it to the next one in the end; BusyError when there is none within `seconds`."""
        with self._lock:
            own = None if self._free else threading.Lock()
            if own is None:
                self._free -= 1
            else:
                own.acquire()
                self._waiting.append(own)
        if own is not None and not own.acquire(timeout=-1 if seconds is None else seconds):  # until it is handed over
            self._give_up(own)
        try:
            yield
        finally:
            with self._lock:
                if self._waiting:
                    self._waiting.popleft().release()
                else:
                    self._free += 1

    def _give_up(self, own: threading.Lock) -> None:
        with self._lock:
            if own in self._waiting:  # else a place was handed over at the last moment
                self._waiting.remove(own)
                raise BusyError(TOO_MANY)


class Batcher:
    """One model that scores for many clients, `waiting` of them at most, beside PATIENT of the patient ones."""

    def __init__(self, scorer: BaseScorer, *, batch: int | None = None, waiting: int = WAITING) -> None:
        """`batch`: how many at most are scored together; 2 on a CPU by default, else as many as the model takes."""
        on_cpu = getattr(scorer, "device", "cpu") == "cpu"
        self.scorer, self.batch, self.capacity = scorer, batch or (BATCH if on_cpu else scorer.batch), waiting
        self._queue: list[_Request] = []  # a heap
        self._came = 0  # requests so far
        self._inside, self._beside = 0, 0  # requests that have a place; those of them that are patient
        self._running, self._alone = 0, False  # batches in the engine; whether one has all cores
        self._closed = self._ended = False
        self._changed = threading.Condition()
        self._patient = Turns(PATIENT)
        self._reading = Turns(scorer.threads)  # whole pictures in memory
        self._drawing = Turns(scorer.threads)  # whole maps; who has been scored does not wait for later readers
        self._whole = threading.Lock()  # pictures cut into tiles are a batch of their own
        name = f"score {scorer.card.name}"
        self._threads = [
            threading.Thread(target=self._work, args=(alone,), name=name, daemon=True)
            for alone in (True, *[False] * scorer.threads)
        ]
        for thread in self._threads:
            thread.start()

    def score(self, path: Path, *, patient: bool = False) -> Scores:
        """Score a file; BusyError when too many wait, unless `patient`."""
        return self.answer(path, patient=patient).scores

    def answer(self, path: Path, *, patient: bool = False, seconds: float | None = None, longest: int = 0) -> Answer:
        """As `score`, where a patient one may wait no longer than so many `seconds` for a place; the map is made no
        larger than `longest`, so that large pictures of many clients do not fill the memory."""
        if not patient:
            return self._answer(path, longest, patient=False)
        with self._patient.turn(seconds):
            return self._answer(path, longest, patient=True)

    def _answer(self, path: Path, longest: int, *, patient: bool) -> Answer:
        number = self._enter(patient)
        try:
            if self.scorer.tile.size:
                with self._whole:
                    scores = self.scorer.score(path)
                    return Answer(_smaller(scores, longest), _shape(scores.map))
            with self._reading.turn():
                prepared = self.scorer.prepare(path)
            if isinstance(prepared, BgadError):
                raise prepared
            pixels, shape = prepared
            request = _Request(number, pixels)
            with self._changed:
                heapq.heappush(self._queue, request)
                self._changed.notify_all()
            found = request.done.result()
            if longest and self.scorer.roi is None:
                return Answer(self._finish(found, fitted(shape, longest)), shape)
            with self._drawing.turn():  # a region needs the map as large as the picture
                return Answer(_smaller(self._finish(found, shape), longest), shape)
        finally:
            self._leave(patient)

    def _finish(self, found: Found, shape: Shape) -> Scores:
        (result,) = self.scorer.finish(found, [shape])
        if isinstance(result, BgadError):
            raise result
        return result

    @property
    def waiting(self) -> int:
        """Requests that have come and are not answered."""
        return self._inside + self._patient.waiting

    def close(self) -> None:
        """Finish what waits, then stop."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._inside == 0)
            self._ended = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _enter(self, patient: bool) -> int:
        with self._changed:
            if self._closed:
                raise ClosedError("the model is being put away: try again later")
            if not patient and self._inside - self._beside >= self.capacity:
                raise BusyError(TOO_MANY)
            self._inside += 1
            self._beside += patient
            self._came += 1
            return self._came

    def _leave(self, patient: bool) -> None:
        with self._changed:
            self._inside -= 1
            self._beside -= patient
            self._changed.notify_all()

    # --- the threads that work

    def _may(self, alone: bool) -> bool:
        if alone:
            return self._running == 0 and len(self._queue) == 1
        return not self._alone and len(self._queue) > (self._running == 0)

    def _work(self, alone: bool) -> None:
        if not alone:
            self.scorer.start_thread()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ended or self._may(alone))
                if self._ended:
                    return
                idle = len(self._threads) - 1 - self._running
                share = 1 if alone else min(self.batch, -(-len(self._queue) // max(1, idle)))
                together = [heapq.heappop(self._queue) for _ in range(share)]
                self._running, self._alone = self._running + 1, alone
            self._run(together)
            with self._changed:
                self._running, self._alone = self._running - 1, False
                self._changed.notify_all()

    def _run(self, together: list[_Request]) -> None:
        try:
            scores, maps, levels = self.scorer.run(np.stack([request.pixels for request in together]))
        except Exception as error:  # noqa: BLE001 - the requests must hear of it, and the thread must live on
            for request in together:
                request.done.set_exception(error)
            return
        for i, request in enumerate(together):
            one = slice(i, i + 1)
            request.done.set_result((scores[one], maps[one], [level[one] for level in levels]))


def judged(scores: Scores, scorer: BaseScorer) -> Scores:
    """By the threshold of now, which may have been set while the picture was under way."""
    return replace(scores, threshold=scorer.threshold, is_anomaly=scores.score > scorer.threshold)


def fitted(shape: Sequence[int], longest: int) -> Shape:
    """The size of a picture, made smaller where its longer side is longer.

    >>> fitted((300, 600), 200), fitted((30, 60), 200)
    ((100, 200), (30, 60))
    """
    scale = min(1.0, longest / max(shape))
    return max(1, round(shape[0] * scale)), max(1, round(shape[1] * scale))


def _smaller(scores: Scores, longest: int) -> Scores:
    shape = _shape(scores.map)
    if not longest or max(shape) <= longest:
        return scores
    return replace(scores, map=images.resize_map(scores.map, fitted(shape, longest)))


def _shape(array: FloatArray) -> Shape:
    return int(array.shape[0]), int(array.shape[1])
