"""What a token sees: its models, and what it sent itself."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from bgad.service import access
from tests.service.conftest import Maker, Service, png, problem, wait_for
from tests.service.http.test_security import BODIES, ENDPOINTS


def header(service: Service, name: str, role: str, *models: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {access.new_token(service.store.tokens, name, role, models=models or None)}"}


def send(service: Service, model: str, seed: int, headers: dict[str, str]) -> int:
    answer = service.client.post(f"/v1/models/{model}/score", content=png(seed), headers=headers)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["image"])


@pytest.fixture
def two(make: Maker, models: Path, model: Path) -> Service:
    """A service with tokens and two models."""
    shutil.copytree(model, models / "wheel.bgad", copy_function=os.link)
    return make(tokens=True)


def test_a_camera_sees_what_it_sent_itself(make: Maker) -> None:
    service = make(tokens=True)
    camera, other, person = (
        header(service, name, role) for name, role in (("camera", "score"), ("other", "score"), ("ann", "review"))
    )
    mine, theirs = send(service, "plate", 1, camera), send(service, "plate", 2, other)
    files = {"files": ("a.png", png(3))}
    batch = service.client.post("/v1/models/plate/batches", files=files, headers=camera).json()["results"]
    for view in ("overlay.png", "map.png", "score"):
        path = f"/v1/images/{{}}/{view}?model=plate"
        for number in (mine, batch[0]["image"]):
            assert service.client.get(path.format(number), headers=camera).status_code == 200
        assert problem(service.client.get(path.format(theirs), headers=camera), 404) == f"there is no image {theirs}"
        assert service.client.get(path.format(theirs), headers=person).status_code == 200
    send(service, "plate", 2, camera)  # now it has sent that one, too
    assert service.client.get(f"/v1/images/{theirs}/map.png?model=plate", headers=camera).status_code == 200
    renewed = header(service, "camera", "score")
    assert service.client.get(f"/v1/images/{mine}/map.png?model=plate", headers=renewed).status_code == 200


@pytest.mark.parametrize("role", access.ROLES)
def test_a_token_for_one_model_does_not_reach_another(two: Service, role: str) -> None:
    limited, admin = header(two, "limited", role, "plate"), header(two, "admin", "admin")
    number = send(two, "wheel", 1, admin)
    review = two.client.post(f"/v1/images/{number}/reviews", json={"verdict": "bad"}, headers=admin).json()["id"]
    job = two.store.jobs.add("teach", two.store.versions.released("wheel"), [], "admin").id
    for method, path, needed in ENDPOINTS:
        of_own_models = path in ("/v1/me", "/v1/models", "/v1/history", "/v1/history/export")
        if access.ROLES.index(role) < access.ROLES.index(needed) or of_own_models:
            continue
        elsewhere = path.replace("plate", "wheel").replace("images/1", f"images/{number}")
        elsewhere = elsewhere.replace("reviews/1", f"reviews/{review}").replace("jobs/1", f"jobs/{job}")
        body = {"model": "wheel"} if path == "/v1/jobs" else BODIES.get(path)
        answer = two.client.request(method, elsewhere, json=body, headers=limited)
        if (method, path) == ("GET", "/v1/jobs"):
            assert answer.json() == []
        else:
            assert answer.status_code in (403, 404), (method, elsewhere, answer.text)
    assert two.store.reviews.of_image(number)[-1].verdict == "bad"
    problem(two.client.get("/metrics", headers=limited), 403)


def test_a_token_for_one_model_reaches_that_one(two: Service) -> None:
    admin, limited = header(two, "ada", "admin"), header(two, "ann", "admin", "plate")
    send(two, "wheel", 1, admin)
    number = send(two, "plate", 2, limited)
    assert two.client.get("/v1/me", headers=limited).json() == {"name": "ann", "role": "admin", "models": ["plate"]}
    assert [model["name"] for model in two.client.get("/v1/models", headers=limited).json()] == ["plate"]
    assert len(two.client.get("/v1/models", headers=admin).json()) == 2
    send(two, "wheel", 2, admin)  # the same image
    seen = two.client.get(f"/v1/images/{number}?model=plate", headers=limited).json()
    assert [score["model"] for score in seen["scores"]] == ["plate"]
    review = {"verdict": "bad", "model": "wheel"}
    assert "is for plate only" in problem(
        two.client.post(f"/v1/images/{number}/reviews", json=review, headers=limited), 403
    )
    assert two.client.post(
        f"/v1/images/{number}/reviews", json={**review, "model": "plate"}, headers=limited
    ).is_success
    two.client.put("/v1/models/wheel/threshold", json={"rate": 0.5}, headers=admin)
    events = two.client.get("/v1/history", headers=limited).json()
    assert {event["name"] for event in events} == {"plate"}
    assert "review" in {event["what"] for event in events}
    saved = two.client.get("/v1/history/export?format=jsonl", headers=limited).text.splitlines()
    assert [json.loads(line) for line in saved] == events
    path = f"/v1/images/{number}/map.png?model=plate&model=wheel"
    problem(two.client.get(path, headers=limited), 403)


def test_an_expired_token_is_none(make: Maker) -> None:
    service = make(tokens=True)
    token = access.new_token(service.store.tokens, "ann", "admin", expires=1.0)
    answer = service.client.get("/v1/me", headers={"Authorization": f"Bearer {token}"})
    assert "the token is unknown or has expired" in problem(answer, 401)


def test_the_use_of_a_token_is_noted(make: Maker) -> None:
    service = make(tokens=True)
    headers = header(service, "ann", "review")
    assert service.store.tokens.all()[0].used is None
    assert service.client.get("/v1/me", headers=headers).is_success
    wait_for(lambda: service.store.tokens.all()[0].used is not None)
