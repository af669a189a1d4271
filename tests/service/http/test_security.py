"""Who may do what: roles, other sites, other hosts, and what every answer bears."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from bgad.service import access
from tests.service.conftest import SCORE, Maker, Service, png, problem, token

ENDPOINTS = [
    ("GET", "/v1/me", "score"),
    ("GET", "/v1/models", "score"),
    ("GET", "/v1/models/plate", "score"),
    ("POST", "/v1/models/plate/score", "score"),
    ("POST", "/v1/models/plate/batches", "score"),
    ("GET", "/v1/images/1/overlay.png?model=plate", "score"),
    ("GET", "/v1/images/1/map.png?model=plate", "score"),
    ("GET", "/v1/images/1/score?model=plate", "score"),
    ("GET", "/v1/models/plate/threshold", "review"),
    ("GET", "/v1/models/plate/drift", "review"),
    ("GET", "/v1/models/plate/lessons", "review"),
    ("GET", "/v1/models/plate/changes", "review"),
    ("GET", "/v1/images?model=plate", "review"),
    ("GET", "/v1/images/1", "review"),
    ("GET", "/v1/images/1/original", "review"),
    ("GET", "/v1/images/1/view.png", "review"),
    ("GET", "/v1/images/1/thumbnail.jpg?model=plate", "review"),
    ("POST", "/v1/images/1/reviews", "review"),
    ("POST", "/v1/reviews/1/undo", "review"),
    ("GET", "/v1/reviews/1/mask.png", "review"),
    ("GET", "/v1/jobs", "review"),
    ("GET", "/v1/jobs/1", "review"),
    ("GET", "/v1/jobs/1/events", "review"),
    ("GET", "/v1/jobs/1/validation/0/after.jpg", "review"),
    ("GET", "/v1/history", "review"),
    ("GET", "/v1/history/export", "review"),
    ("PUT", "/v1/models/plate/threshold", "admin"),
    ("POST", "/v1/models/plate/versions/1/release", "admin"),
    ("POST", "/v1/models/plate/versions/1/discard", "admin"),
    ("POST", "/v1/models/plate/rollback", "admin"),
    ("POST", "/v1/jobs", "admin"),
    ("POST", "/v1/jobs/1/cancel", "admin"),
    ("POST", "/v1/jobs/1/resume", "admin"),
]
BODIES: dict[str, Any] = {
    "/v1/jobs": {"model": "plate"},
    "/v1/images/1/reviews": {"verdict": "bad"},
    "/v1/models/plate/threshold": {"rate": 0.5},
}


def test_every_endpoint_is_in_the_list_of_roles(service: Service) -> None:
    schema = service.client.get("/v1/openapi.json").json()
    there = {(method.upper(), path) for path, item in schema["paths"].items() for method in item}
    assert len(there) == len(ENDPOINTS)


def test_each_role_may_what_it_may_and_nothing_else(make: Maker) -> None:
    service = make(tokens=True)
    headers = {role: token(service, role) for role in access.ROLES}
    for method, path, needed in ENDPOINTS:
        body = BODIES.get(path)
        none = service.client.request(method, path, json=body)
        assert "a token is needed" in problem(none, 401)
        assert none.headers["www-authenticate"] == "Bearer"
        for role in access.ROLES:
            answer = service.client.request(method, path, json=body, headers=headers[role])
            if access.ROLES.index(role) < access.ROLES.index(needed):
                assert f"{role} may {role}: this needs the role {needed}" in problem(answer, 403)
            else:
                assert answer.status_code not in (401, 403), (method, path, role)
                assert answer.status_code < 500


def test_what_is_open_without_a_token(make: Maker) -> None:
    service = make(tokens=True)
    for path in ("/", "/v1/docs", "/static/docs.js", "/healthz", "/readyz"):
        assert service.client.get(path).status_code == 200, path
    for path in ("/metrics", "/v1/openapi.json", "/v1/nothing", "/static-not", "/healthz/x"):
        problem(service.client.get(path), 401)
    wrong = {"Authorization": "Bearer bgad_wrong"}
    problem(service.client.get("/v1/me", headers=wrong), 401)
    assert service.client.get("/", headers=wrong).status_code == 200
    right = token(service, "score")
    assert service.client.get("/metrics", headers=right).status_code == 200
    service.store.tokens.remove("score")
    problem(service.client.get("/metrics", headers=right), 401)


def test_reviews_bear_the_name_of_the_token(make: Maker) -> None:
    service = make(tokens=True)
    headers = token(service, "review")
    number = service.client.post(SCORE, content=png(), headers=headers).json()["image"]
    review = service.client.post(f"/v1/images/{number}/reviews", json={"verdict": "bad"}, headers=headers).json()
    assert review["who"] == "review"
    assert service.client.get("/v1/history", headers=headers).json()[0]["who"] == "review"


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost.evil.example"},
        {"Origin": "http://localhost:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_pages_of_other_sites_cannot_change_anything(service: Service, headers: dict[str, str]) -> None:
    for method, path, _ in ENDPOINTS:
        answer = service.client.request(method, path, headers=headers, json=BODIES.get(path))
        if method == "GET":
            assert answer.status_code != 403
            assert "access-control-allow-origin" not in answer.headers
            assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        else:
            assert "other sites" in problem(answer, 403)


def test_our_own_page_may(service: Service) -> None:
    for headers in ({"Origin": "http://localhost"}, {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}):
        assert service.client.post(SCORE, content=png(), headers=headers).status_code == 200


def test_another_host_is_refused(service: Service) -> None:
    for host in ("evil.example", "evil.example:80", "localhost.evil.example", "", "127.0.0.1.nip.io"):
        for path in ("/", "/v1/models", "/healthz"):
            assert "is not a name of this service" in problem(service.client.get(path, headers={"Host": host}), 421)
    for host in ("localhost", "LOCALHOST:8765", "127.0.0.1:1", "[::1]:8765", "[::1]"):
        assert service.client.get("/healthz", headers={"Host": host}).status_code == 200, host


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "X-Real-IP"])
def test_a_proxy_needs_a_token(make: Maker, header: str) -> None:
    through = {header: "192.0.2.7"}
    service = make()
    for path in ("/", "/v1/models"):
        said = problem(service.client.get(path, headers=through), 403)
        assert "no token guards the service: make one with `bgad token add NAME --role admin`" in said
    problem(service.client.post(SCORE, content=png(), headers=through), 403)
    guarded = make(tokens=True)
    assert guarded.client.get("/v1/models", headers=through | token(guarded, "score")).status_code == 200


def test_a_fault_of_ours_is_one_line_with_the_headers(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> list[str]:
        raise RuntimeError("secret")

    monkeypatch.setattr(service.bench.registry, "names", broken)
    client = TestClient(service.client.app, base_url="http://localhost", raise_server_exceptions=False)
    answer = client.get("/v1/models")
    assert problem(answer, 500) == "something went wrong here: the log of the service says what"
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert 'route="/v1/models",status="500"' in service.client.get("/metrics").text


def test_security_headers_are_on_every_answer(service: Service) -> None:
    number = service.score(png())
    paths = ["/", "/v1/docs", "/v1/models", "/v1/nothing", f"/v1/images/{number}/view.png", "/metrics", "/v1/images/99"]
    answers = [service.client.get(path) for path in paths]
    answers += [service.client.get("/", headers={"Host": "evil.example"}), service.client.delete("/v1/models")]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"


def test_methods_that_are_not_there(service: Service) -> None:
    answer = service.client.delete("/v1/models")
    problem(answer, 405)
    assert answer.headers["allow"] == "GET"
    problem(service.client.get("/v1/nothing"), 404)
