"""The summary of a scoring job: counts, a histogram, the worst images, errors, and drift against the calibration.

The output is read one shard at a time, so memory does not grow with the archive.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from bgad.cluster import storage, uris
from bgad.cluster.job import Job, read_job
from bgad.errors import DataError

BINS = 20  # of the histogram of p-values
WORST, ERRORS = 20, 10  # images that the summary names
COLUMNS = ["id", "uri", "score", "p_value", "is_anomaly", "reason", "error"]


@dataclass
class Summary:
    """What a job has found so far."""

    job: Job
    finished: int  # shards
    scored: int = 0
    anomalous: int = 0
    failed: int = 0
    ranks: npt.NDArray[np.int64] = field(init=False)  # images with each p-value, from 1 / (n + 1) to 1
    worst: list[dict[str, Any]] = field(default_factory=list)  # highest score first
    errors: list[dict[str, Any]] = field(default_factory=list)  # the first ones

    def __post_init__(self) -> None:
        self.ranks = np.zeros(self.job.settings.calibration_normals + 1, np.int64)

    @property
    def p_values(self) -> npt.NDArray[np.int64]:
        """The number of images in each bin of p-values, which has its upper edge but not its lower one."""
        return _binned(self.ranks)

    @property
    def expected(self) -> npt.NDArray[np.float64]:
        """The number of images that each bin would have on average if all scored as the calibration normals."""
        return np.asarray(_binned(np.ones_like(self.ranks)) * (self.scored / len(self.ranks)), np.float64)

    @property
    def drift(self) -> float:
        """The largest difference between the shares of images and of calibration normals up to a p-value.

        It is the Kolmogorov-Smirnov distance over the p-values that n calibration normals can give: 1 / (n + 1),
        2 / (n + 1), ..., 1. A new normal image has each of them with the same probability, so the distance is near 0
        for many images that score as the calibration normals; chance moves it by about 1 / sqrt(images) and, since n is
        finite, 1 / sqrt(n). It is near 1 where all images score above or below every calibration normal.
        """
        if not self.scored:
            return 0.0
        values = np.arange(1, len(self.ranks) + 1) / len(self.ranks)
        return float(np.abs(np.cumsum(self.ranks) / self.scored - values).max())


def _binned(ranks: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Add up the counts of p-values rank / len(ranks) in BINS bins."""
    number = -(-np.arange(1, len(ranks) + 1) * BINS // len(ranks)) - 1  # the bin of each rank
    counts = np.zeros(BINS, np.int64)
    np.add.at(counts, number, ranks)
    return counts


def summarise(out: str) -> Summary:
    """Sum up the finished shards of an output folder."""
    job = read_job(uris.absolute(out))
    finished = job.finished()
    summary = Summary(job, job.shards - len(finished.missing))
    missing = set(finished.missing)
    heap: list[tuple[float, int, dict[str, Any]]] = []
    for number, table in enumerate(_tables(job, [shard for shard in range(job.shards) if shard not in missing])):
        scores = table.column("score").to_numpy()
        valid = ~np.isnan(scores)
        p_values = table.column("p_value").to_numpy()[valid]
        summary.scored += int(valid.sum())
        summary.failed += int((~valid).sum())
        summary.anomalous += table.column("is_anomaly").to_pylist().count(True)
        ranks = np.rint(p_values * len(summary.ranks)).astype(np.int64)
        summary.ranks += np.bincount(ranks - 1, minlength=len(summary.ranks))
        order = np.argsort(-np.where(valid, scores, -np.inf), kind="stable")[: min(WORST, int(valid.sum()))]
        for row in order.tolist():
            entry = (float(scores[row]), -(number * job.shard_rows + row), table.slice(row, 1).to_pylist()[0])
            (heapq.heappush if len(heap) < WORST else heapq.heappushpop)(heap, entry)
        for row in np.flatnonzero(~valid)[: ERRORS - len(summary.errors)].tolist():
            summary.errors.append(table.slice(row, 1).to_pylist()[0])
    summary.worst = [row for *_, row in sorted(heap, reverse=True, key=lambda entry: entry[:2])]
    return summary


def _tables(job: Job, shards: list[int]) -> Iterator[pa.Table]:
    for shard in shards:
        file = job.scores_file(shard)
        system, path = storage.file_system(file)
        try:
            yield pq.read_table(path, filesystem=system, columns=COLUMNS)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{uris.redact(file)}: cannot be read: {storage.reason(error)}") from error
