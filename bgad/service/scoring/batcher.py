"""Batches the requests of many clients for one model.

The number of waiting requests is bounded: a request beyond the limit is refused at once, so that the others are not
delayed. Patient requests (batches, anomaly maps for a person, rescoring) queue in order of arrival for a few places of
their own. They neither take a place from an impatient request nor wait as long as impatient requests keep arriving.

Images are decoded and resized in the threads of the requests. A single request uses all cores. If several wait, worker
threads of one core each score them in batches, as `score_stream` does.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from bgad.errors import BgadError
from bgad.inference.base import BaseScorer, Outputs
from bgad.inference.explain import explain, scale_region
from bgad.io import images
from bgad.service.errors import QUEUE_FULL, BusyError, ClosedError, EngineStuckError
from bgad.service.fair_semaphore import FairSemaphore
from bgad.service.scoring.decoding import DecodingBudget
from bgad.types import FloatArray, Scores, Shape

MAX_WAITING = 64  # impatient requests
ENGINE_SECONDS = 60.0  # in which a batch is scored; beyond that the engine hangs
WATCH_SECONDS = 1.0  # between two looks of a waiting request at the engine
PATIENT_PLACES = 8  # under overload, patient requests receive one score in nine

T = TypeVar("T")


@dataclass(frozen=True)
class Answer:
    """The scores of an image and its shape; the anomaly map may be smaller than the image."""

    scores: Scores
    shape: Shape


@dataclass(order=True)
class _Request:
    number: int  # requests are scored in order of arrival, however long an image takes to decode
    pixels: FloatArray = field(compare=False)
    output: Future[Outputs] = field(default_factory=Future, compare=False)


class Batcher:
    """Scores images of many clients with one model."""

    def __init__(
        self,
        scorer: BaseScorer,
        *,
        batch: int | None = None,
        max_waiting: int = MAX_WAITING,
        budget: DecodingBudget | None = None,
        tile_budget: DecodingBudget | None = None,
        on_stuck: Callable[[Batcher], None] | None = None,
    ) -> None:
        """`batch` is the largest number of images scored together; by default the scorer's.

        All batchers of a process share one `budget`, and one `tile_budget` for images that are cut into tiles: these
        stay in memory while their tiles are scored, and keep no other image waiting. `on_stuck` is called if the engine
        does not return within ENGINE_SECONDS; the batcher is closed then.
        """
        self._budget, self._tile_budget = budget or DecodingBudget(), tile_budget or DecodingBudget()
        self._on_stuck, self._is_stuck = on_stuck, False
        self._in_engine: dict[int, tuple[float, list[Future[Any]]]] = {}  # by batch: its begin and what it answers
        self.scorer, self.batch, self.max_waiting = scorer, batch or scorer.batch, max_waiting
        self._queue: list[_Request] = []  # a heap
        self._arrivals = 0
        self._admitted, self._admitted_patient = 0, 0  # requests inside; those of them that are patient
        self._running, self._running_alone = 0, False  # batches in the engine; whether one uses all cores
        self._closing = self._closed = False
        self._changed = threading.Condition()
        self._patient = FairSemaphore(PATIENT_PLACES)
        # At most so many decoded images, and so many full-size maps, are in memory. The two limits are separate: a
        # scored request must not wait for requests that are still to be decoded.
        self._decoding, self._resizing = FairSemaphore(scorer.threads), FairSemaphore(scorer.threads)
        self._tiled = threading.Lock()  # an image cut into tiles is a batch of its own
        name = f"score {scorer.card.name}"
        self._threads = [
            threading.Thread(target=self._work, args=(alone,), name=name, daemon=True)
            for alone in (True, *[False] * scorer.threads)
        ]
        for thread in self._threads:
            thread.start()

    def score(
        self, path: Path, *, patient: bool = False, timeout: float | None = None, max_map_side: int = 0
    ) -> Answer:
        """Score an image file; BusyError if too many requests wait.

        A patient request waits for a place, for at most `timeout` seconds. The anomaly map is no larger than
        `max_map_side`, so that large images of many clients do not fill the memory; 0 keeps the image's size.
        """
        if not patient:
            return self._score(path, max_map_side, patient=False)
        with self._patient.acquire(timeout):
            return self._score(path, max_map_side, patient=True)

    def _score(self, path: Path, max_map_side: int, *, patient: bool) -> Answer:
        number = self._enter(patient)
        try:
            if self.scorer.tile.size:
                scores = self._score_tiled(path)
                return Answer(_limit_map(scores, max_map_side), _shape(scores.map))
            with self._decoding.acquire(), self._budget.hold_file(path):
                pixels, shape = self.scorer.prepare(path)
            output = self._enqueue(_Request(number, pixels))
            if max_map_side and self.scorer.roi is None:
                return Answer(self._finish_small(output, shape, max_map_side), shape)
            with self._resizing.acquire():  # a region of interest applies to a map of the image's size
                return Answer(_limit_map(self._finish(output, shape), max_map_side), shape)
        finally:
            self._leave(patient)

    def _enqueue(self, request: _Request) -> Outputs:
        with self._changed:
            if self._is_stuck:
                raise _stuck_error()
            heapq.heappush(self._queue, request)
            self._changed.notify_all()
        return self._wait(request.output)

    def _score_tiled(self, path: Path) -> Scores:
        """Score an image that is cut into tiles, in a thread that can be left behind."""
        output: Future[Scores] = Future()
        with self._tiled, self._tile_budget.hold_file(path):
            if self._is_stuck:
                raise _stuck_error()
            work = partial(self._answer, [output], lambda: [self.scorer.score(path)])
            threading.Thread(target=work, name="score tiles", daemon=True).start()
            return self._wait(output)

    def _wait(self, output: Future[T]) -> T:
        """Wait for an output; EngineStuckError if the engine hangs."""
        while True:
            try:
                return output.result(WATCH_SECONDS)
            except TimeoutError:
                if output.done():
                    raise
                self._check_engine()

    def _check_engine(self) -> None:
        """If a batch is in the engine for too long, fail all requests and let the batcher be replaced."""
        with self._changed:
            oldest = min((began for began, _ in self._in_engine.values()), default=time.monotonic())
            if self._is_stuck or time.monotonic() - oldest <= ENGINE_SECONDS:
                return
            self._is_stuck = self._closing = self._closed = True
            outputs = [output for _, held in self._in_engine.values() for output in held]
            outputs += [request.output for request in self._queue]
            self._queue.clear()
            self._changed.notify_all()
        if self._on_stuck is not None:
            self._on_stuck(self)
        for output in outputs:
            with suppress(InvalidStateError):  # it has just returned
                output.set_exception(_stuck_error())

    def _finish(self, output: Outputs, shape: Shape) -> Scores:
        (result,) = self.scorer.finish(output, [shape])
        if isinstance(result, BgadError):
            raise result
        return result

    def _finish_small(self, output: Outputs, shape: Shape, max_map_side: int) -> Scores:
        """Return the scores of an image with a map of limited size, but with the region in the image's pixels."""
        map_shape = images.fit_shape(shape, max_map_side)
        scores = self._finish(output, map_shape)
        return replace(scores, region=scale_region(scores.region, map_shape, shape))

    @property
    def waiting(self) -> int:
        """Number of requests that have arrived and are not answered."""
        return self._admitted + self._patient.waiting

    @property
    def is_full(self) -> bool:
        """Whether another impatient request would be refused."""
        return self._admitted - self._admitted_patient >= self.max_waiting

    @property
    def is_hanging(self) -> bool:
        """Whether the engine was given up and a call of it has not returned, so that its memory is still in use."""
        return self._is_stuck and bool(self._in_engine)

    def close(self) -> None:
        """Answer the admitted requests, then stop the worker threads."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._admitted == 0)
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            if not self._is_stuck:  # a thread in an engine that hangs is left behind
                thread.join()

    def _enter(self, patient: bool) -> int:
        with self._changed:
            if self._closing:
                raise ClosedError("the model is being unloaded: try again later")
            if not patient and self.is_full:
                raise BusyError(QUEUE_FULL)
            self._admitted += 1
            self._admitted_patient += patient
            self._arrivals += 1
            return self._arrivals

    def _leave(self, patient: bool) -> None:
        with self._changed:
            self._admitted -= 1
            self._admitted_patient -= patient
            self._changed.notify_all()

    # --- worker threads

    def _may_start(self, alone: bool) -> bool:
        if alone:
            return self._running == 0 and len(self._queue) == 1
        return not self._running_alone and len(self._queue) > (self._running == 0)

    def _work(self, alone: bool) -> None:
        if not alone:
            self.scorer.start_thread()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._may_start(alone))
                if self._closed:
                    return
                idle = len(self._threads) - 1 - self._running
                share = 1 if alone else min(self.batch, -(-len(self._queue) // max(1, idle)))
                requests = [heapq.heappop(self._queue) for _ in range(share)]
                self._running, self._running_alone = self._running + 1, alone
            self._run(requests)
            with self._changed:
                self._running, self._running_alone = self._running - 1, False
                self._changed.notify_all()

    def _run(self, requests: list[_Request]) -> None:
        def score() -> list[Outputs]:
            outputs = self.scorer.run(np.stack([request.pixels for request in requests]))
            return [outputs.select(slice(i, i + 1)) for i in range(len(requests))]

        self._answer([request.output for request in requests], score)

    def _answer(self, outputs: list[Future[T]], score: Callable[[], list[T]]) -> None:
        """Run the engine, watched by those who wait, and pass on its results or its error."""
        key = id(outputs)
        with self._changed:
            self._in_engine[key] = time.monotonic(), list(outputs)
        try:
            results = score()
        except Exception as error:  # noqa: BLE001 - the requests must learn of it, and the thread must survive
            for output in outputs:
                with suppress(InvalidStateError):  # the engine had been given up
                    output.set_exception(error)
        else:
            for output, result in zip(outputs, results, strict=True):
                with suppress(InvalidStateError):
                    output.set_result(result)
        finally:
            with self._changed:
                del self._in_engine[key]


def _stuck_error() -> EngineStuckError:
    return EngineStuckError(
        f"the engine of the model did not answer in {ENGINE_SECONDS:g} s and is replaced: try again"
    )


def decide_again(scores: Scores, scorer: BaseScorer) -> Scores:
    """Apply the scorer's present threshold, which may have been set while the image was being scored."""
    threshold, map_threshold = scorer.threshold, scorer.map_threshold
    is_anomaly, has_region = scores.score > threshold, bool(scores.map.max() > map_threshold)
    reason = explain(scorer.part_limits, is_anomaly, scores.parts, has_region=has_region)
    return replace(
        scores,
        threshold=threshold,
        is_anomaly=is_anomaly,
        map_threshold=map_threshold,
        reason=reason,
        region=scores.region if has_region else None,
    )


def _limit_map(scores: Scores, max_side: int) -> Scores:
    shape = _shape(scores.map)
    if not max_side or max(shape) <= max_side:
        return scores
    return replace(scores, map=images.shrink_map(scores.map, images.fit_shape(shape, max_side)))


def _shape(array: FloatArray) -> Shape:
    return int(array.shape[0]), int(array.shape[1])
