"""Routes of reviews."""

from __future__ import annotations

import base64
import binascii
from typing import Any, Literal

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from bgad.errors import ImageError
from bgad.service.http import schemas
from bgad.service.http.caching import REVALIDATE
from bgad.service.http.params import PNG, Bench, ModelName, valid_id
from bgad.service.http.security import MayReview, api_router
from bgad.service.store.reviews import Review, ReviewChangedError

CHANGED: dict[int | str, dict[str, Any]] = {
    409: {"model": schemas.ReviewChanged, "description": "somebody else has reviewed the image meanwhile"}
}

router = api_router()


@router.post("/images/{number}/reviews", status_code=201, responses=CHANGED)
def add_review(number: int, new: schemas.NewReview, workbench: Bench, caller: MayReview) -> schemas.Review:
    """Review an image; the review is durable when the answer arrives. With `seen`, nothing is stored if somebody has
    reviewed the image since."""
    caller.check_model(new.model)
    review = workbench.reviewing.review(
        valid_id(number),
        new.verdict,
        caller.name,
        note=new.note,
        mask=_decode("mask", new.mask),
        ignore=_decode("ignore", new.ignore),
        model=new.model,
        seen=new.seen,
    )
    return review_schema(review)


@router.post("/reviews/{number}/undo", status_code=201, responses=CHANGED)
def undo_review(number: int, workbench: Bench, caller: MayReview, model: ModelName = "") -> schemas.Review:
    """Undo the last review of an image and get the review that takes its place: a copy of the one before it, or one
    with the verdict `withdrawn`. All reviews stay in the image's history."""
    return review_schema(workbench.reviewing.undo(valid_id(number), caller.name, model))


@router.get("/reviews/{number}/{kind}.png", response_class=Response, responses=PNG)
def get_mask(number: int, kind: Literal["mask", "ignore"], workbench: Bench, _: MayReview) -> Response:
    """Get a mask that was painted with a review."""
    headers = {"Cache-Control": REVALIDATE}
    return Response(workbench.reviewing.mask(valid_id(number), kind), media_type="image/png", headers=headers)


def changed(_: Request, error: Exception) -> JSONResponse:
    """Answer that another review counts meanwhile, and which."""
    assert isinstance(error, ReviewChangedError)  # noqa: S101 - registered for this class only
    answer = schemas.ReviewChanged(detail=str(error), review=review_schema(error.review))
    return JSONResponse(answer.model_dump(), status_code=409)


def review_schema(review: Review) -> schemas.Review:
    """Describe a review, with links in place of the hashes of its masks."""
    base = f"/v1/reviews/{review.id}"
    fields: dict[str, Any] = {key: getattr(review, key) for key in ("id", "image", "verdict", "note", "who", "created")}
    return schemas.Review(
        **fields,
        mask=None if review.mask is None else f"{base}/mask.png",
        ignore=None if review.ignore is None else f"{base}/ignore.png",
    )


def _decode(kind: str, text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        return base64.b64decode(text.removeprefix("data:image/png;base64,"), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ImageError(f"the {kind} is not base64: send a PNG in it") from error
