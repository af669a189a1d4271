"""Parameters, dependencies and error descriptions that the routes of the API share."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Query, Request

from bgad.service.errors import MissingError
from bgad.service.http.admission import BatchAdmission, Limiters
from bgad.service.store.image_list import MAX_ID
from bgad.service.teaching.runner import JobRunner
from bgad.service.workbench import Workbench


def binary(*media_types: str) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI description of an answer that is not JSON."""
    schema = {"schema": {"type": "string", "format": "binary"}}
    return {200: {"description": "the file", "content": dict.fromkeys(media_types, schema)}}


PNG, JPEG, BYTES = binary("image/png"), binary("image/jpeg"), binary("application/octet-stream")
PNG_OR_JPEG = binary("image/png", "image/jpeg")
EVENTS: dict[int | str, dict[str, Any]] = {
    200: {"description": "server-sent events", "content": {"text/event-stream": {}}}
}
Number = Annotated[int, Query(ge=1, le=MAX_ID)]
ModelName = Annotated[str, Query(max_length=200)]
Seconds = Annotated[float, Query(ge=0, allow_inf_nan=False)]


# The dependencies are async because FastAPI runs others in a thread for every request.
async def get_workbench(request: Request) -> Workbench:
    """Return the workbench of the application."""
    workbench: Workbench = request.app.state.workbench
    return workbench


async def get_runner(request: Request) -> JobRunner:
    """Return the job runner of the application."""
    runner: JobRunner = request.app.state.runner
    return runner


async def get_limiters(request: Request) -> Limiters:
    """Return the thread limits of the application."""
    limiters: Limiters = request.app.state.limiters
    return limiters


async def get_batch_admission(request: Request) -> BatchAdmission:
    """Return the admission control of batch requests."""
    admission: BatchAdmission = request.app.state.batch_admission
    return admission


Bench = Annotated[Workbench, Depends(get_workbench)]
Runner = Annotated[JobRunner, Depends(get_runner)]
Threads = Annotated[Limiters, Depends(get_limiters)]
Batches = Annotated[BatchAdmission, Depends(get_batch_admission)]


def valid_id(number: int) -> int:
    """Return an id that a database column can hold; MissingError for any other number."""
    if not 0 < number <= MAX_ID:
        raise MissingError(f"there is nothing with the number {number}")
    return number
