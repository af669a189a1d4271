"""One worker of a scoring job: a model on one core, and the shards that it is given, one after the other.

Images are read and decoded by a thread of their own, a bounded number ahead of the scorer.
"""

from __future__ import annotations

import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from bgad._version import __version__
from bgad.cluster import storage, uris
from bgad.cluster.job import OVERLAYS, SCORE_SCHEMA, Job
from bgad.errors import BgadError, ConfigError, DataError, ImageError, ModelError
from bgad.inference.base import BaseScorer, ImageArray, Result
from bgad.inference.batch import MAP, OVERLAY, map_legend
from bgad.inference.load import load
from bgad.io import images, render
from bgad.io.files import sha256_bytes
from bgad.types import LazyImage, Scores

AHEAD = 8  # images that are read before the scorer asks for them
MAX_BYTES = 1 << 30  # of an image file; a larger one is an error row, not the end of the worker


@dataclass(frozen=True)
class ShardResult:
    """What became of a shard; its rows are in the output."""

    shard: int
    rows: int
    failed: int
    anomalous: int
    seconds: float


@dataclass
class Totals:
    """What a run has done so far."""

    rows: int = 0
    failed: int = 0
    anomalous: int = 0
    shards: int = 0
    deaths: int = 0
    started: float = field(default_factory=time.monotonic)

    def add(self, result: ShardResult) -> None:
        """Count a finished shard."""
        self.rows += result.rows
        self.failed += result.failed
        self.anomalous += result.anomalous
        self.shards += 1

    def note(self) -> str:
        """Return rate and errors for the progress bar."""
        rate = self.rows / max(time.monotonic() - self.started, 1e-9)
        return f"{rate:.1f} images/s" + (f", {self.failed} errors" if self.failed else "")


class ShardScorer:
    """Scores the shards of a job with one model on one core."""

    def __init__(self, files: Mapping[str, bytes], job: Job, rate: float | None, version: str) -> None:
        """`files` are those of the model folder, and `version` is that of the driver."""
        if version != __version__:
            raise ModelError(f"a worker has bgad {__version__} and the driver {version}: install the same on all nodes")
        self.job = job
        settings = job.settings
        with tempfile.TemporaryDirectory(prefix="bgad-model-") as folder:
            for name, content in files.items():
                (Path(folder) / name).write_bytes(content)
            self.scorer: BaseScorer = load(
                folder,
                settings.device,
                engine=settings.engine,
                precision=settings.precision,
                threads=1,
                batch=settings.batch,
                strict=True,
            )
        self.scorer.set_tile(settings.tile)
        if rate is not None:
            self.scorer.set_rate(rate)
        if (self.scorer.card.checksum, self.scorer.threshold) != (settings.model, settings.threshold):
            raise ModelError("a worker has loaded another model than the driver: start the job again")

    def score_shard(self, shard: int) -> ShardResult:
        """Score a shard and commit its rows."""
        started = time.monotonic()
        rows = self.score_rows(shard, 0, self.job.rows_of(shard))
        return commit(self.job, shard, rows, time.monotonic() - started)

    def score_rows(self, shard: int, first: int, last: int) -> list[dict[str, Any]]:
        """Return the rows of some images of a shard, and write their overlays; the caller commits the rows.

        AccessError where the file system of an image fails: the image may be all right, so it gets no row.
        """
        entries = self.job.read_shard(shard).to_pylist()[first:last]
        if self.job.settings.overlays == "none":
            return list(self.rows(entries))
        rows = []
        with _reader(entries) as lazy_images:
            results = self.scorer.score_with_images(lazy_images)
            for number, (entry, (result, image)) in enumerate(zip(entries, results, strict=True), start=first):
                rows.append(row(entry, result, self.job.settings.model))
                if isinstance(result, Scores) and image is not None and self._is_drawn(result):
                    rows[-1]["overlay"] = self._draw(image, result, f"{shard:08d}/{number:05d}")
        return rows

    def rows(self, entries: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the output row of each entry of a manifest, in order."""
        with _reader(entries) as lazy_images:
            for entry, result in zip(entries, self.scorer.score_stream(lazy_images), strict=True):
                yield row(entry, result, self.job.settings.model)

    def _is_drawn(self, scores: Scores) -> bool:
        return self.job.settings.overlays == "all" or scores.is_anomaly

    def _draw(self, image: ImageArray, scores: Scores, stem: str) -> str:
        """Write the overlay and the map of an image; returns the name of the overlay."""
        overlay = render.overlay_with_legend(image, scores.map, map_legend(self.scorer, self.job.settings.contour))
        target = uris.join(self.job.out, OVERLAYS)
        storage.write_bytes(uris.join(target, f"{stem}{OVERLAY}"), render.png(overlay))
        storage.write_bytes(uris.join(target, f"{stem}{MAP}"), render.map_tiff(scores.map))
        return f"{stem}{OVERLAY}"


def commit(job: Job, shard: int, rows: Sequence[Mapping[str, Any]], seconds: float) -> ShardResult:
    """Write the rows of a shard and its marker."""
    failed = sum(row["error"] is not None for row in rows)
    anomalous = sum(bool(row["is_anomaly"]) for row in rows)
    note = {"anomalous": anomalous, "seconds": round(seconds, 3)}
    job.commit(shard, pa.Table.from_pylist(list(rows), SCORE_SCHEMA), failed, note)
    return ShardResult(shard, len(rows), failed, anomalous, seconds)


def row(entry: Mapping[str, Any], result: Result, model: str) -> dict[str, Any]:
    """Return the output row of one image: its scores, or its error; AccessError is raised."""
    if isinstance(result, (storage.AccessError, ConfigError)):
        raise result
    values: dict[str, Any] = dict.fromkeys(SCORE_SCHEMA.names) | {
        "id": entry["id"],
        "uri": uris.redact(entry["uri"]),
        "model": model,
    }
    if isinstance(result, BgadError):
        return values | {"error": uris.redact(str(result))}
    return values | {
        "score": result.score,
        "p_value": result.p_value,
        "is_anomaly": result.is_anomaly,
        "map_max": float(result.map.max()),
        "parts": dict(result.parts),
        "reason": result.reason or None,
        "region": None if result.region is None else list(result.region),
        "precision": result.precision,
    }


@contextmanager
def _reader(entries: Sequence[Mapping[str, Any]]) -> Iterator[Iterator[LazyImage]]:
    """Give the images of a manifest's entries, which a thread reads and decodes ahead."""
    pool = ThreadPoolExecutor(1)
    try:
        yield _prefetch(entries, pool)
    finally:
        pool.shutdown(cancel_futures=True)


def _prefetch(entries: Sequence[Mapping[str, Any]], pool: ThreadPoolExecutor) -> Iterator[LazyImage]:
    """Yield images that the pool reads and decodes, at most AHEAD before they are asked for."""
    ahead: deque[tuple[str, Future[images.Decoded]]] = deque()
    remaining = iter(entries)
    while True:
        while len(ahead) < AHEAD and (entry := next(remaining, None)) is not None:
            ahead.append((entry["uri"], pool.submit(_read, entry)))
        if not ahead:
            return
        name, future = ahead.popleft()
        yield LazyImage(name, future.result)


def _read(entry: Mapping[str, Any]) -> images.Decoded:
    """Read and decode an image.

    ImageError where it is missing, too large or not the one that the manifest lists; AccessError where its file system
    fails.
    """
    uri, size, digest = entry["uri"], entry["size"], entry["sha256"]
    try:
        content = storage.read_bytes(uri, MAX_BYTES)
    except storage.AccessError:
        raise
    except DataError as error:
        raise ImageError(str(error)) from error
    if size is not None and len(content) != size:
        raise ImageError(f"{uri}: has {len(content)} bytes, not {size}: it has changed since it was listed")
    if digest is not None and sha256_bytes(content) != digest:
        raise ImageError(f"{uri}: its sha256 is not that of the manifest: it has changed since it was listed")
    return images.decode_bytes(content, uri)
