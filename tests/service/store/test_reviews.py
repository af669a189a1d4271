from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from bgad.errors import ConfigError
from bgad.service.errors import MissingError
from bgad.service.store import tables
from bgad.service.store.image_list import ImageQuery
from bgad.service.store.reviews import Lesson, ReviewChangedError
from bgad.service.store.store import Store
from bgad.service.store.versions import Version
from tests.service.conftest import page_and_total
from tests.service.store.conftest import at_once, said, scored


def test_the_last_review_counts_and_all_are_kept(store: Store, version: Version) -> None:
    number = scored(store, version, 2.0)
    store.reviews.add(number, "good", "ann", note="looks fine")
    last = store.reviews.add(number, "bad", "bob", note="no: a crack", mask="f" * 64)
    assert [(r.verdict, r.who, r.note, r.last) for r in store.reviews.of_image(number)] == [
        ("good", "ann", "looks fine", False),
        ("bad", "bob", "no: a crack", True),
    ]
    (only,) = store.reviews.current()
    assert (only.verdict, only.mask, only.name) == ("bad", "f" * 64, "part.png")
    assert store.reviews.get(last.id) == last
    assert [(e.detail, e.image, e.image_name) for e in store.history.events()[:3]] == [
        (f"image {number}: bad", number, "part.png"),
        (f"image {number}: good", number, "part.png"),
        ("a" * 12, None, ""),
    ]


def test_a_review_that_is_taken_back(store: Store, version: Version) -> None:
    """It is as if it had not been said, everywhere; but the history has it."""
    number = scored(store, version, 2.0)
    good = store.reviews.add(number, "good", "ann", note="looks fine", ignore="e" * 64)
    bad = store.reviews.add(number, "bad", "bob", note="a crack", mask="f" * 64)
    with pytest.raises(ReviewChangedError, match=f"the review of image {number} was changed by bob at ") as refused:
        store.reviews.undo(good.id, "ann")
    assert refused.value.review == bad
    again = store.reviews.undo(bad.id, "bob")
    assert [getattr(again, key) for key in ("verdict", "note", "mask", "ignore", "who", "last")] == [
        "good", "looks fine", None, "e" * 64, "bob", True,
    ]  # fmt: skip
    assert [row.verdict for row in store.reviews.current("gear")] == ["good"]

    other = scored(store, version, 3.0)
    gone = store.reviews.undo(store.reviews.add(other, "bad", "ann", note="oh").id, "ann")
    assert (gone.verdict, gone.note, gone.mask) == ("withdrawn", "", None)
    undone = store.reviews.undo(gone.id, "ann")  # that, too
    assert (undone.verdict, undone.note) == ("bad", "oh")
    store.reviews.undo(undone.id, "ann")
    assert [r.verdict for r in store.reviews.of_image(other)] == ["bad", "withdrawn", "bad", "withdrawn"]
    assert [event.detail for event in store.history.events(what="undo review")] == [
        f"image {other}: bad, now withdrawn", f"image {other}: withdrawn, now bad",
        f"image {other}: bad, now withdrawn", f"image {number}: bad, now good",
    ]  # fmt: skip
    assert [row.image for row in store.reviews.current()] == [number]
    assert [row.id for row in lessons(store, "gear")] == [number]
    for as_of in (None, store.lists.snapshot("gear")):
        by_review = {
            kind: [row.id for row in page_and_total(store, ImageQuery("gear", review=kind, as_of=as_of))[0]]
            for kind in ("none", "any", "bad")
        }
        assert by_review == {"none": [other], "any": [number], "bad": []}
    assert page_and_total(store, ImageQuery("gear", review="none"))[0][0].verdict is None
    second = store.versions.add("gear", "c" * 64, "2.bgad", state="released", parent=version.id)
    assert [row.id for row in store.scores.unscored(second, None, 9)] == [number]
    store.reviews.add(other, "unsure", "ann")
    assert [row.image for row in store.reviews.current()] == [number, other]
    with pytest.raises(MissingError, match="there is no review 99"):
        store.reviews.undo(99, "ann")


def test_a_review_is_taken_back_once(store: Store, version: Version) -> None:
    number = scored(store, version, 2.0)
    bad = store.reviews.add(number, "bad", "ann").id

    def take() -> str:
        try:
            return str(store.reviews.undo(bad, "ann").verdict)
        except ReviewChangedError:
            return "refused"

    assert sorted(map(str, at_once([take] * 6))) == ["refused"] * 5 + ["withdrawn"]


def test_who_has_not_seen_the_last_review_changes_nothing(store: Store, version: Version) -> None:
    number = scored(store, version, 2.0)
    first = store.reviews.add(number, "good", "ann", seen=0)
    second = store.reviews.add(number, "bad", "bob", mask="f" * 64, seen=first.id)
    events = len(store.history.events())
    for stale in (0, first.id):
        with pytest.raises(ReviewChangedError, match="changed by bob at") as refused:
            store.reviews.add(number, "good", "ann", seen=stale)
        assert refused.value.review == second
    assert store.reviews.of_image(number)[-1] == second
    assert len(store.history.events()) == events
    withdrawn = store.reviews.undo(second.id, "bob")
    with pytest.raises(ReviewChangedError):
        store.reviews.add(number, "good", "ann", seen=second.id)
    (row,) = page_and_total(store, ImageQuery("gear"))[0]
    assert row.review == withdrawn.id
    store.reviews.add(number, "good", "ann", seen=row.review)
    store.reviews.add(number, "unsure", "script")  # who does not say what it has seen is not asked
    other = scored(store, version, 3.0)
    assert {row.id: row.review for row in page_and_total(store, ImageQuery("gear"))[0]}[other] == 0


def test_of_reviews_at_the_same_time_that_have_seen_the_same_one_counts(store: Store, version: Version) -> None:
    number = scored(store, version, 2.0)
    seen = store.reviews.add(number, "good", "ann").id

    def say() -> str:
        try:
            return store.reviews.add(number, "bad", "ann", seen=seen).verdict
        except ReviewChangedError:
            return "refused"

    assert sorted(map(str, at_once([say] * 6))) == ["bad"] + ["refused"] * 5


def test_reviews_are_asked_for_by_model(store: Store, version: Version) -> None:
    wheel = store.versions.add("wheel", "b" * 64, "wheel.bgad", state="released")
    gears, wheels = scored(store, version, 2.0), scored(store, wheel, 3.0)
    for number in (gears, wheels):
        store.reviews.add(number, "bad", "ann")
    assert [row.image for row in store.reviews.current()] == [gears, wheels]
    assert [row.image for row in store.reviews.current("gear")] == [gears]
    assert [row.image for row in store.reviews.current("wheel")] == [wheels]


def test_lessons_are_what_any_version_of_a_model_has_scored_and_a_person_called_good_or_bad(
    store: Store, version: Version
) -> None:
    wheel = store.versions.add("wheel", "b" * 64, "wheel.bgad", state="released")
    a, b, c, d = (scored(store, version, score) for score in (1.0, 2.0, 3.0, 4.0))
    for number in (c, a, b, scored(store, wheel, 5.0)):
        store.reviews.add(number, "good", "ann")
    store.reviews.add(a, "bad", "bob", mask="f" * 64)
    store.reviews.add(b, "unsure", "bob")
    second = store.versions.add("gear", "c" * 64, "2.bgad", state="candidate", parent=version.id)
    store.versions.release(second.id, "ann")
    store.scores.add(c, second.id, said(0.25))
    assert [
        tuple(getattr(row, key) for key in ("id", "verdict", "has_mask", "score")) for row in lessons(store, "gear")
    ] == [
        (a, "bad", True, None),  # the newest review
        (c, "good", False, 0.25),
    ]
    first = lessons(store, "gear")[0]
    assert (first.name, first.width, first.height) == ("part.png", 64, 48)
    assert d not in [row.id for row in lessons(store, "gear")]
    with pytest.raises(MissingError, match="there is no released model 'none'"):
        lessons(store, "none")


def lessons(store: Store, name: str) -> list[Lesson]:
    return store.reviews.lessons(name, store.versions.released(name).id)


@pytest.mark.parametrize("address", ["sqlite"], indirect=True)
def test_lessons_and_what_is_to_be_scored_are_found_by_index(store: Store, version: Version) -> None:
    numbers = range(1, 100_001)
    said_of = {"version": version.id, "score": 0.5, "p_value": 0.5, "threshold": 1.0, "is_anomaly": False}
    parts = {"map": 0.5}
    image = {"name": "p", "width": 1, "height": 1, "received": 0.0}
    review = {"verdict": "good", "note": "", "who": "ann", "last": True}
    rows: dict[sa.Table, list[dict[str, object]]] = {
        tables.images: [{"id": i, "sha256": f"{i:064x}", **image} for i in numbers],
        tables.scores: [{"image": i, "created": float(i), "parts": parts, **said_of} for i in numbers],
        tables.reviews: [{"image": i, "created": float(i), **review} for i in numbers[::10]],
    }
    with store.database.engine.begin() as connection:
        for table, values in rows.items():
            connection.execute(table.insert(), values)
    second = store.versions.add("gear", "c" * 64, "2.bgad", state="candidate", parent=version.id)
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    def watch(connection: Any, *_: object) -> None:
        connection.set_progress_handler(count, 1000)

    sa.event.listen(store.database.engine, "checkout", watch)
    assert len(lessons(store, "gear")) == 10_000
    assert len(store.scores.unscored(second, version.id, 2000)) == 11_800
    assert steps < 10_000  # thousands of SQLite's instructions; a scan for each review would take millions


def test_a_review_needs_an_image_and_a_verdict(store: Store) -> None:
    with pytest.raises(MissingError, match="there is no image 7"):
        store.reviews.add(7, "bad", "ann")
    with pytest.raises(ConfigError, match="unknown verdict 'ugly': choose from good, bad, unsure"):
        store.reviews.add(7, "ugly", "ann")
    with pytest.raises(MissingError, match="there is no review 7"):
        store.reviews.get(7)


def test_reviews_of_one_image_at_the_same_time_leave_one_last(store: Store, version: Version) -> None:
    number = scored(store, version, 2.0)
    at_once([lambda: store.reviews.add(number, "bad", "ann")] * 10)
    reviews = store.reviews.of_image(number)
    assert len(reviews) == 10
    assert [r.last for r in reviews].count(True) == 1
