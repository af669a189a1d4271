"""The table of access tokens, which holds their hashes only."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import sqlalchemy as sa

from bgad.service.store import history
from bgad.service.store.database import Database
from bgad.service.store.tables import senders, tokens

USE_SECONDS = 3600.0  # between two records of a token's use
ADD, DROP = "add token", "drop token"  # in the history


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a person or a machine."""

    id: int
    name: str
    role: str  # score, review, admin
    hash: str
    created: float
    models: list[str] | None  # that it is for; None: all
    expires: float | None
    used: float | None  # when it was used last, to the hour


class Tokens:
    """Reads and writes access tokens."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(
        self,
        name: str,
        role: str,
        token_hash: str,
        *,
        models: Sequence[str] | None = None,
        expires: float | None = None,
    ) -> None:
        """Add a token for some models or all; it replaces an existing token of the same name."""
        now = self._database.clock()
        row = {"name": name, "role": role, "hash": token_hash, "created": now, "expires": expires}
        detail = f"{name}: {role}" + (f", for {', '.join(models)}" if models else "")
        with self._database.begin() as connection:
            if connection.execute(tokens.delete().where(tokens.c.name == name)).rowcount:
                history.record(connection, now, history.SERVICE, DROP, "", f"{name}: replaced")
            connection.execute(tokens.insert().values(**row, models=list(models) if models else None))
            history.record(connection, now, history.SERVICE, ADD, "", detail)

    def remove(self, name: str) -> bool:
        """Remove a token and what it sent itself from its view; return whether it existed."""
        with self._database.begin() as connection:
            if not connection.execute(tokens.delete().where(tokens.c.name == name)).rowcount:
                return False
            connection.execute(senders.delete().where(senders.c.token == name))
            history.record(connection, self._database.clock(), history.SERVICE, DROP, "", name)
            return True

    def all(self) -> list[Token]:
        """Return all tokens, sorted by name."""
        return self._database.rows(Token, sa.select(tokens).order_by(tokens.c.name))

    def find(self, token_hash: str) -> Token | None:
        """Return the token with this hash, unless it has expired."""
        rows = self._database.rows(Token, sa.select(tokens).where(tokens.c.hash == token_hash))
        token = rows[0] if rows else None
        return None if token is None or self.is_expired(token) else token

    def is_expired(self, token: Token) -> bool:
        """Return whether a token can be used no more."""
        return token.expires is not None and self._database.clock() >= token.expires

    def note_use(self, token: Token) -> threading.Thread | None:
        """Record the use of a token if the last record is old enough.

        A thread of its own writes it: a request does not wait for a store that is locked. Return the thread, if any.
        """
        now = self._database.clock()
        if token.used is not None and now - token.used < USE_SECONDS:
            return None
        thread = threading.Thread(target=self._write_use, args=(token.id, now), name="token use", daemon=True)
        thread.start()
        return thread

    def _write_use(self, number: int, now: float) -> None:
        is_old = sa.or_(tokens.c.used.is_(None), tokens.c.used <= now - USE_SECONDS)  # others may have written it
        with suppress(sa.exc.SQLAlchemyError), self._database.begin() as connection:
            connection.execute(tokens.update().where(tokens.c.id == number, is_old).values(used=now))
