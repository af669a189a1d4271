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
from bgad.service.http import tokens
from bgad.service.store import dialects, migrations, tables
from bgad.service.store.image_list import Moment, Wanted
from bgad.service.store.store import MissingError, Row, Store
from bgad.types import Scores


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
def version(store: Store) -> Row:
    return store.add_version("gear", "a" * 64, "gear.bgad", state="released")


def said(score: float, threshold: float = 1.0) -> Scores:
    return Scores(score, 0.5, threshold, score > threshold, np.zeros((2, 2), np.float32), 0.0)


def scored(store: Store, version: Row, score: float, name: str = "part.png") -> int:
    """A new image with that score."""
    digest = hashlib.sha256(f"{name} {score}".encode()).hexdigest()
    return store.add_scored(digest, name, 64, 48, version["id"], said(score))


# --- migrations


def test_the_migrations_give_exactly_the_tables(store: Store) -> None:
    with store.engine.connect() as connection:
        context = alembic.migration.MigrationContext.configure(connection, opts={"compare_type": True})
        assert alembic.autogenerate.compare_metadata(context, tables.metadata) == []
        names = set(sa.inspect(connection).get_table_names())
    assert names == {*tables.metadata.tables, "alembic_version"}


def test_migrating_twice_changes_nothing(store: Store, address: str, version: Row) -> None:
    again = Store(address)
    assert again.versions() == [version]
    again.close()


def test_a_database_of_an_older_bgad_is_brought_up_to_date(address: str) -> None:
    old = dialects.engine(address)
    config = alembic.config.Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    with old.begin() as connection:
        config.attributes["connection"] = connection
        alembic.command.upgrade(config, "0001")
        columns = "name, sha256, width, height, received"
        connection.execute(sa.text(f"INSERT INTO images ({columns}) VALUES ('part.png', '{'a' * 64}', 64, 48, 5.0)"))
        assert "dropped" not in [column["name"] for column in sa.inspect(connection).get_columns("images")]
    old.dispose()
    store = Store(address)
    found = store.image(1)
    assert (found["name"], found["received"], found["dropped"]) == ("part.png", 5.0, None)
    store.close()


def test_a_migration_that_is_cut_off_can_be_done_again(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut_off(*_: object, **__: object) -> None:
        raise RuntimeError("no power")

    with monkeypatch.context() as patched:
        patched.setattr(alembic.op, "create_index", cut_off)
        with pytest.raises(RuntimeError, match="no power"):
            Store(address)
    store = Store(address)
    assert store.versions() == []
    store.close()


def test_a_database_of_a_newer_bgad_is_refused(store: Store, address: str) -> None:
    with store.engine.begin() as connection:
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
    with store.engine.connect() as connection:
        pragmas = {n: connection.execute(sa.text(f"PRAGMA {n}")).scalar() for n in ("journal_mode", "synchronous")}
        assert connection.execute(sa.text("PRAGMA foreign_keys")).scalar() == 1
    assert pragmas == {"journal_mode": "wal", "synchronous": 2}  # 2: FULL
    store.close()


# --- versions


def test_a_version_that_is_there_stays_as_it_is(store: Store, version: Row) -> None:
    assert store.add_version("gear", "a" * 64, "elsewhere.bgad", state="candidate") == version
    assert store.released("gear") == version
    with pytest.raises(MissingError, match="there is no released model 'wheel'"):
        store.released("wheel")
    with pytest.raises(MissingError, match="there is no version 99"):
        store.version(99)


def test_one_version_of_a_name_is_released(store: Store, version: Row) -> None:
    second = store.add_version("gear", "b" * 64, "2.bgad", state="candidate", parent=version["id"])
    other = store.add_version("wheel", "b" * 64, "wheel.bgad", state="released")
    assert store.release(second["id"], "ann")["state"] == "released"
    assert [v["state"] for v in store.versions("gear")] == ["retired", "released"]
    assert store.released("wheel") == other
    store.release(version["id"], "ann")
    assert [v["state"] for v in store.versions("gear")] == ["released", "retired"]
    assert [(e["who"], e["what"], e["detail"]) for e in store.history("gear")][:2] == [
        ("ann", "release", f"version {version['id']}"),
        ("ann", "release", f"version {second['id']}"),
    ]


def test_a_discarded_version_cannot_be_released_nor_a_released_one_discarded(store: Store, version: Row) -> None:
    second = store.add_version("gear", "b" * 64, "2.bgad", state="candidate")
    with pytest.raises(ConfigError, match="is released: release another one first"):
        store.discard(version["id"], "ann")
    assert store.discard(second["id"], "ann")["state"] == "discarded"
    with pytest.raises(ConfigError, match="has been discarded: release another one"):
        store.release(second["id"], "ann")
    for act in (store.release, store.discard):
        with pytest.raises(MissingError, match="there is no version 99"):
            act(99, "ann")


def test_releases_at_the_same_time_leave_one_released(store: Store, version: Row) -> None:
    numbers = [store.add_version("gear", f"{i:064x}", f"{i}.bgad", state="candidate")["id"] for i in range(6)]
    at_once([lambda n=n: store.release(n, "ann") for n in numbers])
    assert [v["state"] for v in store.versions("gear")].count("released") == 1


def test_another_rate_judges_the_scores_anew(store: Store, version: Row) -> None:
    low, high = scored(store, version, 0.9), scored(store, version, 1.2)
    store.set_rate(version["id"], 0.1, 0.8, "ann")
    rows, _ = store.listed(Wanted("gear", "anomalous"))
    assert [(r["id"], r["is_anomaly"], r["threshold"]) for r in rows] == [(high, True, 0.8), (low, True, 0.8)]
    assert store.version(version["id"])["rate"] == pytest.approx(0.1)
    assert store.history("gear")[0]["detail"] == f"version {version['id']}: false-reject rate 0.1"
    uncertain, _ = store.listed(Wanted("gear", "uncertain"))
    assert [r["id"] for r in uncertain] == [low, high]  # 0.1 and 0.4 from the threshold


# --- images and scores


def test_an_image_is_known_by_its_content(store: Store, version: Row) -> None:
    number = store.add_scored("c" * 64, "first.png", 640, 480, version["id"], said(0.5))
    assert store.add_scored("c" * 64, "second.png", 640, 480, version["id"], said(0.5)) == number
    assert store.add_scored("d" * 64, "first.png", 640, 480, version["id"], said(0.5)) != number
    found = store.image(number)
    assert (found["name"], found["width"], found["height"], found["reviews"]) == ("first.png", 640, 480, [])
    assert len(found["scores"]) == 1
    with pytest.raises(MissingError, match="there is no image 99"):
        store.image(99)


def test_a_second_score_of_a_version_takes_the_place_of_the_first(store: Store, version: Row) -> None:
    number = store.add_scored("c" * 64, "a.png", 2, 2, version["id"], said(0.5))
    store.add_score(number, version["id"], said(0.7))
    (only,) = store.image(number)["scores"]
    assert (only["score"], only["distance"], only["model"]) == (0.7, pytest.approx(0.3), "gear")


def test_many_threads_write_the_same_image_once(store: Store, version: Row) -> None:
    numbers = at_once([lambda: store.add_scored("c" * 64, "a.png", 2, 2, version["id"], said(0.5))] * 12)
    assert len(set(numbers)) == 1
    assert store.listed(Wanted("gear"))[1] == 1


def test_the_orders_of_a_list(store: Store, version: Row) -> None:
    a, b, c = (scored(store, version, score) for score in (3.0, 0.9, 1.5))  # the threshold is 1
    orders = {order: [r["id"] for r in store.listed(Wanted("gear", order))[0]] for order in
              ("uncertain", "anomalous", "newest")}  # fmt: skip
    assert orders == {"uncertain": [b, c, a], "anomalous": [a, c, b], "newest": [c, b, a]}


def test_the_filters_of_a_list(store: Store, version: Row) -> None:
    a, b, c = (scored(store, version, score) for score in (3.0, 0.9, 1.5))
    store.add_review(a, "good", "ann")
    store.add_review(a, "bad", "ann")
    store.add_review(b, "unsure", "ann")
    time_of = {r["id"]: r["created"] for r in store.listed(Wanted("gear"))[0]}

    def ids(**filters: object) -> set[int]:
        rows, total = store.listed(Wanted("gear", **filters))  # type: ignore[arg-type]
        assert total == len(rows)
        return {row["id"] for row in rows}

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


def test_a_list_in_pages(store: Store, version: Row) -> None:
    everyone = [scored(store, version, score) for score in (5.0, 4.0, 3.0, 2.0, 1.0)]
    pages = [store.listed(Wanted("gear", "anomalous", limit=2, offset=offset)) for offset in (0, 2, 4, 6)]
    assert [[row["id"] for row in rows] for rows, _ in pages] == [everyone[:2], everyone[2:4], everyone[4:], []]
    assert {total for _, total in pages} == {5}


@pytest.mark.parametrize("order", ["uncertain", "anomalous", "newest"])
@pytest.mark.parametrize("review", ["", "none"])
def test_a_list_stays_as_it_was_while_others_score_review_and_release(
    store: Store, version: Row, order: str, review: str
) -> None:
    for score in (5.0, 4.0, 0.5, 1.2, 3.0, 1.1):
        scored(store, version, score)
    wanted = Wanted("gear", order, review=review, limit=2, as_of=store.moment("gear"))
    whole = [row["id"] for row in store.listed(replace(wanted, limit=50))[0]]
    seen: list[int] = []
    for offset in (0, 2, 4, 6):
        rows, total = store.listed(replace(wanted, offset=offset))
        assert total == 6
        assert [store.place(wanted, row["id"]) for row in rows] == list(range(offset, offset + len(rows)))
        seen += [row["id"] for row in rows]
        new = scored(store, version, 1.0 + offset / 100, "new.png")  # the most uncertain, and the newest
        scored(store, version, 9.0 + offset, "new.png")
        store.add_review(seen[0], "bad", "ann")
        assert store.place(wanted, new) is None
        if offset == 2:
            store.release(store.add_version("gear", "b" * 64, "2.bgad", state="candidate")["id"], "ann")
    assert seen == whole
    assert store.listed(wanted)[0][0]["verdict"] == "bad"  # the verdicts are those of today
    after = Wanted("gear", anomalous=True, after=wanted.as_of)
    assert store.listed(after)[1] == 0  # by the version that is released now
    store.release(version["id"], "ann")
    assert store.listed(after)[1] == 7  # all but the one on the threshold
    wheel = store.add_version("wheel", "c" * 64, "wheel.bgad", state="released")
    with pytest.raises(MissingError, match=f"there is no version {wheel['id']} of 'gear'"):
        store.listed(replace(wanted, as_of=store.moment("wheel")))


@pytest.mark.parametrize("address", ["postgresql"], indirect=True)
def test_a_list_waits_for_those_who_are_writing(store: Store, version: Row) -> None:
    """They may have a lower number than one that is there already."""
    first = scored(store, version, 5.0)
    score = {"version": version["id"], "score": 2.0, "p_value": 0.5, "threshold": 1.0, "is_anomaly": True}
    other = store.add_version("gear", "b" * 64, "2.bgad", state="candidate")["id"]
    found: list[Moment] = []
    asking = threading.Thread(target=lambda: found.append(store.moment("gear")))
    with store.engine.begin() as connection:
        values = score | {"image": first, "version": other, "distance": 1.0, "created": 1.0}
        number = connection.execute(tables.scores.insert().values(values)).inserted_primary_key
        scored(store, version, 4.0)
        asking.start()
        waiting = sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted")
        with store.engine.connect() as watching:
            while not watching.execute(waiting).scalar():
                assert found == []
    asking.join()
    assert number is not None
    assert found[0].score == number[0] + 1


def test_a_list_shows_the_released_version_only(store: Store, version: Row) -> None:
    scored(store, version, 3.0)
    second = store.add_version("gear", "b" * 64, "2.bgad", state="candidate")
    store.release(second["id"], "ann")
    assert store.listed(Wanted("gear")) == ([], 0)
    with pytest.raises(MissingError, match="there is no released model 'wheel'"):
        store.listed(Wanted("wheel"))


def test_neighbours_are_the_nearest_scores_of_the_same_version(store: Store, version: Row) -> None:
    numbers = [scored(store, version, float(i)) for i in range(10)]
    assert [n["score"] for n in store.neighbours(numbers[5], "gear")] == [2, 3, 4, 6, 7, 8]
    assert [n["score"] for n in store.neighbours(numbers[0], "gear", count=2)] == [1, 2]
    for verdict in ("unsure", "bad"):  # the last one counts
        store.add_review(numbers[1], verdict, "ann")
    known = store.neighbours(numbers[0], "gear", count=2)
    assert [(n["verdict"], n["is_anomaly"]) for n in known] == [("bad", False), (None, True)]
    twin = scored(store, version, 5.0, "twin.png")
    assert twin in [n["id"] for n in store.neighbours(numbers[5], "gear", count=1)]
    wheel = store.add_version("wheel", "b" * 64, "wheel.bgad", state="released")
    assert store.neighbours(scored(store, wheel, 4.5, "new.png"), "gear") == []


def test_the_series_is_in_the_order_of_time(store: Store, version: Row) -> None:
    for score in (3.0, 1.0, 2.0):
        scored(store, version, score)
    series = store.series(version["id"])
    assert [row["score"] for row in series] == [3.0, 1.0, 2.0]
    assert store.series(version["id"], series[1]["created"]) == series[1:]


# --- reviews


def test_the_last_review_counts_and_all_are_kept(store: Store, version: Row) -> None:
    number = scored(store, version, 2.0)
    store.add_review(number, "good", "ann", "looks fine")
    last = store.add_review(number, "bad", "bob", "no: a crack", mask="f" * 64)
    assert [(r["verdict"], r["who"], r["note"], r["last"]) for r in store.image(number)["reviews"]] == [
        ("good", "ann", "looks fine", False),
        ("bad", "bob", "no: a crack", True),
    ]
    (only,) = store.reviewed()
    assert (only["verdict"], only["mask"], only["name"]) == ("bad", "f" * 64, "part.png")
    assert store.review(last["id"]) == last
    assert [(e["detail"], e["image"], e["picture"]) for e in store.history()[:3]] == [
        (f"image {number}: bad", number, "part.png"),
        (f"image {number}: good", number, "part.png"),
        ("a" * 12, None, ""),
    ]


def test_a_review_that_is_taken_back(store: Store, version: Row) -> None:
    """It is as if it had not been said, everywhere; but the history has it."""
    number = scored(store, version, 2.0)
    good = store.add_review(number, "good", "ann", "looks fine", ignore="e" * 64)
    bad = store.add_review(number, "bad", "bob", "a crack", mask="f" * 64)
    with pytest.raises(ConfigError, match=f"review {good['id']} is not what counts for image {number}"):
        store.take_back(good["id"], "bob")
    again = store.take_back(bad["id"], "bob")
    assert [again[key] for key in ("verdict", "note", "mask", "ignore", "who", "last")] == [
        "good", "looks fine", None, "e" * 64, "bob", True,
    ]  # fmt: skip
    assert [row["verdict"] for row in store.reviewed("gear")] == ["good"]

    other = scored(store, version, 3.0)
    gone = store.take_back(store.add_review(other, "bad", "ann", "oh")["id"], "ann")
    assert (gone["verdict"], gone["note"], gone["mask"]) == ("withdrawn", "", None)
    undone = store.take_back(gone["id"], "ann")  # that, too
    assert (undone["verdict"], undone["note"]) == ("bad", "oh")
    store.take_back(undone["id"], "ann")
    assert [r["verdict"] for r in store.image(other)["reviews"]] == ["bad", "withdrawn", "bad", "withdrawn"]
    assert [event["detail"] for event in store.history(what="take back")] == [
        f"image {other}: bad, now withdrawn", f"image {other}: withdrawn, now bad",
        f"image {other}: bad, now withdrawn", f"image {number}: bad, now good",
    ]  # fmt: skip
    assert [row["image"] for row in store.reviewed()] == [number]
    assert [row["id"] for row in store.lessons("gear")] == [number]
    for as_of in (None, store.moment("gear")):
        by_review = {
            kind: [row["id"] for row in store.listed(Wanted("gear", review=kind, as_of=as_of))[0]]
            for kind in ("none", "any", "bad")
        }
        assert by_review == {"none": [other], "any": [number], "bad": []}
    assert store.listed(Wanted("gear", review="none"))[0][0]["verdict"] is None
    second = store.add_version("gear", "c" * 64, "2.bgad", state="released", parent=version["id"])
    assert [row["id"] for row in store.unscored(second, None, 9)] == [number]
    store.add_review(other, "unsure", "ann")
    assert [row["image"] for row in store.reviewed()] == [number, other]
    with pytest.raises(MissingError, match="there is no review 99"):
        store.take_back(99, "ann")


def test_a_review_is_taken_back_once(store: Store, version: Row) -> None:
    number = scored(store, version, 2.0)
    bad = store.add_review(number, "bad", "ann")["id"]

    def take() -> str:
        try:
            return str(store.take_back(bad, "ann")["verdict"])
        except ConfigError:
            return "refused"

    assert sorted(map(str, at_once([take] * 6))) == ["refused"] * 5 + ["withdrawn"]


def test_reviews_are_asked_for_by_model(store: Store, version: Row) -> None:
    wheel = store.add_version("wheel", "b" * 64, "wheel.bgad", state="released")
    gears, wheels = scored(store, version, 2.0), scored(store, wheel, 3.0)
    for number in (gears, wheels):
        store.add_review(number, "bad", "ann")
    assert [row["image"] for row in store.reviewed()] == [gears, wheels]
    assert [row["image"] for row in store.reviewed("gear")] == [gears]
    assert [row["image"] for row in store.reviewed("wheel")] == [wheels]


def test_lessons_are_what_any_version_of_a_model_has_scored_and_a_person_called_good_or_bad(
    store: Store, version: Row
) -> None:
    wheel = store.add_version("wheel", "b" * 64, "wheel.bgad", state="released")
    a, b, c, d = (scored(store, version, score) for score in (1.0, 2.0, 3.0, 4.0))
    for number in (c, a, b, scored(store, wheel, 5.0)):
        store.add_review(number, "good", "ann")
    store.add_review(a, "bad", "bob", mask="f" * 64)
    store.add_review(b, "unsure", "bob")
    second = store.add_version("gear", "c" * 64, "2.bgad", state="candidate", parent=version["id"])
    store.release(second["id"], "ann")
    store.add_score(c, second["id"], said(0.25))
    assert [tuple(row[key] for key in ("id", "verdict", "has_mask", "score")) for row in store.lessons("gear")] == [
        (a, "bad", True, None),  # the newest review
        (c, "good", False, 0.25),
    ]
    first = store.lessons("gear")[0]
    assert (first["name"], first["width"], first["height"]) == ("part.png", 64, 48)
    assert d not in [row["id"] for row in store.lessons("gear")]
    with pytest.raises(MissingError, match="there is no released model 'none'"):
        store.lessons("none")


def test_what_a_version_has_yet_to_score(store: Store, version: Row) -> None:
    wheel = store.add_version("wheel", "b" * 64, "wheel.bgad", state="released")
    numbers = [scored(store, version, float(score)) for score in range(6)]
    store.add_review(numbers[0], "unsure", "ann")
    store.add_review(numbers[5], "good", "ann")
    store.add_review(scored(store, wheel, 7.0), "bad", "ann")
    times = {row["image"]: row["created"] for row in store.series(version["id"])}
    second = store.add_version("gear", "c" * 64, "2.bgad", state="released", parent=version["id"])
    store.add_score(numbers[4], second["id"], said(0.5))
    found = store.unscored(second, version["id"], 4)  # of 5, 4, 3 and 2
    assert [row["id"] for row in found] == [numbers[5], numbers[0], numbers[3], numbers[2]]
    assert [row["created"] for row in found] == [times[row["id"]] for row in found]
    for row in found:
        store.add_score(row["id"], second["id"], said(0.5), row["created"])
    assert store.unscored(second, version["id"], 4) == []  # and not another four
    assert store.unscored(version, None, 4) == []


@pytest.mark.parametrize("address", ["sqlite"], indirect=True)
def test_lessons_and_what_is_to_be_scored_are_found_quickly_among_many(store: Store, version: Row) -> None:
    numbers = range(1, 100_001)
    said_of = {"version": version["id"], "score": 0.5, "p_value": 0.5, "threshold": 1.0, "is_anomaly": False}
    image = {"name": "p", "width": 1, "height": 1, "received": 0.0}
    review = {"verdict": "good", "note": "", "who": "ann", "last": True}
    rows = {
        tables.images: [{"id": i, "sha256": f"{i:064x}", **image} for i in numbers],
        tables.scores: [{"image": i, "distance": 0.5, "created": float(i), **said_of} for i in numbers],
        tables.reviews: [{"image": i, "created": float(i), **review} for i in numbers[::10]],
    }
    with store.engine.begin() as connection:
        for table, values in rows.items():
            connection.execute(table.insert(), values)
    second = store.add_version("gear", "c" * 64, "2.bgad", state="candidate", parent=version["id"])
    began = time.monotonic()
    assert len(store.lessons("gear")) == 10_000
    assert len(store.unscored(second, version["id"], 2000)) == 11_800
    assert time.monotonic() - began < 5


def test_a_review_needs_an_image_and_a_verdict(store: Store) -> None:
    with pytest.raises(MissingError, match="there is no image 7"):
        store.add_review(7, "bad", "ann")
    with pytest.raises(ConfigError, match="unknown verdict 'ugly': choose from good, bad, unsure"):
        store.add_review(7, "ugly", "ann")
    with pytest.raises(MissingError, match="there is no review 7"):
        store.review(7)


def test_reviews_of_one_image_at_the_same_time_leave_one_last(store: Store, version: Row) -> None:
    number = scored(store, version, 2.0)
    at_once([lambda: store.add_review(number, "bad", "ann")] * 10)
    reviews = store.image(number)["reviews"]
    assert len(reviews) == 10
    assert [r["last"] for r in reviews].count(True) == 1


# --- jobs


def test_a_job_from_queued_to_done(store: Store, version: Row) -> None:
    job = store.add_job("teach", version, [3, 4], "ann")
    assert (job["state"], job["images"], job["ended"], job["result"]) == ("queued", [3, 4], None, None)
    store.update_job(job["id"], state="running", progress=0.5)
    assert store.job(job["id"])["ended"] is None
    store.update_job(job["id"], state="done", result={"a": [1, None]}, made=version["id"])
    ended = store.job(job["id"])
    assert (ended["result"], ended["progress"]) == ({"a": [1, None]}, 0.5)
    assert ended["ended"] > job["created"]
    wheel = store.add_version("wheel", "b" * 64, "wheel.bgad", state="released")
    newer = store.add_job("teach", wheel, [], "ann")
    assert [row["id"] for row in store.all_jobs()] == [newer["id"], job["id"]]
    (only,) = store.all_jobs("gear")
    assert only == {key: value for key, value in ended.items() if key != "result"}


def test_what_was_not_finished_is_called_interrupted(store: Store, version: Row) -> None:
    jobs = [store.add_job("teach", version, [], "ann")["id"] for _ in range(3)]
    store.update_job(jobs[1], state="running")
    store.update_job(jobs[2], state="done", message="done")
    assert [row["id"] for row in store.interrupt_jobs()] == jobs[:2]
    said = "the service ended before the job did"
    assert [(store.job(n)["state"], store.job(n)["message"]) for n in jobs] == [
        ("interrupted", said), ("interrupted", said), ("done", "done"),
    ]  # fmt: skip
    assert store.interrupt_jobs() == []


# --- tokens


def test_a_token_is_kept_as_a_hash(store: Store) -> None:
    token = tokens.new_token(store, "camera-3", "score")
    assert tokens.caller(store, f"Bearer {token}", needed=True) == tokens.Caller("camera-3", "score")
    for wrong in (None, "", token, f"Basic {token}", f"Bearer {token}x", "Bearer "):
        assert tokens.caller(store, wrong, needed=True) is None
    with store.engine.connect() as connection:
        everything = [str(connection.execute(sa.select(table)).all()) for table in tables.metadata.sorted_tables]
    assert token not in "".join(everything)
    assert tokens.hashed(token) in "".join(everything)


def test_the_token_is_nowhere_in_the_file(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'store.sqlite'}")
    token = tokens.new_token(store, "camera-3", "score")
    store.close()
    content = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"camera-3" in content
    assert token.encode() not in content
    assert token.removeprefix(tokens.PREFIX).encode() not in content


def test_a_name_has_one_token(store: Store) -> None:
    old, new = tokens.new_token(store, "ann", "score"), tokens.new_token(store, "ann", "admin")
    assert tokens.caller(store, f"Bearer {old}", needed=True) is None
    assert tokens.caller(store, f"bearer {new}", needed=True) == tokens.Caller("ann", "admin")
    assert [(row["name"], row["role"]) for row in store.tokens()] == [("ann", "admin")]
    assert store.drop_token("ann")
    assert not store.drop_token("ann")
    assert tokens.caller(store, f"Bearer {new}", needed=True) is None
    assert tokens.caller(store, f"Bearer {new}", needed=False) is None  # a wrong one is not as good as none
    assert tokens.caller(store, None, needed=False) == tokens.Caller("local", "admin")


def test_a_token_needs_a_role_and_a_name(store: Store) -> None:
    with pytest.raises(ConfigError, match="unknown role 'king': choose from score, review, admin"):
        tokens.new_token(store, "ann", "king")
    for name in (" ", "x" * 201):
        with pytest.raises(ConfigError, match="a token needs a name of 1 to 200 letters"):
            tokens.new_token(store, name, "score")


def test_a_store_that_is_gone_is_not_alive(store: Store) -> None:
    assert store.alive()
    if store.engine.dialect.name == "sqlite":
        pytest.skip("an SQLite file that is open stays there")
    other = sa.create_engine(store.engine.url.set(database="postgres"), isolation_level="AUTOCOMMIT")
    with other.connect() as connection:
        connection.execute(sa.text(f"DROP DATABASE {store.engine.url.database} WITH (FORCE)"))
    other.dispose()
    assert not store.alive()


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
