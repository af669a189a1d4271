from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from bgad.service.errors import MissingError
from bgad.service.store.image_list import ImageQuery
from bgad.service.store.scores import NewImage
from bgad.service.store.store import Store
from bgad.service.store.tables import versions
from bgad.service.store.versions import OperatingPoint, Version
from tests.service.conftest import new_schema, page_and_total
from tests.service.store.conftest import at_once, said, scored


def test_an_image_is_known_by_its_content(store: Store, version: Version) -> None:
    number = store.scores.add_image(NewImage("c" * 64, "first.png", 640, 480), version.id, said(0.5))
    assert store.scores.add_image(NewImage("c" * 64, "second.png", 640, 480), version.id, said(0.5)) == number
    assert store.scores.add_image(NewImage("d" * 64, "first.png", 640, 480), version.id, said(0.5)) != number
    found = store.images.get(number)
    assert (found.name, found.width, found.height) == ("first.png", 640, 480)
    assert store.reviews.of_image(number) == []
    assert len(store.scores.of_image(number)) == 1
    with pytest.raises(MissingError, match="there is no image 99"):
        store.images.get(99)


def test_a_second_score_of_a_version_takes_the_place_of_the_first(store: Store, version: Version) -> None:
    number = store.scores.add_image(NewImage("c" * 64, "a.png", 2, 2), version.id, said(0.5))
    store.scores.add(number, version.id, said(0.7))
    (only,) = store.scores.of_image(number)
    assert (only.score, only.model) == (0.7, "gear")


def test_a_score_keeps_its_parts_and_region(store: Store, version: Version) -> None:
    parts = {"map": 1.25, "image": -0.5, "known": 0.0}
    rejected = replace(said(0.75), parts=parts, reason="follows from the others", region=(1, 2, 3, 4))
    number = store.scores.add_image(NewImage("c" * 64, "a.png", 8, 8), version.id, rejected)
    (row,), _ = page_and_total(store, ImageQuery("gear"))
    (kept,) = store.scores.of_image(number)
    assert (kept.parts, kept.region) == (row.parts, row.region) == (parts, [1, 2, 3, 4])
    store.scores.add(number, version.id, replace(rejected, parts=parts | {"known": 1.0}, region=None))
    (kept,) = store.scores.of_image(number)
    assert (kept.parts, kept.region) == (parts | {"known": 1.0}, None)


def test_many_threads_write_the_same_image_once(store: Store, version: Version) -> None:
    numbers = at_once([lambda: store.scores.add_image(NewImage("c" * 64, "a.png", 2, 2), version.id, said(0.5))] * 12)
    assert len(set(numbers)) == 1
    assert page_and_total(store, ImageQuery("gear"))[1] == 1


def test_neighbours_are_the_nearest_scores_of_the_same_version(store: Store, version: Version) -> None:
    numbers = [scored(store, version, float(i)) for i in range(10)]
    assert [n.score for n in store.scores.neighbours(numbers[5], version.id)] == [2, 3, 4, 6, 7, 8]
    assert [n.score for n in store.scores.neighbours(numbers[0], version.id, count=2)] == [1, 2]
    for verdict in ("unsure", "bad"):  # the last one counts
        store.reviews.add(numbers[1], verdict, "ann")
    known = store.scores.neighbours(numbers[0], version.id, count=2)
    assert [(n.verdict, n.is_anomaly) for n in known] == [("bad", False), (None, True)]
    twin = scored(store, version, 5.0, "twin.png")
    assert twin in [n.id for n in store.scores.neighbours(numbers[5], version.id, count=1)]
    wheel = store.versions.add("wheel", "b" * 64, "wheel.bgad", state="released")
    assert store.scores.neighbours(scored(store, wheel, 4.5, "new.png"), version.id) == []


def test_the_series_is_in_the_order_of_time(store: Store, version: Version) -> None:
    for score in (3.0, 1.0, 2.0):
        scored(store, version, score)
    series = store.scores.series(version.id)
    assert [row.score for row in series] == [3.0, 1.0, 2.0]
    assert store.scores.series(version.id, series[1].created) == series[1:]


def test_what_a_version_has_yet_to_score(store: Store, version: Version) -> None:
    wheel = store.versions.add("wheel", "b" * 64, "wheel.bgad", state="released")
    numbers = [scored(store, version, float(score)) for score in range(6)]
    store.reviews.add(numbers[0], "unsure", "ann")
    store.reviews.add(numbers[5], "good", "ann")
    store.reviews.add(scored(store, wheel, 7.0), "bad", "ann")
    times = {row.image: row.created for row in store.scores.series(version.id)}
    second = store.versions.add("gear", "c" * 64, "2.bgad", state="released", parent=version.id)
    store.scores.add(numbers[4], second.id, said(0.5))
    found = store.scores.unscored(second, version.id, 4)  # of 5, 4, 3 and 2
    assert [row.id for row in found] == [numbers[5], numbers[0], numbers[3], numbers[2]]
    assert [row.created for row in found] == [times[row.id] for row in found]
    for row in found:
        store.scores.add_rescored(row.id, second.id, said(0.5), row.created)
    assert store.scores.unscored(second, version.id, 4) == []  # and not another four
    assert store.scores.unscored(version, None, 4) == []


def test_a_score_is_recorded_only_while_its_version_and_rate_are_current(store: Store, version: Version) -> None:
    image = NewImage("c" * 64, "a.png", 2, 2)
    number = store.scores.add_image_if_current(image, version, said(0.5))
    assert number is not None
    store.versions.set_rate(version.id, OperatingPoint(0.1, 1.0), OperatingPoint(0.25, 2.0), "ann")
    assert store.scores.add_image_if_current(image, version, said(0.7)) is None
    changed = store.versions.get(version.id)
    assert store.scores.add_image_if_current(image, changed, said(0.6, 2.0)) == number
    second = store.versions.add("gear", "b" * 64, "2.bgad", state="candidate")
    store.versions.release(second.id, "ann")
    assert store.scores.add_image_if_current(NewImage("d" * 64, "b.png", 2, 2), changed, said(0.7)) is None
    assert [row.score for row in store.scores.of_image(number)] == [0.6]
    assert not store.images.has("d" * 64)


def test_models_with_new_scores(store: Store, version: Version) -> None:
    assert (store.scores.highest_id(), store.scores.models_after(0)) == (0, set())
    scored(store, version, 0.1)
    last = store.scores.highest_id()
    assert (store.scores.models_after(0), store.scores.models_after(last)) == ({"gear"}, set())


def test_a_release_waits_for_the_scores_of_other_services_and_they_for_it(postgres: Path) -> None:
    with closing(Store(new_schema(postgres))) as store:
        version = store.versions.add("gear", "a" * 64, "gear.bgad", state="released")
        image = NewImage("c" * 64, "a.png", 2, 2)
        results: list[int | None] = []
        sender = threading.Thread(
            target=lambda: results.append(store.scores.add_image_if_current(image, version, said(0.5)))
        )
        with store.database.begin() as connection:
            connection.execute(versions.update().values(rate=0.25))
            sender.start()
            sender.join(0.5)
            assert sender.is_alive()  # it does not record a score that a new threshold has missed
        sender.join(30)
        assert results == [None]


def test_no_file_is_removed_while_its_image_is_being_recorded(postgres: Path) -> None:
    with closing(Store(new_schema(postgres))) as store:
        version = store.versions.add("gear", "a" * 64, "gear.bgad", state="released")
        image = NewImage("c" * 64, "a.png", 2, 2)
        sender = threading.Thread(target=lambda: store.scores.add_image(image, version.id, said(0.5)))
        with store.images.removing(image.sha256) as unused:
            assert unused
            sender.start()
            sender.join(0.5)
            assert sender.is_alive()
        sender.join(30)
        with store.images.removing(image.sha256) as unused:
            assert not unused
