"""The table of access tokens, which holds their hashes only."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from bgad.service.store import history
from bgad.service.store.database import Database
from bgad.service.store.tables import tokens


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a person or a machine."""

    id: int
    name: str
    role: str  # score, review, admin
    hash: str
    created: float


class Tokens:
    """Reads and writes access tokens."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, name: str, role: str, token_hash: str) -> None:
        """Add a token; it replaces an existing token of the same name."""
        now = self._database.clock()
        with self._database.begin() as connection:
            connection.execute(tokens.delete().where(tokens.c.name == name))
            connection.execute(tokens.insert().values(name=name, role=role, hash=token_hash, created=now))
            history.record(connection, now, "bgad", "token", "", f"{name}: {role}")

    def remove(self, name: str) -> bool:
        """Remove a token; return whether it existed."""
        with self._database.begin() as connection:
            return bool(connection.execute(tokens.delete().where(tokens.c.name == name)).rowcount)

    def all(self) -> list[Token]:
        """Return all tokens, sorted by name."""
        return self._database.rows(Token, sa.select(tokens).order_by(tokens.c.name))

    def find(self, token_hash: str) -> Token | None:
        """Return the token with this hash."""
        rows = self._database.rows(Token, sa.select(tokens).where(tokens.c.hash == token_hash))
        return rows[0] if rows else None
