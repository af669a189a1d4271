"""The history: pages by cursor, search, export, and what exactly it says."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest

from bgad.service.http import history
from bgad.service.store.tables import events
from tests.service.conftest import Service, png, problem
from tests.service.scoring.test_rescore import taught


def fill(service: Service, count: int) -> None:
    rows = [
        {"who": "ann", "what": "review", "name": "plate", "detail": f"entry {i}", "created": float(i)}
        for i in range(count)
    ]
    with service.store.database.begin() as connection:
        connection.execute(events.insert(), rows)


def asked(service: Service, **params: Any) -> list[dict[str, Any]]:
    answer = service.client.get("/v1/history", params=params)
    assert answer.status_code == 200, answer.text
    return list(answer.json())


def test_the_history_goes_on_beyond_a_thousand_entries(service: Service) -> None:
    fill(service, 2500)
    found, before = [], None
    while page := asked(service, limit=1000, **({} if before is None else {"before": before})):
        found += page
        before = page[-1]["id"]
        service.store.history.add("bea", "release")  # what comes meanwhile is on no later page
    assert [entry["detail"] for entry in found][:2500] == [f"entry {i}" for i in reversed(range(2500))]
    assert len({entry["id"] for entry in found}) == len(found)
    assert "bea" not in {entry["who"] for entry in found}
    for wrong in ({"limit": 1001}, {"before": 0}, {"before": "x"}, {"search": "x" * 201}, {"since": -1}):
        problem(service.client.get("/v1/history", params=wrong), 422)


def test_the_history_is_searched(service: Service) -> None:
    first = service.score(png(1), "Left Wheel_7.png")
    second = service.score(png(2), "right.png")
    for number in (first, second):
        service.client.post(f"/v1/images/{number}/reviews", json={"verdict": "bad"})
    assert [entry["image"] for entry in asked(service, search="left wheel")] == [first]
    assert [entry["image"] for entry in asked(service, search="WHEEL_")] == [first]
    assert asked(service, search="left%") == []  # it is text, not a pattern
    assert [entry["image"] for entry in asked(service, search=f"image {second}:")] == [second]
    assert asked(service, search="BAD", model="plate") == asked(service, search="review")
    assert asked(service, search="bad", model="wheel") == []
    times = [entry["created"] for entry in asked(service, search="review")]
    assert [entry["created"] for entry in asked(service, search="review", since=times[0])] == times[:1]
    assert [entry["created"] for entry in asked(service, search="review", until=times[0])] == times[1:]


@pytest.mark.parametrize("page", [1, 3, 1000])
def test_the_history_is_exported(service: Service, page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "EXPORT_PAGE", page)
    number = service.score(png(1), "ü 齿轮.png")
    service.store.reviews.add(number, "bad", "=1+1")
    service.store.history.add("ann", "note", "plate", 'a "quoted", line\nand another')
    entries = asked(service)
    lines = service.client.get("/v1/history/export", params={"format": "jsonl"})
    assert [json.loads(line) for line in lines.text.splitlines()] == entries
    assert lines.headers["content-disposition"] == 'attachment; filename="bgad-history.jsonl"'
    table = service.client.get("/v1/history/export")
    assert table.headers["content-type"] == "text/csv; charset=utf-8"
    rows = list(csv.DictReader(io.StringIO(table.text, newline="")))
    assert [int(row["id"]) for row in rows] == [entry["id"] for entry in entries]
    assert (rows[0]["detail"], rows[1]["image_name"]) == ('a "quoted", line\nand another', "ü 齿轮.png")
    assert rows[1]["who"] == "'=1+1"  # no formula
    assert rows[0]["time"].endswith("+00:00")
    some = service.client.get("/v1/history/export", params={"format": "jsonl", "search": "quoted"}).text
    assert len(some.splitlines()) == 1


def test_a_roll_back_is_called_so_and_a_threshold_has_both_values(service: Service) -> None:
    first = service.store.versions.released("plate").id
    before = service.client.get("/v1/models/plate").json()
    after = service.client.put("/v1/models/plate/threshold", json={"rate": 0.5}).json()
    second = taught(service).id
    assert service.client.post(f"/v1/models/plate/versions/{second}/release").status_code == 200
    assert service.client.post("/v1/models/plate/rollback").json()["version"]["id"] == first
    assert service.client.post("/v1/models/plate/rollback").json()["version"]["id"] == second
    said = [(entry["what"], entry["detail"]) for entry in asked(service) if entry["who"] == "local"]
    assert said == [
        ("roll back", f"version {second}"),
        ("roll back", f"version {first}"),
        ("release", f"version {second}"),
        (
            "threshold",
            f"version {first}: false-reject rate {before['rate']:g} -> 0.5, "
            f"threshold {before['threshold']:.6g} -> {after['threshold']:.6g}",
        ),
    ]
