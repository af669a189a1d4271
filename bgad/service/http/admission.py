"""Who waits for a thread, in the event loop: for so long and no longer, and so many pictures of batches and no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from anyio import CapacityLimiter, fail_after, to_thread

from bgad.client import MAX_BATCH
from bgad.service.scoring.batcher import TOO_MANY, BusyError
from bgad.service.workbench import PATIENCE

PILED = 8 * MAX_BATCH  # pictures of batches that wait

T = TypeVar("T")


async def in_time(limiter: CapacityLimiter, work: Callable[[], T]) -> T:
    """Work in one of the threads of a limiter; BusyError when none is free within PATIENCE."""
    place = object()
    try:
        with fail_after(PATIENCE):
            await limiter.acquire_on_behalf_of(place)
    except TimeoutError as error:
        raise BusyError(TOO_MANY) from error
    try:
        return await now(work)
    finally:
        limiter.release_on_behalf_of(place)


async def now(work: Callable[[], T]) -> T:
    """In a thread, whatever others do: for who has a place already."""
    return await to_thread.run_sync(work, limiter=CapacityLimiter(1))


@dataclass(eq=False)
class Batch:
    """The pictures of a request whose turn has not come; how many they are is known when it has been read."""

    left: int | None = None


class Pile:
    """The batches that were taken."""

    def __init__(self, most: int = PILED) -> None:
        self.most = most
        self._batches: list[Batch] = []

    def waiting(self) -> int:
        """Pictures whose turn has not come."""
        return sum(batch.left or 0 for batch in list(self._batches))

    @contextmanager
    def taken(self) -> Iterator[Batch]:
        """One more, which may have as many pictures as a batch may; BusyError where these would be too many."""
        if sum(MAX_BATCH if batch.left is None else batch.left for batch in self._batches) + MAX_BATCH > self.most:
            raise BusyError(TOO_MANY)
        self._batches.append(batch := Batch())
        try:
            yield batch
        finally:
            self._batches.remove(batch)
