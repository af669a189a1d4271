"""What the pages of a model show: its threshold with what was reviewed, and its scores over time."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from bgad.calibration import CONFIDENCE, rank, rate_bounds, smallest_rate
from bgad.scorer import BaseScorer
from bgad.service import summary
from bgad.service.drift import watch
from bgad.service.workbench import Workbench

LARGEST_RATE = 0.5  # that the page lets people choose


def threshold(bench: Workbench, name: str) -> dict[str, Any]:
    """The scores of calibration normals and of what was reviewed, and what each threshold promises. What was
    reviewed and then taught is counted only: its scores say nothing of new parts."""
    version = bench.store.released(name)
    scorer = bench.batcher(version).scorer
    learnt = _learnt(scorer)
    verdicts = {row["image"]: row["verdict"] for row in bench.store.reviewed()}
    said: dict[str, list[float]] = {"good": [], "bad": []}
    taught = {"good": 0, "bad": 0}
    for row in bench.store.series(version["id"]):
        verdict = verdicts.get(row["image"])
        if verdict not in said:
            continue
        if row["sha256"] in learnt:
            taught[verdict] += 1
        else:
            said[verdict].append(row["score"])
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
    """How the scores of the released version have run, by hour or by day, and whether they have changed; images
    that a person called bad, and those that the version has learnt from, are left out of the test. `ahead`: seconds
    by which the local clock is ahead of UTC. `last`: how many scores to give one by one."""
    version = bench.store.released(name)
    scorer = bench.batcher(version).scorer
    series = bench.store.series(version["id"], since)
    verdicts = {row["image"]: row["verdict"] for row in bench.store.reviewed()}
    learnt = _learnt(scorer)
    tested = [row for row in series if verdicts.get(row["image"]) != "bad" and row["sha256"] not in learnt]
    found = watch(scorer.calibration.scores, [row["score"] for row in tested], seed=version["id"])
    seconds = summary.width(every, series)
    return {
        "total": len(series),
        "tested": len(tested),
        "every": "hour" if seconds == summary.HOUR else "day",
        "bins": summary.binned(series, seconds, ahead),
        "series": series[max(0, len(series) - last) :],
        "levels": [
            {"number": i + 1, "created": tested[i]["created"], "level": found.levels[i]}
            for i in summary.thinned(found.levels)
        ],
        "alarms": [{"number": i + 1, **tested[i]} for i in found.alarms],
        "since_alarm": found.since,
        "fresh": found.is_fresh,
        "drivers": [
            {**tested[i], "verdict": verdicts.get(tested[i]["image"])}
            | {"side": "high" if found.p_values[i] < 0.5 else "low"}
            for i in found.drivers
        ],
        "patience": found.patience,
        "promise": found.promise(),
    }


@lru_cache(maxsize=16)
def _bounds(normals: int, most: int) -> list[float]:
    """The bounds of the true rate for the ranks 1 to `most`."""
    return [float(bound) for bound in rate_bounds(normals, range(1, most + 1))]


def _learnt(scorer: BaseScorer) -> set[str]:
    """sha256 of the pictures that a model was trained or calibrated on: their scores say nothing of new parts."""
    listed = scorer.card.split.get("images", [])
    return {image["sha256"] for image in listed if image["role"] in ("train", "calibration", "known")}
