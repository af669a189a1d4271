"""Admission control: how many requests of each kind run at a time, and how long others wait for their turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from anyio import CapacityLimiter, fail_after, to_thread

from bgad.client import MAX_BATCH
from bgad.service.errors import QUEUE_FULL, BusyError
from bgad.service.image_views import PATIENCE_SECONDS
from bgad.service.scoring.batcher import MAX_WAITING, PATIENT_PLACES

MAX_BATCH_IMAGES = 8 * MAX_BATCH  # images of batch requests that may wait
BATCH_PLACES = 4  # images of batch requests that are in memory at a time
FULL_SIZE_PLACES = 2  # full-size images, with or without their maps, that are rendered at a time
TOKEN_PLACES = 8  # tokens that are looked up at a time

T = TypeVar("T")


@dataclass(frozen=True)
class Limiters:
    """The threads of each kind of request. Slow work has threads of its own, so that it cannot block quick requests."""

    # More threads than places in the queue, so that a request beyond the limit is refused at once.
    scoring: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(2 * MAX_WAITING))
    batches: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(BATCH_PLACES))
    originals: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(FULL_SIZE_PLACES))
    overlays: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(FULL_SIZE_PLACES))
    drawing: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(PATIENT_PLACES))
    tokens: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(TOKEN_PLACES))


async def run_patiently(limiter: CapacityLimiter, work: Callable[[], T]) -> T:
    """Run work in a thread of a limiter; BusyError if none is free within PATIENCE_SECONDS."""
    borrower = object()
    try:
        with fail_after(PATIENCE_SECONDS):
            await limiter.acquire_on_behalf_of(borrower)
    except TimeoutError as error:
        raise BusyError(QUEUE_FULL) from error
    try:
        return await run_now(work)
    finally:
        limiter.release_on_behalf_of(borrower)


async def run_now(work: Callable[[], T]) -> T:
    """Run work in a thread at once; for callers that hold a place already."""
    return await to_thread.run_sync(work, limiter=CapacityLimiter(1))


@dataclass(eq=False)
class AdmittedBatch:
    """A batch request that has been admitted; the number of its waiting images is known once it has been read."""

    waiting: int | None = None


class BatchAdmission:
    """Limits the images of batch requests that wait."""

    def __init__(self, max_images: int = MAX_BATCH_IMAGES) -> None:
        self.max_images = max_images
        self._batches: list[AdmittedBatch] = []

    def waiting(self) -> int:
        """Return the number of images of batch requests that wait for their turn."""
        return sum(batch.waiting or 0 for batch in list(self._batches))

    @contextmanager
    def admit(self) -> Iterator[AdmittedBatch]:
        """Admit a request that may have as many images as a batch may; BusyError if they would be too many."""
        reserved = sum(MAX_BATCH if batch.waiting is None else batch.waiting for batch in self._batches)
        if reserved + MAX_BATCH > self.max_images:
            raise BusyError(QUEUE_FULL)
        self._batches.append(batch := AdmittedBatch())
        try:
            yield batch
        finally:
            self._batches.remove(batch)
