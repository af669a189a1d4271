"""Error answers: maps each error to an HTTP status and one line of JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from bgad.errors import BgadError, ConfigError, DataError, ImageError, OutputError
from bgad.service.errors import (
    BusyError,
    ForbiddenError,
    LengthRequiredError,
    MisdirectedError,
    MissingError,
    TooLargeError,
)
from bgad.service.http import schemas
from bgad.service.store import dialects

RETRY_AFTER_SECONDS = 1
DESCRIPTIONS: dict[int | str, dict[str, Any]] = {
    code: {"model": schemas.Problem, "description": text}
    for code, text in {
        400: "the request cannot be read",
        401: "a token is needed",
        403: "the role of the token is not enough",
        404: "not found",
        405: "the method is not allowed",
        408: "the request arrives too slowly",
        410: "the file is no longer kept",
        411: "a form must state its length",
        413: "the request is too large",
        421: "the host name is not one of the service, or only the main service does this",
        422: "a value is invalid",
        500: "a model is damaged",
        503: "too many requests wait: try again after Retry-After seconds",
        507: "the disk is full",
    }.items()
}
STATUS: dict[type[Exception], int] = {
    BusyError: 503,
    MissingError: 404,
    ForbiddenError: 403,
    TooLargeError: 413,
    LengthRequiredError: 411,
    MisdirectedError: 421,
    ImageError: 422,
    ConfigError: 422,
    DataError: 410,
    OutputError: 507,
    BgadError: 500,
}


def problem(status: int, text: str) -> JSONResponse:
    """Return an error answer."""
    return JSONResponse({"detail": text}, status_code=status)


def store_unavailable(error: Exception) -> JSONResponse:
    """Return the answer while the store does not respond, or cannot write for want of space."""
    if dialects.is_disk_full(error):
        return problem(507, dialects.DISK_FULL)
    return busy("the store does not answer: try again later")


def install(app: FastAPI) -> None:
    """Register the handlers of all errors."""
    for kind, status in STATUS.items():
        app.add_exception_handler(kind, _handler(status))
    app.add_exception_handler(RequestValidationError, _invalid)
    for unavailable in dialects.UNAVAILABLE:
        app.add_exception_handler(unavailable, lambda _request, error: store_unavailable(error))


def busy(text: str) -> JSONResponse:
    """Return the answer to a request that may be sent again a little later."""
    answer = problem(503, text)
    answer.headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
    return answer


def _handler(status: int) -> Callable[[Request, Exception], JSONResponse]:
    def handle(_: Request, error: Exception) -> JSONResponse:
        return busy(str(error)) if status == 503 else problem(status, str(error))

    return handle


def _invalid(_: Request, error: Exception) -> JSONResponse:
    """Answer with the first validation error in one line, instead of a list of structures."""
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for this class only
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return problem(422, f"{where}: {first['msg']}")
