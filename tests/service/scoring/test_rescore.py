"""What a version that was released scores again."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from bgad.artifact.folder import checksum
from bgad.service.folders import WORKSPACE
from bgad.service.scoring import rescore
from bgad.service.store.store import Store
from bgad.service.store.versions import Version, Versions
from tests.service.conftest import Maker, Service, png, wait_for

NOTHING = {"done": 0, "total": 0}


def taught(service: Service, name: str = "taught") -> Version:
    """A candidate that scores as the released version does."""
    return add_candidate(service.store, service.bench.folders.models, name)


def add_candidate(store: Store, models: Path, name: str = "taught") -> Version:
    old = store.versions.released("plate")
    place = Path(WORKSPACE) / "versions" / f"{name}.bgad"
    shutil.copytree(models / "plate.bgad", models / place)
    card = models / place / "card.json"
    data = json.loads(card.read_text())
    data["provenance"]["created"] = f"another time: {name}"
    data["checksum"] = checksum(data)
    card.write_text(json.dumps(data))
    return store.versions.add("plate", data["checksum"], place.as_posix(), state="candidate", parent=old.id)


def progress(service: Service) -> dict[str, int]:
    return dict(service.client.get("/v1/models/plate").json()["rescoring"])


def scored_by(store: Store, version: Version) -> list[int]:
    return sorted(row.image for row in store.scores.series(version.id))


def test_a_release_says_how_far_it_is_and_draws_thumbnails(service: Service, gate: threading.Event) -> None:
    numbers = [service.score(png(i)) for i in range(4)]
    service.store.reviews.add(numbers[0], "good", "ann")
    second = taught(service)
    gate.clear()
    released = service.client.post(f"/v1/models/plate/versions/{second.id}/release").json()
    assert (released["version"]["id"], released["rescoring"]) == (second.id, {"done": 0, "total": 4})
    assert service.client.post(f"/v1/models/plate/versions/{second.id}/release").json()["rescoring"]["total"] == 4
    gate.set()
    wait_for(lambda: progress(service) == NOTHING)
    assert scored_by(service.store, second) == numbers
    digests = [service.store.images.get(number).sha256 for number in numbers]
    assert all(service.bench.thumbnails.read(digest, second.id, None) for digest in digests)


def test_what_a_service_did_not_get_to_the_next_one_scores(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rescore, "MAX_RECENT", 2)
    first = make()
    numbers = [first.score(png(i)) for i in range(5)]
    first.store.reviews.add(numbers[0], "unsure", "ann")
    second = taught(first)
    first.store.versions.release(second.id, "ann")  # as if it had ended right then
    next_one = make()
    wanted = [numbers[0], *numbers[3:]]
    wait_for(lambda: scored_by(next_one.store, second) == wanted)
    wait_for(lambda: progress(next_one) == NOTHING)
    assert make().client.get("/v1/images", params={"model": "plate"}).json()["total"] == len(wanted)


def test_a_service_that_is_stopped_does_not_score_to_the_end(make: Maker, gate: threading.Event) -> None:
    service = make()
    numbers = [service.score(png(i)) for i in range(6)]
    second = taught(service)
    gate.clear()
    service.bench.release(second, "ann")
    closing = threading.Thread(target=service.bench.close)
    closing.start()
    wait_for(service.bench.rescorer._closed.is_set)
    gate.set()
    closing.join()
    assert len(scored_by(service.store, second)) < len(numbers)
    after = make()
    wait_for(lambda: scored_by(after.store, second) == numbers)


def test_an_image_that_is_gone_and_a_store_that_is_gone_for_a_while(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rescore, "RETRY_SECONDS", 0.1)
    numbers = [service.score(png(i)) for i in range(3)]
    service.bench.views.path(numbers[1]).unlink()
    second = taught(service)
    real, failures = service.store.scores.add_rescored, [sa.exc.OperationalError("insert", {}, Exception("gone"))]

    def failing(*given: Any) -> None:
        if failures:
            raise failures.pop()
        real(*given)

    monkeypatch.setattr(service.store.scores, "add_rescored", failing)
    service.bench.release(second, "ann")
    wait_for(lambda: scored_by(service.store, second) == [numbers[0], numbers[2]])
    wait_for(lambda: progress(service) == NOTHING)
    assert "rescoring of plate waits for the store" in caplog.text
    assert f"image {numbers[1]} is not rescored" in caplog.text


def test_another_release_ends_it(service: Service, gate: threading.Event) -> None:
    old = service.store.versions.released("plate")
    for i in range(6):
        service.score(png(i))
    second = taught(service)
    gate.clear()
    service.bench.release(second, "ann")
    service.bench.release(old, "ann")
    gate.set()
    threads = service.bench.rescorer._threads
    wait_for(lambda: progress(service) == NOTHING and not any(thread.is_alive() for thread in threads))
    assert len(scored_by(service.store, second)) <= 1


def test_what_was_under_way_at_a_release_is_scored_by_the_new_version_too(
    service: Service, gate: threading.Event
) -> None:
    first = service.store.versions.released("plate")
    service.score(png(0))
    second = taught(service)
    service.bench.models.batcher(second)
    gate.clear()
    told: list[int] = []
    senders = [threading.Thread(target=lambda i=i: told.append(service.score(png(50 + i)))) for i in range(3)]
    for sender in senders:
        sender.start()
    wait_for(lambda: service.bench.models.batcher(first).waiting == 3)
    service.bench.release(second, "ann")
    gate.set()
    for sender in senders:
        sender.join()
    wait_for(lambda: set(told) <= set(scored_by(service.store, second)))
    wait_for(lambda: progress(service) == NOTHING)
    assert scored_by(service.store, second) == scored_by(service.store, first)
    times = [{row.image: row.created for row in service.store.scores.series(v.id)} for v in (first, second)]
    assert times[0] == times[1]


def test_what_was_under_way_is_not_forgotten_by_a_second_release(service: Service, gate: threading.Event) -> None:
    """It was scored by the first version alone, so what the second one has scored does not tell the third of it."""
    old = service.store.versions.released("plate")
    number = service.score(png(0))
    second, third = taught(service), taught(service, "third")
    service.bench.models.batcher(second), service.bench.models.batcher(third)
    gate.clear()
    for version in (second, third):
        service.store.versions.release(version.id, "ann")
    service.bench.rescorer.add_late(second, number)
    service.bench.rescorer.release(third)
    gate.set()
    wait_for(lambda: scored_by(service.store, third) == scored_by(service.store, old) == [number])


def test_a_run_that_comes_too_late_goes_on_for_the_version_that_is_released(service: Service) -> None:
    """The image was under way when the second version was released; until it is told, so is the third."""
    old = service.store.versions.released("plate")
    number = service.score(png(0))
    second, third = taught(service), taught(service, "third")
    for version in (second, third):
        service.store.versions.release(version.id, "ann")
    service.bench.rescorer.add_late(second, number)
    wait_for(lambda: scored_by(service.store, third) == [number])
    wait_for(lambda: progress(service) == NOTHING)
    assert (scored_by(service.store, old), scored_by(service.store, second)) == ([number], [])


def test_releases_that_are_told_in_the_wrong_order(service: Service) -> None:
    numbers = [service.score(png(i)) for i in range(3)]
    second, third = taught(service), taught(service, "third")
    service.store.versions.release(second.id, "ann")
    service.bench.rescorer.release(second)
    wait_for(lambda: scored_by(service.store, second) == numbers)
    service.store.versions.release(third.id, "ann")
    service.bench.rescorer.release(second)  # it was released first, but is told of last
    wait_for(lambda: scored_by(service.store, third) == numbers)


def test_a_store_that_is_gone_when_a_service_starts(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rescore, "RETRY_SECONDS", 0.1)
    first = make()
    numbers = [first.score(png(i)) for i in range(3)]
    second = taught(first)
    first.store.versions.release(second.id, "ann")
    real, failures = Versions.released, [sa.exc.OperationalError("select", {}, Exception("gone"))]

    def failing(self: Versions, name: str) -> Version:
        if failures and threading.current_thread().name == "rescore":
            raise failures.pop()
        return real(self, name)

    monkeypatch.setattr(Versions, "released", failing)
    next_one = make()
    wait_for(lambda: scored_by(next_one.store, second) == numbers)
    assert not failures
