"""Summaries of long score series: bins of an hour or a day, and the levels of the drift test thinned for a chart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

HOUR, DAY = 3600, 86400
WIDTHS = {"hour": HOUR, "day": DAY}
MAX_HOURLY_DAYS = 3  # longer series are binned by day
MAX_POINTS = 2000  # bins, scores and levels of an answer
QUANTILES = (0.05, 0.5, 0.95)

Values = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Bin:
    """The scores of an hour or a day."""

    start: float
    end: float
    count: int
    flagged: float  # share of anomalous decisions
    low: float  # 5 % quantile
    median: float
    high: float  # 95 % quantile


def width(every: str, times: Values) -> int:
    """Return the width of a bin in seconds; `auto` chooses it by the span of the series."""
    if every != "auto":
        return WIDTHS[every]
    span = times.max() - times.min() if len(times) else 0
    return HOUR if span <= MAX_HOURLY_DAYS * DAY else DAY


def bin_scores(times: Values, scores: Values, flagged: Values, seconds: int, utc_offset: int = 0) -> list[Bin]:
    """Summarise the scores of each hour or day, oldest first, without empty bins; at most the last MAX_POINTS bins.

    `utc_offset` is the number of seconds by which the local clock is ahead of UTC.

    >>> times, scores = np.array([5.0, 4000.0, 6.0]), np.array([1.0, 2.0, 3.0])
    >>> [(b.start, b.count, b.flagged, b.median) for b in bin_scores(times, scores, scores > 2, HOUR)]
    [(0, 2, 0.5, 2.0), (3600, 1, 0.0, 2.0)]
    """
    indices = ((times + utc_offset) // seconds).astype(np.int64)
    order = np.argsort(indices, kind="stable")
    starts, offsets, counts = np.unique(indices[order], return_index=True, return_counts=True)
    bins = []
    for start, offset, count in zip(*(x[-MAX_POINTS:].tolist() for x in (starts, offsets, counts)), strict=True):
        members = order[offset : offset + count]
        begin = start * seconds - utc_offset
        quantiles = (float(q) for q in np.quantile(scores[members], QUANTILES))
        bins.append(Bin(begin, begin + seconds, count, float(flagged[members].mean()), *quantiles))
    return bins


def thin(levels: Values, limit: int = MAX_POINTS) -> list[int]:
    """Return the indices of at most `limit` levels: the highest and the lowest of each group of neighbours.

    >>> thin(np.array([1, 5, 2, 3, 9, 4]), limit=4)
    [0, 1, 3, 4]
    """
    if len(levels) <= limit:
        return list(range(len(levels)))
    size = -(-len(levels) // (limit // 2))
    groups = [(i, levels[i : i + size]) for i in range(0, len(levels), size)]
    return sorted({i + int(index) for i, group in groups for index in (group.argmax(), group.argmin())})
