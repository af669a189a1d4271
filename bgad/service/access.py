"""Access tokens and roles, without HTTP: the command `bgad token` and the HTTP layer share them."""

from __future__ import annotations

import hashlib
import ipaddress
import secrets
from dataclasses import dataclass

from bgad.errors import ConfigError
from bgad.service.store.tokens import Tokens

ROLES = ("score", "review", "admin")  # each role includes the permissions of those before it
TOKEN_PREFIX = "bgad_"  # noqa: S105 - not a secret
LOCAL_CALLER = "local"  # the name of a caller without a token, where none is required


@dataclass(frozen=True)
class Caller:
    """Who sends a request, and with which role."""

    name: str
    role: str

    def may(self, role: str) -> bool:
        """Return whether the caller's role includes the permissions of `role`."""
        return ROLES.index(self.role) >= ROLES.index(role)


def new_token(tokens: Tokens, name: str, role: str) -> str:
    """Create a token, store its hash and return the token, which cannot be recovered later."""
    if role not in ROLES:
        raise ConfigError(f"unknown role {role!r}: choose from {', '.join(ROLES)}")
    if not name.strip() or len(name) > 200:
        raise ConfigError("a token needs a name of 1 to 200 letters: whose is it?")
    token = TOKEN_PREFIX + secrets.token_urlsafe(32)
    tokens.add(name, role, hash_token(token))
    return token


def hash_token(token: str) -> str:
    """Hash a token. 256 random bits cannot be guessed, so that neither a salt nor a slow hash is needed."""
    return hashlib.sha256(token.encode()).hexdigest()


def authenticate(tokens: Tokens, header: str | None, *, required: bool) -> Caller | None:
    """Return the caller that an Authorization header names; None if it names nobody.

    A request without the header has the role `admin` where no token is required.
    """
    if header is None:
        return None if required else Caller(LOCAL_CALLER, "admin")
    scheme, _, token = header.partition(" ")
    known = tokens.find(hash_token(token.strip())) if scheme.lower() == "bearer" else None
    return None if known is None else Caller(known.name, known.role)


def is_local(host: str) -> bool:
    """Return whether a host name or address can only be reached from this machine.

    >>> is_local("localhost"), is_local("127.0.0.1"), is_local("::1"), is_local("0.0.0.0"), is_local("example.org")
    (True, True, True, False, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
