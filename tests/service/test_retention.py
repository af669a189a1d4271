"""How long images are kept."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from bgad.errors import ModelError
from bgad.service import retention, sweep_clock
from bgad.service.blobs import BlobKind
from bgad.service.folders import WORKSPACE
from bgad.service.retention import Retention
from bgad.service.store import dropped_images
from bgad.service.store.reviews import Review
from bgad.service.store.store import Store
from bgad.service.store.tables import images, scores
from bgad.service.store.versions import Version
from bgad.service.sweep_clock import DAY
from tests.service.conftest import Live, Maker, Service, png, sqlite_address, wait_for
from tests.service.scoring.test_rescore import taught

DAYS = 30.0


@pytest.fixture
def kept(make: Maker, address: str, monkeypatch: pytest.MonkeyPatch) -> Service:
    """A service that drops what is older than thirty days, when a test tells it to; with each kind of store."""
    monkeypatch.setattr(Retention, "start", lambda self: None)
    for name, value in {"GRACE_SECONDS": 0.0, "MAX_SILENCE": 1e9, "MAX_BEHIND": 1e9, "MAX_JUMP": 1e9}.items():
        monkeypatch.setattr(sweep_clock, name, value)  # time passes in leaps here
    return make(address, retention_days=DAYS)


def later(service: Service, days: float) -> None:
    """Let time pass."""
    service.store.database.clock = lambda: time.time() + days * DAY


def listed(service: Service) -> list[int]:
    found = service.client.get("/v1/images", params={"model": "plate"}).json()
    assert found["total"] == len(found["images"])
    return sorted(row["id"] for row in found["images"])


def picture(service: Service, number: int) -> Path:
    return service.bench.blobs.location(BlobKind.IMAGE, service.store.images.get(number).sha256)


def thumbnail(service: Service, number: int) -> Path:
    version = service.store.versions.released("plate").id
    return service.bench.blobs.location(BlobKind.THUMBNAIL, f"{service.store.images.get(number).sha256}.{version}")


def leftover(service: Service) -> list[int]:
    return [row.id for row in service.store.dropped.leftovers()]


def test_what_nobody_reviewed_goes_and_the_rest_stays(kept: Service) -> None:
    plain, judged, sent_again, taken_back = [kept.score(png(i)) for i in range(4)]
    wait_for(lambda: all(thumbnail(kept, number).exists() for number in (plain, judged)))
    kept.store.reviews.add(judged, "good", "ann")
    kept.store.reviews.undo(kept.store.reviews.add(taken_back, "bad", "ann").id, "ann")
    later(kept, DAYS - 1)
    assert kept.bench.retention.sweep() == 0
    kept.score(png(2))
    before = kept.client.get("/v1/models/plate/drift").json()
    later(kept, DAYS + 1)
    fresh = kept.score(png(9))
    size = picture(kept, plain).stat().st_size + thumbnail(kept, plain).stat().st_size
    assert kept.bench.retention.sweep() == 1
    assert kept.bench.retention.sweep() == 0
    assert listed(kept) == [judged, sent_again, taken_back, fresh]
    assert not picture(kept, plain).exists()
    assert not thumbnail(kept, plain).exists()
    assert all(picture(kept, number).exists() for number in listed(kept))
    assert thumbnail(kept, judged).exists()
    last = kept.client.get("/v1/history").json()[0]
    said = f"1 images that nobody reviewed in 30 days, {size / 1e6:,.3f} MB"
    assert (last["who"], last["what"], last["detail"]) == ("service", "drop", said)
    assert "bgad_dropped_total 1.0" in kept.client.get("/metrics").text
    after = kept.client.get("/v1/models/plate/drift").json()  # every score is still there
    assert (before["total"], after["total"], after["tested"]) == (4, 5, 5)
    assert after["series"][0] == before["series"][0]


def test_what_is_said_of_an_image_that_was_dropped(kept: Service) -> None:
    number, other = kept.score(png(0), "first.png"), kept.score(png(1))
    kept.store.reviews.add(other, "good", "ann")
    later(kept, DAYS + 1)
    assert kept.bench.retention.sweep() == 1
    detail = kept.client.get(f"/v1/images/{number}").json()
    assert (detail["name"], len(detail["scores"])) == ("first.png", 1)
    assert detail["dropped"] == pytest.approx(time.time() + (DAYS + 1) * DAY, abs=60)
    assert kept.client.get(f"/v1/images/{other}", params={"model": "plate"}).json()["neighbours"] == []
    base, of = f"/v1/images/{number}", {"model": "plate"}
    answers = [
        kept.client.get(f"{base}/original"),
        kept.client.get(f"{base}/view.png"),
        *(
            kept.client.get(f"{base}/{name}", params=of)
            for name in ("thumbnail.jpg", "overlay.png", "map.png", "score")
        ),
        kept.client.post(f"{base}/reviews", json={"verdict": "good"}),
    ]
    said = f"the file of image {number} was not reviewed and is kept no more: send the image again"
    assert [(answer.status_code, answer.json()["detail"]) for answer in answers] == [(410, said)] * len(answers)
    assert kept.score(png(0), "second.png") == number
    assert kept.client.get(f"/v1/images/{number}").json()["dropped"] is None
    assert picture(kept, number).exists()
    assert number in listed(kept)
    assert kept.client.post(f"{base}/reviews", json={"verdict": "good"}).status_code == 201


def test_a_version_that_is_released_does_not_look_for_dropped_images(
    kept: Service, caplog: pytest.LogCaptureFixture
) -> None:
    gone, stays = kept.score(png(0)), kept.score(png(1))
    kept.store.reviews.add(stays, "good", "ann")
    later(kept, DAYS + 1)
    kept.bench.retention.sweep()
    second = taught(kept)
    kept.bench.release(second, "ann")
    wait_for(lambda: kept.client.get("/v1/models/plate").json()["rescoring"]["total"] == 0)
    assert [row.image for row in kept.store.scores.series(second.id)] == [stays]
    assert f"image {gone}" not in caplog.text


def test_what_is_being_sent_is_not_dropped(kept: Service, gate: threading.Event) -> None:
    number = kept.score(png(0))
    later(kept, DAYS + 1)
    gate.clear()
    sender = threading.Thread(target=lambda: kept.score(png(0)))
    sender.start()
    wait_for(lambda: kept.bench.models.waiting() == 1)
    assert kept.bench.retention.sweep() == 0
    there = picture(kept, number).exists()
    gate.set()
    sender.join()
    assert there
    kept.bench.retention.sweep()
    assert (picture(kept, number).exists(), leftover(kept), listed(kept)) == (True, [], [number])


def test_a_review_that_comes_while_it_looks(kept: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    number = kept.score(png(0))
    later(kept, DAYS + 1)
    real = kept.store.dropped.mark

    def reviewed(numbers: list[int], before: float) -> list[int]:
        kept.store.reviews.add(number, "good", "ann")
        return real(numbers, before)

    monkeypatch.setattr(kept.store.dropped, "mark", reviewed)
    assert kept.bench.retention.sweep() == 0
    assert picture(kept, number).exists()
    assert leftover(kept) == []


def test_a_review_that_comes_before_the_file_is_removed(kept: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """It passes the look at the file, but must not be acknowledged."""
    number = kept.score(png(0))
    later(kept, DAYS + 1)
    row = kept.store.images.get(number)  # as who reviews has it
    monkeypatch.setattr(kept.store.images, "get_kept", lambda number: row)
    monkeypatch.setattr(kept.bench.retention, "_remove_leftovers", lambda numbers: None)
    assert kept.bench.retention.sweep() == 1
    assert picture(kept, number).exists()
    answer = kept.client.post(f"/v1/images/{number}/reviews", json={"verdict": "good"})
    assert (answer.status_code, "is kept no more" in answer.json()["detail"]) == (410, True)
    assert kept.store.reviews.of_image(number) == []


def test_ended_in_the_middle_the_next_one_finishes(kept: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = [kept.score(png(i)) for i in range(3)]
    later(kept, DAYS + 1)
    real, calls = kept.bench.retention._remove_leftovers, iter((1, 2))

    def failing(numbers: list[int] | None) -> None:
        if next(calls) == 2:
            raise sa.exc.OperationalError("select", {}, Exception("gone"))
        real(numbers)

    with monkeypatch.context() as m:
        m.setattr(kept.bench.retention, "_remove_leftovers", failing)
        with pytest.raises(sa.exc.OperationalError):
            kept.bench.retention.sweep()
    assert listed(kept) == []
    assert [picture(kept, n).exists() for n in numbers] == [True] * 3
    assert leftover(kept) == numbers
    assert kept.bench.retention.sweep() == 0
    assert [picture(kept, n).exists() for n in numbers] == [False] * 3
    assert leftover(kept) == []
    said = [event.detail for event in kept.store.history.events(what="drop")]
    assert [text.split()[0] for text in said] == ["0", "3"]  # first said, then removed
    assert kept.bench.retention.dropped == 3


def test_a_file_that_cannot_be_removed_keeps_no_others(
    kept: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(retention, "BATCH_SIZE", 2)
    numbers = [kept.score(png(i)) for i in range(5)]
    stuck = picture(kept, numbers[0])
    stuck.unlink()
    (stuck / "inside").mkdir(parents=True)
    later(kept, DAYS + 1)
    assert kept.bench.retention.sweep() == 5
    assert [picture(kept, n).exists() for n in numbers] == [True, False, False, False, False]
    assert leftover(kept) == [numbers[0]]
    warned = f"image {numbers[0]} was dropped, but its file cannot be removed"
    assert caplog.text.count(warned) == 1
    (stuck / "inside").rmdir()
    stuck.rmdir()
    stuck.write_bytes(b"as it was")
    assert kept.bench.retention.sweep() == 0
    assert (stuck.exists(), leftover(kept)) == (False, [])


def test_one_that_was_sent_again_before_its_file_was_removed(kept: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    number = kept.score(png(0))
    later(kept, DAYS + 1)
    with monkeypatch.context() as m:
        m.setattr(kept.bench.retention, "_remove_leftovers", lambda numbers: None)
        assert kept.bench.retention.sweep() == 1
        assert kept.score(png(0)) == number
    assert kept.bench.retention.sweep() == 0
    assert (picture(kept, number).exists(), leftover(kept), listed(kept)) == (True, [], [number])


def test_dropped_twice_before_its_file_was_removed(kept: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    number = kept.score(png(0))
    monkeypatch.setattr(kept.bench.retention, "_remove_leftovers", lambda numbers: None)
    for days in (DAYS + 1, 2 * DAYS + 3):
        later(kept, days)
        assert kept.bench.retention.sweep() == 1
        assert kept.score(png(0)) == number
    assert leftover(kept) == [number]


def second_waits(kept: Service) -> bool:
    """Whether a second durable transaction has begun or, on SQLite, waits for its turn."""
    database = kept.store.database
    if database._durable_writers is None:
        return database.engine.pool.checkedout() == 2  # type: ignore[attr-defined,no-any-return]
    return database._durable_writers.waiting == 1


def test_a_review_that_is_being_written(kept: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the image to itself: the sweep waits, and then leaves the image alone."""
    number = kept.score(png(0))
    later(kept, DAYS + 1)
    written, go_on, real = threading.Event(), threading.Event(), kept.store.reviews._insert

    def slow(connection: sa.Connection, values: dict[str, Any]) -> Review:
        found = real(connection, values)
        written.set()
        assert go_on.wait(60)
        return found

    monkeypatch.setattr(kept.store.reviews, "_insert", slow)
    swept: list[int] = []
    reviewer = threading.Thread(target=lambda: kept.store.reviews.add(number, "good", "ann"))
    sweeper = threading.Thread(target=lambda: swept.append(kept.bench.retention.sweep()))
    reviewer.start()
    assert written.wait(60)
    sweeper.start()
    wait_for(lambda: second_waits(kept))
    early = list(swept)
    go_on.set()
    reviewer.join()
    sweeper.join()
    assert (early, swept) == ([], [0])
    assert picture(kept, number).exists()
    assert kept.store.images.get(number).dropped is None


def test_a_sweep_that_is_being_written(kept: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who reviews waits, and then hears that it is too late; who sends waits for its turn, not for the database."""
    number = kept.score(png(0))
    later(kept, DAYS + 1)
    marking, go_on, real = threading.Event(), threading.Event(), dropped_images._due

    def slow(before: float, *after: tuple[float, int]) -> Any:
        if not after:  # the look within the transaction
            marking.set()
            assert go_on.wait(60)
        return real(before, *after)

    monkeypatch.setattr(dropped_images, "_due", slow)
    row = kept.store.images.get(number)
    monkeypatch.setattr(kept.store.images, "get_kept", lambda number: row)  # it has looked before
    database, answers = kept.store.database, list[int]()

    def review() -> None:
        answers.append(kept.client.post(f"/v1/images/{number}/reviews", json={"verdict": "good"}).status_code)

    sweeper, reviewer = threading.Thread(target=kept.bench.retention.sweep), threading.Thread(target=review)
    sweeper.start()
    assert marking.wait(60)
    assert database._writers is None or database._writers.is_full
    reviewer.start()
    wait_for(lambda: second_waits(kept))
    early = list(answers)
    go_on.set()
    sweeper.join()
    reviewer.join()
    assert (early, answers) == ([], [410])
    assert kept.store.reviews.of_image(number) == []


def test_what_a_model_was_taught_with_stays(kept: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nobody has reviewed it here, as it was taught elsewhere."""
    other, taught_with, tested = (kept.score(png(i)) for i in range(3))
    later(kept, DAYS + 1)
    named = {taught_with: "taught/good/abc-part.png", tested: "test/good/1.png"}
    split = {"images": [{"name": name, "sha256": kept.store.images.get(n).sha256} for n, name in named.items()]}

    def unreadable(version: Version) -> None:
        raise ModelError("card.json: is damaged")

    monkeypatch.setattr(kept.bench.registry, "card", unreadable)
    with pytest.raises(ModelError, match="is damaged"):
        kept.bench.retention.sweep()
    assert listed(kept) == [other, taught_with, tested]
    monkeypatch.setattr(kept.bench.registry, "card", lambda version: SimpleNamespace(split=split))
    assert kept.bench.retention.sweep() == 2
    assert listed(kept) == [taught_with]


def test_what_a_comparison_shows_stays(kept: Service) -> None:
    number = kept.score(png(0))
    sha256, version = kept.store.images.get(number).sha256, kept.store.versions.released("plate")
    wait_for(lambda: thumbnail(kept, number).exists())
    job = kept.store.jobs.add("teach", version, [], "ann")
    rows = [{"sha256": sha256, "name": "part.png"}]
    kept.store.jobs.update(job.id, state="done", result={"validation": {"rows": rows}})
    kept.bench.blobs.put_as(BlobKind.COMPARISON, f"{sha256}.{version.id}", b"a small picture")
    later(kept, DAYS + 1)
    assert kept.bench.retention.sweep() == 1
    assert not picture(kept, number).exists()
    assert not thumbnail(kept, number).exists()
    assert kept.client.get(f"/v1/jobs/{job.id}/validation/0/before.jpg").content == b"a small picture"


def test_what_is_left_of_old_jobs(kept: Service) -> None:
    released = kept.store.versions.released("plate")
    ended, waits = (kept.store.jobs.add("teach", released, [], "ann") for _ in range(2))
    kept.store.jobs.update(ended.id, state="failed", message="no")
    folders = [kept.bench.folders.jobs / str(row.id) for row in (ended, waits)]
    for folder in folders:
        folder.mkdir(parents=True)
    kept.bench.retention.sweep()
    assert [folder.exists() for folder in folders] == [True, True]
    later(kept, DAYS + 1)
    kept.bench.retention.sweep()
    assert [folder.exists() for folder in folders] == [False, True]


def test_a_list_stays_as_it_was(kept: Service) -> None:
    numbers = [kept.score(png(i)) for i in range(8)]
    for number in numbers[3:]:
        kept.store.reviews.add(number, "unsure", "ann")
    later(kept, DAYS + 1)
    query: dict[str, Any] = {"model": "plate", "limit": 4, "order": "anomalous"}
    first = kept.client.get("/v1/images", params=query).json()
    later(kept, DAYS + 1.1)
    assert kept.bench.retention.sweep() == 3
    more = query | {"as_of": first["as_of"], "offset": 4}
    second = kept.client.get("/v1/images", params=more).json()
    assert (first["total"], second["total"]) == (8, 8)
    assert sorted(row["id"] for page in (first, second) for row in page["images"]) == numbers
    assert kept.client.get("/v1/images", params=query).json()["total"] == 5
    ask = {"after": first["as_of"]}
    latest = [kept.client.get("/v1/models/plate/changes", params=ask).json()["latest"] for _ in range(2)]
    later(kept, DAYS + 2)
    assert latest == [kept.client.get("/v1/models/plate/changes", params=ask).json()["latest"]] * 2


def test_an_image_that_goes_while_it_is_asked_for(kept: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    gone, broken = kept.score(png(0)), kept.score(png(1))
    kept.store.reviews.add(broken, "good", "ann")
    picture(kept, broken).write_bytes(b"no picture")
    later(kept, DAYS + 1)
    real = kept.bench.models.score

    def sweeping(*given: Any, **more: Any) -> Any:
        kept.bench.retention.sweep()
        return real(*given, **more)

    def looked_at(name: str) -> Any:
        """Sweep in the middle of a look at a file."""
        first = getattr(Path, name)

        def there(self: Path, *given: Any, **more: Any) -> Any:
            if self.name == sha256 and threading.current_thread().name != "thumbnails":
                monkeypatch.setattr(Path, name, first)
                kept.bench.retention.sweep()
            return first(self, *given, **more)

        return there

    of, sha256 = {"model": "plate"}, kept.store.images.get(gone).sha256
    routes = (("original", "read_bytes"), ("view.png", "read_bytes"), ("reviews", "open"))
    for number, (route, name) in enumerate(routes, 1):
        later(kept, number * (DAYS + 1))
        with monkeypatch.context() as patched:
            patched.setattr(Path, name, looked_at(name))
            if route == "reviews":
                answer = kept.client.post(f"/v1/images/{gone}/reviews", json={"verdict": "good"})
            else:
                answer = kept.client.get(f"/v1/images/{gone}/{route}")
        assert (answer.status_code, "is kept no more: send the image again" in answer.text) == (410, True), route
        kept.score(png(0))
    later(kept, 4 * (DAYS + 1))
    monkeypatch.setattr(kept.bench.models, "score", sweeping)
    answer = kept.client.get(f"/v1/images/{gone}/map.png", params=of)
    assert (answer.status_code, "is kept no more: send the image again" in answer.text) == (410, True)
    answer = kept.client.get(f"/v1/images/{broken}/map.png", params=of)
    assert (answer.status_code, str(kept.bench.folders.models) in answer.text) == (422, False)
    assert answer.json()["detail"].startswith(f"image {broken}")


def test_drift_says_whose_images_went(kept: Service) -> None:
    for i in range(3):
        kept.score(png(i))
    reviewed, *others = (row["image"] for row in kept.client.get("/v1/models/plate/drift").json()["drivers"])
    assert others
    kept.store.reviews.add(reviewed, "good", "ann")
    later(kept, DAYS + 1)
    kept.bench.retention.sweep()
    found = kept.client.get("/v1/models/plate/drift").json()["drivers"]
    assert {row["image"]: row["dropped"] is None for row in found} == {reviewed: True} | dict.fromkeys(others, False)


def test_without_days_everything_is_kept(service: Service) -> None:
    number = service.score(png(0))
    later(service, 10_000)
    assert service.bench.retention.sweep() == 0
    assert listed(service) == [number]


def test_a_store_that_is_gone_is_asked_again(
    make: Maker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(retention, "SWEEP_SECONDS", 0.05)
    failures, real = [sa.exc.OperationalError("select", {}, Exception("gone"))], Retention.sweep
    swept = threading.Event()

    def failing(self: Retention) -> int:
        if failures:
            raise failures.pop()
        swept.set()
        return real(self)

    monkeypatch.setattr(Retention, "sweep", failing)
    make(retention_days=DAYS)
    assert swept.wait(30)
    assert "old images stay for now" in caplog.text


def test_the_option(live: Callable[..., Live]) -> None:
    first = live()
    address = f"{first.address}/v1/models/plate/score"
    with urllib.request.urlopen(urllib.request.Request(address, png(0))) as answer:
        number = json.load(answer)["image"]
    first.end()
    store = Store(sqlite_address(first.models))
    with store.database.engine.begin() as connection:  # as if it had been three days ago, and due for a day
        connection.execute(images.update().values(received=time.time() - 3 * DAY))
        connection.execute(scores.update().values(created=time.time() - 3 * DAY))
    store.sweeps.add(time.time() - 1.5 * DAY, time.time() - 2.5 * DAY)
    live("--retention-days", "1")
    wait_for(lambda: store.images.get(number).dropped is not None)
    store.close()
    wait_for(lambda: not list((first.models / WORKSPACE / BlobKind.IMAGE).glob("*/*")))


def test_a_sweep_drops_a_limited_number(kept: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = [kept.score(png(i)) for i in range(5)]
    monkeypatch.setattr(retention, "MAX_DROPPED", 2)
    monkeypatch.setattr(retention, "BATCH_SIZE", 1)
    later(kept, DAYS + 1)
    assert [kept.bench.retention.sweep() for _ in range(4)] == [2, 2, 1, 0]
    monkeypatch.setattr(retention, "MAX_DROPPED_SHARE", 0.9)
    later(kept, 0)
    assert [kept.score(png(i)) for i in range(5)] == numbers
    later(kept, DAYS + 1)
    assert kept.bench.retention.sweep() == 4
