"""What a camera gets, and who is told, while the store is locked or away, or the disk is full."""

from __future__ import annotations

import errno
import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from bgad.service.blobs import BlobKind
from bgad.service.free_space import FreeSpace
from bgad.service.scoring import recorder
from bgad.service.store.image_list import ImageQuery
from tests.service.conftest import SCORE, Maker, Service, new_schema, png, problem, token, wait_for

PATIENCE = recorder.RECORD_SECONDS


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the disk of a busy machine; `impatient` is that of the service itself."""
    monkeypatch.setattr(recorder, "RECORD_SECONDS", 60.0)


@contextmanager
def impatient(outage: AbstractContextManager[None], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An outage, and requests that wait for the store as long as in the service."""
    with outage, monkeypatch.context() as patched:
        patched.setattr(recorder, "RECORD_SECONDS", PATIENCE)
        yield


@contextmanager
def locked(path: str) -> Iterator[None]:
    """Another process writes to an SQLite file and does not end."""
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


@contextmanager
def locked_table(postgres: Path, service: Service) -> Iterator[None]:
    """Another session holds the table of scores."""
    schema = str(service.store.database.engine.url.query["options"]).partition("=")[2]
    with psycopg.connect(f"host={postgres} user=bgad dbname=postgres") as other:
        other.execute(f"LOCK TABLE {schema}.scores IN ACCESS EXCLUSIVE MODE")
        yield


def metric(service: Service, name: str) -> float:
    lines = service.client.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def check_outage(service: Service, outage: AbstractContextManager[None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "PROBE_SECONDS", 0.02)
    before = service.client.post(SCORE, content=png(1)).json()
    assert (before["kept"], metric(service, "bgad_store_up")) == (True, 1)
    away = {"status": "the store does not answer"}
    with impatient(outage, monkeypatch):
        assert service.client.get("/readyz").json() == away  # before any camera has met it
        began = time.monotonic()
        answer = service.client.post(SCORE, content=png(2))
        assert answer.status_code == 200
        assert time.monotonic() - began < 15  # about 1 s on a machine that is not busy; it was 30
        told = answer.json()
        assert (told["kept"], told["image"], told["map"], told["overlay"]) == (False, None, None, None)
        assert (told["version"], told["threshold"]) == (before["version"], before["threshold"])
        with monkeypatch.context() as patched:  # it is known to be away: nobody waits for it any more
            patched.setattr(recorder, "Future", lambda: pytest.fail("a request waits for the store"))
            assert service.client.post(SCORE, content=png(3)).json()["kept"] is False
            patched.setattr(service.store.database, "alive", lambda: True)
            assert service.client.get("/readyz").json() == away
        assert (metric(service, "bgad_store_up"), metric(service, "bgad_not_kept_total")) == (0, 2)
        assert service.client.get("/readyz").json() == away
        assert service.client.get("/readyz").status_code == 503
    wait_for(lambda: service.client.get("/readyz").status_code == 200)
    assert metric(service, "bgad_store_up") == 1
    assert service.client.post(SCORE, content=png(2)).json()["kept"] is True
    assert service.store.lists.total(ImageQuery("plate")) == 2


def test_a_camera_has_its_score_while_another_process_locks_the_file(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(service.store.database.engine.url.database)
    check_outage(service, locked(path), monkeypatch)
    names = {file.name for file in (service.bench.blobs.folder / BlobKind.IMAGE).rglob("*") if file.is_file()}
    assert len(names) == 2  # what is not kept leaves no file


def test_a_camera_has_its_score_while_a_table_is_locked(
    make: Maker, postgres: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = make(new_schema(postgres))
    check_outage(service, locked_table(postgres, service), monkeypatch)


@contextmanager
def stopped(service: Service) -> Iterator[None]:
    """The servers of all connections of a service are frozen, as by a network that swallows everything."""
    with service.store.database.engine.connect() as connection:
        query = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND usename = 'bgad'"
        pids = [int(row.pid) for row in connection.exec_driver_sql(query)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def test_a_camera_with_a_token_has_its_score_while_the_server_is_silent(
    make: Maker, postgres: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = make(new_schema(postgres), tokens=True)
    service.client.headers.update(token(service, "admin"))
    monkeypatch.setattr(recorder, "PROBE_SECONDS", 0.02)
    assert service.client.post(SCORE, content=png(1)).json()["kept"] is True
    with impatient(stopped(service), monkeypatch):
        began = time.monotonic()
        assert [service.client.post(SCORE, content=png(i)).json()["kept"] for i in (2, 3)] == [False, False]
        assert time.monotonic() - began < 20  # about 4 s on a machine that is not busy
        assert service.client.get("/readyz").status_code == 503
    wait_for(lambda: service.client.get("/readyz").status_code == 200)
    assert service.client.post(SCORE, content=png(2)).json()["kept"] is True


def test_a_disk_that_is_nearly_full_takes_reviews_and_no_images(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = service.score(png(1))
    assert metric(service, "bgad_free_bytes") > 0
    monkeypatch.setattr(FreeSpace, "free_bytes", lambda _: 5 * 2**20)
    said = problem(service.client.post(SCORE, content=png(2)), 507)
    assert said.startswith("the disk is full: 5 MiB are free, and 256 are kept free; free some space in ")
    assert service.client.post(f"/v1/images/{number}/reviews", json={"verdict": "good"}).status_code == 201
    assert problem(service.client.post("/v1/jobs", json={"model": "plate"}), 507).startswith("the disk is full")
    ready = service.client.get("/readyz")
    assert (ready.status_code, ready.json()["status"][:16]) == (503, "the disk is full")


def test_a_store_whose_disk_is_full_is_507(service: Service) -> None:
    number = service.score(png(1))
    database = service.store.database

    def limit(connection: Any) -> None:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")  # no page may be added to the file

    for engine in (database.engine, database._relaxed):
        sa.event.listen(engine, "begin", limit)
    note = "x" * 2000
    for _ in range(20):
        answer = service.client.post(f"/v1/images/{number}/reviews", json={"verdict": "good", "note": note})
        if answer.status_code != 201:
            break
    assert problem(answer, 507) == "the disk of the store is full: free some space"
    answers = [service.client.post(SCORE, content=png(i)) for i in range(2, 40)]
    refused = next(answer for answer in answers if answer.status_code != 200)
    assert problem(refused, 507) == "the disk of the store is full: free some space"


def test_a_postgresql_server_whose_disk_is_full_is_507(make: Maker, postgres: Path) -> None:
    """It says so by a code of its own, which a trigger gives here."""
    service = make(new_schema(postgres))
    number = service.score(png(1))
    with service.store.database.begin() as connection:
        connection.exec_driver_sql(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END $$"
        )
        for table in ("reviews", "scores"):
            connection.exec_driver_sql(
                f"CREATE TRIGGER full_disk BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION refuse()"
            )
    review = service.client.post(f"/v1/images/{number}/reviews", json={"verdict": "good"})
    for answer in (review, service.client.post(SCORE, content=png(2))):
        assert problem(answer, 507) == "the disk of the store is full: free some space"


def test_an_image_that_does_not_fit_on_the_disk_is_507(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the free space was a moment ago."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", full)
        said = problem(service.client.post(SCORE, content=png(1)), 507)
    assert said.startswith("cannot write below ")
    assert os.strerror(errno.ENOSPC) in said
    assert service.store.lists.total(ImageQuery("plate")) == 0
    images = service.bench.blobs.folder / BlobKind.IMAGE
    assert not [file for file in images.rglob("*") if file.is_file()]
    assert service.client.post(SCORE, content=png(1)).json()["kept"] is True
