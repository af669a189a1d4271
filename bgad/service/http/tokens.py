"""Who may do what: tokens, kept as hashes, with one of three roles."""

from __future__ import annotations

import hashlib
import ipaddress
import secrets
from dataclasses import dataclass

from bgad.errors import ConfigError
from bgad.service.store.store import Store

ROLES = ("score", "review", "admin")  # each may do what those before it may
PREFIX = "bgad_"
LOCAL = "local"  # who asks without a token, where none is needed


@dataclass(frozen=True)
class Caller:
    """Who asks."""

    name: str
    role: str

    def may(self, role: str) -> bool:
        """Whether the role is enough for what another role may do."""
        return ROLES.index(self.role) >= ROLES.index(role)


def new_token(store: Store, name: str, role: str) -> str:
    """Make one and keep its hash; the token itself is shown once."""
    if role not in ROLES:
        raise ConfigError(f"unknown role {role!r}: choose from {', '.join(ROLES)}")
    if not name.strip() or len(name) > 200:
        raise ConfigError("a token needs a name of 1 to 200 letters: whose is it?")
    token = PREFIX + secrets.token_urlsafe(32)
    store.add_token(name, role, hashed(token))
    return token


def hashed(token: str) -> str:
    """256 random bits need no salt and no slow hash: nobody can guess them."""
    return hashlib.sha256(token.encode()).hexdigest()


def caller(store: Store, header: str | None, *, needed: bool) -> Caller | None:
    """Of an Authorization header; None when it names nobody. Where no token is needed, who has none may do all."""
    if header is None:
        return None if needed else Caller(LOCAL, "admin")
    kind, _, token = header.partition(" ")
    found = store.token(hashed(token.strip())) if kind.lower() == "bearer" else None
    return None if found is None else Caller(found["name"], found["role"])


def is_local(host: str) -> bool:
    """Whether a name or an address is this machine's own, which no other machine reaches.

    >>> is_local("localhost"), is_local("127.0.0.1"), is_local("::1"), is_local("0.0.0.0"), is_local("example.org")
    (True, True, True, False, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
