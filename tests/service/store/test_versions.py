from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from bgad.errors import ConfigError
from bgad.service.errors import MissingError
from bgad.service.store import image_list, tables
from bgad.service.store.image_list import ImageQuery
from bgad.service.store.store import Store
from bgad.service.store.versions import OperatingPoint, Version
from tests.service.conftest import page_and_total
from tests.service.store.conftest import at_once, fill, scored

OLD, NEW = OperatingPoint(0.05, 1.0), OperatingPoint(0.1, 0.8)


def test_a_version_that_is_there_stays_as_it_is(store: Store, version: Version) -> None:
    assert store.versions.add("gear", "a" * 64, "elsewhere.bgad", state="candidate") == version
    assert store.versions.released("gear") == version
    with pytest.raises(MissingError, match="there is no released model 'wheel'"):
        store.versions.released("wheel")
    with pytest.raises(MissingError, match="there is no version 99"):
        store.versions.get(99)


def test_one_version_of_a_name_is_released(store: Store, version: Version) -> None:
    second = store.versions.add("gear", "b" * 64, "2.bgad", state="candidate", parent=version.id)
    other = store.versions.add("wheel", "b" * 64, "wheel.bgad", state="released")
    assert store.versions.release(second.id, "ann").state == "released"
    assert [v.state for v in store.versions.all("gear")] == ["retired", "released"]
    assert store.versions.released("wheel") == other
    store.versions.release(version.id, "ann")
    assert [v.state for v in store.versions.all("gear")] == ["released", "retired"]
    assert [(e.who, e.what, e.detail) for e in store.history.events("gear")][:2] == [
        ("ann", "release", f"version {version.id}"),
        ("ann", "release", f"version {second.id}"),
    ]


def test_a_discarded_version_cannot_be_released_nor_a_released_one_discarded(store: Store, version: Version) -> None:
    second = store.versions.add("gear", "b" * 64, "2.bgad", state="candidate")
    with pytest.raises(ConfigError, match="is released: release another one first"):
        store.versions.discard(version.id, "ann")
    assert store.versions.discard(second.id, "ann").state == "discarded"
    with pytest.raises(ConfigError, match="has been discarded: release another one"):
        store.versions.release(second.id, "ann")
    for act in (store.versions.release, store.versions.discard):
        with pytest.raises(MissingError, match="there is no version 99"):
            act(99, "ann")


def test_releases_at_the_same_time_leave_one_released(store: Store, version: Version) -> None:
    numbers = [store.versions.add("gear", f"{i:064x}", f"{i}.bgad", state="candidate").id for i in range(6)]
    at_once([lambda n=n: store.versions.release(n, "ann") for n in numbers])
    assert [v.state for v in store.versions.all("gear")].count("released") == 1


def test_another_rate_decides_anew_and_leaves_what_was_sent(store: Store, version: Version) -> None:
    low, high = scored(store, version, 0.9), scored(store, version, 1.2)
    store.versions.set_rate(version.id, OLD, NEW, "ann")
    rows, _ = page_and_total(store, ImageQuery("gear", "anomalous"))
    assert [(r.id, r.is_anomaly, r.threshold) for r in rows] == [(high, True, 0.8), (low, True, 0.8)]
    assert page_and_total(store, ImageQuery("gear", anomalous=False)) == ([], 0)
    assert store.versions.get(version.id).rate == pytest.approx(0.1)
    assert store.history.events("gear")[0].detail == (
        f"version {version.id}: false-reject rate 0.05 -> 0.1, threshold 1 -> 0.8"
    )
    uncertain, _ = page_and_total(store, ImageQuery("gear", "uncertain"))
    assert [r.id for r in uncertain] == [low, high]  # 0.1 and 0.4 from the threshold
    (sent,) = store.scores.of_image(low)
    assert (sent.threshold, sent.is_anomaly) == (0.8, True)
    assert (sent.sent_threshold, sent.sent_is_anomaly) == (1.0, False)
    assert [point.is_anomaly for point in store.scores.series(version.id)] == [True, True]
    assert [one.is_anomaly for one in store.scores.neighbours(high, version.id)] == [True]
    assert store.scores.points(version.id, [low])[low].is_anomaly


@pytest.mark.parametrize("others", [3, 300])
def test_a_threshold_writes_the_same_few_rows_whatever_the_size_of_the_store(
    store: Store, version: Version, others: int
) -> None:
    fill(store, version, others)
    written: list[tuple[str, int]] = []

    def note(_: object, cursor: Any, statement: str, *__: object) -> None:
        if not statement.startswith("SELECT"):
            written.append((statement.split()[0], cursor.rowcount))

    sa.event.listen(store.database.engine, "after_cursor_execute", note)
    store.versions.set_rate(version.id, OLD, NEW, "ann")
    assert written == [("UPDATE", 1), ("INSERT", 1)]  # the version, and the entry of the history


@pytest.mark.parametrize("address", ["postgresql"], indirect=True)
def test_a_threshold_waits_for_nobody_who_holds_scores(address: str, store: Store, version: Version) -> None:
    number = scored(store, version, 0.9)
    with store.database.engine.begin() as holding:
        holding.execute(sa.select(tables.scores).where(tables.scores.c.image == number).with_for_update())
        with closing(Store(address + "%20-clock_timeout%3D5s")) as other:  # a wait is an error, no test that hangs
            other.versions.set_rate(version.id, OLD, NEW, "ann")
    assert store.versions.get(version.id).threshold == 0.8


@pytest.mark.parametrize("merged", [0, 20, 100])
def test_the_most_uncertain_come_first_on_every_page(
    store: Store, version: Version, merged: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_list, "MAX_NEAREST", merged)
    fill(store, version, 40)
    store.versions.set_rate(version.id, OLD, OperatingPoint(0.1, 0.41), "ann")
    query = ImageQuery("gear", limit=7)
    pages = [store.lists.page(replace(query, offset=offset)) for offset in range(0, 42, 7)]
    listed = [row for page in pages for row in page]
    assert [row.id for row in listed] == sorted(range(1, 41), key=lambda i: (abs(i / 40 - 0.41), i))
    assert [store.lists.position(query, row.id) for row in listed] == list(range(40))
    assert store.lists.total(replace(query, anomalous=True)) == sum(i / 40 > 0.41 for i in range(1, 41))
