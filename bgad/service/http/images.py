"""Routes of stored images: lists, details and renderings."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal
from urllib.parse import quote

from anyio import to_thread
from fastapi import Depends, Query, Request, Response

from bgad.inference.explain import explain
from bgad.service.http import admission, caching, page_data, schemas
from bgad.service.http.caching import Content
from bgad.service.http.params import BYTES, JPEG, PNG, PNG_OR_JPEG, Bench, ModelName, Number, Seconds, Threads, valid_id
from bgad.service.http.reviews import review_schema
from bgad.service.http.security import MayReview, MayScore, api_router
from bgad.service.registry import DecisionRule
from bgad.service.store.image_list import SNAPSHOT_PATTERN, ImageQuery, ListedImage, Snapshot
from bgad.service.store.scores import RecordedScore
from bgad.service.store.versions import Version
from bgad.service.workbench import Workbench

SnapshotText = Annotated[str | None, Query(pattern=SNAPSHOT_PATTERN)]
router = api_router()


@dataclass
class Filters:
    """The filters of a list of images."""

    decision: Literal["", "normal", "anomalous"] = ""
    review: Literal["", "none", "any", "good", "bad", "unsure"] = ""
    since: Seconds = 0.0
    until: Seconds = 0.0

    def query(self, name: str, **options: Any) -> ImageQuery:
        """Return the query of a model's list."""
        anomalous = None if not self.decision else self.decision == "anomalous"
        return ImageQuery(name, anomalous=anomalous, review=self.review, since=self.since, until=self.until, **options)


@dataclass
class Page:
    """The order and the page of a list of images, and an image to find in it."""

    order: Literal["uncertain", "anomalous", "newest"] = "uncertain"
    limit: Annotated[int, Query(ge=1, le=200)] = 50
    offset: Annotated[int, Query(ge=0, le=10_000_000)] = 0
    as_of: Annotated[SnapshotText, Query(description="`as_of` of the list's first page")] = None
    find: Annotated[Number | None, Query(description="image whose position in the list is wanted")] = None


@dataclass
class Rendering:
    """The version whose anomaly map is rendered; by default the released one."""

    model: ModelName
    version: Number | None = None
    content: Content = ""


Rendered = Annotated[Rendering, Depends()]


@router.get("/images")
def list_images(
    workbench: Bench,
    _: MayReview,
    model: ModelName,
    page: Annotated[Page, Depends()],
    filters: Annotated[Filters, Depends()],
) -> schemas.ImageList:
    """List the images that the released version of a model has scored. To read a list page by page, pass `as_of` on: no
    image appears twice or is left out, whatever is scored, reviewed or released meanwhile."""
    lists = workbench.store.lists
    snapshot = Snapshot.parse(page.as_of) if page.as_of else lists.snapshot(model)
    query = filters.query(model, order=page.order, limit=page.limit, offset=page.offset, as_of=snapshot)
    version = workbench.store.versions.get(snapshot.version)
    suffix = f"thumbnail.jpg?model={quote(model, safe='')}&version={version.id}"
    rows, rule = lists.page(query), workbench.registry.existing_rule(snapshot.version)
    key_parts = _key_parts(version, rule)
    images = [
        schemas.ListedImage(
            **asdict(row) | _explanation(row, rule),
            has_mask=row.mask is not None,
            thumbnail=f"/v1/images/{row.id}/{suffix}&content={caching.key(row.sha256, *key_parts)}",
        )
        for row in rows
    ]
    position = None if page.find is None else lists.position(query, page.find)
    return schemas.ImageList(images=images, total=lists.total(query), as_of=str(snapshot), position=position)


@router.get("/models/{name}/changes")
def get_changes(
    name: str,
    workbench: Bench,
    _: MayReview,
    filters: Annotated[Filters, Depends()],
    after: Annotated[SnapshotText, Query(description="`as_of` of a list")] = None,
) -> schemas.Changes:
    """Get what has changed since a list was requested; cheap enough to be called often."""
    return page_data.changes(workbench, filters.query(name, after=Snapshot.parse(after) if after else None))


@router.get("/images/{number}")
def get_image(number: int, workbench: Bench, caller: MayReview, model: ModelName = "") -> schemas.ImageDetail:
    """Get one image with all its scores and reviews; with a model, also the images with the closest scores."""
    store = workbench.store
    image = store.images.get(valid_id(number))
    neighbours = store.scores.neighbours(number, store.versions.released(model).id) if model else []
    return schemas.ImageDetail(
        **{key: getattr(image, key) for key in ("id", "name", "width", "height", "received", "dropped")},
        scores=[
            _recorded(row, workbench.registry.existing_rule(row.version))
            for row in store.scores.of_image(number)
            if caller.may_use(row.model)
        ],
        reviews=[review_schema(row) for row in store.reviews.of_image(number)],
        view=f"/v1/images/{number}/view.png?content={caching.key(image.sha256)}",
        neighbours=[schemas.Neighbour.model_validate(row) for row in neighbours],
    )


@router.get("/images/{number}/original", response_class=Response, responses=BYTES)
async def get_original(
    number: int, request: Request, workbench: Bench, threads: Threads, _: MayReview, content: Content = ""
) -> Response:
    """Get the image file as it was sent."""

    async def read() -> Response:
        original = await to_thread.run_sync(workbench.views.original, number, limiter=threads.originals)
        headers = {"Content-Disposition": "attachment"}
        return Response(original, media_type="application/octet-stream", headers=headers)

    return await caching.cached(request, await _key(workbench, number), content, read)


@router.get("/images/{number}/view.png", response_class=Response, responses=PNG_OR_JPEG)
async def get_view(
    number: int, request: Request, workbench: Bench, threads: Threads, _: MayReview, content: Content = ""
) -> Response:
    """Get the image as any browser shows it: a PNG, or the JPEG that was sent."""

    async def render() -> Response:
        view, media_type = await to_thread.run_sync(workbench.views.for_browser, number, limiter=threads.originals)
        return Response(view, media_type=media_type)

    return await caching.cached(request, await _key(workbench, number), content, render)


@router.get("/images/{number}/thumbnail.jpg", response_class=Response, responses=JPEG)
async def get_thumbnail(
    number: int, request: Request, workbench: Bench, threads: Threads, _: MayReview, rendered: Rendered
) -> Response:
    """Get a small image with its anomaly map as a heat map."""
    row = await _version(workbench, rendered)

    async def read() -> Response:
        rule = await to_thread.run_sync(workbench.registry.existing_rule, row.id)
        map_threshold = None if rule is None else rule.map_threshold
        drawn = await to_thread.run_sync(workbench.views.drawn_thumbnail, number, row, map_threshold)
        if drawn is None:
            drawn = await admission.run_patiently(threads.drawing, lambda: workbench.views.thumbnail(number, row))
        return Response(drawn, media_type="image/jpeg")

    return await caching.cached(request, await _key(workbench, number, row), rendered.content, read)


@router.get("/images/{number}/overlay.png", response_class=Response, responses=PNG)
async def get_overlay(
    number: int,
    request: Request,
    workbench: Bench,
    threads: Threads,
    _: MayScore,
    rendered: Rendered,
    contour: Annotated[
        Literal["threshold", "boundary"],
        Query(description="where colour begins: at the map threshold, or at the paper's normal boundary"),
    ] = "threshold",
) -> Response:
    """Get the image with its anomaly map as a heat map."""
    row = await _version(workbench, rendered)

    async def draw() -> Response:
        overlay = await admission.run_patiently(threads.overlays, lambda: workbench.views.overlay(number, row, contour))
        return Response(overlay, media_type="image/png")

    return await caching.cached(request, await _key(workbench, number, row, contour), rendered.content, draw)


@router.get("/images/{number}/map.png", response_class=Response, responses=PNG)
async def get_map(
    number: int, request: Request, workbench: Bench, threads: Threads, _: MayScore, rendered: Rendered
) -> Response:
    """Get the anomaly map in grey. The headers X-Low, X-High, X-Map-Threshold and X-Boundary hold the map values of
    black, white, the map threshold and the paper's normal boundary. X-Rate is the largest share of good images whose
    maps exceed the map threshold."""

    row = await _version(workbench, rendered)

    async def draw() -> Response:
        grey = await admission.run_patiently(threads.drawing, lambda: workbench.views.grey_map(number, row))
        headers = {"X-Low": repr(grey.low), "X-High": repr(grey.high)}
        headers |= {"X-Map-Threshold": repr(grey.map_threshold), "X-Boundary": repr(grey.boundary)}
        headers |= {"X-Rate": repr(grey.rate)}
        return Response(grey.png, media_type="image/png", headers=headers)

    return await caching.cached(request, await _key(workbench, number, row), rendered.content, draw)


async def _version(workbench: Workbench, rendered: Rendering) -> Version:
    return await to_thread.run_sync(workbench.registry.version, rendered.model, rendered.version)


async def _key(workbench: Workbench, number: int, version: Version | None = None, contour: str = "threshold") -> str:
    """Return the ETag of an image, or of its anomaly map by a version; DataError if its file is not kept."""
    image = await to_thread.run_sync(workbench.store.images.get_kept, valid_id(number))
    if version is None:
        return caching.key(image.sha256)
    rule = await to_thread.run_sync(workbench.registry.existing_rule, version.id)
    return caching.key(image.sha256, *_key_parts(version, rule), *([] if contour == "threshold" else [contour]))


def _key_parts(version: Version, rule: DecisionRule | None) -> list[str]:
    """Return what the drawing of an anomaly map depends on: the model, and where the colours begin."""
    return [version.checksum, version.precision, "" if rule is None else repr(rule.map_threshold)]


@router.get("/images/{number}/score")
async def compute_score(
    number: int, workbench: Bench, threads: Threads, _: MayScore, model: ModelName, version: Number | None = None
) -> schemas.ComputedScore:
    """Score a stored image with any version of a model; the score is not recorded."""

    def compute() -> schemas.ComputedScore:
        row = workbench.registry.version(model, version)
        answer, scorer = workbench.views.score(valid_id(number), row)
        scores = answer.scores
        return schemas.ComputedScore(
            model=model,
            version=row.id,
            checksum=row.checksum,
            precision=row.precision,
            score=scores.score,
            p_value=scores.p_value,
            threshold=scores.threshold,
            is_anomaly=scores.is_anomaly,
            parts=dict(scores.parts),
            limits=scorer.part_limits,
            reason=scores.reason or None,
            region=scores.region and list(scores.region),
            calibration=workbench.registry.decision_rule(row).calibration_normals,
        )

    return await admission.run_patiently(threads.drawing, compute)


def _recorded(row: RecordedScore, rule: DecisionRule | None) -> schemas.RecordedScore:
    limits = None if rule is None else rule.part_limits
    return schemas.RecordedScore(**asdict(row) | _explanation(row, rule), limits=limits)


def _explanation(row: ListedImage | RecordedScore, rule: DecisionRule | None) -> dict[str, Any]:
    """Return why the present decision on an image is anomalous, and the region that stands out at the present rate.

    Neither is stored, because the thresholds may change. The box of the region is that of the time of scoring.
    """
    if rule is None:
        return {"reason": None, "region": row.region}
    has_region = row.map_max is not None and row.map_max > rule.map_threshold
    reason = explain(rule.part_limits, row.is_anomaly, row.parts, has_region=has_region)
    return {"reason": reason or None, "region": row.region if has_region else None}
