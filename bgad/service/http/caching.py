"""What browsers may keep: files of the page are revalidated, images are kept for good where the address names them."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from functools import lru_cache
from pathlib import Path
from typing import Annotated

from fastapi import Query, Request, Response
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles
from starlette.datastructures import Headers
from starlette.staticfiles import NotModifiedResponse
from starlette.types import Scope

from bgad._version import __version__
from bgad.io.files import sha256_bytes, sha256_file

REVALIDATE = "private, no-cache"  # keep it, and ask whether it is still the same
FOR_GOOD = "private, max-age=31536000, immutable"
Content = Annotated[
    str,
    Query(
        max_length=64,
        pattern="^[0-9a-f]*$",
        description="ETag of the file, as links in answers have it; then it is cached for good",
    ),
]


class RevalidatedFiles(StaticFiles):
    """The files of the page: browsers ask for each whether it has changed, so that an upgrade never mixes modules."""

    def file_response(
        self, full_path: str | os.PathLike[str], stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        """Return a file with the hash of its content as ETag; times and sizes of two versions may be equal."""
        etag = f'"{_hash(Path(full_path), stat_result.st_mtime_ns, stat_result.st_size)}"'
        headers = {"Cache-Control": "no-cache", "ETag": etag}
        if etag in _tags(Headers(scope=scope)):
            return NotModifiedResponse(Headers(headers))
        response = FileResponse(full_path, status_code=status_code, headers=headers)
        del response.headers["last-modified"]  # a browser must not go by the time
        return response


@lru_cache(maxsize=256)
def _hash(path: Path, _modified: int, _size: int) -> str:
    return sha256_file(path)[:32]


def key(*parts: str) -> str:
    """Return the ETag of what is rendered from these parts by this version of bgad."""
    return sha256_bytes("|".join((*parts, __version__)).encode())[:32]


async def cached(request: Request, etag: str, content: str, make: Callable[[], Awaitable[Response]]) -> Response:
    """Return the answer that `make` gives with an ETag, or 304 if the client has it.

    Numbers of images and versions mean something else in another store behind the same address. So an answer is cached
    for good only if the address has the ETag, as `content`.
    """
    headers = {"Cache-Control": FOR_GOOD if content == etag else REVALIDATE, "ETag": f'"{etag}"'}
    if f'"{etag}"' in _tags(request.headers):
        return Response(status_code=304, headers=headers)
    response = await make()
    response.headers.update(headers)
    return response


def _tags(headers: Headers) -> list[str]:
    return [tag.strip().removeprefix("W/") for tag in headers.get("if-none-match", "").split(",")]
