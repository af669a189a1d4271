"""Routes of the history: pages, search and export."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import Depends, Query
from fastapi.responses import StreamingResponse

from bgad.service.access import Caller
from bgad.service.http import schemas
from bgad.service.http.params import Bench, ModelName, Number, Seconds
from bgad.service.http.security import MayReview, api_router
from bgad.service.store.history import Event, EventFilter, History

EXPORT_PAGE = 1000  # entries that are read at a time
CSV_COLUMNS = ("id", "time", "who", "what", "model", "detail", "image", "image_name")
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")  # with which a spreadsheet begins a formula
MEDIA_TYPES = {"csv": "text/csv; charset=utf-8", "jsonl": "application/jsonl"}
FILES: dict[int | str, dict[str, Any]] = {
    200: {"description": "the file", "content": {kind.partition(";")[0]: {} for kind in MEDIA_TYPES.values()}}
}

router = api_router()


@dataclass
class Filters:
    """The filters of the history."""

    model: ModelName = ""
    search: Annotated[
        str, Query(max_length=200, description="text in who, what, model, detail or image name, in any case")
    ] = ""
    since: Seconds = 0.0
    until: Seconds = 0.0

    def for_caller(self, caller: Caller) -> EventFilter:
        """Return the filter of the store; a caller with a token for single models sees what is about these."""
        names = (self.model,) if self.model else caller.models or ()
        return EventFilter(names, search=self.search, since=self.since, until=self.until)


@router.get("/history")
def get_history(
    workbench: Bench,
    caller: MayReview,
    filters: Annotated[Filters, Depends()],
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
    before: Annotated[Number | None, Query(description="`id` of the last entry of the page before this one")] = None,
) -> list[schemas.Event]:
    """List who did what and when, newest first. To read on, pass the last `id` as `before`: no entry appears twice or
    is left out, whatever happens meanwhile."""
    events = workbench.store.history.page(filters.for_caller(caller), limit, before)
    return [schemas.Event.model_validate(event) for event in events]


@router.get("/history/export", response_class=StreamingResponse, responses=FILES)
def export_history(
    workbench: Bench,
    caller: MayReview,
    filters: Annotated[Filters, Depends()],
    format: Annotated[Literal["csv", "jsonl"], Query(description="CSV, or one JSON object a line")] = "csv",
) -> StreamingResponse:
    """Get the whole history, or what matches the filters, as a file, newest first."""
    encode = _csv_lines if format == "csv" else _json_lines
    headers = {"Content-Disposition": f'attachment; filename="bgad-history.{format}"'}
    content = _export(workbench.store.history, filters.for_caller(caller), encode)
    return StreamingResponse(content, media_type=MEDIA_TYPES[format], headers=headers)


def _export(history: History, wanted: EventFilter, encode: Callable[[list[Event]], str]) -> Iterator[str]:
    if encode is _csv_lines:
        yield ",".join(CSV_COLUMNS) + "\r\n"
    before: int | None = None
    while page := history.page(wanted, EXPORT_PAGE, before):
        yield encode(page)
        before = page[-1].id


def _json_lines(events: list[Event]) -> str:
    return "".join(f"{schemas.Event.model_validate(event).model_dump_json()}\n" for event in events)


def _csv_lines(events: list[Event]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    for event in events:
        time = datetime.fromtimestamp(event.created, UTC).isoformat(timespec="milliseconds")
        image = "" if event.image is None else event.image
        texts = (event.who, event.what, event.name, event.detail)
        writer.writerow([event.id, time, *map(_plain, texts), image, _plain(event.image_name)])
    return buffer.getvalue()


def _plain(text: str) -> str:
    """Return a text that no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text
