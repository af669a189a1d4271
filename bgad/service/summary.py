"""A long series of scores in few numbers: by hour or by day, and the test's level in points enough to draw."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np

HOUR, DAY = 3600, 86400
WIDTHS = {"hour": HOUR, "day": DAY}
FEW_DAYS = 3  # up to so many, the hour is chosen
MOST = 2000  # bins, points and levels of an answer
SHARES = (0.05, 0.5, 0.95)

Row = dict[str, Any]


def width(every: str, rows: Sequence[Row]) -> int:
    """Seconds of a bin; `auto` chooses by the time from the first row to the last one."""
    if every != "auto":
        return WIDTHS[every]
    span = rows[-1]["created"] - rows[0]["created"] if rows else 0
    return HOUR if span <= FEW_DAYS * DAY else DAY


def binned(rows: Sequence[Row], seconds: int, ahead: int = 0) -> list[Row]:
    """How many scores there were in each hour or day, how many of them flagged, and where they lay; those without any
    are left out, and so are the oldest beyond MOST. `ahead`: seconds by which the local clock is ahead of UTC.

    >>> rows = [{"created": t, "score": s, "is_anomaly": s > 2} for t, s in ((5, 1.0), (6, 3.0), (4000, 2.0))]
    >>> [(b["start"], b["count"], b["flagged"], b["middle"]) for b in binned(rows, HOUR)]
    [(0, 2, 0.5, 2.0), (3600, 1, 0.0, 2.0)]
    """
    found = []
    for start, group in groupby(rows, lambda row: int((row["created"] + ahead) // seconds)):
        inside = list(group)
        low, middle, high = (float(q) for q in np.quantile([row["score"] for row in inside], SHARES))
        flagged = sum(row["is_anomaly"] for row in inside) / len(inside)
        begin = start * seconds - ahead
        found.append(
            {"start": begin, "end": begin + seconds, "count": len(inside), "flagged": flagged}
            | {"low": low, "middle": middle, "high": high}
        )
    return found[-MOST:]


def thinned(levels: Sequence[float], most: int = MOST) -> list[int]:
    """The places of at most so many levels: the highest and the lowest of each group of neighbours.

    >>> thinned([1, 5, 2, 3, 9, 4], most=4)
    [0, 1, 3, 4]
    """
    if len(levels) <= most:
        return list(range(len(levels)))
    size = -(-len(levels) // (most // 2))
    groups = [range(i, min(i + size, len(levels))) for i in range(0, len(levels), size)]
    return sorted({one(group, key=levels.__getitem__) for group in groups for one in (max, min)})
