"""Which version of bgad uses and migrates a schema."""

from __future__ import annotations

from pathlib import Path

import alembic.command
import pytest
import sqlalchemy as sa

from bgad.errors import ConfigError
from bgad.service.role import Role
from bgad.service.store import schema
from bgad.service.store.instance_lock import hold
from bgad.service.store.store import Store
from tests.service.conftest import new_schema


def test_a_scorer_needs_a_migrated_store(postgres: Path) -> None:
    address = new_schema(postgres)
    with (
        pytest.raises(ConfigError, match=r"does not have the schema of bgad .*: start the main service"),
        hold(address, Role.SCORER),
    ):
        pass
    with pytest.raises(ConfigError, match="does not have the schema"):
        Store(address, migrate=False)
    Store(address).close()
    with hold(address, Role.SCORER), hold(address, Role.MAIN), hold(address, Role.SCORER):
        Store(address, migrate=False).close()


def test_services_of_two_versions_do_not_share_a_store(postgres: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address, other = new_schema(postgres), new_schema(postgres)
    Store(address).close()
    for running in Role:
        for starting in Role:
            with hold(address, running), monkeypatch.context() as patched:
                patched.setattr(schema, "__version__", "9.9.9")
                with (
                    pytest.raises(ConfigError, match=r"in use by services of another version than bgad 9\.9\.9"),
                    hold(address, starting),
                ):
                    pass
                with hold(other):  # another store has nothing to do with it
                    pass


def test_nobody_migrates_what_another_version_uses(postgres: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = new_schema(postgres)
    store = Store(address)
    with hold(address, Role.SCORER):
        with store.database.begin() as connection:
            connection.execute(sa.text("UPDATE alembic_version SET version_num = '0000'"))
        monkeypatch.setattr(schema, "__version__", "9.9.9")
        monkeypatch.setattr(alembic.command, "upgrade", lambda *_: pytest.fail("the migration has begun"))
        with pytest.raises(ConfigError, match="in use by services of another version") as refused:
            Store(address)
        assert "\n" not in str(refused.value)
    store.close()
