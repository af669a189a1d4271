"""The service when more comes than it can score: who waits, who is turned away, and what goes on all the same."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from bgad.client import MAX_BATCH
from bgad.service import image_views
from bgad.service.blobs import BlobKind
from bgad.service.http import admission, health
from bgad.service.scoring.batcher import MAX_WAITING, PATIENT_PLACES
from tests.service.conftest import SCORE, Maker, Service, png, problem, token, wait_for

BATCHES = "/v1/models/plate/batches"


def files(count: int, first: int = 0) -> list[tuple[str, tuple[str, bytes]]]:
    return [("files", (f"{i}.png", png(i))) for i in range(first, first + count)]


def ask(service: Service, method: str, path: str, headers: dict[str, str], *body: dict[str, Any]) -> tuple[int, int]:
    """Send a request whose body comes in these messages, after which the client has gone; the status (0 where nothing
    was answered), and how many messages were asked for."""
    sent: list[dict[str, Any]] = []
    asked = 0

    async def receive() -> dict[str, Any]:
        nonlocal asked
        asked += 1
        return body[asked - 1] if asked <= len(body) else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    named = {"host": "localhost", **headers}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode()) for name, value in named.items()],
    }
    assert service.client.portal is not None
    service.client.portal.call(service.client.app, scope, receive, send)
    return next((message["status"] for message in sent if "status" in message), 0), asked


def test_with_a_full_queue_and_many_who_want_maps_all_else_is_answered(
    service: Service, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = service.score(png())
    kept = f"/v1/images/{number}/thumbnail.jpg?model=plate"
    assert service.client.get(kept).status_code == 200
    lost = service.score(png(1))
    wait_for(lambda: service.bench.thumbnails.read(service.store.images.get(lost).sha256, 1, None) is not None)
    service.bench.blobs.remove(BlobKind.THUMBNAIL, f"{service.store.images.get(lost).sha256}.1")
    for module in (admission, image_views):
        monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.2)
    gate.clear()
    looks = 48
    with ThreadPoolExecutor(MAX_WAITING + looks + 3) as pool:
        cameras = [pool.submit(service.client.post, SCORE, content=png(100 + i)) for i in range(MAX_WAITING)]
        wait_for(lambda: service.bench.models.waiting() == MAX_WAITING)
        maps = [pool.submit(service.client.get, f"/v1/images/{number}/map.png?model=plate") for _ in range(looks)]
        wait_for(lambda: sum(look.done() for look in maps) == looks - PATIENT_PLACES)
        for look in (look.result() for look in maps if look.done()):
            assert "too many images wait" in problem(look, 503)
            assert look.headers["retry-after"] == "1"
        problem(service.client.get(f"/v1/images/{lost}/thumbnail.jpg?model=plate"), 503)
        for path in ("/", "/metrics", "/v1/models", "/v1/images?model=plate", f"/v1/images/{number}/view.png", kept):
            assert service.client.get(path).status_code == 200, path
        said = service.client.post(f"/v1/images/{number}/reviews", json={"verdict": "good"})
        assert said.status_code == 201
        problem(service.client.post(SCORE, content=png(999)), 503)  # who is patient has taken no camera's place
        gate.set()
        assert [camera.result().status_code for camera in cameras] == [200] * MAX_WAITING
        assert sorted(look.result().status_code for look in maps) == [200] * PATIENT_PLACES + [503] * (
            looks - PATIENT_PLACES
        )


def test_overlays_do_not_keep_others_from_looking_at_images(
    service: Service, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = service.score(png())
    monkeypatch.setattr(admission, "PATIENCE_SECONDS", 0.2)
    gate.clear()
    with ThreadPoolExecutor(admission.FULL_SIZE_PLACES + 1) as pool:
        overlays = [
            pool.submit(service.client.get, f"/v1/images/{number}/overlay.png?model=plate")
            for _ in range(admission.FULL_SIZE_PLACES + 1)
        ]
        wait_for(lambda: any(overlay.done() for overlay in overlays))
        assert service.client.get(f"/v1/images/{number}/view.png").status_code == 200
        gate.set()
        assert sorted(overlay.result().status_code for overlay in overlays) == [200] * admission.FULL_SIZE_PLACES + [
            503
        ]


def test_batches_are_counted_and_turned_away_when_too_many_images_wait(service: Service, gate: threading.Event) -> None:
    batches = service.client.app.state.batch_admission  # type: ignore[attr-defined]
    gate.clear()
    begun = admission.BATCH_PLACES
    with ThreadPoolExecutor(1) as pool:
        first: Future[Any] = pool.submit(service.client.post, BATCHES, files=files(20))
        wait_for(lambda: service.bench.models.waiting() == begun and batches.waiting() == 20 - begun)
        assert "bgad_waiting 20.0" in service.client.get("/metrics").text
        batches.max_images = 20 - begun + MAX_BATCH - 1  # one less than another batch may have
        unread = {"Content-Type": "multipart/form-data; boundary=x", "Content-Length": "1000"}
        assert ask(service, "POST", BATCHES, unread) == (503, 0)
        parts = [{"type": "http.request", "body": bytes(500), "more_body": more} for more in (True, False)]
        closes = unread | {"Connection": "close"}  # as urllib says: it hears nothing before it has sent all
        assert ask(service, "POST", BATCHES, closes, *parts) == (503, 2)
        refused = service.client.post(BATCHES, files=files(2))
        assert "too many images wait" in problem(refused, 503)
        assert refused.headers["retry-after"] == "1"
        gate.set()
        assert len(first.result().json()["results"]) == 20
    assert batches.waiting() == 0
    assert service.client.post(BATCHES, files=files(2)).status_code == 200
    assert "bgad_waiting 0.0" in service.client.get("/metrics").text


def test_a_client_that_has_left_is_not_scored_for(service: Service) -> None:
    request = service.client.build_request("POST", BATCHES, files=files(6))
    whole = {"type": "http.request", "body": request.read(), "more_body": False}
    assert ask(service, "POST", BATCHES, dict(request.headers), whole)[0] == 0
    assert service.client.get("/v1/images?model=plate").json()["total"] == 0
    half = {"type": "http.request", "body": png()[:100], "more_body": True}
    assert ask(service, "POST", SCORE, {}, half) == (0, 2)  # and nothing is raised that would be in the log
    text = service.client.get("/metrics").text
    for route in ("batches", "score"):
        assert f'bgad_requests_total{{method="POST",route="/v1/models/{{name}}/{route}",status="499"}} 1.0' in text
    assert 'status="500"' not in text


def test_the_role_is_known_before_the_body_is_read(make: Maker) -> None:
    service = make(tokens=True)
    headers = token(service, "score") | {"Content-Type": "application/json"}
    body = {"type": "http.request", "body": b"{}", "more_body": False}
    for method, path in (("POST", "/v1/jobs"), ("PUT", "/v1/models/plate/threshold"), ("POST", "/v1/images/1/reviews")):
        assert ask(service, method, path, headers, body) == (403, 0), path


def test_what_has_no_image_is_short(service: Service) -> None:
    number = service.score(png())
    long = {"verdict": "good", "note": "x" * (3 * 2**20), "model": "plate", "rate": 0.5}
    for method, path in (("POST", "/v1/jobs"), ("PUT", "/v1/models/plate/threshold")):
        assert "send less" in problem(service.client.request(method, path, json=long), 413)
    said = problem(service.client.post(f"/v1/images/{number}/reviews", json=long), 422)  # it was read
    assert "note" in said


def test_a_store_that_hangs_is_not_ready_and_looked_at_once(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, looks = threading.Event(), list[int]()

    def alive() -> bool:
        looks.append(1)
        return answers.wait(60)

    monkeypatch.setattr(service.store.database, "alive", alive)
    monkeypatch.setattr(health, "READY_SECONDS", 0.05)
    for _ in range(3):
        assert service.client.get("/readyz").status_code == 503
    assert len(looks) == 1
    answers.set()
    wait_for(lambda: service.client.get("/readyz").status_code == 200)
    for path in ("/healthz", "/readyz"):
        assert (service.client.head(path).status_code, service.client.head(path).content) == (200, b"")
