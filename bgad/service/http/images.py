"""The API under /v1."""

from __future__ import annotations

import asyncio
import base64
import binascii
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import quote

from anyio import to_thread
from fastapi import APIRouter, Depends, Query, Request, Response
from starlette.datastructures import UploadFile
from starlette.requests import ClientDisconnect

from bgad.cli import console
from bgad.client import MAX_BATCH
from bgad.errors import ImageError, ModelError
from bgad.service.blobs import shown_name
from bgad.service.drift.bins import DAY, MOST
from bgad.service.http import admission as queues
from bgad.service.http import page_data as views
from bgad.service.http import schemas
from bgad.service.http import uploads as forms
from bgad.service.http.jobs import router as jobs_router
from bgad.service.http.params import BYTES, JPEG, PNG, PROBLEMS, SHOWN, Bench, Number, OfModel, Seconds, number_of
from bgad.service.http.roles import Guarded, MayAll, MayReview, MayScore
from bgad.service.store.image_list import MOMENT, Moment, Wanted
from bgad.service.store.store import Row
from bgad.service.workbench import Scored, Workbench, version_named
from bgad.types import Scores

At = Annotated[str | None, Query(pattern=MOMENT)]


@dataclass
class Filters:
    """Of a list of images."""

    decision: Literal["", "normal", "anomalous"] = ""
    review: Literal["", "none", "any", "good", "bad", "unsure"] = ""
    since: Seconds = 0.0
    until: Seconds = 0.0

    def wanted(self, name: str, **more: Any) -> Wanted:
        """The list of a model."""
        anomalous = None if not self.decision else self.decision == "anomalous"
        return Wanted(name, anomalous=anomalous, review=self.review, since=self.since, until=self.until, **more)


router = APIRouter(prefix="/v1", responses=PROBLEMS, route_class=Guarded)


@router.get("/me")
def me(caller: MayScore) -> schemas.Me:
    """Who asks, and what they may do."""
    return schemas.Me(name=caller.name, role=caller.role)  # type: ignore[arg-type]


# --- models


@router.get("/models")
def models(workbench: Bench, _: MayScore) -> list[schemas.Model]:
    """The models that score."""
    found = []
    for name in workbench.names():
        try:
            found.append(_model(workbench, name))
        except ModelError as error:  # one that is damaged does not hide the others
            console.warn(f"{name} is left out: {error}")
    return found


@router.get("/models/{name}")
def model(name: str, workbench: Bench, _: MayScore) -> schemas.Model:
    """One model with its versions."""
    return _model(workbench, name)


@router.get("/models/{name}/threshold")
def threshold(name: str, workbench: Bench, _: MayReview) -> schemas.Threshold:
    """The scores of calibration normals and of reviewed images, and what the threshold promises."""
    return schemas.Threshold(**views.threshold(workbench, name))


@router.put("/models/{name}/threshold")
def set_threshold(name: str, new: schemas.NewRate, workbench: Bench, caller: MayAll) -> schemas.Threshold:
    """Use another false-reject rate."""
    workbench.set_rate(name, new.rate, caller.name)
    return schemas.Threshold(**views.threshold(workbench, name))


@router.get("/models/{name}/drift")
def drift(
    name: str,
    workbench: Bench,
    _: MayReview,
    since: Seconds = 0.0,
    every: Annotated[Literal["auto", "hour", "day"], Query(description="auto: the hour up to three days")] = "auto",
    ahead: Annotated[int, Query(ge=-DAY, le=DAY, description="seconds that the local clock is ahead of UTC")] = 0,
    last: Annotated[int, Query(ge=0, le=MOST, description="scores to give one by one")] = MOST,
) -> schemas.DriftView:
    """The scores over time, and whether the parts have changed."""
    return schemas.DriftView(**views.drift(workbench, name, since, every=every, ahead=ahead, last=last))


@router.get("/models/{name}/lessons")
def lessons(name: str, workbench: Bench, _: MayReview) -> list[schemas.Lesson]:
    """All pictures of a model that were reviewed as good or bad, the newest review first."""
    return [schemas.Lesson(**row) for row in workbench.store.lessons(name)]


@router.post("/models/{name}/versions/{number}/release")
def release(name: str, number: int, workbench: Bench, caller: MayAll) -> schemas.Model:
    """Let a version score from now on; also the way back to an earlier one."""
    workbench.release(version_named(workbench, name, number_of(number)), caller.name)
    return _model(workbench, name)


@router.post("/models/{name}/versions/{number}/discard")
def discard(name: str, number: int, workbench: Bench, caller: MayAll) -> schemas.Model:
    """Give up a version that is not released."""
    workbench.store.discard(version_named(workbench, name, number_of(number))["id"], caller.name)
    return _model(workbench, name)


@router.post("/models/{name}/rollback")
def rollback(name: str, workbench: Bench, caller: MayAll) -> schemas.Model:
    """Go back to the version that was released before."""
    workbench.release(workbench.before(name), caller.name)
    return _model(workbench, name)


def _model(workbench: Workbench, name: str) -> schemas.Model:
    version = workbench.store.released(name)
    facts = workbench.facts(version)
    listed = [schemas.Version(**{key: v[key] for key in schemas.Version.model_fields}) for v in
              workbench.store.versions(name)]  # fmt: skip
    return schemas.Model(
        name=name,
        version=next(v for v in listed if v.id == version["id"]),
        versions=listed,
        threshold=facts.threshold,
        rate=facts.rate,
        guarantee=facts.guarantee,
        calibration=facts.calibration,
        size=facts.size,
        scored=workbench.store.count(version["id"]),
        again=schemas.Again(**workbench.again.state(name)),
    )


# --- scoring


@router.post("/models/{name}/score", openapi_extra=forms.ONE, response_model=schemas.Score)
async def score(
    name: str,
    request: Request,
    workbench: Bench,
    _: MayScore,
    filename: Annotated[str, Query(max_length=1000, description="of a picture that is the body itself")] = "",
) -> Response:
    """Score one picture: the body itself, or the field `file` of a form."""
    content, given = await forms.picture(request, workbench.max_bytes)
    shown = shown_name(given or filename)
    limiter = request.app.state.scoring
    found = await to_thread.run_sync(lambda: workbench.score(name, content, shown), limiter=limiter)
    return Response(_score(found, shown).model_dump_json(), media_type="application/json")  # it has been validated


@router.post("/models/{name}/batches", openapi_extra=forms.SEVERAL)
async def batch(name: str, request: Request, workbench: Bench, _: MayScore) -> schemas.Batch:
    """Score several pictures: the fields `files` of a form. One that cannot be read, or is too large,
    does not stop the others."""
    await to_thread.run_sync(workbench.store.released, name)

    def one(file: UploadFile) -> schemas.Score | schemas.Failure:
        shown = shown_name(file.filename or "")
        if (file.size or 0) > workbench.max_bytes:
            return schemas.Failure(name=shown, error=forms.too_large(workbench.max_bytes))
        try:
            return _score(workbench.score(name, file.file.read(), shown, patient=True), shown)
        except ImageError as error:
            return schemas.Failure(name=shown, error=str(error))

    async def turn(file: UploadFile) -> schemas.Score | schemas.Failure:
        async with request.app.state.batches:
            taken.left = (taken.left or 0) - 1
            if await request.is_disconnected():
                raise ClientDisconnect
            return await queues.now(lambda: one(file))

    results = []
    with request.app.state.pile.taken() as taken:
        async with forms.files(request, "files", MAX_BATCH * workbench.max_bytes) as files:
            taken.left = len(files)
            turns = (turn(file) for file in files)
            for result in await asyncio.gather(*turns, return_exceptions=True):  # the files are open until all are done
                if isinstance(result, BaseException):
                    raise result
                results.append(result)
    return schemas.Batch(results=results)


def _score(found: Scored, given: str) -> schemas.Score:
    scores, version = found.scores, found.version
    base = f"/v1/images/{found.image}"
    of = f"?model={quote(version['name'], safe='')}&version={version['id']}"
    return schemas.Score(
        image=found.image,
        name=given,
        model=version["name"],
        version=version["id"],
        checksum=version["checksum"],
        score=scores.score,
        p_value=scores.p_value,
        threshold=scores.threshold,
        is_anomaly=scores.is_anomaly,
        decision="anomalous" if scores.is_anomaly else "normal",
        map=f"{base}/map.png{of}",
        overlay=f"{base}/overlay.png{of}",
    )


# --- images


@router.get("/images")
def images(
    workbench: Bench,
    _: MayReview,
    model: OfModel,
    filters: Annotated[Filters, Depends()],
    order: Literal["uncertain", "anomalous", "newest"] = "uncertain",
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    offset: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
    as_of: Annotated[At, Query(description="the list as it was then: `as_of` of its first page")] = None,
    find: Annotated[Number | None, Query(description="an image, to say its place in the list")] = None,
) -> schemas.ImageList:
    """What the released version of a model has scored. To read a list page by page, give `as_of`: then no picture is
    there twice or left out, whatever is scored, reviewed or released meanwhile."""
    moment = Moment.read(as_of) if as_of else workbench.store.moment(model)
    wanted = filters.wanted(model, order=order, limit=limit, offset=offset, as_of=moment)
    rows, total = workbench.store.listed(wanted)
    of = f"thumbnail.jpg?model={quote(model, safe='')}"
    listed = [
        schemas.Listed(**row, has_mask=row["mask"] is not None, thumbnail=f"/v1/images/{row['id']}/{of}")
        for row in rows
    ]
    place = None if find is None else workbench.store.place(wanted, find)
    return schemas.ImageList(images=listed, total=total, as_of=str(moment), place=place)


@router.get("/models/{name}/news")
def news(
    name: str,
    workbench: Bench,
    _: MayReview,
    filters: Annotated[Filters, Depends()],
    after: Annotated[At, Query(description="`as_of` of a list")] = None,
) -> schemas.News:
    """What has changed since a list was made; little work, to be asked often."""
    since = Moment.read(after) if after else None
    return schemas.News(**views.news(workbench, filters.wanted(name, after=since)))


@router.get("/images/{number}")
def image(number: int, workbench: Bench, _: MayReview, model: OfModel = "") -> schemas.ImageDetail:
    """One image with its history; with a model, also the images with scores nearby."""
    row = workbench.store.image(number_of(number))
    return schemas.ImageDetail(
        **{key: row[key] for key in ("id", "name", "width", "height", "received", "dropped")},
        scores=[schemas.Said(**said) for said in row["scores"]],
        reviews=[_review(review) for review in row["reviews"]],
        neighbours=[schemas.Neighbour(**n) for n in workbench.store.neighbours(number, model)] if model else [],
    )


@router.get("/images/{number}/picture", response_class=Response, responses=BYTES)
async def picture(number: int, request: Request, workbench: Bench, _: MayReview) -> Response:
    """The picture as it was sent."""
    content = await to_thread.run_sync(workbench.content, number_of(number), limiter=request.app.state.whole)
    headers = {"Content-Disposition": "attachment"}
    return Response(content, media_type="application/octet-stream", headers=headers)


@router.get("/images/{number}/view.png", response_class=Response, responses=SHOWN)
async def view(number: int, request: Request, workbench: Bench, _: MayReview) -> Response:
    """The picture as any browser shows it: a PNG, or the JPEG that was sent."""
    content, kind = await to_thread.run_sync(workbench.view, number_of(number), limiter=request.app.state.whole)
    return Response(content, media_type=kind)


@router.get("/images/{number}/thumbnail.jpg", response_class=Response, responses=JPEG)
async def thumbnail(
    number: int, request: Request, workbench: Bench, _: MayReview, model: OfModel, version: Number | None = None
) -> Response:
    """A small picture with its heat."""
    row, content = await to_thread.run_sync(lambda: _drawn(workbench, number_of(number), model, version))
    if content is None:
        limiter = request.app.state.drawing
        content = await queues.in_time(limiter, lambda: workbench.thumbnail(number, row))
    return Response(content, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=3600"})


@router.get("/images/{number}/overlay.png", response_class=Response, responses=PNG)
async def overlay(
    number: int, request: Request, workbench: Bench, _: MayScore, model: OfModel, version: Number | None = None
) -> Response:
    """The picture with its heat."""

    def draw() -> bytes:
        return workbench.overlay(number_of(number), version_named(workbench, model, version))

    content = await queues.in_time(request.app.state.overlays, draw)
    return Response(content, media_type="image/png")


@router.get("/images/{number}/map.png", response_class=Response, responses=PNG)
async def anomaly_map(
    number: int, request: Request, workbench: Bench, _: MayScore, model: OfModel, version: Number | None = None
) -> Response:
    """The map in grey; the headers X-Low, X-High and X-Boundary say what black, white and the boundary are."""

    def draw() -> tuple[bytes, float, float, float]:
        return workbench.map_picture(number_of(number), version_named(workbench, model, version))

    content, low, high, boundary = await queues.in_time(request.app.state.drawing, draw)
    headers = {"X-Low": repr(low), "X-High": repr(high), "X-Boundary": repr(boundary)}
    return Response(content, media_type="image/png", headers=headers)


@router.get("/images/{number}/score")
async def asked(
    number: int, request: Request, workbench: Bench, _: MayScore, model: OfModel, version: Number | None = None
) -> schemas.Asked:
    """What a version says of an image, also one that is not released; it is not kept."""

    def ask() -> tuple[Row, Scores, int]:
        row = version_named(workbench, model, version)
        return row, workbench.said(number_of(number), row)[0].scores, workbench.facts(row).calibration

    row, scores, calibration = await queues.in_time(request.app.state.drawing, ask)
    return schemas.Asked(
        model=model,
        version=row["id"],
        checksum=row["checksum"],
        score=scores.score,
        p_value=scores.p_value,
        threshold=scores.threshold,
        is_anomaly=scores.is_anomaly,
        calibration=calibration,
    )


def _drawn(workbench: Workbench, number: int, model: str, version: int | None) -> tuple[Row, bytes | None]:
    row = version_named(workbench, model, version)
    return row, workbench.drawn(number, row)


# --- reviews


@router.post("/images/{number}/reviews", status_code=201)
def review(number: int, new: schemas.NewReview, workbench: Bench, caller: MayReview) -> schemas.Review:
    """Say what an image shows; it is on the disk when this answers."""
    painted = {kind: _decoded(kind, text) for kind, text in (("mask", new.mask), ("ignore", new.ignore))}
    said = workbench.review(number_of(number), new.verdict, caller.name, note=new.note, model=new.model, **painted)
    return _review(said)


@router.post("/reviews/{number}/undo", status_code=201)
def undo(number: int, workbench: Bench, caller: MayReview, model: OfModel = "") -> schemas.Review:
    """Take back the last review of an image: the answer is the review that takes its place, as what was said before, or
    else `withdrawn`. All of them stay in the image's history."""
    return _review(workbench.take_back(number_of(number), caller.name, model))


@router.get("/reviews/{number}/{kind}.png", response_class=Response, responses=PNG)
def painted(number: int, kind: Literal["mask", "ignore"], workbench: Bench, _: MayReview) -> Response:
    """What was painted with a review."""
    return Response(workbench.painted(number_of(number), kind), media_type="image/png")


def _review(row: Row) -> schemas.Review:
    links = {
        kind: f"/v1/reviews/{row['id']}/{kind}.png" if row[kind] is not None else None for kind in ("mask", "ignore")
    }
    kept: Row = {key: row[key] for key in ("id", "image", "verdict", "note", "who", "created")}
    return schemas.Review(**kept | links)


def _decoded(kind: str, text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        return base64.b64decode(text.removeprefix("data:image/png;base64,"), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ImageError(f"the {kind} is not base64: send a PNG in it") from error


router.include_router(jobs_router)
