from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from bgad.errors import ConfigError
from bgad.service import access
from bgad.service.store import tables
from bgad.service.store.store import Store


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
