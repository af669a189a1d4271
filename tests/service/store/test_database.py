from __future__ import annotations

import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import alembic.autogenerate
import alembic.migration
import alembic.op
import psycopg
import pytest
import sqlalchemy as sa

from bgad.errors import ConfigError
from bgad.service.store import dialects, tables
from bgad.service.store.database import Database
from bgad.service.store.store import Store
from bgad.service.store.versions import Version
from tests.service.conftest import new_database, wait_for


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
        assert connection.execute(sa.text("PRAGMA cache_size")).scalar() == -dialects.CACHE_KIB
    assert pragmas == {"journal_mode": "wal", "synchronous": 2}  # 2: FULL
    store.close()


def test_durable_writers_of_sqlite_queue_instead_of_polling(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'store.sqlite'}")
    pool = database.engine.pool
    assert isinstance(pool, sa.pool.QueuePool)
    writers, written = database._durable_writers, threading.Event()
    assert writers is not None

    def write() -> None:
        with database.begin() as connection:
            connection.execute(tables.events.update().values(who="second"))
        written.set()

    with database.begin() as connection:
        connection.execute(tables.events.update().values(who="first"))
        second = threading.Thread(target=write)
        second.start()
        wait_for(lambda: writers.waiting == 1)
        assert not written.wait(0.1)
        assert pool.checkedout() == 1  # a writer that polls has a connection of its own
    assert written.wait(60)
    second.join()
    database.close()


def test_a_durable_write_waits_for_another_no_longer_than_for_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(f"sqlite:///{tmp_path / 'store.sqlite'}")
    monkeypatch.setattr(dialects, "BUSY_SECONDS", 0.05)
    with database.begin(), pytest.raises(dialects.UNAVAILABLE, match=r"other writes .* took more than 0\.05 s"):
        database.begin().__enter__()
    with database.begin_relaxed():
        with pytest.raises(dialects.UNAVAILABLE, match=r"other writes .* took more than"):
            database.begin_queued().__enter__()
        with database.begin():  # who waits for the writers of scores in vain holds up no other
            pass
    with database.begin_queued() as connection:  # nothing is left locked
        connection.execute(tables.events.update().values(who="third"))
    database.close()


@pytest.mark.parametrize("kind", ["begin", "begin_queued"])
def test_a_durable_write_does_not_wait_for_its_turn_and_then_as_long_for_the_file(tmp_path: Path, kind: str) -> None:
    database = Database(f"sqlite:///{tmp_path / 'store.sqlite'}")
    writers = database._durable_writers
    assert writers is not None
    query, all_of_it = "PRAGMA busy_timeout", 1000 * dialects.BUSY_SECONDS

    def wait() -> int:
        with getattr(database, kind)() as connection:
            return int(connection.exec_driver_sql(query).scalar_one())

    with ThreadPoolExecutor(1) as pool:
        with database.begin():
            waiting = pool.submit(wait)
            wait_for(lambda: writers.waiting == 1)
            time.sleep(0.2)
        assert 0 < waiting.result(60) <= all_of_it - 200
    with database.engine.connect() as connection:
        assert connection.exec_driver_sql(query).scalar_one() == all_of_it
    database.close()


def test_a_store_that_is_gone_is_not_alive(postgres: Path) -> None:
    store = Store(new_database(postgres))
    assert store.database.alive()
    other = sa.create_engine(store.database.engine.url.set(database="postgres"), isolation_level="AUTOCOMMIT")
    with other.connect() as connection:
        connection.execute(sa.text(f"DROP DATABASE {store.database.engine.url.database} WITH (FORCE)"))
    other.dispose()
    assert not store.database.alive()
    store.close()


@pytest.mark.parametrize("kind", ["begin", "begin_relaxed"])
def test_a_connection_that_comes_back_after_the_end_is_closed(address: str, kind: str) -> None:
    """As that of a thread which the store has held up."""
    store = Store(address)
    with getattr(store.database, kind)() as connection:
        held = connection.connection.dbapi_connection
        store.close()
        connection.execute(sa.text("SELECT 1"))
    with pytest.raises((sqlite3.ProgrammingError, psycopg.OperationalError), match="closed"):
        held.cursor()
