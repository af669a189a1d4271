"""What the routes of the API share: what they take, and what they answer."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Query, Request

from bgad.service.http import schemas
from bgad.service.store.store import MissingError
from bgad.service.teaching.runner import Jobs
from bgad.service.workbench import Workbench


def gives(*kinds: str) -> dict[int | str, dict[str, Any]]:
    """An answer that is no JSON."""
    schema = {"schema": {"type": "string", "format": "binary"}}
    return {200: {"description": "as it is", "content": dict.fromkeys(kinds, schema)}}


PNG, JPEG, BYTES = gives("image/png"), gives("image/jpeg"), gives("application/octet-stream")
SHOWN = gives("image/png", "image/jpeg")
EVENTS: dict[int | str, dict[str, Any]] = {200: {"description": "as it goes", "content": {"text/event-stream": {}}}}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    code: {"model": schemas.Problem, "description": text}
    for code, text in {
        400: "the request cannot be read",
        401: "a token is needed",
        403: "the role of the token is not enough",
        404: "not there",
        405: "there, but not with this method",
        410: "its file is not there any more",
        411: "a form must say how long it is",
        413: "too large",
        421: "another host",
        422: "something in it is wrong",
        500: "a model is damaged",
        503: "too many requests wait: try again after Retry-After seconds",
        507: "the disk is full",
    }.items()
}

Number = Annotated[int, Query(ge=1, le=2**31 - 1)]
OfModel = Annotated[str, Query(max_length=200)]
Seconds = Annotated[float, Query(ge=0, allow_inf_nan=False)]


async def bench(request: Request) -> Workbench:  # async: what is not gets a thread for every request
    """The workbench of the application."""
    found: Workbench = request.app.state.workbench
    return found


async def job_runner(request: Request) -> Jobs:
    """The jobs of the application."""
    found: Jobs = request.app.state.jobs
    return found


Bench = Annotated[Workbench, Depends(bench)]
Runner = Annotated[Jobs, Depends(job_runner)]


def number_of(number: int) -> int:
    """A number that a database takes."""
    if not 0 < number < 2**31:
        raise MissingError(f"there is nothing with the number {number}")
    return number
