"""Bodies: what is refused before it is read, how many bytes are in flight, and how slowly they may arrive."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from bgad.client import MAX_BATCH
from bgad.service.http import uploads
from bgad.service.scoring.batcher import MAX_WAITING
from tests.service.conftest import SCORE, Maker, Service, png, wait_for
from tests.service.http.test_admission import ask

LIMIT = 2**20


def part(size: int, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": bytes(size), "more_body": more}


def scope(path: str, *headers: tuple[bytes, bytes]) -> dict[str, Any]:
    """A POST request."""
    return {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"localhost"), *headers],
    }


def begin_of_answer(service: Service, request: dict[str, Any], receive: Callable[[], Awaitable[Any]]) -> dict[str, Any]:
    """Status and headers of the answer to a request whose body comes as `receive` has it."""
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    assert service.client.portal is not None
    service.client.portal.call(service.client.app, request, receive, send)
    return sent[0]


def bodies(service: Service) -> uploads.BodyLimitMiddleware:
    """The middleware of a service that has answered a request."""
    assert service.client.get("/healthz").is_success
    layer: Any = service.client.app.middleware_stack  # type: ignore[attr-defined]
    while not isinstance(layer, uploads.BodyLimitMiddleware):
        layer = getattr(layer, "_app", None) or layer.app
    return layer


def test_what_the_headers_tell_is_enough_to_refuse(make: Maker) -> None:
    service = make(max_bytes=LIMIT)
    length = 2 * LIMIT + uploads.OVERHEAD_BYTES
    assert ask(service, "POST", SCORE, {"Content-Length": str(length + 1)}, part(9)) == (413, 0)
    assert ask(service, "POST", SCORE, {"Content-Length": str(length)}, part(9)) == (0, 2)  # it is read
    assert ask(service, "POST", "/v1/models/nothing/score", {"Content-Length": "9"}, part(9)) == (404, 0)


def test_a_full_queue_is_told_before_the_image_is_read(service: Service, gate: threading.Event) -> None:
    service.score(png())
    gate.clear()
    with ThreadPoolExecutor(MAX_WAITING) as pool:
        images = [pool.submit(service.client.post, SCORE, content=png(100 + i)) for i in range(MAX_WAITING)]
        wait_for(lambda: service.bench.models.waiting() == MAX_WAITING)
        assert ask(service, "POST", SCORE, {"Content-Length": "9"}, part(9)) == (503, 0)
        gate.set()
        assert {image.result().status_code for image in images} == {200}


def test_all_bodies_together_are_limited(make: Maker, gate: threading.Event) -> None:
    service = make(max_bytes=LIMIT)
    budgets = bodies(service)
    assert budgets.in_memory.max_bytes == 12 * LIMIT  # of a review whose JSON is in memory four times
    budgets.in_memory.max_bytes = 2 * len(png(1)) - 1
    gate.clear()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(service.client.post, SCORE, content=png(1))
        wait_for(lambda: service.bench.models.waiting() == 1)
        assert budgets.in_memory.held == len(png(1))  # also while it waits for its score
        declared = {"Content-Length": str(len(png(1)))}
        assert ask(service, "POST", SCORE, declared, part(1)) == (503, 0)
        whole = part(len(png(1)), more=False)
        assert ask(service, "POST", SCORE, {}, whole) == (503, 1)  # it had not said how long it is
        assert ask(service, "POST", SCORE, {"Connection": "close"}, whole) == (503, 1)
        form = service.client.post(SCORE, files={"file": png(2)[:100]})  # forms wait on the disk
        assert form.status_code == 422
        gate.set()
        assert first.result().status_code == 200
    assert (budgets.in_memory.held, budgets.on_disk.held) == (0, 0)


def test_json_counts_as_often_as_it_is_copied_while_it_is_read(service: Service) -> None:
    path, body = f"/v1/images/{service.score(png())}/reviews", b'{"verdict": "good"}'
    headers, whole = {"Content-Type": "application/json"}, {"type": "http.request", "body": body, "more_body": False}
    budget = bodies(service).in_memory
    budget.max_bytes = uploads.JSON_COPIES * len(body) - 1
    assert ask(service, "POST", path, {**headers, "Content-Length": str(len(body))}, whole) == (503, 0)
    assert ask(service, "POST", path, headers, whole) == (503, 1)
    budget.max_bytes += 1
    assert service.client.post(path, content=body, headers=headers).status_code == 201


def test_forms_on_the_disk_are_limited_too(make: Maker) -> None:
    service = make(max_bytes=LIMIT)
    budgets = bodies(service)
    assert budgets.on_disk.max_bytes == 2 * MAX_BATCH * LIMIT + uploads.OVERHEAD_BYTES
    budgets.on_disk.max_bytes = 100
    answer = service.client.post("/v1/models/plate/batches", files={"files": png()})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert "too many uploads" in answer.json()["detail"]


def test_a_client_that_announces_much_and_sends_nothing_takes_no_room(make: Maker) -> None:
    service = make(max_bytes=LIMIT)
    budgets, silent = bodies(service), threading.Event()

    async def receive() -> dict[str, Any]:
        silent.set()
        await asyncio.Event().wait()
        raise AssertionError

    portal = service.client.portal
    assert portal is not None
    announced = scope(SCORE, (b"content-length", str(2 * LIMIT).encode()))

    async def send(_: Any) -> None:
        """Nobody listens."""

    requests = [portal.start_task_soon(service.client.app, dict(announced), receive, send) for _ in range(50)]
    assert silent.wait(60)
    assert budgets.in_memory.held == 0
    assert service.client.post(SCORE, content=png()).status_code == 200
    for request in requests:
        request.cancel()


@pytest.mark.parametrize("trickles", [False, True])
def test_a_body_that_is_too_slow_is_given_up(service: Service, trickles: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "BODY_SECONDS", 0.2)
    calls = 0

    async def receive() -> dict[str, Any]:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0.02 if trickles else 30)
        return part(1, more=trickles and calls < 400)  # it ends at some time, or the test would not

    closing_json = (b"content-type", b"application/json"), (b"connection", b"close")
    for request in (scope(SCORE), scope("/v1/jobs", *closing_json)):
        answer = begin_of_answer(service, request, receive)
        assert answer["status"] == 408
        assert (b"connection", b"close") in answer["headers"]
    assert calls < 40  # a byte at a time does not prolong it


def test_a_long_body_has_the_time_that_it_needs(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "BODY_SECONDS", 2.0)
    monkeypatch.setattr(uploads, "BODY_RATE", 10)  # the first piece earns minutes
    content, pauses = png(), iter((0.0, 2.5))
    pieces = iter((content[:1000], content[1000:]))

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(next(pauses))
        piece = next(pieces)
        return {"type": "http.request", "body": piece, "more_body": len(piece) == 1000}

    assert begin_of_answer(service, scope(SCORE), receive)["status"] == 200
