from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from bgad.errors import ConfigError
from bgad.service import access
from bgad.service.store import tables, tokens
from bgad.service.store.scores import NewImage
from bgad.service.store.store import Store
from bgad.service.store.versions import Version
from tests.service.store.conftest import said


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


@pytest.mark.parametrize("name", ["local", "bgad", "Local", "ＢＧＡＤ"])
def test_names_of_the_service_itself_are_reserved(store: Store, name: str) -> None:
    with pytest.raises(ConfigError, match="is the service's own name in the history: choose another one"):
        access.new_token(store.tokens, name, "admin")


@pytest.mark.parametrize("name", ["a\nb", " ann", "ann ", "\u202enna", "a\0", "\x1b[31mann"])
def test_a_name_is_what_it_looks_like(store: Store, name: str) -> None:
    with pytest.raises(ConfigError, match="no control characters, and no space before or after"):
        access.new_token(store.tokens, name, "score")


def test_a_token_expires(address: str) -> None:
    now = 1000.0
    store = Store(address, lambda: now)
    token = f"Bearer {access.new_token(store.tokens, 'ann', 'score', expires=2000.0)}"
    assert access.authenticate(store.tokens, token, required=True) == access.Caller("ann", "score", expires=2000.0)
    now = 1999.0
    assert access.authenticate(store.tokens, token, required=True) is not None
    now = 2000.0
    assert access.authenticate(store.tokens, token, required=True) is None
    assert store.tokens.is_expired(store.tokens.all()[0])
    store.close()


def test_the_last_use_is_written_once_an_hour(address: str) -> None:
    now = 1000.0
    store = Store(address, lambda: now)
    access.new_token(store.tokens, "ann", "score")

    def use() -> bool:
        writer = store.tokens.note_use(store.tokens.all()[0])
        if writer is not None:
            writer.join()
        return writer is not None

    assert [use(), use(), use()] == [True, False, False]
    assert store.tokens.all()[0].used == 1000.0
    now = 1000.0 + tokens.USE_SECONDS
    assert [use(), use()] == [True, False]
    assert store.tokens.all()[0].used == now
    store.close()


def test_the_history_has_every_token_that_came_and_went(store: Store) -> None:
    access.new_token(store.tokens, "camera-3", "score", models=["gear", "plate"])
    access.new_token(store.tokens, "camera-3", "review")
    store.tokens.remove("camera-3")
    store.tokens.remove("camera-3")
    events = [(event.who, event.what, event.detail) for event in store.history.events()]
    assert events == [
        ("bgad", "drop token", "camera-3"),
        ("bgad", "add token", "camera-3: review"),
        ("bgad", "drop token", "camera-3: replaced"),
        ("bgad", "add token", "camera-3: score, for gear, plate"),
    ]


def test_who_sent_an_image_and_which_model_scored_it(store: Store, version: Version) -> None:
    other = store.versions.add("plate", "b" * 64, "plate.bgad", state="released")

    def sent(content: str, version: Version, sender: str) -> int:
        image = NewImage(content * 64, "a.png", 4, 4, sender)
        return store.scores.add_image(image, version.id, said(1.0))

    first, second = sent("a", version, "camera"), sent("b", other, "")
    assert sent("a", version, "camera") == sent("a", version, "robot") == first
    visible = store.images.is_visible
    assert visible(first, None, "camera")
    assert visible(first, ["gear", "none"], "robot")
    assert not visible(first, None, "ann")
    assert not visible(first, ["plate"], "camera")
    assert visible(second, ["plate"], None)
    assert not visible(second, [], None)
    assert not visible(second, None, "")
    assert not visible(99, None, None)
    access.new_token(store.tokens, "camera", "score")
    store.tokens.remove("camera")
    assert not visible(first, None, "camera")  # a later token of that name is another's
    assert visible(first, None, "robot")
