"""Routes of models: their versions, thresholds and drift."""

from __future__ import annotations

import logging
from typing import Annotated, Literal

from fastapi import Query

from bgad.errors import ModelError
from bgad.service.drift.bins import DAY, MAX_POINTS
from bgad.service.http import page_data, schemas
from bgad.service.http.params import Bench, Seconds, valid_id
from bgad.service.http.security import MayAdminister, MayReview, MayScore, api_router
from bgad.service.store import history
from bgad.service.workbench import Workbench

logger = logging.getLogger(__name__)
router = api_router()


@router.get("/models")
def list_models(workbench: Bench, caller: MayScore) -> list[schemas.Model]:
    """List the models that have a released version and that the token is for."""
    models = []
    for name in filter(caller.may_use, workbench.registry.names()):
        try:
            models.append(_model(workbench, name))
        except ModelError as error:  # a damaged model does not hide the others
            logger.warning("%s is left out: %s", name, error)
    return models


@router.get("/models/{name}")
def get_model(name: str, workbench: Bench, _: MayScore) -> schemas.Model:
    """Get one model with its versions."""
    return _model(workbench, name)


@router.get("/models/{name}/threshold")
def get_threshold(name: str, workbench: Bench, _: MayReview) -> schemas.Threshold:
    """Get the scores of calibration normals and reviewed images, and the guarantee of the threshold."""
    return page_data.threshold(workbench, name)


@router.put("/models/{name}/threshold")
def set_threshold(name: str, new: schemas.NewRate, workbench: Bench, caller: MayAdminister) -> schemas.Threshold:
    """Set the false-reject rate."""
    workbench.registry.set_rate(name, new.rate, caller.name)
    return page_data.threshold(workbench, name)


@router.get("/models/{name}/drift")
def get_drift(
    name: str,
    workbench: Bench,
    _: MayReview,
    since: Seconds = 0.0,
    every: Annotated[
        Literal["auto", "hour", "day"], Query(description="width of a bin; auto: the hour up to three days")
    ] = "auto",
    utc_offset: Annotated[int, Query(ge=-DAY, le=DAY, description="seconds by which local time is ahead of UTC")] = 0,
    last: Annotated[int, Query(ge=0, le=MAX_POINTS, description="number of single scores to return")] = MAX_POINTS,
) -> schemas.DriftView:
    """Get the scores over time and the state of the drift test."""
    return page_data.drift(workbench, name, since, page_data.DriftOptions(every, utc_offset, last))


@router.get("/models/{name}/lessons")
def list_lessons(name: str, workbench: Bench, _: MayReview) -> list[schemas.Lesson]:
    """List all images of a model with the verdict good or bad, newest review first."""
    released = workbench.store.versions.released(name)
    return [schemas.Lesson.model_validate(row) for row in workbench.store.reviews.lessons(name, released.id)]


@router.post("/models/{name}/versions/{number}/release")
def release(name: str, number: int, workbench: Bench, caller: MayAdminister) -> schemas.Model:
    """Release a version, also an earlier one."""
    workbench.release(workbench.registry.version(name, valid_id(number)), caller.name)
    return _model(workbench, name)


@router.post("/models/{name}/versions/{number}/discard")
def discard(name: str, number: int, workbench: Bench, caller: MayAdminister) -> schemas.Model:
    """Discard a version that is not released."""
    workbench.store.versions.discard(workbench.registry.version(name, valid_id(number)).id, caller.name)
    return _model(workbench, name)


@router.post("/models/{name}/rollback")
def rollback(name: str, workbench: Bench, caller: MayAdminister) -> schemas.Model:
    """Release the version that was released before the present one."""
    workbench.release(workbench.registry.previous(name), caller.name, history.ROLL_BACK)
    return _model(workbench, name)


def _model(workbench: Workbench, name: str) -> schemas.Model:
    released = workbench.store.versions.released(name)
    rule = workbench.registry.decision_rule(released)
    versions = [schemas.Version.model_validate(version) for version in workbench.store.versions.all(name)]
    return schemas.Model(
        name=name,
        version=next(version for version in versions if version.id == released.id),
        versions=versions,
        threshold=rule.threshold,
        rate=rule.rate,
        map_threshold=rule.map_threshold,
        guarantee=rule.guarantee,
        calibration=rule.calibration_normals,
        size=rule.input_size,
        scored=workbench.store.scores.count(released.id),
        rescoring=schemas.Rescoring.model_validate(workbench.rescorer.progress(name)),
    )
