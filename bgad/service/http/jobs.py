"""Routes of teaching jobs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any, Literal

from anyio import to_thread
from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from bgad.service.http import schemas
from bgad.service.http.caching import REVALIDATE
from bgad.service.http.params import EVENTS, JPEG, Bench, ModelName, Runner, valid_id
from bgad.service.http.security import MayAdminister, MayReview, api_router
from bgad.service.store.images import Images
from bgad.service.store.jobs import UNFINISHED, Job
from bgad.service.teaching.runner import JobRunner, validation_rows
from bgad.service.workbench import Workbench

POLL_SECONDS = 0.5
KEEPALIVE_SECONDS = 15  # after which an empty comment is sent, so that no proxy closes the connection
CACHED = {"Cache-Control": REVALIDATE}

router = api_router()


@router.get("/jobs")
def list_jobs(workbench: Bench, runner: Runner, caller: MayReview, model: ModelName = "") -> list[schemas.Job]:
    """List all jobs, or those of a model, newest first and without their results."""
    return [_job(workbench, runner, row) for row in workbench.store.jobs.all(model) if caller.may_use(row.name)]


@router.post("/jobs", status_code=201)
def teach(new: schemas.NewJob, workbench: Bench, runner: Runner, caller: MayAdminister) -> schemas.Job:
    """Start a job that teaches a model its reviewed images."""
    caller.check_model(new.model)
    return _job(workbench, runner, runner.teach(new.model, new.images, caller.name))


@router.get("/jobs/{number}")
def get_job(number: int, workbench: Bench, runner: Runner, _: MayReview) -> schemas.Job:
    """Get one job with its result."""
    return _job(workbench, runner, workbench.store.jobs.get(valid_id(number)))


@router.get("/jobs/{number}/validation/{position}/{side}.jpg", response_class=Response, responses=JPEG)
def get_comparison_thumbnail(
    number: int, position: int, side: Literal["before", "after"], runner: Runner, _: MayReview
) -> Response:
    """Get a small validation image of a job's result with its anomaly map by either version; the first one is 0."""
    content = runner.comparison_thumbnail(valid_id(number), position, side)
    return Response(content, media_type="image/jpeg", headers=CACHED)


@router.post("/jobs/{number}/cancel")
def cancel(number: int, workbench: Bench, runner: Runner, caller: MayAdminister) -> schemas.Job:
    """Cancel a job that waits or runs."""
    runner.cancel(valid_id(number), caller.name)
    return _job(workbench, runner, workbench.store.jobs.get(number))


@router.post("/jobs/{number}/resume", status_code=201)
def resume(number: int, workbench: Bench, runner: Runner, caller: MayAdminister) -> schemas.Job:
    """Start a new job with the work of one that was interrupted, cancelled or failed."""
    return _job(workbench, runner, runner.resume(valid_id(number), caller.name))


@router.get("/jobs/{number}/events", response_class=StreamingResponse, responses=EVENTS)
async def follow_job(
    number: int, request: Request, workbench: Bench, runner: Runner, _: MayReview
) -> StreamingResponse:
    """Follow a job as server-sent events until it ends."""
    await to_thread.run_sync(workbench.store.jobs.get, valid_id(number))

    async def events() -> AsyncIterator[str]:
        last_text, last_sent = "", time.monotonic()
        while not await request.is_disconnected():
            job = await to_thread.run_sync(lambda: _job(workbench, runner, workbench.store.jobs.get(number)))
            text = job.model_dump_json()
            if text != last_text:
                last_text, last_sent = text, time.monotonic()
                yield f"data: {text}\n\n"
            elif time.monotonic() - last_sent >= KEEPALIVE_SECONDS:
                last_sent = time.monotonic()
                yield ": \n\n"
            if job.state not in UNFINISHED:
                return
            await asyncio.sleep(POLL_SECONDS)

    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # nginx would hold the events back
    return StreamingResponse(events(), media_type="text/event-stream", headers=headers)


def _job(workbench: Workbench, runner: JobRunner, job: Job) -> schemas.Job:
    result = job.result and _with_image_ids(job.result, workbench.store.images)
    fields: dict[str, Any] = asdict(job) | {"result": result, "seconds_left": runner.seconds_left(job.id)}
    return schemas.Job(**fields)


def _with_image_ids(result: dict[str, Any], images: Images) -> dict[str, Any]:
    """Add the ids of those validation images that the service holds."""
    rows = validation_rows(result)
    if not rows:
        return result
    ids = images.ids_by_sha256([row["sha256"] for row in rows if "sha256" in row])
    rows = [row | {"image": ids.get(row.get("sha256", ""))} for row in rows]
    return result | {"validation": result["validation"] | {"rows": rows}}
