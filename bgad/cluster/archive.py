"""Scoring an archive: open the job, connect to the cluster, and let its workers score what is not finished."""

from __future__ import annotations

import logging
import multiprocessing
import re
import resource
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from bgad._version import __version__
from bgad.artifact import folder as model_folder
from bgad.cluster import job as jobs
from bgad.cluster import uris
from bgad.cluster.connection import LOCAL, connected, worker_places
from bgad.cluster.job import SHARD_IMAGES, Job, Settings, open_job
from bgad.cluster.worker import ShardScorer, Totals
from bgad.errors import ConfigError, DataError
from bgad.inference.base import ACCELERATOR_BATCH, CPU_BATCH, BaseScorer, GraphScorer
from bgad.inference.batch import THRESHOLD
from bgad.io.cpus import usable_cpus
from bgad.io.files import check_folder, locked
from bgad.types import Progress, StopRequest

logger = logging.getLogger(__name__)

SAMPLE_IMAGES = 64  # that a dry run scores


@dataclass(frozen=True)
class Options:
    """How a job runs on a cluster."""

    cluster: str = "local"  # HOST:PORT, auto or local
    workers: int | None = None  # None: as many as the cluster can run
    gpus_per_worker: float = 0.0
    shard_images: int | None = None  # None: as many as the job has, or SHARD_IMAGES for a new one
    device: str = "cpu"  # of the workers
    overlays: str = "none"  # images whose overlays and maps are written: none, anomalous or all
    contour: str = THRESHOLD  # where the colour of an overlay begins, one of `inference.batch.CONTOURS`
    rate: float | None = None  # false-reject rate in place of the model's
    batch: int | None = None  # images that a worker with a GPU scores at once; None: ACCELERATOR_BATCH

    @property
    def worker_batch(self) -> int:
        """Images that a worker scores at once, whatever device the machine of the command has."""
        return self.batch or ACCELERATOR_BATCH if self.gpus_per_worker else CPU_BATCH


@dataclass(frozen=True)
class Estimate:
    """What a job would take, from a short measurement on this machine."""

    images: int
    shards: int
    unfinished: int  # images
    images_per_second: float  # of one worker
    worker_mb: float
    workers: int

    @property
    def hours(self) -> float:
        """The expected time with workers like the one that was measured."""
        return self.unfinished / self.images_per_second / self.workers / 3600


@contextmanager
def exclusive(out: str) -> Iterator[None]:
    """Keep other runs out of an output folder; OutputError where one is at work. An object store has no locks."""
    out = uris.absolute(out)
    if uris.is_uri(out):
        yield
        return
    check_folder(Path(out))
    with locked(Path(out), "bgad predict --cluster"):
        yield


def prepare(scorer: BaseScorer, source: str, out: str, options: Options) -> Job:
    """Start the job of an output folder, or continue it; `scorer` is the model with the options of its workers."""
    settings = _settings(scorer, options)
    return open_job(uris.absolute(out), uris.absolute(source), settings, options.shard_images)


def _settings(scorer: BaseScorer, options: Options) -> Settings:
    batch = options.worker_batch
    if (options.shard_images or SHARD_IMAGES) % batch:
        raise ConfigError(f"--shard-images must be a multiple of the batch, {batch}: batches end with their shard")
    return Settings(
        model=scorer.card.checksum,
        engine=scorer.ENGINE,
        precision=scorer.precision,
        device=options.device,
        batch=batch,
        tile=scorer.tile.size,
        threshold=scorer.threshold,
        map_threshold=scorer.map_threshold,
        calibration_normals=len(scorer.calibration.scores),
        overlays=options.overlays,
        contour=options.contour,
    )


def model_files(model: Path, scorer: BaseScorer) -> dict[str, bytes]:
    """Return the files of a model folder that the workers need, as they are on this machine."""
    wanted = scorer.FILES if isinstance(scorer, GraphScorer) else scorer.card.files
    _, files = model_folder.read_files(model, wanted)
    return {model_folder.CARD: (model / model_folder.CARD).read_bytes(), **files}


def run(
    job: Job,
    files: Mapping[str, bytes],
    options: Options,
    progress: Progress | None = None,
    stop: StopRequest | None = None,
) -> Totals:
    """Score what is not finished on the cluster; where nothing is left, no cluster is asked for."""
    if not job.finished().missing:
        return Totals()
    with connected(options.cluster, options.workers):
        from bgad.cluster.score import Pool, score

        workers = options.workers or worker_places(1, options.gpus_per_worker)
        logger.info(f"images: {job.rows}, shards: {job.shards}, workers: {workers}")
        pool = Pool(min(workers, job.shards), gpus=options.gpus_per_worker)
        totals = score(job, files, pool, rate=options.rate, progress=progress, stop=stop)
    job.check_begun()
    return totals


def estimate(scorer: BaseScorer, files: Mapping[str, bytes], source: str, out: str, options: Options) -> Estimate:
    """Score a few images of the archive with one worker on this machine; nothing is written."""
    source, out = uris.absolute(source), uris.absolute(out)
    settings = _settings(scorer, options)
    job = jobs.existing_job(out, source, settings, options.shard_images)
    if job is None:
        batches = jobs.images(out, source)
        first = next(batches, None)
        if first is None:
            raise DataError(f"{uris.redact(source)}: lists no image")
        entries = first.slice(0, SAMPLE_IMAGES).to_pylist()
        rows = sum(batch.num_rows for batch in chain([first], batches))
        job = Job(out, settings, rows, options.shard_images or SHARD_IMAGES)
        unfinished = rows
    else:
        entries = list(islice(chain.from_iterable(batch.to_pylist() for batch in job.read_shards()), SAMPLE_IMAGES))
        unfinished = job.rows - job.finished().rows
    workers = options.workers or _default_workers(options)
    # In a process of its own, whose memory is that of a worker: this one has the model and the list of the archive.
    try:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            rate, memory = pool.submit(_measure, dict(files), job, options.rate, entries).result()
    except BrokenProcessPool as error:
        raise DataError(
            f"{uris.redact(source)}: a worker died on the first {len(entries)} images: its decoder crashed, "
            "or memory ran out"
        ) from error
    return Estimate(job.rows, job.shards, unfinished, rate, memory, workers)


def _default_workers(options: Options) -> int:
    """Return the number of workers that a cluster can run at once."""
    if options.cluster == LOCAL and not options.gpus_per_worker:
        return usable_cpus()  # without starting it
    with connected(options.cluster):
        return worker_places(1, options.gpus_per_worker)


def _measure(
    files: Mapping[str, bytes], job: Job, rate: float | None, entries: Sequence[Mapping[str, Any]]
) -> tuple[float, float]:
    """Return images a second and the memory in MB of a process that scores as a worker does."""
    import ray  # noqa: F401 - a worker has it in memory too

    scorer = ShardScorer(files, job, rate, __version__)
    list(scorer.rows(entries[: scorer.scorer.batch]))
    started = time.monotonic()
    list(scorer.rows(entries))
    return len(entries) / (time.monotonic() - started), _peak_mb()


def _peak_mb() -> float:
    """Return the largest memory of this process so far; what getrusage says on Linux includes that of its parent."""
    status = Path("/proc/self/status")
    if status.exists() and (found := re.search(r"VmHWM:\s+(\d+)", status.read_text())):
        return int(found[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 1024)
