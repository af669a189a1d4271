"""What a caller must be allowed to do, of the operations of the API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Annotated, Any

from fastapi import Depends, Request, Response
from fastapi.routing import APIRoute

from bgad.errors import BgadError
from bgad.service.http.tokens import Caller


class ForbiddenError(BgadError):
    """The caller's role is not enough."""


def needs(role: str) -> Callable[[Request], Awaitable[Caller]]:
    """A dependency: the caller, who must have the role."""

    async def check(request: Request) -> Caller:
        caller: Caller = request.state.caller
        if not caller.may(role):
            raise ForbiddenError(f"{caller.name} may {caller.role}: this needs the role {role}")
        return caller

    return check


CHECKS = may_score, may_review, may_all = needs("score"), needs("review"), needs("admin")
MayScore = Annotated[Caller, Depends(may_score)]
MayReview = Annotated[Caller, Depends(may_review)]
MayAll = Annotated[Caller, Depends(may_all)]


class Guarded(APIRoute):
    """Knows the role of the caller before a byte of the body is read: FastAPI reads and parses it first."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """As FastAPI makes it, behind the checks among its dependencies."""
        handle = super().get_route_handler()
        checks = [found.call for found in self.dependant.dependencies if found.call in CHECKS]

        async def checked(request: Request) -> Response:
            for check in checks:
                await check(request)
            return await handle(request)

        return checked
