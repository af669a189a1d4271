"""Uploads and their limits: the size of a request, the size of an image, and the files of a form."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import HTTPException, Request
from starlette.datastructures import UploadFile
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bgad.client import MAX_BATCH
from bgad.errors import ConfigError
from bgad.service.errors import LengthRequiredError, TooLargeError

OVERHEAD_BYTES = 2 * 2**20  # of a request beside its images
# The largest number of images in a request, by the last part of its path; a review may hold two masks in base64.
IMAGES_PER_REQUEST = {"batches": MAX_BATCH, "reviews": 3, "score": 2}

_FILE = {"type": "string", "format": "binary"}


def _form(field: str, kind: dict[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "required": [field], "properties": {field: kind}}
    return {"multipart/form-data": {"schema": schema}}


def _body(content: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": content}}


# OpenAPI descriptions of the request bodies that FastAPI does not parse.
ONE_IMAGE = _body({"application/octet-stream": {"schema": _FILE}, **_form("file", _FILE)})
SEVERAL_IMAGES = _body(_form("files", {"type": "array", "items": _FILE}))


class BodyLimitMiddleware:
    """Refuses a request whose body is larger than its images may be, whether or not it states its length."""

    def __init__(self, app: ASGIApp, max_image_bytes: int) -> None:
        self._app, self._max_image_bytes = app, max_image_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, counting the bytes of its body."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        images = IMAGES_PER_REQUEST.get(scope["path"].rpartition("/")[2], 0)
        limit, received, more = images * self._max_image_bytes + OVERHEAD_BYTES, 0, True
        closes = any(name == b"connection" and value.lower() == b"close" for name, value in scope["headers"])

        async def count_and_receive() -> Message:
            nonlocal received, more
            message = await receive()
            received, more = received + len(message.get("body", b"")), message.get("more_body", False)
            return message

        async def receive_limited() -> Message:
            message = await count_and_receive()
            if received > limit:
                raise HTTPException(413, f"a request may have {limit} bytes here: send less at a time")
            return message

        async def send_after_body(message: Message) -> None:
            # The connection closes with an error answer. A client that is still sending would see a broken pipe and
            # never the answer, so the rest of its body is read first.
            while closes and more and received <= limit and message.get("status", 0) >= 400:
                await count_and_receive()
            await send(message)

        await self._app(scope, receive_limited, send_after_body)


async def read_image(request: Request, max_bytes: int) -> tuple[bytes, str]:
    """Read the one image of a request, and its file name if it is in a form."""
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        content = bytearray()
        async for chunk in request.stream():
            content += chunk
            if len(content) > max_bytes:
                raise TooLargeError(too_large(max_bytes))
        return bytes(content), ""
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
