"""Pictures as they come in: the body of a request, or the files of a form."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Request
from starlette.datastructures import UploadFile

from bgad.client import MAX_BATCH
from bgad.errors import BgadError, ConfigError

_FILE = {"type": "string", "format": "binary"}


class NoLengthError(BgadError):
    """A form that does not say how long it is."""


class TooLargeError(BgadError):
    """More bytes than are taken."""


def _form(field: str, kind: dict[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "required": [field], "properties": {field: kind}}
    return {"multipart/form-data": {"schema": schema}}


def _body(content: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": content}}


ONE = _body({"application/octet-stream": {"schema": _FILE}, **_form("file", _FILE)})
SEVERAL = _body(_form("files", {"type": "array", "items": _FILE}))


async def picture(request: Request, max_bytes: int) -> tuple[bytes, str]:
    """The one that was sent, and its name in a form."""
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        content = bytearray()
        async for chunk in request.stream():
            content += chunk
            if len(content) > max_bytes:
                raise TooLargeError(too_large(max_bytes))
        return bytes(content), ""
    async with files(request, "file", 2 * max_bytes) as found:
        if len(found) != 1:
            raise ConfigError("the form must have one field `file` with the picture; for several, use batches")
        if (found[0].size or 0) > max_bytes:
            raise TooLargeError(too_large(max_bytes))
        return await found[0].read(), found[0].filename or ""


@asynccontextmanager
async def files(request: Request, field: str, max_bytes: int) -> AsyncIterator[list[UploadFile]]:
    """The files of a field of a form of at most so many bytes; the large ones are on the disk until they are read."""
    length = request.headers.get("content-length", "")
    if not length.isdecimal():
        raise NoLengthError("a form must say how long it is: send it with Content-Length")
    if int(length) > max_bytes:
        raise TooLargeError("the form is too large: send fewer or smaller pictures at a time")
    async with request.form(max_files=MAX_BATCH, max_fields=MAX_BATCH) as form:
        found = [value for value in form.getlist(field) if isinstance(value, UploadFile)]
        if not found:
            raise ConfigError(f"the form has no file in the field `{field}`")
        yield found


def too_large(max_bytes: int) -> str:
    """What is said of such a picture."""
    return f"a picture may have {max_bytes} bytes: send a smaller one"
