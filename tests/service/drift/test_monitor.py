"""What the drift test sees of the store, how it goes on, and who hears an alarm."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy.exc import SQLAlchemyError

from bgad.service.drift import monitor
from bgad.service.drift.martingale import DriftTest
from bgad.service.drift.monitor import DriftMonitor, DriftState
from bgad.service.store import tables
from bgad.service.store.image_list import ImageQuery
from bgad.service.store.store import Store
from bgad.service.store.versions import Version
from bgad.types import Scores
from tests.service.conftest import SCORE, Maker, Service, new_schema, page_and_total, png, wait_for
from tests.service.drift.test_martingale import slow_run
from tests.service.scoring.test_rescore import taught

START = 1.7e9


DRIFT = "/v1/models/plate/drift"


def sent(store: Store, version: Version, scores: Iterable[float], first: int = 1, **more: Any) -> list[int]:
    """Images come, one a second, to a version; their numbers."""
    said = list(scores)
    numbers = list(range(first, first + len(said)))
    with store.database.engine.begin() as connection:
        picture = {"name": "p", "width": 1, "height": 1, "received": 0.0}
        connection.execute(tables.images.insert(), [{"id": i, "sha256": f"{i:064x}", **picture} for i in numbers])
        rows = [row(i, version, score) for i, score in zip(numbers, said, strict=True)]
        connection.execute(tables.scores.insert(), [one | more for one in rows])
    return numbers


def row(image: int, version: Version, score: float) -> dict[str, Any]:
    of = {"image": image, "version": version.id, "score": float(score), "p_value": 0.5, "threshold": 2.0}
    more = {"is_anomaly": bool(score > 2), "created": START + image}
    return of | more | {"parts": {"map": float(score)}}


def said(score: float) -> Scores:
    return Scores(score, 0.5, 2.0, score > 2, np.zeros((2, 2), np.float32), 0.0, 0.0)


def images_of(seen: DriftState) -> list[int]:
    return [seen.image(i).image for i in range(len(seen.tested))]


def asked(service: Service, **params: Any) -> dict[str, Any]:
    answer = service.client.get(DRIFT, params={"last": 0, **params})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_what_a_version_scores_again_is_not_in_its_test(service: Service) -> None:
    """Reviewed ones are near the threshold and come with their old times: 60 of them called a false alarm."""
    store, first = service.store, service.store.versions.released("plate")
    rng = np.random.default_rng(1)
    live = sent(store, first, scores := rng.normal(size=6000))
    listed, _ = page_and_total(store, ImageQuery("plate", limit=60))
    for image in listed:
        store.reviews.add(image.id, "unsure", "ann")
    before = asked(service)
    assert (before["tested"], before["alarms"]) == (6000, [])
    second = taught(service)
    store.versions.release(second.id, "ann")
    again = store.scores.unscored(second, first.id, 2000)
    assert 2000 < len(again) <= 2060
    with store.database.engine.begin() as connection:
        rows = [row(one.id, second, scores[one.id - 1]) for one in again]
        connection.execute(tables.scores.insert(), rows)
    after = asked(service)
    assert (after["total"], after["tested"], after["alarms"]) == (len(again), 0, [])
    came = sent(store, second, rng.normal(size=50), 6001)
    store.scores.add(live[0], second.id, said(scores[0]))  # somebody wants to know what the new one says of it
    seen = service.bench.drift.state(second)
    assert images_of(seen) == came
    # back again: the test of the first one goes on, without what the second one has seen before it
    store.versions.release(first.id, "ann")
    with store.database.engine.begin() as connection:
        connection.execute(tables.scores.insert(), [row(number, first, 9.0) for number in came])
    came = sent(store, first, rng.normal(size=20), 7001)
    assert images_of(service.bench.drift.state(first)) == live + came


def test_an_image_that_is_sent_again_keeps_its_place(service: Service) -> None:
    """Else those that somebody wonders about and sends once more would stand at the end together."""
    store, version = service.store, service.store.versions.released("plate")
    live = sent(store, version, scores := np.random.default_rng(0).normal(size=300))
    watching = service.bench.drift
    before = watching.state(version)
    for number in np.argsort(-scores)[:30].tolist():
        store.scores.add(live[number], version.id, said(scores[number]))
    after = watching.state(version)
    assert after.columns["created"].max() > START + 10**6
    assert images_of(after) == live
    assert after.result.levels.tolist() == before.result.levels.tolist()
    assert (np.diff(after.times) >= 0).all()
    assert (
        DriftMonitor(service.store, service.bench.registry).state(version).result.levels.tolist()
        == before.result.levels.tolist()
    )


def test_the_test_goes_on_where_it_was_and_anew_where_the_past_has_changed(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, version = service.store, service.store.versions.released("plate")
    calibration = service.bench.registry.card(version).calibration_at().scores
    rng = np.random.default_rng(1)
    scores = dict(enumerate((*rng.normal(size=300), *rng.normal(2, 1, size=200)), 1))
    fed: list[int] = []
    real = DriftTest.update

    def counted(self: DriftTest, given: Any) -> None:
        fed.append(len(given))
        real(self, given)

    monkeypatch.setattr(DriftTest, "update", counted)

    def right(without: set[int], upto: int) -> None:
        fed.clear()
        wanted = slow_run(calibration, [s for i, s in scores.items() if i <= upto and i not in without], seed=1)
        found = asked(service)
        levels = [level["level"] for level in found["levels"]]
        assert levels == wanted[0]
        order = [i for i in scores if i <= upto and i not in without]
        assert [alarm["image"] for alarm in found["alarms"]] == [order[place] for place in wanted[1]]
        assert [driver["image"] for driver in found["drivers"]] == [order[place] for place in wanted[2]]

    assert version.id == 1
    sent(store, version, [scores[i] for i in range(1, 401)])
    right(set(), 400)
    sent(store, version, [scores[i] for i in range(401, 501)], 401)
    right(set(), 500)
    assert sum(fed) == 100  # what is new
    right(set(), 500)
    assert sum(fed) == 0
    store.reviews.add(350, "bad", "ann")
    right({350}, 500)
    assert sum(fed) == 499
    store.reviews.add(350, "unsure", "ann")
    right(set(), 500)
    assert service.client.put("/v1/models/plate/threshold", json={"rate": 0.5}).status_code == 200
    right(set(), 500)
    limit = service.client.get("/v1/models/plate").json()["threshold"]
    assert asked(service)["bins"][0]["flagged"] == np.mean([score > limit for score in scores.values()])
    later = asked(service, since=START + 301)
    assert (later["total"], later["tested"]) == (200, 200)
    wanted = slow_run(calibration, [scores[i] for i in range(301, 501)], seed=1)
    assert [level["level"] for level in later["levels"]] == wanted[0]


def heard(service: Service) -> list[str]:
    events = service.client.get("/v1/history", params={"model": "plate"}).json()
    found = [event for event in events if event["what"] == "drift alarm"]
    assert {event["who"] for event in found} <= {"service"}
    return [event["detail"] for event in found][::-1]


def meter(service: Service, name: str) -> float:
    lines = service.client.get("/metrics").text.splitlines()
    return next((float(line.split()[-1]) for line in lines if line.startswith(name)), -1.0)


def test_an_alarm_is_heard_once(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "MIN_PAUSE", 0.02)
    monkeypatch.setattr(monitor, "PAUSE_FACTOR", 0)
    service = make()
    store, version = service.store, service.store.versions.released("plate")
    level, alarms = 'bgad_drift_level{model="plate"}', 'bgad_drift_alarms_total{model="plate"}'
    wait_for(lambda: meter(service, alarms) == 0)
    rng = np.random.default_rng(2)
    middle = float(np.median(service.bench.registry.card(version).calibration_at().scores))
    sent(store, version, rng.normal(middle, 1e-3, size=300))
    sent(store, version, rng.normal(middle + 1, 1e-3, size=40), 301)
    answer = service.client.post(SCORE, content=png(1)).json()  # which makes it look
    wait_for(lambda: meter(service, alarms) == 1)
    (alarm,) = asked(service)["alarms"]
    assert heard(service) == [f"image {alarm['image']}: version {version.id}"]
    assert 301 < alarm["image"] < 341
    assert meter(service, level) == asked(service)["levels"][-1]["level"]
    assert meter(service, f'bgad_scored_total{{decision="{answer["decision"]}",model="plate"}}') == 1
    # a verdict moves the alarm, which was heard; then a service begins anew
    for number in range(305, 310):
        store.reviews.add(number, "bad", "ann")
    assert asked(service)["alarms"] != [alarm]
    looks: list[Version] = []
    real = DriftMonitor._report_alarms

    def counted(self: DriftMonitor, version: Version) -> None:
        real(self, version)
        looks.append(version)

    monkeypatch.setattr(DriftMonitor, "_report_alarms", counted)
    service.bench.drift.notify("plate")
    wait_for(lambda: len(looks) == 1)
    other = make()
    wait_for(lambda: len(looks) == 2)
    assert len(heard(other)) == 1
    assert meter(other, alarms) == 1
    # it goes on to change: the next alarm is another one; so few raise one, whatever the image that was scored above
    sent(store, version, rng.normal(middle + 5, 1e-3, size=16), 1001)
    other.bench.drift.notify("plate")
    wait_for(lambda: meter(other, alarms) == 2)  # counted after it is heard
    assert len(heard(other)) == 2


def test_a_watch_without_a_store_goes_on_later(
    make: Maker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(monitor, "MIN_PAUSE", 0.02)
    monkeypatch.setattr(monitor, "PAUSE_FACTOR", 0)
    service = make()
    wait_for(lambda: meter(service, "bgad_drift_level") == 0)
    real, failures = service.store.versions.released, [SQLAlchemyError("gone")]

    def failing(name: str) -> Version:
        if failures:
            raise failures.pop()
        return real(name)

    monkeypatch.setattr(service.store.versions, "released", failing)
    sent(service.store, real("plate"), [1.0])
    service.bench.drift.notify("plate")
    wait_for(lambda: meter(service, "bgad_drift_level") > 0)
    assert "the drift test of plate waits for the store: gone" in caplog.messages


def test_the_watch_sees_what_scorers_record(make: Maker, postgres: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "MIN_PAUSE", 0.02)
    monkeypatch.setattr(monitor, "PAUSE_FACTOR", 0)
    monkeypatch.setattr(monitor, "POLL_SECONDS", 0.1)
    service = make(new_schema(postgres))
    wait_for(lambda: meter(service, "bgad_drift_level") == 0)
    sent(service.store, service.store.versions.released("plate"), [1.0])  # nobody tells the main service
    wait_for(lambda: meter(service, "bgad_drift_level") > 0, 30)
