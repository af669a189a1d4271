"""How long pictures are kept."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from bgad.service import keeping
from bgad.service.keeping import DAY
from bgad.service.store import Row, Store
from bgad.service.tables import images, scores
from bgad.service.workbench import FOLDER
from service.conftest import Live, Maker, Service, png, sqlite_address, wait_for
from service.test_again import taught

DAYS = 30.0


@pytest.fixture
def kept(make: Maker, address: str, monkeypatch: pytest.MonkeyPatch) -> Service:
    """A service that drops what is older than thirty days, when a test tells it to; with each kind of store."""
    monkeypatch.setattr(keeping.Keeping, "start", lambda self: None)
    return make(address, keep_days=DAYS)


def later(service: Service, days: float) -> None:
    """Let time pass."""
    service.store.clock = lambda: time.time() + days * DAY


def listed(service: Service) -> list[int]:
    found = service.client.get("/v1/images", params={"model": "plate"}).json()
    assert found["total"] == len(found["images"])
    return sorted(row["id"] for row in found["images"])


def picture(service: Service, number: int) -> Path:
    return service.bench.files.place("pictures", service.store.image(number)["sha256"])


def thumbnail(service: Service, number: int) -> Path:
    version = service.store.released("plate")["id"]
    return service.bench.files.place("thumbnails", f"{service.store.image(number)['sha256']}.{version}")


def test_what_nobody_reviewed_goes_and_the_rest_stays(kept: Service) -> None:
    plain, judged, sent_again, taken_back = [kept.score(png(i)) for i in range(4)]
    wait_for(lambda: all(thumbnail(kept, number).exists() for number in (plain, judged)))
    kept.store.add_review(judged, "good", "ann")
    kept.store.take_back(kept.store.add_review(taken_back, "bad", "ann")["id"], "ann")
    later(kept, DAYS - 1)
    assert kept.bench.keeping.sweep() == 0
    kept.score(png(2))
    before = kept.client.get("/v1/models/plate/drift").json()
    later(kept, DAYS + 1)
    fresh = kept.score(png(9))
    size = picture(kept, plain).stat().st_size + thumbnail(kept, plain).stat().st_size
    assert kept.bench.keeping.sweep() == 1
    assert kept.bench.keeping.sweep() == 0
    assert listed(kept) == [judged, sent_again, taken_back, fresh]
    assert not picture(kept, plain).exists()
    assert not thumbnail(kept, plain).exists()
    assert all(picture(kept, number).exists() for number in listed(kept))
    assert thumbnail(kept, judged).exists()
    last = kept.client.get("/v1/history").json()[0]
    said = f"1 pictures that nobody reviewed in 30 days, {size / 2**20:,.1f} MB"
    assert (last["who"], last["what"], last["detail"]) == ("service", "drop", said)
    assert "bgad_dropped_total 1.0" in kept.client.get("/metrics").text
    after = kept.client.get("/v1/models/plate/drift").json()  # every score is still there
    assert (before["total"], after["total"], after["tested"]) == (4, 5, 5)
    assert after["series"][0] == before["series"][0]


def test_what_is_said_of_a_picture_that_was_dropped(kept: Service) -> None:
    number, other = kept.score(png(0), "first.png"), kept.score(png(1))
    kept.store.add_review(other, "good", "ann")
    later(kept, DAYS + 1)
    assert kept.bench.keeping.sweep() == 1
    detail = kept.client.get(f"/v1/images/{number}").json()
    assert (detail["name"], len(detail["scores"])) == ("first.png", 1)
    assert detail["dropped"] == pytest.approx(time.time() + (DAYS + 1) * DAY, abs=60)
    assert kept.client.get(f"/v1/images/{other}", params={"model": "plate"}).json()["neighbours"] == []
    base, of = f"/v1/images/{number}", {"model": "plate"}
    answers = [
        kept.client.get(f"{base}/picture"),
        kept.client.get(f"{base}/view.png"),
        *(
            kept.client.get(f"{base}/{name}", params=of)
            for name in ("thumbnail.jpg", "overlay.png", "map.png", "score")
        ),
        kept.client.post(f"{base}/reviews", json={"verdict": "good"}),
    ]
    said = f"the picture of image {number} was not reviewed and is kept no more: send it again"
    assert [(answer.status_code, answer.json()["detail"]) for answer in answers] == [(410, said)] * len(answers)
    assert kept.score(png(0), "second.png") == number
    assert kept.client.get(f"/v1/images/{number}").json()["dropped"] is None
    assert picture(kept, number).exists()
    assert number in listed(kept)
    assert kept.client.post(f"{base}/reviews", json={"verdict": "good"}).status_code == 201


def test_a_version_that_is_released_does_not_look_for_dropped_pictures(
    kept: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    gone, stays = kept.score(png(0)), kept.score(png(1))
    kept.store.add_review(stays, "good", "ann")
    later(kept, DAYS + 1)
    kept.bench.keeping.sweep()
    second = taught(kept)
    kept.bench.release(second, "ann")
    wait_for(lambda: kept.client.get("/v1/models/plate").json()["again"]["total"] == 0)
    assert [row["image"] for row in kept.store.series(second["id"])] == [stays]
    assert f"image {gone}" not in capsys.readouterr().err


def test_what_is_being_sent_is_not_dropped(kept: Service, gate: threading.Event) -> None:
    number = kept.score(png(0))
    later(kept, DAYS + 1)
    gate.clear()
    sender = threading.Thread(target=lambda: kept.score(png(0)))
    sender.start()
    wait_for(lambda: bool(kept.bench._sent))
    assert kept.bench.keeping.sweep() == 0
    gate.set()
    sender.join()
    assert picture(kept, number).exists()
    assert listed(kept) == [number]


def test_a_review_that_comes_while_it_looks(kept: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    number = kept.score(png(0))
    later(kept, DAYS + 1)

    def reviewing() -> set[str]:
        kept.store.add_review(number, "good", "ann")
        return set()

    monkeypatch.setattr(kept.bench.keeping, "_shown", reviewing)
    assert kept.bench.keeping.sweep() == 0
    assert picture(kept, number).exists()


def test_ended_in_the_middle_the_next_one_finishes(kept: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = [kept.score(png(i)) for i in range(3)]
    later(kept, DAYS + 1)
    monkeypatch.setattr(keeping, "AT_ONCE", 2)
    real, left = kept.bench.thumbnails.drop, [2]

    def failing(*given: object) -> int:
        if left[0] == 0:
            raise OSError("the disk is gone")
        left[0] -= 1
        return real(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(kept.bench.thumbnails, "drop", failing)
    with pytest.raises(OSError, match="the disk is gone"):
        kept.bench.keeping.sweep()
    assert [picture(kept, n).exists() for n in numbers] == [False] * 3
    assert [kept.store.image(n)["dropped"] is None for n in numbers] == [False, False, True]
    monkeypatch.undo()
    assert kept.bench.keeping.sweep() == 1
    assert listed(kept) == []


def test_what_a_comparison_shows_stays(kept: Service) -> None:
    number = kept.score(png(0))
    sha256, version = kept.store.image(number)["sha256"], kept.store.released("plate")
    wait_for(lambda: thumbnail(kept, number).exists())
    job = kept.store.add_job("teach", version, [], "ann")
    rows = [{"sha256": sha256, "name": "part.png"}]
    kept.store.update_job(job["id"], state="done", result={"validation": {"rows": rows}})
    later(kept, DAYS + 1)
    assert kept.bench.keeping.sweep() == 1
    assert not picture(kept, number).exists()
    assert kept.jobs.drawing(job["id"], 0, "before") == thumbnail(kept, number).read_bytes()


def test_folders_of_old_jobs_and_of_discarded_versions(kept: Service) -> None:
    released = kept.store.released("plate")
    wanted, unwanted, learnt_from = (taught(kept, name) for name in ("wanted", "unwanted", "learnt from"))
    ended, waits = (kept.store.add_job("teach", start, [], "ann") for start in (released, learnt_from))
    kept.store.update_job(ended["id"], state="failed", message="no")
    folders = {row["id"]: kept.bench.own("jobs") / str(row["id"]) for row in (ended, waits)}
    for folder in folders.values():
        folder.mkdir(parents=True)
    for version in (unwanted, learnt_from):
        kept.store.discard(version["id"], "ann")
    kept.store.lose(released["id"])  # its folder is the user's

    def there(version: Row) -> bool:
        return kept.bench.models.joinpath(version["folder"], "card.json").exists()

    kept.bench.keeping.sweep()
    assert all(there(version) for version in (released, wanted, unwanted, learnt_from))
    later(kept, DAYS + 1)
    kept.bench.keeping.sweep()
    assert [there(version) for version in (released, wanted, unwanted, learnt_from)] == [True, True, False, True]
    assert [folders[row["id"]].exists() for row in (ended, waits)] == [False, True]


def test_without_days_everything_is_kept(service: Service) -> None:
    number = service.score(png(0))
    later(service, 10_000)
    assert service.bench.keeping.sweep() == 0
    assert listed(service) == [number]


def test_a_store_that_is_gone_is_asked_again(
    make: Maker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(keeping, "PAUSE", 0.05)
    failures, real = [sa.exc.OperationalError("select", {}, Exception("gone"))], keeping.Keeping.sweep
    swept = threading.Event()

    def failing(self: keeping.Keeping) -> int:
        if failures:
            raise failures.pop()
        swept.set()
        return real(self)

    monkeypatch.setattr(keeping.Keeping, "sweep", failing)
    make(keep_days=DAYS)
    assert swept.wait(30)
    assert "old pictures stay for now" in capsys.readouterr().err


def test_the_option(live: Callable[..., Live]) -> None:
    first = live()
    address = f"{first.address}/v1/models/plate/score"
    with urllib.request.urlopen(urllib.request.Request(address, png(0))) as answer:
        number = json.load(answer)["image"]
    first.end()
    store = Store(sqlite_address(first.models))
    with store.engine.begin() as connection:  # as if it had been two days ago
        connection.execute(images.update().values(received=time.time() - 2 * DAY))
        connection.execute(scores.update().values(created=time.time() - 2 * DAY))
    live("--keep-days", "1")
    wait_for(lambda: store.image(number)["dropped"] is not None)
    store.close()
    assert not list((first.models / FOLDER / "pictures").glob("*/*"))
