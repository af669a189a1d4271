from __future__ import annotations

import pytest

from bgad.errors import ConfigError
from bgad.service.errors import MissingError
from bgad.service.store.image_list import ImageQuery
from bgad.service.store.store import Store
from bgad.service.store.versions import Version
from tests.service.conftest import page_and_total
from tests.service.store.conftest import at_once, scored


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


def test_another_rate_judges_the_scores_anew(store: Store, version: Version) -> None:
    low, high = scored(store, version, 0.9), scored(store, version, 1.2)
    store.versions.set_rate(version.id, 0.1, 0.8, "ann")
    rows, _ = page_and_total(store, ImageQuery("gear", "anomalous"))
    assert [(r.id, r.is_anomaly, r.threshold) for r in rows] == [(high, True, 0.8), (low, True, 0.8)]
    assert store.versions.get(version.id).rate == pytest.approx(0.1)
    assert store.history.events("gear")[0].detail == f"version {version.id}: false-reject rate 0.1"
    uncertain, _ = page_and_total(store, ImageQuery("gear", "uncertain"))
    assert [r.id for r in uncertain] == [low, high]  # 0.1 and 0.4 from the threshold
