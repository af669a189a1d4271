"""Requests of many clients, scored together: a bounded queue before one engine.

Reading and resizing happen in the threads of the requests; one thread takes what waits, up to a batch, and runs the
graph with all cores. When the queue is full, a request is turned away at once instead of making all of them late.
"""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bgad.errors import BgadError
from bgad.scorer import BaseScorer, Shape
from bgad.types import FloatArray, Scores

BATCH, WAITING = 8, 64


class BusyError(BgadError):
    """Too many requests wait already."""


@dataclass
class _Request:
    pixels: FloatArray
    shape: Shape
    done: Future[Scores] = field(default_factory=Future)


class Batcher:
    """One model that scores for many clients."""

    def __init__(self, scorer: BaseScorer, *, batch: int = BATCH, waiting: int = WAITING) -> None:
        self.scorer, self.batch, self.capacity = scorer, batch, waiting
        self._waiting: queue.Queue[_Request | None] = queue.Queue(waiting)
        self._whole = threading.BoundedSemaphore(1)  # pictures cut into tiles are a batch of their own
        self._whole_waiting = threading.BoundedSemaphore(waiting)
        self._closed = False
        self._thread = threading.Thread(target=self._work, name=f"score {scorer.card.data['name']}", daemon=True)
        self._thread.start()

    def score(self, path: Path, *, patient: bool = False) -> Scores:
        """Score a file; BusyError when too many wait, unless `patient`."""
        if self.scorer.tile.size:
            return self._score_tiles(path, patient)
        prepared = self.scorer.prepare(path)
        if isinstance(prepared, BgadError):
            raise prepared
        request = _Request(*prepared)
        try:
            self._waiting.put(request, block=patient)
        except queue.Full as error:
            raise BusyError("too many pictures wait to be scored: try again later") from error
        if self._closed:  # after the queue was emptied for good
            request.done.cancel()
        return request.done.result()

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return self._waiting.qsize()

    def close(self) -> None:
        """Finish what waits, then stop."""
        self._closed = True
        self._waiting.put(None)
        self._thread.join()

    def _score_tiles(self, path: Path, patient: bool) -> Scores:
        if not self._whole_waiting.acquire(blocking=patient):
            raise BusyError("too many pictures wait to be scored: try again later")
        try:
            with self._whole:
                return self.scorer.score(path)
        finally:
            self._whole_waiting.release()

    def _work(self) -> None:
        while True:
            first = self._waiting.get()
            if first is None:
                return
            together, stop = [first], False
            while len(together) < self.batch:
                try:
                    following = self._waiting.get_nowait()
                except queue.Empty:
                    break
                if following is None:
                    stop = True
                    break
                together.append(following)
            self._score(together)
            if stop:
                return

    def _score(self, together: list[_Request]) -> None:
        try:
            found = self.scorer.finish(
                self.scorer.run(np.stack([request.pixels for request in together])),
                [request.shape for request in together],
            )
        except Exception as error:  # noqa: BLE001 - the requests must hear of it, and the thread must live on
            for request in together:
                request.done.set_exception(error)
            return
        for request, result in zip(together, found, strict=True):
            if isinstance(result, BgadError):
                request.done.set_exception(result)
            else:
                request.done.set_result(result)
