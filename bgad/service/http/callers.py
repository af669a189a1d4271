"""Looks up the tokens of callers, and remembers them for the time when the store does not answer."""

from __future__ import annotations

import time
from collections import OrderedDict

import sqlalchemy as sa
from anyio import CapacityLimiter, fail_after, to_thread

from bgad.service import access
from bgad.service.access import Caller
from bgad.service.store.dialects import UNAVAILABLE
from bgad.service.store.tokens import Tokens

LOOKUP_SECONDS = 2.0  # that a request waits for the store
MAX_REMEMBERED = 1000


class Callers:
    """The callers that the store has named; a camera keeps its access while the store is away."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._remembered: OrderedDict[str, Caller] = OrderedDict()  # by the hash of the header; the newest is the last

    async def find(self, header: str, limiter: CapacityLimiter, *, store_is_away: bool) -> Caller | None:
        """Return the caller that an Authorization header names; while the store is away, whom it named before."""
        key = access.hash_token(header)
        remembered = self._remembered.get(key)
        if remembered is not None and remembered.expires is not None and time.time() >= remembered.expires:
            remembered = None
        if store_is_away and remembered is not None:
            return remembered
        try:
            caller = await self._ask(header, limiter)
        except UNAVAILABLE:
            if remembered is None:
                raise
            return remembered
        self._remember(key, caller)
        return caller

    async def _ask(self, header: str, limiter: CapacityLimiter) -> Caller | None:
        try:
            with fail_after(LOOKUP_SECONDS):
                return await to_thread.run_sync(
                    lambda: access.authenticate(self._tokens, header, required=True),
                    limiter=limiter,
                    abandon_on_cancel=True,
                )
        except TimeoutError as error:
            raise sa.exc.TimeoutError("the store does not answer") from error

    def _remember(self, key: str, caller: Caller | None) -> None:
        self._remembered.pop(key, None)
        if caller is not None:
            self._remembered[key] = caller
        if len(self._remembered) > MAX_REMEMBERED:
            self._remembered.popitem(last=False)
