"""Metrics and readiness."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.service.conftest import (
    Maker,
    Service,
    new_database,
    new_schema,
    png,
    problem,
    token,
)


def test_metrics_count_by_route_and_not_by_what_clients_make_up(service: Service) -> None:
    service.score(png())
    service.client.get("/v1/images/99")
    for i in range(3):
        service.client.get(f"/made-up-{i}")
        service.client.request(f"MADE{i}", "/v1/models")
    text = service.client.get("/metrics").text
    assert 'bgad_requests_total{method="POST",route="/v1/models/{name}/score",status="200"} 1.0' in text
    assert 'bgad_requests_total{method="GET",route="/v1/images/{number}",status="404"} 1.0' in text
    assert "bgad_request_seconds_bucket" in text
    assert "bgad_waiting 0.0" in text
    assert "made-up" not in text
    assert "MADE" not in text


def test_a_service_whose_store_is_gone_is_alive_but_not_ready(make: Maker, postgres: Path) -> None:
    service = make(new_database(postgres))
    headers = token(service, "admin")
    assert service.client.get("/readyz").json() == {"status": "ready"}
    url = service.store.database.engine.url
    other = sa.create_engine(url.set(database="postgres"), isolation_level="AUTOCOMMIT")
    with other.connect() as connection:
        connection.execute(sa.text(f"DROP DATABASE {url.database} WITH (FORCE)"))
    other.dispose()
    answer = service.client.get("/readyz")
    assert (answer.status_code, answer.json()) == (503, {"status": "the store does not answer"})
    assert service.client.get("/healthz").json() == {"status": "alive", "role": "main"}
    for more in ({}, headers):
        gone = service.client.get("/v1/models", headers=more)
        assert "the store does not answer" in problem(gone, 503)
        assert gone.headers["retry-after"]
    assert service.client.get("/readyz", headers=headers).status_code == 503


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_the_whole_way_on_both_stores(make: Maker, request: pytest.FixtureRequest, kind: str) -> None:
    service = make(new_schema(request.getfixturevalue("postgres")) if kind == "postgresql" else None)
    results = service.client.post(
        "/v1/models/plate/batches", files=[("files", (f"{i}.png", png(i))) for i in range(8)]
    ).json()["results"]
    for result in results:
        path = f"/v1/images/{result['image']}/reviews"
        assert service.client.post(path, json={"verdict": "good", "note": "ü 齿轮 😀"}).status_code == 201
    listed = service.client.get("/v1/images", params={"model": "plate", "review": "good"}).json()
    assert listed["total"] == 8
    assert listed["images"][0]["note"] == "ü 齿轮 😀"
    assert len(service.client.get("/v1/models/plate/threshold").json()["good"]) == 8
    assert len(service.client.get("/v1/models/plate/drift").json()["series"]) == 8
