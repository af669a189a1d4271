"""Uploads and their limits: the size and the time of a body, the bytes of all bodies, and the files of a form."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import HTTPException, Request
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, UploadFile
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bgad.client import MAX_BATCH
from bgad.errors import ConfigError
from bgad.service.errors import LengthRequiredError, TooLargeError
from bgad.service.http.problems import RETRY_AFTER_SECONDS, busy, problem

OVERHEAD_BYTES = 2 * 2**20  # of a request beside its images
# The largest number of images in a request, by the last part of its path; the two masks of a review share one.
IMAGES_PER_REQUEST = {"batches": MAX_BATCH, "reviews": 1, "score": 2}
JSON_COPIES = 4  # of a body while its JSON is read: the bytes, the text, the strings, and what they encode
BODIES = 8  # of the size of the largest image: all bodies that may be in memory
BODY_SECONDS, BODY_RATE = 30.0, 2**15  # a body that takes longer must arrive with so many bytes a second
TOO_MANY_BODIES = "too many uploads are under way: try again later"

_FILE = {"type": "string", "format": "binary"}


def _form(field: str, kind: dict[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "required": [field], "properties": {field: kind}}
    return {"multipart/form-data": {"schema": schema}}


def _body(content: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": content}}


# OpenAPI descriptions of the request bodies that FastAPI does not parse.
ONE_IMAGE = _body({"application/octet-stream": {"schema": _FILE}, **_form("file", _FILE)})
SEVERAL_IMAGES = _body(_form("files", {"type": "array", "items": _FILE}))


class BodyBudget:
    """Counts the bytes of all bodies in flight; only the event loop uses it."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.held = max_bytes, 0

    def has_room(self, count: int) -> bool:
        """Return whether so many bytes more are within the limit."""
        return self.held + count <= self.max_bytes


class BodyLimitMiddleware:
    """Refuses a body that is too large, too slow, or too much beside the bodies that are in flight.

    What the headers tell is checked before the body is read. Only bytes that have arrived count as in flight, so that
    a client that announces much and sends nothing keeps nobody out.
    """

    def __init__(self, app: ASGIApp, max_image_bytes: int) -> None:
        self._app, self._max_image_bytes = app, max_image_bytes
        # Forms are on the disk while they wait.
        self.in_memory = BodyBudget(max(BODIES * max_image_bytes, JSON_COPIES * (max_image_bytes + OVERHEAD_BYTES)))
        self.on_disk = BodyBudget(2 * MAX_BATCH * max_image_bytes + OVERHEAD_BYTES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, counting the bytes of its body."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        is_form = headers.get("content-type", "").startswith("multipart/form-data")
        copies = JSON_COPIES if headers.get("content-type", "").startswith("application/json") else 1
        images = IMAGES_PER_REQUEST.get(scope["path"].rpartition("/")[2], 0)
        limit = images * self._max_image_bytes + OVERHEAD_BYTES
        body = _Body(receive, send, limit, self.on_disk if is_form else self.in_memory, copies)
        body.client_closes = headers.get("connection", "").lower() == "close"
        length = headers.get("content-length", "")
        try:
            refusal = body.refusal(int(length)) if length.isdecimal() else None
            await (refusal or self._app)(scope, body.receive, body.send)
        finally:
            body.release()


class _Body:
    """The body of one request while it is received."""

    def __init__(self, receive: Receive, send: Send, limit: int, budget: BodyBudget, copies: int) -> None:
        self._receive, self._send, self._limit, self._budget, self._copies = receive, send, limit, budget, copies
        self._began, self._received, self._more = time.monotonic(), 0, True
        self._held, self._is_late = 0, False
        self.client_closes = False

    def refusal(self, length: int) -> JSONResponse | None:
        """Return the answer to a body of a stated length that must not be read, or None."""
        if length > self._limit:
            return problem(413, self._too_large())
        return None if self._budget.has_room(self._copies * length) else busy(TOO_MANY_BODIES)

    async def receive(self) -> Message:
        """Receive a part of the body, or what follows it."""
        message = await self._next()
        if self._received > self._limit:
            raise HTTPException(413, self._too_large())
        count = self._copies * len(message.get("body", b""))
        if not self._budget.has_room(count):
            raise HTTPException(503, TOO_MANY_BODIES, {"Retry-After": str(RETRY_AFTER_SECONDS)})
        self._budget.held += count
        self._held += count
        return message

    async def send(self, message: Message) -> None:
        """Send a part of the answer.

        The connection closes with an error answer. A client that is still sending would see a broken pipe and never the
        answer, so the rest of its body is read first.
        """
        if message.get("status", 0) >= 400 and self.client_closes:
            with suppress(HTTPException):
                while self._more and not self._is_late and self._received <= self._limit:
                    await self._next()
        await self._send(message)

    def release(self) -> None:
        """Give back the room of the body."""
        self._budget.held -= self._held
        self._held = 0

    async def _next(self) -> Message:
        if not self._more:  # what comes next is that the client leaves, whenever that is
            return await self._receive()
        late = self._began + BODY_SECONDS + self._received / BODY_RATE
        try:
            async with asyncio.timeout(late - time.monotonic()):
                message = await self._receive()
        except TimeoutError as error:
            self._is_late = True
            raise HTTPException(408, "the request arrives too slowly", {"Connection": "close"}) from error
        self._received += len(message.get("body", b""))
        self._more = message.get("more_body", False)
        return message

    def _too_large(self) -> str:
        return f"a request may have {self._limit} bytes here: send less at a time"


async def read_image(request: Request, max_bytes: int) -> tuple[bytes, str]:
    """Read the one image of a request, and its file name if it is in a form."""
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        chunks, received = list[bytes](), 0
        async for chunk in request.stream():
            chunks.append(chunk)
            received += len(chunk)
            if received > max_bytes:
                raise TooLargeError(too_large(max_bytes))
        return b"".join(chunks), ""
    async with form_files(request, "file", 2 * max_bytes) as files:
        if len(files) != 1:
            raise ConfigError("the form must have one field `file` with the image; for several, use batches")
        if (files[0].size or 0) > max_bytes:
            raise TooLargeError(too_large(max_bytes))
        return await files[0].read(), files[0].filename or ""


@asynccontextmanager
async def form_files(request: Request, field: str, max_bytes: int) -> AsyncIterator[list[UploadFile]]:
    """Yield the files of a form field; large files are on the disk until they are read."""
    length = request.headers.get("content-length", "")
    if not length.isdecimal():
        raise LengthRequiredError("a form must say how long it is: send it with Content-Length")
    if int(length) > max_bytes:
        raise TooLargeError("the form is too large: send fewer or smaller images at a time")
    async with request.form(max_files=MAX_BATCH, max_fields=MAX_BATCH) as form:
        files = [value for value in form.getlist(field) if isinstance(value, UploadFile)]
        if not files:
            raise ConfigError(f"the form has no file in the field `{field}`")
        yield files


def too_large(max_bytes: int) -> str:
    """Return the message for an image that is too large."""
    return f"an image may have {max_bytes} bytes: send a smaller one"
