"""A long series of scores in few numbers: by hour or by day, and the test's level in points enough to draw."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

HOUR, DAY = 3600, 86400
WIDTHS = {"hour": HOUR, "day": DAY}
FEW_DAYS = 3  # up to so many, the hour is chosen
MOST = 2000  # bins, points and levels of an answer
SHARES = (0.05, 0.5, 0.95)

Row = dict[str, Any]
Values = npt.NDArray[Any]


def width(every: str, times: Values) -> int:
    """Seconds of a bin; `auto` chooses by the time from the first score to the last one."""
    if every != "auto":
        return WIDTHS[every]
    span = times.max() - times.min() if len(times) else 0
    return HOUR if span <= FEW_DAYS * DAY else DAY


def binned(times: Values, scores: Values, flagged: Values, seconds: int, ahead: int = 0) -> list[Row]:
    """How many scores there were in each hour or day, how many of them flagged, and where they lay; those without any
    are left out, and so are the oldest beyond MOST. `ahead`: seconds by which the local clock is ahead of UTC.

    >>> times, scores = np.array([5.0, 4000.0, 6.0]), np.array([1.0, 2.0, 3.0])
    >>> [(b["start"], b["count"], b["flagged"], b["middle"]) for b in binned(times, scores, scores > 2, HOUR)]
    [(0, 2, 0.5, 2.0), (3600, 1, 0.0, 2.0)]
    """
    bins = ((times + ahead) // seconds).astype(np.int64)
    order = np.argsort(bins, kind="stable")
    starts, places, counts = np.unique(bins[order], return_index=True, return_counts=True)
    found = []
    for start, place, count in zip(*(x[-MOST:].tolist() for x in (starts, places, counts)), strict=True):
        inside = order[place : place + count]
        low, middle, high = (float(q) for q in np.quantile(scores[inside], SHARES))
        begin = start * seconds - ahead
        found.append(
            {"start": begin, "end": begin + seconds, "count": count, "flagged": float(flagged[inside].mean())}
            | {"low": low, "middle": middle, "high": high}
        )
    return found


def thinned(levels: Values, most: int = MOST) -> list[int]:
    """The places of at most so many levels: the highest and the lowest of each group of neighbours.

    >>> thinned(np.array([1, 5, 2, 3, 9, 4]), most=4)
    [0, 1, 3, 4]
    """
    if len(levels) <= most:
        return list(range(len(levels)))
    size = -(-len(levels) // (most // 2))
    groups = [(i, levels[i : i + size]) for i in range(0, len(levels), size)]
    return sorted({i + int(place) for i, group in groups for place in (group.argmax(), group.argmin())})
