"""What a token may see: its models, and, with the role `score`, the images that it sent itself."""

from __future__ import annotations

from anyio import to_thread
from fastapi import Request

from bgad.service.access import Caller
from bgad.service.errors import MissingError
from bgad.service.store.image_list import MAX_ID
from bgad.service.store.store import Store


async def check(request: Request, route: str) -> None:
    """Raise an error if the caller may not see the model, image, review or job that a request names.

    All routes are checked by the names of their parameters, so that none can be forgotten: `name` in the path and
    `model` in the query are models, `number` is an image, a review or a job, as the path says.
    """
    caller: Caller = request.state.caller
    if not caller.is_limited:
        return
    for model in (request.path_params.get("name", ""), *request.query_params.getlist("model")):
        caller.check_model(model)
    kind, number = route.split("/")[2], str(request.path_params.get("number", ""))
    if kind == "models" or not number.isdecimal() or not 0 < int(number) <= MAX_ID:
        return  # there is no such thing, as the route will say
    await to_thread.run_sync(_check_object, request.app.state.workbench.store, caller, kind, int(number))


def _check_object(store: Store, caller: Caller, kind: str, number: int) -> None:
    if kind == "jobs":
        if not caller.may_use(store.jobs.get(number).name):
            raise MissingError(f"there is no job {number}")
        return
    image = store.reviews.get(number).image if kind == "reviews" else number
    sender = caller.name if caller.role == "score" else None
    if not store.images.is_visible(image, caller.models, sender):
        raise MissingError(f"there is no {kind.removesuffix('s')} {number}")
