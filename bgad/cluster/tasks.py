"""Independent pieces of work as Ray tasks: cells of a benchmark, models of a plant."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import ray

from bgad.cluster.connection import worker_places
from bgad.errors import BgadError, first_line
from bgad.io.cpus import THREADS
from bgad.types import StopRequest

S = TypeVar("S")
T = TypeVar("T")

RETRIES = 2  # of a task whose worker or node died; an error of ours is not tried again
WAIT_SECONDS = 1.0


@dataclass(frozen=True)
class Resources:
    """What one task takes of a node."""

    cpus: int = 1
    gpus: float = 0.0


@dataclass(frozen=True)
class Done:
    """The end of one piece of work: its result, or the reason why there is none."""

    index: int  # of the piece
    result: Any  # None where there is an error
    error: BgadError | None = None


def run_tasks(
    work: Callable[[S], T], pieces: Sequence[S], resources: Resources, stop: StopRequest | None = None
) -> Iterator[Done]:
    """Run pieces of work on the cluster and yield them as they end; after a request to stop no further one begins.

    At most as many tasks are submitted as the cluster can run at once, so that a request to stop takes effect soon.
    """
    remote = ray.remote(_with_threads).options(
        num_cpus=resources.cpus, num_gpus=resources.gpus, max_retries=RETRIES, retry_exceptions=False
    )
    waiting = deque(range(len(pieces)))
    running: dict[Any, int] = {}
    try:
        while waiting or running:
            if stop is not None and stop.requested:
                waiting.clear()
            while waiting and len(running) < worker_places(resources.cpus, resources.gpus):
                index = waiting.popleft()
                running[remote.remote(work, pieces[index], resources.cpus)] = index
            if not running:
                return
            ready, _ = ray.wait(list(running), timeout=WAIT_SECONDS)
            for future in ready:
                yield _done(running.pop(future), future)
    finally:
        for future in running:
            ray.cancel(future, force=True)


def _done(index: int, future: Any) -> Done:
    try:
        return Done(index, ray.get(future))
    except ray.exceptions.RayTaskError as error:
        cause = error.cause if isinstance(error.cause, BgadError) else None
        return Done(index, None, cause or BgadError(f"it failed: {first_line(error.cause or error)}"))
    except ray.exceptions.RayError as error:
        return Done(index, None, BgadError(f"its worker died {RETRIES + 1} times: {first_line(error)}"))


def _with_threads(work: Callable[[S], T], piece: S, cpus: int) -> T:
    """Run a piece of work in a worker process with as many threads as the task has CPUs."""
    os.environ["OMP_NUM_THREADS"] = os.environ[THREADS] = str(cpus)  # of torch, and ours
    return work(piece)
