"""The data of the pages of a model: changes, threshold and drift."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import lru_cache

import numpy as np

from bgad.calibration import CONFIDENCE, rank, rate_bounds
from bgad.service.drift import bins
from bgad.service.drift.cause import find_cause
from bgad.service.drift.monitor import DriftState
from bgad.service.http import schemas
from bgad.service.store.image_list import ImageQuery
from bgad.service.store.versions import CANDIDATE, Version
from bgad.service.workbench import Workbench

LARGEST_RATE = 0.5  # that the page offers


@dataclass(frozen=True)
class DriftOptions:
    """How the scores over time are summarised."""

    every: str = "auto"  # width of a bin: auto, hour, day
    utc_offset: int = 0  # seconds by which local time is ahead of UTC
    last: int = bins.MAX_POINTS  # number of single scores


def changes(workbench: Workbench, query: ImageQuery) -> schemas.Changes:
    """Return what has changed since a list was requested, and the jobs and candidates of its model."""
    store, name = workbench.store, query.name
    version = store.versions.released(name)
    return schemas.Changes(
        new=0 if query.after is None else store.lists.total(replace(query, limit=1)),
        latest=str(store.lists.snapshot(name, settled=False)),
        version=version.id,
        threshold=workbench.registry.decision_rule(version).threshold,
        candidates=[v.id for v in store.versions.all(name) if v.state == CANDIDATE],
        jobs=store.jobs.unfinished(name),
    )


def threshold(workbench: Workbench, name: str) -> schemas.Threshold:
    """Return the scores of calibration normals and reviewed images, and the guarantee of each threshold.

    Reviewed images that were taught are only counted: their scores say nothing about new parts.
    """
    version = workbench.store.versions.released(name)
    scorer = workbench.models.batcher(version).scorer
    training_images = scorer.card.used_sha256
    scores: dict[str, list[float]] = {"good": [], "bad": []}
    taught = {"good": 0, "bad": 0}
    for row in workbench.store.scores.reviewed(version.id):
        if row.sha256 in training_images:
            taught[row.verdict] += 1
        else:
            scores[row.verdict].append(row.score)
    scores_of_normals, rate, confidence = (
        scorer.calibration.scores,
        scorer.calibration.rate,
        scorer.calibration.confidence,
    )
    normals = len(scores_of_normals)
    highest_rank = max(1, rank(normals, LARGEST_RATE, confidence), rank(normals, rate, confidence))
    bounds = _bounds(normals, highest_rank, confidence or CONFIDENCE)
    return schemas.Threshold(
        rate=rate,
        threshold=scorer.threshold,
        calibration=sorted(scores_of_normals),
        good=sorted(scores["good"]),
        bad=sorted(scores["bad"]),
        taught=schemas.Taught(good=taught["good"], bad=taught["bad"]),
        rates=[k / (normals + 1) for k in range(1, highest_rank + 1)] if confidence is None else bounds,
        bounds=bounds,
        confidence=confidence or CONFIDENCE,
        is_confident=confidence is not None,
        guarantee=scorer.calibration.guarantee(),
    )


def drift(workbench: Workbench, name: str, since: float, options: DriftOptions) -> schemas.DriftView:
    """Return the scores of the released version over time and the state of its drift test.

    The test sees the images that this version was the first of its model to score, without those reviewed as bad.
    """
    version = workbench.store.versions.released(name)
    state = workbench.drift.state(version, since)
    result = state.result
    times, scores = state.columns["created"], state.columns["score"]
    flagged = scores > workbench.registry.decision_rule(version).threshold
    seconds = bins.width(options.every, times)
    points = workbench.store.scores.points(version.id, [state.image(i).image for i in result.drivers])
    return schemas.DriftView(
        total=len(times),
        tested=len(state.tested),
        every="hour" if seconds == bins.HOUR else "day",
        bins=[
            schemas.Bin.model_validate(one)
            for one in bins.bin_scores(times, scores, flagged, seconds, options.utc_offset)
        ],
        series=[
            schemas.Point.model_validate(point)
            for point in workbench.store.scores.series(version.id, since, options.last)
        ],
        levels=[
            schemas.Level(number=i + 1, created=state.image(i).created, level=float(result.levels[i]))
            for i in bins.thin(result.levels)
        ],
        alarms=[schemas.Alarm(number=i + 1, **asdict(state.image(i))) for i in result.alarms],
        since_alarm=result.since_alarm,
        recent_alarm=result.is_recent,
        drivers=[
            schemas.Driver(**asdict(points[state.image(i).image]), side="high" if result.p_values[i] < 0.5 else "low")
            for i in result.drivers
        ],
        cause=_cause(workbench, version, state) if result.is_recent else None,
        patience=result.patience,
        guarantee=result.guarantee(),
    )


def _cause(workbench: Workbench, version: Version, state: DriftState) -> schemas.DriftCause:
    """Return what the change behind the last alarm looks like: more defects, or changed imaging."""
    scores, change = state.columns["score"][state.tested], state.result.change
    calibration = workbench.registry.card(version).calibration_at(version.precision).scores
    before = np.concatenate([np.asarray(calibration, np.float64), scores[: change.start]])
    threshold = workbench.registry.decision_rule(version).threshold
    cause = find_cause(before, scores[change.start : change.stop], threshold)
    return schemas.DriftCause(**asdict(cause), text=str(cause))


@lru_cache(maxsize=16)
def _bounds(normals: int, highest_rank: int, confidence: float) -> list[float]:
    """Return the confidence bounds on the true rate for the ranks 1 to `highest_rank`."""
    return [float(bound) for bound in rate_bounds(normals, range(1, highest_rank + 1), confidence)]
