from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import pytest
import sqlalchemy as sa

from bgad.service.errors import MissingError
from bgad.service.store import dialects, tables
from bgad.service.store.image_list import ImageQuery
from bgad.service.store.store import Store
from bgad.service.store.versions import Version
from tests.service.conftest import page_and_total
from tests.service.store.conftest import fill, scored


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
def test_a_list_ends_before_the_rows_of_those_who_are_writing(store: Store, version: Version) -> None:
    """They may have a lower number than one that is there already."""
    empty = store.lists.snapshot("gear").score
    first = scored(store, version, 5.0)
    score = {"version": version.id, "score": 2.0, "p_value": 0.5, "threshold": 1.0, "is_anomaly": True}
    other = store.versions.add("gear", "b" * 64, "2.bgad", state="candidate").id
    before = store.lists.snapshot("gear")
    with store.database.engine.begin() as connection:
        dialects.announce_insert(connection, tables.scores)
        values = score | {"image": first, "version": other, "created": 1.0, "parts": {"map": 2.0}}
        number = connection.execute(tables.scores.insert().values(values)).inserted_primary_key
        scored(store, version, 4.0)
        assert number is not None
        assert empty < before.score < number[0]
        assert store.lists.snapshot("gear").score == before.score
    assert store.lists.snapshot("gear").score == number[0] + 1


@pytest.mark.parametrize("address", ["postgresql"], indirect=True)
def test_opening_the_queue_holds_up_no_insert_beside_a_long_reader_and_a_vacuum(
    address: str, store: Store, version: Version
) -> None:
    """A table lock would wait for the VACUUM, and every insert for that lock."""
    fill(store, version, 2000)
    with store.database.begin() as connection:
        connection.execute(sa.text("SELECT setval('images_id_seq', 2000)"))
    slow = address + "%20-cvacuum_cost_delay%3D100%20-cvacuum_cost_limit%3D1%20-cvacuum_cost_page_hit%3D10000"
    quick = address + "%20-clock_timeout%3D10s"  # a wait is an error, and not a test that hangs
    ready = sa.text("SELECT pid FROM pg_stat_progress_vacuum WHERE datname = current_database()")
    with (
        closing(Store(slow)) as vacuuming,
        closing(Store(quick)) as writing,
        store.database.engine.connect() as watching,
        store.database.engine.connect() as reading,
    ):
        assert len(reading.execute(sa.select(tables.scores.c.id)).all()) == 2000  # and its transaction stays open
        watching = watching.execution_options(isolation_level="AUTOCOMMIT")
        with ThreadPoolExecutor() as threads:
            cleaning = threads.submit(vacuum, vacuuming)
            while not (pids := watching.execute(ready).scalars().all()):
                assert not cleaning.done()
            opened = [threads.submit(writing.lists.snapshot, "gear") for _ in range(4)]
            added = [scored(writing, version, 1.0, f"{i}.png") for i in range(100)]
            last = writing.scores.highest_id()
            assert (min(added), last) == (2001, 2100)
            assert all(2000 <= future.result().score <= last for future in opened)
            assert writing.lists.snapshot("gear").score == last
            assert watching.execute(ready).scalars().all() == pids  # it was there all the time
            watching.execute(sa.text(f"SELECT pg_cancel_backend({pids[0]})"))
            with pytest.raises(sa.exc.OperationalError, match="canceling statement"):
                cleaning.result()


def vacuum(store: Store) -> None:
    with store.database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sa.text("VACUUM (INDEX_CLEANUP ON) scores"))


def test_a_list_shows_the_released_version_only(store: Store, version: Version) -> None:
    scored(store, version, 3.0)
    second = store.versions.add("gear", "b" * 64, "2.bgad", state="candidate")
    store.versions.release(second.id, "ann")
    assert page_and_total(store, ImageQuery("gear")) == ([], 0)
    with pytest.raises(MissingError, match="there is no released model 'wheel'"):
        page_and_total(store, ImageQuery("wheel"))
