"""A store of an older version: who upgrades it, after what, and who does not."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import alembic.command
import pytest
import sqlalchemy as sa

from bgad.cli.main import main
from bgad.service.folders import WORKSPACE
from bgad.service.store import dialects, schema, tables
from bgad.service.store.schema import Age
from bgad.service.store.store import Store
from tests.service.conftest import Live, new_schema, sqlite_address

OLD = "0001"
Command = Callable[..., tuple[int, str]]


def make_old(address: str) -> None:
    """Create the store as the first version did, with one model whose threshold was set and one score."""
    engine = dialects.engine(address)
    config = schema._config()
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        alembic.command.upgrade(config, OLD)
        for statement in (
            "INSERT INTO versions (id, name, checksum, folder, state, rate, created)"
            " VALUES (1, 'gear', 'a', 'gear.bgad', 'released', 0.1, 1.0)",
            "INSERT INTO images (id, sha256, name, width, height, received) VALUES (1, 'b', 'a.png', 2, 2, 1.0)",
            "INSERT INTO scores (image, version, score, p_value, threshold, is_anomaly, distance, created, parts)"
            " VALUES (1, 1, 0.9, 0.5, 0.8, true, 0.1, 1.0, '{}')",
        ):
            connection.execute(sa.text(statement))
    engine.dispose()


def revision(address: str) -> str | None:
    engine = dialects.engine(address)
    with engine.connect() as connection:
        found = schema.revision(connection)
    engine.dispose()
    return found


def copies(models: Path) -> list[Path]:
    return sorted((models / WORKSPACE).glob("*.backup*"))


@pytest.fixture
def run(models: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main([*arguments, "--models", str(models)])
        return code, capsys.readouterr().err

    return run


def test_the_data_of_an_older_store_are_there_after_the_upgrade(address: str) -> None:
    make_old(address)
    with closing(Store(address)) as store:
        version = store.versions.get(1)
        assert (version.rate, version.threshold, version.precision) == (0.1, 0.8, "float32")
        (score,) = store.scores.of_image(1)
        assert (score.score, score.threshold, score.is_anomaly, score.sent_threshold) == (0.9, 0.8, True, 0.8)


@pytest.mark.parametrize("what", [("list",), ("add", "ann"), ("drop", "ann")])
def test_a_token_command_of_a_newer_version_refuses_an_older_store(
    models: Path, run: Command, what: tuple[str, ...]
) -> None:
    make_old(sqlite_address(models))
    code, said = run("token", *what)
    assert (code, said.count("\n")) == (2, 1)
    assert "run `bgad store upgrade`" in said
    assert revision(sqlite_address(models)) == OLD
    assert copies(models) == []


def test_a_token_may_come_before_the_first_service(models: Path, run: Command) -> None:
    assert run("token", "add", "ann")[0] == 0
    assert revision(sqlite_address(models)) == schema.head()


def test_the_command_upgrades_a_file_after_a_copy(models: Path, run: Command) -> None:
    assert "there is no store yet" in run("store", "upgrade")[1]
    make_old(sqlite_address(models))
    code, said = run("store", "upgrade")
    (copy,) = copies(models)
    assert code == 0
    assert "the store has been upgraded" in said
    assert copy.name in said.replace("\n", "")
    assert (revision(sqlite_address(models)), revision(f"sqlite:///{copy}")) == (schema.head(), OLD)
    with closing(sqlite3.connect(copy)) as old:
        assert old.execute("SELECT distance FROM scores").fetchall() == [(0.1,)]
    assert "of this version already" in run("store", "upgrade")[1]
    assert copies(models) == [copy]


def test_without_a_copy_nothing_is_upgraded(models: Path, run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    make_old(sqlite_address(models))

    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "rename", fails)
    code, said = run("store", "upgrade")
    assert (code, said.count("\n")) == (2, 1)
    assert "before its upgrade: " in said
    assert os.strerror(errno.ENOSPC) in said
    assert (revision(sqlite_address(models)), copies(models)) == (OLD, [])


def test_nobody_upgrades_under_a_running_service(models: Path, live: Callable[..., Live], run: Command) -> None:
    make_old(sqlite_address(models))
    service = live()  # which upgrades it
    assert len(copies(models)) == 1
    with closing(sqlite3.connect(models / WORKSPACE / "store.sqlite")) as connection, connection:
        connection.execute(f"UPDATE alembic_version SET version_num = '{OLD}'")  # as a newer version sees an older one
    code, said = run("store", "upgrade")
    assert (code, said.count("\n")) == (2, 1)
    assert "is in use by another service" in said
    assert run("token", "list")[0] == 2
    assert revision(sqlite_address(models)) == OLD
    service.end()


def test_a_store_on_postgresql_is_upgraded_when_its_copy_is_confirmed(
    models: Path, postgres: Path, run: Command
) -> None:
    address = new_schema(postgres)
    make_old(address)
    for command in (("store", "upgrade"), ("serve", "--port", "0")):
        code, said = run(*command, "--store", address)
        assert (code, said.count("\n")) == (2, 1)
        assert "copy it with `pg_dump --format=custom --file=bgad-store.dump" in said
        assert "`bgad store upgrade --yes`" in said
    assert "run `bgad store upgrade`" in run("token", "list", "--store", address)[1]
    assert revision(address) == OLD
    assert run("store", "upgrade", "--store", address, "--yes")[0] == 0
    assert revision(address) == schema.head()


def test_a_store_of_a_newer_version_is_refused(models: Path, run: Command) -> None:
    with closing(Store(sqlite_address(models))) as store, store.database.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
        assert schema.age(connection) is Age.NEWER
    for command in (("token", "list"), ("store", "upgrade")):
        code, said = run(*command)
        assert (code, said.count("\n")) == (2, 1)
        assert "update bgad" in said
    assert "distance" not in tables.scores.c
