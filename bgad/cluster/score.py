"""The driver of a scoring job: a pool of workers, each with at most two shards, until all shards are finished.

The driver holds no images, and rows only of shards that it divides. A worker that dies is started again by Ray and its
shards are given out again. A shard that has killed its worker repeatedly is divided until the image that does it is
found; that image gets an error row.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ray

from bgad._version import __version__
from bgad.cluster import worker
from bgad.cluster.connection import worker_places
from bgad.cluster.job import Job
from bgad.cluster.worker import Totals
from bgad.errors import BgadError, ImageError, OutputError, first_line
from bgad.types import Progress

logger = logging.getLogger(__name__)

QUEUED = 2  # shards that a worker has at once: it begins the second while the driver hears of the first
DEATHS = 3  # of workers under the same shard before it is divided, and under the same image before that is an error row
DEATHS_IN_A_ROW = 300  # of workers with nothing scored in between: then not the images are at fault
STARTS = 5  # times that Ray starts a worker which dies while it loads the model
WAIT_SECONDS = 1.0
IDLE_SECONDS = 30.0  # without any worker before the user is told
LOST = "the worker died on this image, {} times: its decoder crashed, or memory ran out"


@dataclass(frozen=True)
class Pool:
    """The workers of a job."""

    workers: int
    cpus: float = 1.0  # of each
    gpus: float = 0.0


@dataclass(frozen=True)
class Piece:
    """Images of a shard that one worker scores at a time: all of them, or a part of a shard that is divided."""

    shard: int
    first: int
    last: int


@dataclass(frozen=True)
class _Division:
    """A shard that is scored in pieces."""

    rows: dict[int, list[dict[str, Any]]] = field(default_factory=dict)  # of each piece, by its first image
    started: float = field(default_factory=time.monotonic)


class _Worker:
    """A worker process: it fetches its model with its first shard, also after Ray has started it again."""

    def __init__(self, job: Job, rate: float | None, version: str) -> None:
        self._about = (job, rate, version)
        self._scorer: worker.ShardScorer | None = None

    def _loaded(self, model: list[ray.ObjectRef]) -> worker.ShardScorer:
        if self._scorer is None:
            self._scorer = worker.ShardScorer(ray.get(model[0]), *self._about)
        return self._scorer

    def start(self, model: list[ray.ObjectRef]) -> None:
        """Load the model."""
        self._loaded(model)

    def score_shard(self, model: list[ray.ObjectRef], shard: int) -> worker.ShardResult:
        """See ShardScorer."""
        return self._loaded(model).score_shard(shard)

    def score_rows(self, model: list[ray.ObjectRef], shard: int, first: int, last: int) -> list[dict[str, Any]]:
        """See ShardScorer."""
        return self._loaded(model).score_rows(shard, first, last)


class _Run:
    """The state of the driver: which pieces wait, which workers have started, and which worker has which piece."""

    def __init__(self, job: Job, files: Mapping[str, bytes], rate: float | None, pool: Pool) -> None:
        worker_places(pool.cpus, pool.gpus)  # raises where no node can run a worker
        self.job, self.totals = job, Totals()
        self.model = [ray.put(dict(files))]  # in a list, Ray does not fetch it before a worker asks for it
        scorer = ray.remote(_Worker).options(
            num_cpus=pool.cpus, num_gpus=pool.gpus, max_restarts=-1, max_task_retries=0
        )
        self.workers = [scorer.remote(job, rate, __version__) for _ in range(pool.workers)]
        self.waiting: deque[Piece] = deque()
        self.starting: dict[Any, Any] = {}  # future -> worker
        self.load: dict[Any, int] = {}  # of each worker that has started, in pieces of which it takes QUEUED
        self.under_way: dict[Any, tuple[Piece, Any]] = {}  # future -> piece and worker
        self.deaths: dict[Piece, int] = {}
        self.deaths_in_a_row = 0
        self.divisions: dict[int, _Division] = {}  # by shard
        self.idle_since: float | None = time.monotonic()  # None: the user has been told, or workers are there
        for actor in self.workers:
            self._start(actor)

    def add(self, shards: list[int]) -> None:
        """Let shards wait for a worker."""
        self.waiting.extend(Piece(shard, 0, self.job.rows_of(shard)) for shard in shards)

    def give_out(self) -> None:
        """Give pieces to workers that have started and have room; a node that is gone has none."""
        while self.waiting and self.load:
            actor = min(self.load, key=lambda worker: self.load[worker])
            piece = self.waiting[0]
            if self.load[actor] + self._weight(piece) > QUEUED:
                return
            self.waiting.popleft()
            self.under_way[self._submit(actor, piece)] = (piece, actor)
            self.load[actor] += self._weight(piece)

    def _weight(self, piece: Piece) -> int:
        """Return how much of a worker a piece takes: one that may kill it is alone, so that no other is blamed."""
        return QUEUED if piece in self.deaths or not self._is_shard(piece) else 1

    def _is_shard(self, piece: Piece) -> bool:
        return piece.last - piece.first == self.job.rows_of(piece.shard)

    def _submit(self, actor: Any, piece: Piece) -> Any:
        if self._is_shard(piece):
            return actor.score_shard.remote(self.model, piece.shard)
        return actor.score_rows.remote(self.model, piece.shard, piece.first, piece.last)

    def collect(self) -> int:
        """Wait for a while, take what is finished, and return its number of images."""
        before = self.totals.rows
        ready, _ = ray.wait([*self.under_way, *self.starting], timeout=WAIT_SECONDS)
        for future in ready:
            if future in self.starting:
                self._started(future)
            else:
                self._ended(future)
        self._tell_where_idle()
        return self.totals.rows - before

    def _ended(self, future: Any) -> None:
        """Take the result of a piece; where its worker died, the piece is tried again or divided."""
        piece, actor = self.under_way.pop(future)
        try:
            result = ray.get(future)
        except ray.exceptions.RayTaskError as error:
            raise _as_ours(error) from error
        except ray.exceptions.RayError as error:  # the worker or its node died, or memory ran out
            _refuse_broken(error)
            self._start(actor)
            self._died(piece, error)
            return
        self.deaths_in_a_row = 0
        if actor in self.load:
            self.load[actor] -= self._weight(piece)
        if self._is_shard(piece):
            self.totals.add(result)
        else:
            self._assemble(piece, result)

    def _started(self, future: Any) -> None:
        """Let a worker take part that has loaded its model."""
        actor = self.starting.pop(future)
        try:
            ray.get(future)
        except ray.exceptions.RayTaskError as error:
            raise _as_ours(error) from error
        except ray.exceptions.RayError as error:
            _refuse_broken(error)
            if not self.load:
                raise OutputError(
                    f"a worker died {STARTS} times before it had loaded the model: {_last_line(error)}"
                ) from error
            self._start(actor)  # others work: its node may be short of memory for now
            return
        self.load[actor] = sum(self._weight(piece) for piece, owner in self.under_way.values() if owner is actor)

    def _start(self, actor: Any) -> None:
        """Give a worker no piece until it has loaded its model; one that died waits for Ray, perhaps for ever."""
        self.load.pop(actor, None)
        if actor not in self.starting.values():
            future = actor.start.options(max_task_retries=STARTS - 1).remote(self.model)
            self.starting[future] = actor

    def _died(self, piece: Piece, error: ray.exceptions.RayError) -> None:
        """Let a piece whose worker died wait for another, or halve it; an image that kills each one is an error row."""
        self.totals.deaths += 1
        self.deaths_in_a_row += 1
        if self.deaths_in_a_row >= DEATHS_IN_A_ROW:
            raise OutputError(
                f"{self.deaths_in_a_row} workers died one after the other and scored nothing: {_last_line(error)}"
            )
        self.deaths[piece] = self.deaths.get(piece, 0) + 1
        images = piece.last - piece.first
        # Between the shard and the image, one death is enough: to halve in vain costs little.
        if self.deaths[piece] < DEATHS and (images == 1 or self._is_shard(piece)):
            self.waiting.appendleft(piece)
        elif images == 1:
            entry = self.job.read_shard(piece.shard).to_pylist()[piece.first]
            lost = ImageError(f"{entry['uri']}: {LOST.format(self.deaths[piece])}")
            self._assemble(piece, [worker.row(entry, lost, self.job.settings.model)])
        else:
            middle = (piece.first + piece.last) // 2
            halves = Piece(piece.shard, piece.first, middle), Piece(piece.shard, middle, piece.last)
            self.waiting.extendleft(reversed(halves))

    def _assemble(self, piece: Piece, rows: list[dict[str, Any]]) -> None:
        """Keep the rows of a part of a shard, and commit the shard when all of its parts are there."""
        division = self.divisions.setdefault(piece.shard, _Division())
        division.rows[piece.first] = rows
        together = [row for _, part in sorted(division.rows.items()) for row in part]
        if len(together) == self.job.rows_of(piece.shard):
            self.totals.add(worker.commit(self.job, piece.shard, together, time.monotonic() - division.started))
            del self.divisions[piece.shard]

    def _tell_where_idle(self) -> None:
        """Say once where no worker has started for a while, which is no error: other jobs may end."""
        if self.load:
            self.idle_since = None
        elif self.idle_since is not None and time.monotonic() - self.idle_since > IDLE_SECONDS:
            self.idle_since = None
            logger.warning("no worker has started yet: other jobs may hold the CPUs or GPUs of the cluster")

    def stop(self) -> None:
        """End the workers."""
        for actor in self.workers:
            ray.kill(actor)


def _refuse_broken(error: ray.exceptions.RayError) -> None:
    """Raise where a worker cannot be created, which starting it again does not change: no bgad on its node."""
    if isinstance(error, ray.exceptions.RayActorError) and error.actor_init_failed:
        raise OutputError(
            f"a worker cannot be started: {_last_line(error)}: install the same bgad on all nodes"
        ) from error


def _last_line(error: BaseException) -> str:
    """Return the last line of an error of Ray, which names the cause below a traceback or a list of ids."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()[:200]


def _as_ours(error: ray.exceptions.RayTaskError) -> BgadError:
    """Return the error of a worker that ends the job: a full disk, refused access, a model of another kind."""
    cause = error.cause if isinstance(error.cause, BgadError) else None
    return cause or OutputError(f"a worker failed: {first_line(error.cause or error)}")


def score(
    job: Job,
    files: Mapping[str, bytes],
    pool: Pool,
    *,
    rate: float | None = None,
    progress: Progress | None = None,
    stop: Any = None,
) -> Totals:
    """Score the shards that are not finished; where the caller asks to stop, those under way are finished first."""
    finished = job.finished()
    run = _Run(job, files, rate, pool)
    run.add(finished.missing)
    done = finished.rows
    try:
        while run.waiting or run.under_way:
            if stop is not None and stop.requested:
                run.waiting.clear()
            run.give_out()
            if stop is not None and stop.requested and not run.under_way:
                break
            done += run.collect()
            if progress is not None:
                progress("scoring", done, job.rows, run.totals.note())
    finally:
        run.stop()
    return run.totals
