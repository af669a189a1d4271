"""The part of the API that is about jobs and the history."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Annotated, Literal

from anyio import to_thread
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from bgad.service.http import schemas
from bgad.service.http.params import EVENTS, JPEG, Bench, OfModel, Runner, number_of
from bgad.service.http.roles import Guarded, MayAll, MayReview
from bgad.service.store.store import Row
from bgad.service.teaching.runner import Jobs

POLL_SECONDS = 0.5
QUIET_SECONDS = 15  # after which a line of events is sent that says nothing, so that no proxy takes it for dead

router = APIRouter(route_class=Guarded)


@router.get("/jobs")
def jobs(workbench: Bench, runner: Runner, _: MayReview, model: OfModel = "") -> list[schemas.Job]:
    """All of them, or those of a model, the newest first; without their results, which one job alone has."""
    return [_job(runner, row) for row in workbench.store.all_jobs(model)]


@router.post("/jobs", status_code=201)
def teach(new: schemas.NewJob, runner: Runner, caller: MayAll) -> schemas.Job:
    """Teach a model what was reviewed."""
    return _job(runner, runner.teach(new.model, new.images, caller.name))


@router.get("/jobs/{number}")
def job(number: int, workbench: Bench, runner: Runner, _: MayReview) -> schemas.Job:
    """One job."""
    return _job(runner, workbench.store.job(number_of(number)))


@router.get("/jobs/{number}/validation/{place}/{side}.jpg", response_class=Response, responses=JPEG)
def compared(number: int, place: int, side: Literal["before", "after"], runner: Runner, _: MayReview) -> Response:
    """A small picture, with its heat by either version, of one of the validation images in the result of a job; the
    first is 0."""
    content = runner.drawing(number_of(number), place, side)
    return Response(content, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=3600"})


@router.post("/jobs/{number}/cancel")
def cancel(number: int, workbench: Bench, runner: Runner, caller: MayAll) -> schemas.Job:
    """Stop a job."""
    runner.cancel(number_of(number), caller.name)
    return _job(runner, workbench.store.job(number))


@router.post("/jobs/{number}/resume", status_code=201)
def resume(number: int, runner: Runner, caller: MayAll) -> schemas.Job:
    """Start a job again that was interrupted, cancelled or failed."""
    return _job(runner, runner.resume(number_of(number), caller.name))


@router.get("/jobs/{number}/events", response_class=StreamingResponse, responses=EVENTS)
async def job_events(
    number: int, request: Request, workbench: Bench, runner: Runner, _: MayReview
) -> StreamingResponse:
    """The job as it goes, as server-sent events, until it has ended."""
    await to_thread.run_sync(workbench.store.job, number_of(number))

    async def follow() -> AsyncIterator[str]:
        last, told = "", time.monotonic()
        while not await request.is_disconnected():
            row = await to_thread.run_sync(lambda: runner.shown(workbench.store.job(number)))
            text = schemas.Job(**row).model_dump_json()
            if text != last:
                last, told = text, time.monotonic()
                yield f"data: {text}\n\n"
            elif time.monotonic() - told >= QUIET_SECONDS:
                told = time.monotonic()
                yield ": \n\n"
            if row["state"] not in ("queued", "running"):
                return
            await asyncio.sleep(POLL_SECONDS)

    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # else nginx keeps them back
    return StreamingResponse(follow(), media_type="text/event-stream", headers=headers)


def _job(runner: Jobs, row: Row) -> schemas.Job:
    return schemas.Job(**runner.shown(row))


@router.get("/history")
def history(
    workbench: Bench, _: MayReview, model: OfModel = "", limit: Annotated[int, Query(ge=1, le=1000)] = 200
) -> list[schemas.Event]:
    """Who did what and when, the newest first."""
    return [schemas.Event(**row) for row in workbench.store.history(model, limit)]
