"""One service for one store."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from bgad.cli import main as cli
from bgad.errors import BgadError, ConfigError
from bgad.service.folders import WORKSPACE
from bgad.service.store import dialects, instance_lock
from bgad.service.store.instance_lock import AdvisoryLock, hold
from bgad.service.store.store import Store
from tests.service.conftest import Live, new_database, wait_for


def run(*arguments: str) -> int:
    return cli.main([str(argument) for argument in arguments])


def end_connections(address: str) -> None:
    """As a server that is started again does."""
    engine = dialects.engine(address)
    with engine.connect() as connection:
        query = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted"
        assert connection.execute(sa.text(query)).all()
    engine.dispose()


def test_a_store_that_another_service_has_is_one_line(
    models: Path, postgres: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = new_database(postgres)
    with hold(address):
        assert run("serve", "--models", str(models), "--port", "0", "--store", address) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "is in use by another service: end it, or give another --store" in line
        assert run("token", "add", "ann", "--models", str(models), "--store", address) == 0  # beside it
        assert run("token", "list", "--models", str(models), "--store", address) == 0
        assert "ann" in capsys.readouterr().out
    with hold(address):  # which is free again
        pass


def test_a_service_that_ended_or_was_killed_leaves_its_store_to_the_next_one(
    models: Path, postgres: Path, live: Callable[..., Live]
) -> None:
    address = new_database(postgres)
    first = live("--store", address, "--max-models", "2")
    with pytest.raises(ConfigError, match="is in use by another service"):
        AdvisoryLock(address, print)
    first.end(signal.SIGKILL)
    live("--store", address).end(signal.SIGINT)
    assert "stopped; everything is in" in (models / "log.txt").read_text()
    AdvisoryLock(address, print).release()


def test_the_lock_is_acquired_again_after_an_outage(postgres: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance_lock, "CHECK_SECONDS", 0.05)
    address, lost = new_database(postgres), threading.Event()
    held = AdvisoryLock(address, lost.set)
    before = held._connection
    end_connections(address)
    wait_for(lambda: held._connection not in (None, before))
    with pytest.raises(ConfigError, match="is in use by another service"):
        AdvisoryLock(address, lost.set)
    assert not lost.is_set()
    monkeypatch.setattr(instance_lock, "ACQUIRE", "SELECT false")  # somebody else was quicker
    end_connections(address)
    assert lost.wait(30)
    held.release()
    assert "is in use by another service" in str(held.problem)


def test_a_file_of_sqlite_anywhere(tmp_path: Path) -> None:
    for folder in ("a", "b", "elsewhere"):
        (tmp_path / folder).mkdir()
    shared, other = (f"sqlite:///{tmp_path / 'elsewhere' / name}" for name in ("shared.sqlite", "other.sqlite"))
    with hold(shared):
        with (
            pytest.raises(BgadError, match=r"is in use by another service: .*--store"),
            hold(shared),
        ):
            pass
        with hold(other):
            pass
    own = f"sqlite:///{tmp_path / 'a' / 'store.sqlite'}"  # also the one beside the models, for who names it
    with hold(own), pytest.raises(BgadError, match="is in use"), hold(own):
        pass


# --- stores that cannot be used


def test_a_damaged_file_is_one_line(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = models / WORKSPACE / "store.sqlite"
    file.write_bytes(b"garbage" * 1000)
    for command in (("serve", "--port", "0"), ("token", "list")):
        assert run(*command, "--models", str(models)) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "cannot open the store sqlite:///" in line
        assert "file is not a database" in line
    file.unlink()
    Store(f"sqlite:///{file}").close()
    content = bytearray(file.read_bytes())
    content[4096:] = bytes(len(content) - 4096)  # the first page alone is left
    file.write_bytes(content)
    assert run("serve", "--models", str(models), "--port", "0") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "cannot open the store" in line


def test_a_user_who_may_not_make_tables_is_one_line(postgres: Path) -> None:
    address = new_database(postgres)
    with psycopg.connect(f"host={postgres} user=bgad dbname=postgres", autocommit=True) as connection:
        connection.execute("CREATE USER guest")
    with pytest.raises(ConfigError, match=r"cannot open the store .*permission denied for schema public") as refused:
        Store(address.replace("bgad@", "guest@"))
    assert "\n" not in str(refused.value)


def test_a_server_that_says_nothing_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(dialects.CONNECTION_TIMEOUTS, "connect_timeout", 2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(ConfigError, match=r"cannot open the store .*timeout") as refused:
            Store(f"postgresql://u@127.0.0.1:{silent.getsockname()[1]}/x")
    assert "\n" not in str(refused.value)
