"""Routes of models, thresholds and drift."""

from __future__ import annotations

import io
import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from PIL import Image

from bgad.calibration import rate_bound
from bgad.service.http.caching import FOR_GOOD
from bgad.service.store import tables
from bgad.service.store.image_list import ImageQuery
from tests.conftest import SIZE
from tests.service.conftest import (
    SCORE,
    Maker,
    Service,
    page_and_total,
    png,
    problem,
    wait_for,
)


def test_the_models_and_who_asks(service: Service) -> None:
    assert service.client.get("/v1/me").json() == {"name": "local", "role": "admin", "models": None}
    (model,) = service.client.get("/v1/models").json()
    assert model == service.client.get("/v1/models/plate").json()
    assert (model["name"], model["size"], model["scored"]) == ("plate", SIZE, 0)
    assert (model["calibration"], model["rescoring"]) == (5, {"done": 0, "total": 0})
    assert model["version"]["state"] == "released"
    assert model["versions"] == [model["version"]]
    assert model["guarantee"].startswith("A good part is rejected with probability at most")
    assert "no released model 'wheel'" in problem(service.client.get("/v1/models/wheel"), 404)


def test_a_damaged_model_does_not_hide_the_others(models: Path, make: Maker) -> None:
    shutil.copytree(models / "plate.bgad", models / "wheel.bgad")
    make()
    shutil.rmtree(models / "wheel.bgad")
    service = make()
    assert [model["name"] for model in service.client.get("/v1/models").json()] == ["plate"]
    assert "wheel.bgad does not exist" in problem(service.client.get("/v1/models/wheel"), 500)
    service.score(png())


def test_a_model_that_was_trained_anew_takes_the_place_of_the_old_one(models: Path, make: Maker) -> None:
    first = make()
    image = first.score(png())
    old = first.client.get("/v1/models/plate").json()["version"]
    card = models / "plate.bgad" / "card.json"
    data = json.loads(card.read_text())
    data["provenance"]["created"] = "another time"
    from bgad.artifact.folder import checksum

    data["checksum"] = checksum(data)
    card.unlink()  # a link
    card.write_text(json.dumps(data))
    again = make()
    model = again.client.get("/v1/models/plate").json()
    assert model["version"]["checksum"] == data["checksum"]
    assert [v["state"] for v in model["versions"]] == ["discarded", "released"]
    assert again.client.post(SCORE, content=png()).json()["version"] != old["id"]
    assert len(again.client.get(f"/v1/images/{image}").json()["scores"]) == 2


def test_the_threshold_with_what_was_reviewed(service: Service) -> None:
    good, bad = service.score(png(1)), service.score(png(2, defect=True))
    for image, verdict in ((good, "good"), (bad, "bad")):
        assert service.client.post(f"/v1/images/{image}/reviews", json={"verdict": verdict}).status_code == 201
    said = {image: service.store.scores.of_image(image)[0].score for image in (good, bad)}
    found = service.client.get("/v1/models/plate/threshold").json()
    assert (found["good"], found["bad"]) == ([said[good]], [said[bad]])
    assert len(found["calibration"]) == 5
    assert found["rates"] == [pytest.approx(k / 6) for k in (1, 2, 3)]
    assert not found["is_confident"]
    assert found["bounds"] == [pytest.approx(rate_bound(5, k)) for k in (1, 2, 3)]  # of every rate up to a half
    assert f"below {found['bounds'][0]:.3g} with {found['confidence']:.0%} confidence" in found["guarantee"]
    assert found["taught"] == {"good": 0, "bad": 0}
    changed = service.client.put("/v1/models/plate/threshold", json={"rate": 0.5}).json()
    assert changed["rate"] == 0.5
    assert changed["threshold"] == found["calibration"][2]
    assert service.client.post(SCORE, content=png(1)).json()["threshold"] == changed["threshold"]
    assert "rate" in problem(service.client.put("/v1/models/plate/threshold", json={"rate": 0.001}), 422)
    assert "rate" in problem(service.client.put("/v1/models/plate/threshold", json={"rate": 1.5}), 422)
    assert service.client.get("/v1/models/plate/threshold").json()["rate"] == 0.5
    assert service.client.get("/v1/history", params={"model": "plate"}).json()[0]["what"] == "threshold"


def test_a_threshold_that_could_not_be_kept_is_not_in_force(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    service.score(png(1))
    address, shown = "/v1/models/plate/threshold", ("rate", "threshold", "guarantee")
    before = service.client.get(address).json()

    def gone(*_: Any) -> None:
        raise sa.exc.OperationalError("update", {}, Exception("gone"))

    with monkeypatch.context() as patched:
        patched.setattr(service.store.versions, "set_rate", gone)
        problem(service.client.put(address, json={"rate": 0.5}), 503)
    assert service.client.get(address).json() == before
    model = service.client.get("/v1/models/plate").json()
    assert [model[key] for key in shown] == [before[key] for key in shown]
    assert service.client.post(SCORE, content=png(2)).json()["threshold"] == before["threshold"]


def test_an_image_that_is_kept_while_a_threshold_is_set_is_listed_by_it_and_kept_as_sent(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its score comes after the new threshold is in the store, and before it is in force."""
    store, there, on = service.store, threading.Event(), threading.Event()
    set_rate, add_image = store.versions.set_rate, store.scores.add_image
    told: list[dict[str, Any]] = []

    def held(*given: Any) -> int:
        there.set()
        assert on.wait(60)
        return add_image(*given)

    def slow(*given: Any) -> None:
        set_rate(*given)
        on.set()
        wait_for(lambda: page_and_total(store, ImageQuery("plate"))[1] == 1)

    monkeypatch.setattr(store.scores, "add_image", held)
    monkeypatch.setattr(store.versions, "set_rate", slow)
    sender = threading.Thread(target=lambda: told.append(service.client.post(SCORE, content=png(3)).json()))
    sender.start()
    assert there.wait(60)
    changed = service.client.put("/v1/models/plate/threshold", json={"rate": 0.5}).json()
    sender.join()
    ((row,), _) = page_and_total(store, ImageQuery("plate"))
    assert row.threshold == changed["threshold"]
    (sent,) = store.scores.of_image(row.id)
    assert sent.sent_threshold == told[0]["threshold"] != changed["threshold"]


def test_no_camera_waits_while_a_threshold_is_set(models: Path, make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither that of another model nor that of the same one, however long the store takes for it."""
    shutil.copytree(models / "plate.bgad", models / "wheel.bgad")
    service = make()
    before = service.client.post(SCORE, content=png(1)).json()["threshold"]
    set_rate, held, on = service.store.versions.set_rate, threading.Event(), threading.Event()

    def slow(*given: Any) -> None:
        held.set()
        assert on.wait(60)
        set_rate(*given)

    monkeypatch.setattr(service.store.versions, "set_rate", slow)
    with ThreadPoolExecutor(2) as pool:
        changing = pool.submit(service.client.put, "/v1/models/plate/threshold", json={"rate": 0.5})
        try:
            assert held.wait(60)
            for path in (SCORE.replace("plate", "wheel"), SCORE):
                answer = pool.submit(service.client.post, path, content=png(2)).result(20)
                assert answer.json()["threshold"] == before
        finally:
            on.set()
        assert changing.result().json()["threshold"] != before


def test_contours_follow_the_rate(service: Service) -> None:
    """Another rate moves the map threshold: map, words, regions and thumbnails follow without a new score."""
    numbers: list[int] = []
    contours: list[bool] = []
    links: set[str] = set()
    for rate in (0.9, 0.2):
        service.client.put("/v1/models/plate/threshold", json={"rate": rate}).raise_for_status()
        numbers = numbers or [service.score(png(i, defect=i > 5)) for i in range(8)]
        map_threshold = service.client.get("/v1/models/plate").json()["map_threshold"]
        rows = service.client.get("/v1/images?model=plate").json()["images"]
        assert sorted(row["id"] for row in rows) == numbers
        for row in rows:
            answer = service.client.get(f"/v1/images/{row['id']}/map.png?model=plate")
            assert float(answer.headers["X-Map-Threshold"]) == map_threshold
            assert float(answer.headers["X-Rate"]) == rate
            has_contour = float(answer.headers["X-High"]) > map_threshold
            assert bool(row["reason"] and row["reason"].startswith("a region")) == (row["is_anomaly"] and has_contour)
            assert bool(row["region"]) == has_contour
            contours.append(has_contour)
            thumbnail = service.client.get(row["thumbnail"])
            assert thumbnail.headers["cache-control"] == FOR_GOOD
            links.add(row["thumbnail"])
            with Image.open(io.BytesIO(thumbnail.content)) as drawn:
                assert float(drawn.info["comment"]) == map_threshold
    assert sum(contours[:8]) > sum(contours[8:]) > 0
    assert len(links) == 16  # no browser shows a thumbnail of the other rate


def test_another_rate_is_there_after_a_restart(make: Maker) -> None:
    first = make().client.put("/v1/models/plate/threshold", json={"rate": 0.5}).json()
    assert make().client.get("/v1/models/plate").json()["threshold"] == first["threshold"]


def test_drift_shows_the_series_without_what_was_called_bad(service: Service) -> None:
    numbers = [service.score(png(i)) for i in range(4)]
    service.client.post(f"/v1/images/{numbers[1]}/reviews", json={"verdict": "bad"})
    found = service.client.get("/v1/models/plate/drift").json()
    assert [point["image"] for point in found["series"]] == numbers
    assert [level["number"] for level in found["levels"]] == [1, 2, 3]
    assert (found["alarms"], found["since_alarm"], found["recent_alarm"]) == ([], None, False)
    assert "10,000 images" in found["guarantee"]
    later = found["series"][2]["created"]
    assert len(service.client.get("/v1/models/plate/drift", params={"since": later}).json()["series"]) == 2
    for wrong in ("-1", "nan", "inf", "1e999", "soon"):
        problem(service.client.get("/v1/models/plate/drift", params={"since": wrong}), 422)


def test_drift_of_many_is_summed_up(service: Service) -> None:
    version, count = service.store.versions.released("plate"), 50_000
    rng = np.random.default_rng(0)
    found = rng.normal(service.bench.registry.decision_rule(version).threshold - 1, size=count)
    times = 1.7e9 + np.sort(rng.uniform(0, 200 * 86400, count))
    pictures = [
        {"id": i + 1, "sha256": f"{i:064x}", "name": "p", "width": 1, "height": 1, "received": 0} for i in range(count)
    ]
    said = [
        {"image": i + 1, "version": version.id, "score": score, "p_value": 0.5, "threshold": 1.0}
        | {"is_anomaly": score > 1, "created": created, "parts": {"map": score}}
        for i, (score, created) in enumerate(zip(found.tolist(), times.tolist(), strict=True))
    ]
    with service.store.database.engine.begin() as connection:
        connection.execute(tables.images.insert(), pictures)
        connection.execute(tables.scores.insert(), said)

    def asked(**params: Any) -> dict[str, Any]:
        answer = service.client.get("/v1/models/plate/drift", params=params)
        assert answer.status_code == 200, answer.text
        assert len(answer.content) < 1_000_000
        return dict(answer.json())

    days, hours = asked(), asked(every="hour", last=0)
    assert (days["total"], days["tested"], days["every"], hours["every"]) == (count, count, "day", "hour")
    assert sum(one["count"] for one in days["bins"]) == count
    assert len(days["levels"]) <= 2000
    assert len(hours["bins"]) == 2000  # the newest
    assert (len(days["series"]), len(hours["series"])) == (2000, 0)
    assert days["series"][-1]["image"] == count
    second = days["bins"][1]
    inside = found[(times >= second["start"]) & (times < second["end"])]
    assert second["count"] == len(inside)
    threshold = service.bench.registry.decision_rule(version).threshold
    assert 0 < second["flagged"] == pytest.approx((inside > threshold).mean())
    quantiles = [second[key] for key in ("low", "median", "high")]
    assert quantiles == pytest.approx(np.quantile(inside, (0.05, 0.5, 0.95)).tolist())
    assert second["start"] % 86400 == 0
    assert (asked(utc_offset=7200, last=0)["bins"][1]["start"] + 7200) % 86400 == 0
    assert asked(since=times[-1] - 86400)["every"] == "hour"
    for wrong in ({"every": "week"}, {"utc_offset": 10**6}, {"last": -1}, {"last": 2001}):
        problem(service.client.get("/v1/models/plate/drift", params=wrong), 422)


def test_a_list_of_models_opens_none(models: Path, make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(5):
        shutil.copytree(models / "plate.bgad", models / f"wheel-{i}.bgad")
    service = make()
    real = service.client.put("/v1/models/wheel-1/threshold", json={"rate": 0.5}).json()
    service = make()
    monkeypatch.setattr(service.bench.models, "_load", lambda _: pytest.fail("a model was opened"))
    found = {model["name"]: model for model in service.client.get("/v1/models").json()}
    assert len(found) == 6
    assert (found["wheel-1"]["rate"], found["wheel-1"]["threshold"]) == (0.5, real["threshold"])
    assert found["wheel-1"]["guarantee"] == real["guarantee"]
    assert found["wheel-2"]["rate"] != 0.5
    monkeypatch.undo()
    scorer = service.bench.models.batcher(service.store.versions.released("wheel-2")).scorer
    assert (found["wheel-2"]["rate"], found["wheel-2"]["threshold"]) == (scorer.calibration.rate, scorer.threshold)


def test_versions_that_are_not_there(service: Service) -> None:
    for number in (0, -1, 99, 2**31, 2**63, 10**30):
        for act in ("release", "discard"):
            problem(service.client.post(f"/v1/models/plate/versions/{number}/{act}"), 404)
    assert "no way back" in problem(service.client.post("/v1/models/plate/rollback"), 404)
    only = service.client.get("/v1/models/plate").json()["version"]["id"]
    assert "is released" in problem(service.client.post(f"/v1/models/plate/versions/{only}/discard"), 422)
    assert service.client.post(f"/v1/models/plate/versions/{only}/release").status_code == 200
