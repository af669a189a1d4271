from __future__ import annotations

import hashlib
import itertools
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import alembic.autogenerate
import alembic.command
import alembic.config
import alembic.migration
import alembic.op
import numpy as np
import pytest
import sqlalchemy as sa

from bgad.errors import ConfigError
from bgad.service import access
from bgad.service.errors import MissingError
from bgad.service.store import tables
from bgad.service.store.image_list import ImageQuery, Snapshot
from bgad.service.store.reviews import Lesson
from bgad.service.store.scores import NewImage
from bgad.service.store.store import Store
from bgad.service.store.versions import Version
from bgad.types import Scores
from tests.service.conftest import new_database, page_and_total


class Clock:
    """Goes on by a second with each look."""

    def __init__(self) -> None:
        self._ticks = itertools.count(1000)

    def __call__(self) -> float:
        return float(next(self._ticks))


@pytest.fixture
def store(address: str) -> Iterator[Store]:
    made = Store(address, Clock())
    yield made
    made.close()


@pytest.fixture
def version(store: Store) -> Version:
    return store.versions.add("gear", "a" * 64, "gear.bgad", state="released")


def said(score: float, threshold: float = 1.0) -> Scores:
    return Scores(score, 0.5, threshold, score > threshold, np.zeros((2, 2), np.float32), 0.0)


def scored(store: Store, version: Version, score: float, name: str = "part.png") -> int:
    """A new image with that score."""
    digest = hashlib.sha256(f"{name} {score}".encode()).hexdigest()
    return store.scores.add_image(NewImage(digest, name, 64, 48), version.id, said(score))


# --- migrations


def test_the_migrations_give_exactly_the_tables(store: Store) -> None:
    with store.database.engine.connect() as connection:
        context = alembic.migration.MigrationContext.configure(connection, opts={"compare_type": True})
        assert alembic.autogenerate.compare_metadata(context, tables.metadata) == []
        names = set(sa.inspect(connection).get_table_names())
    assert names == {*tables.metadata.tables, "alembic_version"}


def test_migrating_twice_changes_nothing(store: Store, address: str, version: Version) -> None:
    again = Store(address)
    assert again.versions.all() == [version]
    again.close()


def test_a_migration_that_is_cut_off_can_be_done_again(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut_off(*_: object, **__: object) -> None:
        raise RuntimeError("no power")

    with monkeypatch.context() as patched:
        patched.setattr(alembic.op, "create_index", cut_off)
        with pytest.raises(RuntimeError, match="no power"):
            Store(address)
    store = Store(address)
    assert store.versions.all() == []
    store.close()


def test_a_database_of_a_newer_bgad_is_refused(store: Store, address: str) -> None:
    with store.database.engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(ConfigError, match=r"was made by a newer bgad .*9999.*: update bgad") as refused:
        Store(address)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("nonsense", "is no address of a store: give postgresql://user@host/name"),
        ("mysql://a@b/c", "mysql is not supported as a store: use postgresql, or leave --store out"),
        ("sqlite:////no/such/folder/store.sqlite", "cannot open the store .*unable to open database file"),
        ("postgresql://u:secret@127.0.0.1:1/x", r"cannot open the store postgresql\+psycopg://u:\*\*\*@127.*refused"),
    ],
)
def test_a_store_that_cannot_be_opened_is_one_line(address: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        Store(address)
    assert "\n" not in str(refused.value)
    assert "secret" not in str(refused.value)


def test_what_sqlite_acknowledges_is_on_the_disk(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'store.sqlite'}")
    with store.database.engine.connect() as connection:
        pragmas = {n: connection.execute(sa.text(f"PRAGMA {n}")).scalar() for n in ("journal_mode", "synchronous")}
        assert connection.execute(sa.text("PRAGMA foreign_keys")).scalar() == 1
    assert pragmas == {"journal_mode": "wal", "synchronous": 2}  # 2: FULL
    store.close()


# --- versions


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


# --- images and scores


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
    assert only.distance == pytest.approx(0.3)


def test_many_threads_write_the_same_image_once(store: Store, version: Version) -> None:
    numbers = at_once([lambda: store.scores.add_image(NewImage("c" * 64, "a.png", 2, 2), version.id, said(0.5))] * 12)
    assert len(set(numbers)) == 1
    assert page_and_total(store, ImageQuery("gear"))[1] == 1


def test_the_orders_of_a_list(store: Store, version: Version) -> None:
    a, b, c = (scored(store, version, score) for score in (3.0, 0.9, 1.5))  # the threshold is 1
    orders = {order: [r.id for r in page_and_total(store, ImageQuery("gear", order))[0]] for order in
              ("uncertain", "anomalous", "newest")}  # fmt: skip
    assert orders == {"uncertain": [b, c, a], "anomalous": [a, c, b], "newest": [c, b, a]}


def test_the_filters_of_a_list(store: Store, version: Version) -> None:
    a, b, c = (scored(store, version, score) for score in (3.0, 0.9, 1.5))
    store.reviews.add(a, "good", "ann")
    store.reviews.add(a, "bad", "ann")
    store.reviews.add(b, "unsure", "ann")
    time_of = {r.id: r.created for r in page_and_total(store, ImageQuery("gear"))[0]}

    def ids(**filters: object) -> set[int]:
        rows, total = page_and_total(store, ImageQuery("gear", **filters))  # type: ignore[arg-type]
        assert total == len(rows)
        return {row.id for row in rows}

    assert ids() == {a, b, c}
    assert ids(anomalous=True) == {a, c}
    assert ids(anomalous=False) == {b}
    assert ids(review="none") == {c}
    assert ids(review="any") == {a, b}
    assert ids(review="bad") == {a}
    assert ids(review="good") == set()  # it was said once, the last word counts
    assert ids(since=time_of[b]) == {b, c}
    assert ids(until=time_of[b]) == {a}
    assert ids(anomalous=True, review="none") == {c}


def test_a_list_in_pages(store: Store, version: Version) -> None:
    everyone = [scored(store, version, score) for score in (5.0, 4.0, 3.0, 2.0, 1.0)]
    pages = [page_and_total(store, ImageQuery("gear", "anomalous", limit=2, offset=offset)) for offset in (0, 2, 4, 6)]
    assert [[row.id for row in rows] for rows, _ in pages] == [everyone[:2], everyone[2:4], everyone[4:], []]
    assert {total for _, total in pages} == {5}


@pytest.mark.parametrize("order", ["uncertain", "anomalous", "newest"])
@pytest.mark.parametrize("review", ["", "none"])
def test_a_list_stays_as_it_was_while_others_score_review_and_release(
    store: Store, version: Version, order: str, review: str
) -> None:
    for score in (5.0, 4.0, 0.5, 1.2, 3.0, 1.1):
        scored(store, version, score)
    wanted = ImageQuery("gear", order, review=review, limit=2, as_of=store.lists.snapshot("gear"))
    whole = [row.id for row in page_and_total(store, replace(wanted, limit=50))[0]]
    seen: list[int] = []
    for offset in (0, 2, 4, 6):
        rows, total = page_and_total(store, replace(wanted, offset=offset))
        assert total == 6
        assert [store.lists.position(wanted, row.id) for row in rows] == list(range(offset, offset + len(rows)))
        seen += [row.id for row in rows]
        new = scored(store, version, 1.0 + offset / 100, "new.png")  # the most uncertain, and the newest
        scored(store, version, 9.0 + offset, "new.png")
        store.reviews.add(seen[0], "bad", "ann")
        assert store.lists.position(wanted, new) is None
        if offset == 2:
            store.versions.release(store.versions.add("gear", "b" * 64, "2.bgad", state="candidate").id, "ann")
    assert seen == whole
    assert page_and_total(store, wanted)[0][0].verdict == "bad"  # the verdicts are those of today
    after = ImageQuery("gear", anomalous=True, after=wanted.as_of)
    assert page_and_total(store, after)[1] == 0  # by the version that is released now
    store.versions.release(version.id, "ann")
    assert page_and_total(store, after)[1] == 7  # all but the one on the threshold
    wheel = store.versions.add("wheel", "c" * 64, "wheel.bgad", state="released")
    with pytest.raises(MissingError, match=f"there is no version {wheel.id} of 'gear'"):
        page_and_total(store, replace(wanted, as_of=store.lists.snapshot("wheel")))


@pytest.mark.parametrize("address", ["postgresql"], indirect=True)
def test_a_list_waits_for_those_who_are_writing(store: Store, version: Version) -> None:
    """They may have a lower number than one that is there already."""
    first = scored(store, version, 5.0)
    score = {"version": version.id, "score": 2.0, "p_value": 0.5, "threshold": 1.0, "is_anomaly": True}
    other = store.versions.add("gear", "b" * 64, "2.bgad", state="candidate").id
    found: list[Snapshot] = []
    asking = threading.Thread(target=lambda: found.append(store.lists.snapshot("gear")))
    with store.database.engine.begin() as connection:
        values = score | {"image": first, "version": other, "distance": 1.0, "created": 1.0}
        number = connection.execute(tables.scores.insert().values(values)).inserted_primary_key
        scored(store, version, 4.0)
        asking.start()
        waiting = sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted")
        with store.database.engine.connect() as watching:
            while not watching.execute(waiting).scalar():
                assert found == []
    asking.join()
    assert number is not None
    assert found[0].score == number[0] + 1


def test_a_list_shows_the_released_version_only(store: Store, version: Version) -> None:
    scored(store, version, 3.0)
    second = store.versions.add("gear", "b" * 64, "2.bgad", state="candidate")
    store.versions.release(second.id, "ann")
    assert page_and_total(store, ImageQuery("gear")) == ([], 0)
    with pytest.raises(MissingError, match="there is no released model 'wheel'"):
        page_and_total(store, ImageQuery("wheel"))


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


# --- reviews


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
    assert [(e.detail, e.image, e.picture) for e in store.history.events()[:3]] == [
        (f"image {number}: bad", number, "part.png"),
        (f"image {number}: good", number, "part.png"),
        ("a" * 12, None, ""),
    ]


def test_a_review_that_is_taken_back(store: Store, version: Version) -> None:
    """It is as if it had not been said, everywhere; but the history has it."""
    number = scored(store, version, 2.0)
    good = store.reviews.add(number, "good", "ann", note="looks fine", ignore="e" * 64)
    bad = store.reviews.add(number, "bad", "bob", note="a crack", mask="f" * 64)
    with pytest.raises(ConfigError, match=f"review {good.id} is not what counts for image {number}"):
        store.reviews.undo(good.id, "bob")
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
        except ConfigError:
            return "refused"

    assert sorted(map(str, at_once([take] * 6))) == ["refused"] * 5 + ["withdrawn"]


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


@pytest.mark.parametrize("address", ["sqlite"], indirect=True)
def test_lessons_and_what_is_to_be_scored_are_found_quickly_among_many(store: Store, version: Version) -> None:
    numbers = range(1, 100_001)
    said_of = {"version": version.id, "score": 0.5, "p_value": 0.5, "threshold": 1.0, "is_anomaly": False}
    image = {"name": "p", "width": 1, "height": 1, "received": 0.0}
    review = {"verdict": "good", "note": "", "who": "ann", "last": True}
    rows: dict[sa.Table, list[dict[str, object]]] = {
        tables.images: [{"id": i, "sha256": f"{i:064x}", **image} for i in numbers],
        tables.scores: [{"image": i, "distance": 0.5, "created": float(i), **said_of} for i in numbers],
        tables.reviews: [{"image": i, "created": float(i), **review} for i in numbers[::10]],
    }
    with store.database.engine.begin() as connection:
        for table, values in rows.items():
            connection.execute(table.insert(), values)
    second = store.versions.add("gear", "c" * 64, "2.bgad", state="candidate", parent=version.id)
    began = time.monotonic()
    assert len(lessons(store, "gear")) == 10_000
    assert len(store.scores.unscored(second, version.id, 2000)) == 11_800
    assert time.monotonic() - began < 5


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


# --- jobs


def test_a_job_from_queued_to_done(store: Store, version: Version) -> None:
    job = store.jobs.add("teach", version, [3, 4], "ann")
    assert (job.state, job.images, job.ended, job.result) == ("queued", [3, 4], None, None)
    store.jobs.update(job.id, state="running", progress=0.5)
    assert store.jobs.get(job.id).ended is None
    store.jobs.update(job.id, state="done", result={"a": [1, None]}, made=version.id)
    ended = store.jobs.get(job.id)
    assert (ended.result, ended.progress) == ({"a": [1, None]}, 0.5)
    assert ended.ended is not None
    assert ended.ended > job.created
    wheel = store.versions.add("wheel", "b" * 64, "wheel.bgad", state="released")
    newer = store.jobs.add("teach", wheel, [], "ann")
    assert [row.id for row in store.jobs.all()] == [newer.id, job.id]
    (only,) = store.jobs.all("gear")
    assert only == replace(ended, result=None)


def test_what_was_not_finished_is_called_interrupted(store: Store, version: Version) -> None:
    jobs = [store.jobs.add("teach", version, [], "ann").id for _ in range(3)]
    store.jobs.update(jobs[1], state="running")
    store.jobs.update(jobs[2], state="done", message="done")
    assert store.jobs.interrupt_unfinished() == jobs[:2]
    said = "the service ended before the job did"
    assert [(store.jobs.get(n).state, store.jobs.get(n).message) for n in jobs] == [
        ("interrupted", said), ("interrupted", said), ("done", "done"),
    ]  # fmt: skip
    assert store.jobs.interrupt_unfinished() == []


# --- tokens


def test_a_token_is_kept_as_a_hash(store: Store) -> None:
    token = access.new_token(store.tokens, "camera-3", "score")
    assert access.authenticate(store.tokens, f"Bearer {token}", required=True) == access.Caller("camera-3", "score")
    for wrong in (None, "", token, f"Basic {token}", f"Bearer {token}x", "Bearer "):
        assert access.authenticate(store.tokens, wrong, required=True) is None
    with store.database.engine.connect() as connection:
        everything = [str(connection.execute(sa.select(table)).all()) for table in tables.metadata.sorted_tables]
    assert token not in "".join(everything)
    assert access.hash_token(token) in "".join(everything)


def test_the_token_is_nowhere_in_the_file(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'store.sqlite'}")
    token = access.new_token(store.tokens, "camera-3", "score")
    store.close()
    content = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"camera-3" in content
    assert token.encode() not in content
    assert token.removeprefix(access.TOKEN_PREFIX).encode() not in content


def test_a_name_has_one_token(store: Store) -> None:
    old, new = access.new_token(store.tokens, "ann", "score"), access.new_token(store.tokens, "ann", "admin")
    assert access.authenticate(store.tokens, f"Bearer {old}", required=True) is None
    assert access.authenticate(store.tokens, f"bearer {new}", required=True) == access.Caller("ann", "admin")
    assert [(row.name, row.role) for row in store.tokens.all()] == [("ann", "admin")]
    assert store.tokens.remove("ann")
    assert not store.tokens.remove("ann")
    assert access.authenticate(store.tokens, f"Bearer {new}", required=True) is None
    assert (
        access.authenticate(store.tokens, f"Bearer {new}", required=False) is None
    )  # a wrong one is not as good as none
    assert access.authenticate(store.tokens, None, required=False) == access.Caller("local", "admin")


def test_a_token_needs_a_role_and_a_name(store: Store) -> None:
    with pytest.raises(ConfigError, match="unknown role 'king': choose from score, review, admin"):
        access.new_token(store.tokens, "ann", "king")
    for name in (" ", "x" * 201):
        with pytest.raises(ConfigError, match="a token needs a name of 1 to 200 letters"):
            access.new_token(store.tokens, name, "score")


def test_a_store_that_is_gone_is_not_alive(postgres: Path) -> None:
    store = Store(new_database(postgres))
    assert store.database.alive()
    other = sa.create_engine(store.database.engine.url.set(database="postgres"), isolation_level="AUTOCOMMIT")
    with other.connect() as connection:
        connection.execute(sa.text(f"DROP DATABASE {store.database.engine.url.database} WITH (FORCE)"))
    other.dispose()
    assert not store.database.alive()
    store.close()


def at_once(calls: list[object]) -> list[object]:
    """Call all of them in threads that start together; what they return."""
    together = threading.Barrier(len(calls))
    results: list[object] = [None] * len(calls)

    def run(i: int) -> None:
        together.wait()
        try:
            results[i] = calls[i]()  # type: ignore[operator]
        except BaseException as error:  # noqa: BLE001 - the test must see it
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
