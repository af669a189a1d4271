"""Routes that score uploaded images, one or a batch."""

from __future__ import annotations

import asyncio
from typing import Annotated
from urllib.parse import quote

from anyio import to_thread
from fastapi import Query, Request, Response
from starlette.datastructures import UploadFile
from starlette.requests import ClientDisconnect

from bgad.client import MAX_BATCH
from bgad.errors import ImageError
from bgad.service.access import Caller
from bgad.service.blobs import display_name
from bgad.service.errors import QUEUE_FULL, BusyError
from bgad.service.http import admission, schemas, uploads
from bgad.service.http.params import Batches, Bench, Threads
from bgad.service.http.security import MayScore, api_router
from bgad.service.scoring.ingest import ScoredImage
from bgad.service.text import check_file_name
from bgad.service.workbench import Workbench

router = api_router()


@router.post("/models/{name}/score", openapi_extra=uploads.ONE_IMAGE, response_model=schemas.Score)
async def score(
    name: str,
    request: Request,
    workbench: Bench,
    threads: Threads,
    caller: MayScore,
    filename: Annotated[str, Query(max_length=1000, description="name of an image that is the body itself")] = "",
) -> Response:
    """Score one image, sent as the body or as the field `file` of a form."""
    check_file_name(filename)
    await _admit(workbench, name)
    content, form_name = await uploads.read_image(request, workbench.limits.max_bytes)
    check_file_name(form_name or filename)
    shown = display_name(form_name or filename)
    sender = _sender(caller)
    scored = await to_thread.run_sync(
        lambda: workbench.score(name, content, shown, sender=sender), limiter=threads.scoring
    )
    # The model is valid by construction; serialising it here saves FastAPI's second validation.
    return Response(_score(scored, shown).model_dump_json(), media_type="application/json")


def _sender(caller: Caller) -> str:
    """Return the name under which an image is recorded for a token that sees only what it sent itself."""
    return caller.name if caller.role == "score" else ""


async def _admit(workbench: Workbench, name: str) -> None:
    """Refuse a request before its body is read if its model is unknown, hangs or has no room for another image."""
    version = workbench.registry.remembered(name)
    if version is None:
        version = await to_thread.run_sync(workbench.registry.released, name)
    workbench.models.check_available(version)
    if workbench.models.is_full(version):
        raise BusyError(QUEUE_FULL)


@router.post("/models/{name}/batches", openapi_extra=uploads.SEVERAL_IMAGES)
async def score_batch(
    name: str, request: Request, workbench: Bench, threads: Threads, batches: Batches, caller: MayScore
) -> schemas.Batch:
    """Score several images, sent as the fields `files` of a form. An image that cannot be read or is too large does not
    stop the others."""
    await to_thread.run_sync(workbench.registry.released, name)

    async def score_one(file: UploadFile) -> schemas.Score | schemas.Failure:
        async with threads.batches:
            admitted.waiting = (admitted.waiting or 0) - 1
            if await request.is_disconnected():
                raise ClientDisconnect
            return await admission.run_now(lambda: _score_file(workbench, name, file, _sender(caller)))

    results = []
    with batches.admit() as admitted:
        async with uploads.form_files(request, "files", MAX_BATCH * workbench.limits.max_bytes) as files:
            admitted.waiting = len(files)
            tasks = (score_one(file) for file in files)
            for result in await asyncio.gather(*tasks, return_exceptions=True):  # the files stay open until all end
                if isinstance(result, BaseException):
                    raise result
                results.append(result)
    return schemas.Batch(results=results)


def _score_file(workbench: Workbench, model: str, file: UploadFile, sender: str) -> schemas.Score | schemas.Failure:
    shown = display_name(file.filename or "")
    if (file.size or 0) > workbench.limits.max_bytes:
        return schemas.Failure(name=shown, error=uploads.too_large(workbench.limits.max_bytes))
    try:
        check_file_name(file.filename or "")
        return _score(workbench.score(model, file.file.read(), shown, patient=True, sender=sender), shown)
    except ImageError as error:
        return schemas.Failure(name=shown, error=str(error))


def _score(scored: ScoredImage, name: str) -> schemas.Score:
    scores, version = scored.scores, scored.version
    base = None if scored.image is None else f"/v1/images/{scored.image}"
    query = f"?model={quote(version.name, safe='')}&version={version.id}"
    return schemas.Score(
        image=scored.image,
        kept=scored.image is not None,
        name=name,
        model=version.name,
        version=version.id,
        checksum=version.checksum,
        precision=version.precision,
        score=scores.score,
        p_value=scores.p_value,
        threshold=scores.threshold,
        is_anomaly=scores.is_anomaly,
        decision="anomalous" if scores.is_anomaly else "normal",
        parts=dict(scores.parts),
        reason=scores.reason or None,
        region=scores.region and list(scores.region),
        map=base and f"{base}/map.png{query}",
        overlay=base and f"{base}/overlay.png{query}",
    )
