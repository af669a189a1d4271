from __future__ import annotations

from bgad.service.drift.columns import ScoreColumns
from bgad.service.store.store import Store
from tests.service.drift.test_monitor import START, said, sent


def test_columns_follow_both_stores(address: str) -> None:
    store = Store(address)
    version = store.versions.add("gear", "a" * 64, "gear.bgad", state="released")
    other = store.versions.add("wheel", "b" * 64, "wheel.bgad", state="released")
    columns = ScoreColumns(store, version, {f"{2:064x}"})
    assert columns.update()
    assert len(columns.tested) == 0
    one, learnt, three = sent(store, version, [1.0, 2.0, 3.0])
    store.scores.add(one, other.id, said(0.0))  # of another model: no matter
    assert columns.update()
    assert columns.columns["image"][columns.tested].tolist() == [one, three]
    held = columns.columns["created"]
    store.scores.add(three, version.id, said(3.0))  # at another time
    assert columns.update()
    assert held.tolist() == [START + number for number in (one, learnt, three)]  # who has it keeps it
    assert columns.columns["created"][2] > START + 100
    store.scores.add(three, version.id, said(3.5))
    assert not columns.update()
    store.reviews.add(one, "bad", "ann")
    assert not columns.update()
    assert columns.columns["image"][columns.tested].tolist() == [three]
    assert columns.update()
    store.reviews.add(one, "good", "ann")
    assert not columns.update()
    sent(store, version, [5.0], 10, id=1000)
    assert columns.update()
    late = sent(store, version, [4.0], 9, id=999)  # its number was given before, its row came after
    assert not columns.update()
    assert columns.columns["image"][columns.tested].tolist() == [one, three, *late, 10]
    store.close()
