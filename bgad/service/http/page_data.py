"""What the pages of a model show: what is new, its threshold with what was reviewed, and its scores over time."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from bgad.calibration import CONFIDENCE, rank, rate_bounds, smallest_rate
from bgad.service.drift import bins as summary
from bgad.service.drift import columns as readings
from bgad.service.store.image_list import Wanted
from bgad.service.workbench import Workbench

LARGEST_RATE = 0.5  # that the page lets people choose


def news(bench: Workbench, wanted: Wanted) -> dict[str, Any]:
    """What has changed since a list was made, and what goes on beside it."""
    store, name = bench.store, wanted.name
    version = store.released(name)
    return {
        "new": 0 if wanted.after is None else store.listed(replace(wanted, limit=1))[1],
        "latest": str(store.moment(name, settled=False)),
        "version": version["id"],
        "threshold": bench.facts(version).threshold,
        "candidates": [v["id"] for v in store.versions(name) if v["state"] == "candidate"],
        "jobs": store.unfinished(name),
    }


def threshold(bench: Workbench, name: str) -> dict[str, Any]:
    """The scores of calibration normals and of what was reviewed, and what each threshold promises. What was
    reviewed and then taught is counted only: its scores say nothing of new parts."""
    version = bench.store.released(name)
    scorer = bench.batcher(version).scorer
    learnt = scorer.card.used_sha256
    said: dict[str, list[float]] = {"good": [], "bad": []}
    taught = {"good": 0, "bad": 0}
    for row in readings.judged(bench.store, version["id"]):
        if row["sha256"] in learnt:
            taught[row["verdict"]] += 1
        else:
            said[row["verdict"]].append(row["score"])
    calibration, rate = list(scorer.calibration.scores), scorer.calibration.rate
    normals = len(calibration)
    most = max(1, rank(normals, LARGEST_RATE), rank(normals, rate))
    return {
        "rate": rate,
        "threshold": scorer.threshold,
        "calibration": sorted(calibration),
        "good": sorted(said["good"]),
        "bad": sorted(said["bad"]),
        "taught": taught,
        "smallest_rate": smallest_rate(normals),
        "bounds": _bounds(normals, most),
        "confidence": CONFIDENCE,
        "guarantee": scorer.calibration.guarantee(),
    }


def drift(
    bench: Workbench, name: str, since: float = 0.0, *, every: str = "auto", ahead: int = 0, last: int = summary.MOST
) -> dict[str, Any]:
    """How the scores of the released version have run, by hour or by day, and whether they have changed. In the test
    are the pictures that came to this version, without those that a person called bad. `ahead`: seconds by which the
    local clock is ahead of UTC. `last`: how many scores to give one by one."""
    version = bench.store.released(name)
    seen = bench.watch.look(version, since)
    found, (times, scores, flagged) = seen.found, (seen.columns[key] for key in ("created", "score", "is_anomaly"))
    seconds = summary.width(every, times)
    points = readings.points(bench.store, version["id"], [seen.row(i)["image"] for i in found.drivers])
    return {
        "total": len(times),
        "tested": len(seen.tested),
        "every": "hour" if seconds == summary.HOUR else "day",
        "bins": summary.binned(times, scores, flagged, seconds, ahead),
        "series": bench.store.series(version["id"], since, last),
        "levels": [
            {"number": i + 1, "created": seen.row(i)["created"], "level": float(found.levels[i])}
            for i in summary.thinned(found.levels)
        ],
        "alarms": [{"number": i + 1, **seen.row(i)} for i in found.alarms],
        "since_alarm": found.since,
        "fresh": found.is_fresh,
        "drivers": [
            points[seen.row(i)["image"]] | {"side": "high" if found.p_values[i] < 0.5 else "low"} for i in found.drivers
        ],
        "patience": found.patience,
        "promise": found.promise(),
    }


@lru_cache(maxsize=16)
def _bounds(normals: int, most: int) -> list[float]:
    """The bounds of the true rate for the ranks 1 to `most`."""
    return [float(bound) for bound in rate_bounds(normals, range(1, most + 1))]
