"""Access tokens and roles, without HTTP: the command `bgad token` and the HTTP layer share them."""

from __future__ import annotations

import hashlib
import ipaddress
import secrets
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from bgad.errors import ConfigError
from bgad.service.errors import ForbiddenError
from bgad.service.store import history
from bgad.service.store.tokens import Tokens

ROLES = ("score", "review", "admin")  # each role includes the permissions of those before it
TOKEN_PREFIX = "bgad_"  # noqa: S105 - not a secret
LOCAL_CALLER = "local"  # the name of a caller without a token, where none is required
RESERVED_NAMES = (LOCAL_CALLER, history.SERVICE)  # in the history, they are nobody's


@dataclass(frozen=True)
class Caller:
    """Who sends a request, with which role, and for which models, all if None."""

    name: str
    role: str
    models: tuple[str, ...] | None = None
    expires: float | None = None  # in seconds since 1970; None: never

    def may(self, role: str) -> bool:
        """Return whether the caller's role includes the permissions of `role`."""
        return ROLES.index(self.role) >= ROLES.index(role)

    @property
    def is_limited(self) -> bool:
        """Whether the caller sees only some models, or only images that it sent itself."""
        return self.models is not None or self.role == "score"

    def may_use(self, model: str) -> bool:
        """Return whether the caller may use a model."""
        return self.models is None or model in self.models

    def check_model(self, model: str) -> None:
        """Raise ForbiddenError if the caller may not use a model; an empty name is no model."""
        if model and not self.may_use(model):
            raise ForbiddenError(f"the token of {self.name} is for {', '.join(self.models or ())} only")


def new_token(
    tokens: Tokens, name: str, role: str, *, models: Sequence[str] | None = None, expires: float | None = None
) -> str:
    """Create a token, store its hash and return the token, which cannot be recovered later.

    It is for the given models, or for all, and expires at a time in seconds since 1970, or never.
    """
    if role not in ROLES:
        raise ConfigError(f"unknown role {role!r}: choose from {', '.join(ROLES)}")
    if not name.strip() or len(name) > 200:
        raise ConfigError("a token needs a name of 1 to 200 letters: whose is it?")
    if name != name.strip() or any(unicodedata.category(letter)[0] == "C" for letter in name):
        raise ConfigError("the name of a token has no control characters, and no space before or after it")
    if unicodedata.normalize("NFKC", name).casefold() in RESERVED_NAMES:
        raise ConfigError(f"{name!r} is the service's own name in the history: choose another one")
    token = TOKEN_PREFIX + secrets.token_urlsafe(32)
    tokens.add(name, role, hash_token(token), models=models, expires=expires)
    return token


def hash_token(token: str) -> str:
    """Hash a token. 256 random bits cannot be guessed, so that neither a salt nor a slow hash is needed."""
    return hashlib.sha256(token.encode()).hexdigest()


def authenticate(tokens: Tokens, header: str | None, *, required: bool) -> Caller | None:
    """Return the caller that an Authorization header names, and note the use; None if it names nobody.

    A request without the header has the role `admin` where no token is required.
    """
    if header is None:
        return None if required else Caller(LOCAL_CALLER, "admin")
    scheme, _, token = header.partition(" ")
    known = tokens.find(hash_token(token.strip())) if scheme.lower() == "bearer" else None
    if known is None:
        return None
    tokens.note_use(known)
    return Caller(known.name, known.role, None if known.models is None else tuple(known.models), known.expires)


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
