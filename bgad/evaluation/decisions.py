"""Counts the wrong decisions of a model at its threshold, and says when they contradict its false-reject rate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bgad.calibration import (
    CONFIDENCE,
    Calibration,
    beta_binomial_tail,
    binomial_interval,
    percent,
    rank,
    rate_bound,
)

CHANCE = 0.001  # probability below which chance no longer explains the rejected normals


def decisions(calibration: Calibration, map_threshold: float, rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the entry of a result cell on false rejects, misses and contours, from the rows of the images."""
    rows = list(rows)
    normals = [row for row in rows if not row["label"]]
    rejected = [row["is_anomaly"] for row in normals]
    passed = [not row["is_anomaly"] for row in rows if row["label"]]
    return {
        "false_reject_rate": calibration.rate,
        "threshold": calibration.threshold,
        "map_threshold": map_threshold,
        "false_rejects": _share(sum(rejected), len(rejected)),
        "misses": _share(sum(passed), len(passed)),
        "normals_with_contour": _share(sum(row["region"] is not None for row in normals), len(normals)),
        "warning": contradiction(calibration, sum(rejected), len(rejected)),
    }


def contradiction(calibration: Calibration, false_rejects: int, normals: int) -> str | None:
    """Say that more normals are rejected than promised, and what to do; None where chance explains their number.

    The rate of one model varies around the promise: if its calibration normals were drawn like the test normals, the
    number of rejected ones is beta-binomial. Where that explains it, more calibration normals help. Where it does not,
    the test normals are drawn from another distribution.
    """
    if not normals:
        return None
    low, _ = binomial_interval(false_rejects, normals)
    if low <= calibration.rate:
        return None
    n, confidence = len(calibration.scores), calibration.confidence
    k = rank(n, calibration.rate, confidence)
    found = (
        f"{false_rejects} of {normals} normals are rejected, more than the false-reject rate of "
        f"{percent(calibration.rate)} allows: "
    )
    if beta_binomial_tail(false_rejects, normals, n, k) >= CHANCE:
        if confidence is not None:
            return found + (
                f"that rate has a confidence of {confidence:.12g}, so some models exceed it; train with more normals, "
                "or ask for a higher confidence"
            )
        return found + (
            f"{n} calibration normals only bound the rate of one model to {percent(rate_bound(n, k))} "
            f"({CONFIDENCE:.0%} confidence); train with more normals"
        )
    return found + (
        "they differ from the calibration normals; check the highest-scoring ones in the report for wrong labels or a "
        "change of light, camera or parts, then train again with normals like them"
    )


def share_words(count: int, total: int) -> tuple[str, str]:
    """Return a measured rate and its 95 % Clopper-Pearson interval as texts.

    >>> share_words(3, 10), share_words(0, 0)
    (('30.0 %', '6.7 to 65.2 %'), ('no images', '–'))
    """
    if not total:
        return "no images", "–"
    low, high = binomial_interval(count, total)
    return f"{100 * count / total:.1f} %", f"{100 * low:.1f} to {100 * high:.1f} %"


def _share(count: int, total: int) -> dict[str, Any]:
    """Describe a measured rate; without images it has no value and no interval."""
    return {
        "count": count,
        "of": total,
        "rate": count / total if total else None,
        "interval": list(binomial_interval(count, total)) if total else None,
    }
