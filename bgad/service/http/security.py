"""Who may do what: host names, cross-site requests, tokens, roles, and the security headers of every answer."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bgad.service import access
from bgad.service.access import Caller
from bgad.service.errors import ForbiddenError, MisdirectedError
from bgad.service.http import schemas, scoping
from bgad.service.http.callers import Callers
from bgad.service.http.problems import DESCRIPTIONS, problem, store_unavailable
from bgad.service.role import Role
from bgad.service.store.dialects import UNAVAILABLE
from bgad.service.store.tokens import Tokens

HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob: data:; style-src 'self'; "
    "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
RAW_HEADERS = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
PUBLIC_PATHS = ("/", "/v1/docs", "/healthz", "/readyz", "/static")  # the pages ask for a token themselves
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
PROXY_HEADERS = ("forwarded", "x-forwarded-for", "x-real-ip")
CLIENT_LEFT = 499  # status that is counted for a client that leaves before the answer
FIRST_TOKEN = "make one with `bgad token add NAME --role admin`, then start the service again"  # noqa: S105
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class AccessRules:
    """The host names that the service answers to, any if empty, and whether every request needs a token."""

    hosts: tuple[str, ...] = LOCAL_HOSTS
    tokens_required: bool = False


class SecurityMiddleware:
    """Refuses or identifies every request, adds the security headers, and counts the answers."""

    def __init__(
        self, app: ASGIApp, rules: AccessRules, tokens: Tokens, count: Callable[[Scope, int, float], None]
    ) -> None:
        """`count` receives the scope, the status and the duration in seconds of every answered request."""
        self._app, self._rules, self._tokens, self._count = app, rules, tokens, count
        self._callers = Callers(tokens)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                existing = {name for name, _ in message["headers"]}
                missing = (pair for pair in RAW_HEADERS if pair[0] not in existing)
                message["headers"] = [*message["headers"], *missing]
            await send(message)

        try:
            refusal = await self._refusal(Request(scope))
            await (refusal or self._app)(scope, receive, send_with_headers)
        except ClientDisconnect:  # nobody receives an answer
            status = status or CLIENT_LEFT
        except Exception:
            if not status:
                answer = problem(500, "something went wrong here: the log of the service says what")
                await answer(scope, receive, send_with_headers)
            raise  # to the log
        finally:
            self._count(scope, status or 500, time.perf_counter() - began)

    async def _refusal(self, request: Request) -> Response | None:
        try:
            return refuse(request, self._rules) or await self._identify(request)
        except UNAVAILABLE as error:  # while a token is looked up; errors of the API are handled further inside
            return store_unavailable(error)

    async def _identify(self, request: Request) -> Response | None:
        """Attach the caller to the request; return an answer if there is none."""
        path = request.scope["path"]  # url.path depends on what the client says about the host
        if path in PUBLIC_PATHS or path.startswith("/static/"):
            return None
        header, required = request.headers.get("authorization"), self._rules.tokens_required
        if header is None:
            caller = access.authenticate(self._tokens, None, required=required)  # does not ask the store
        else:
            state = request.app.state
            is_away = bool(state.workbench.recorder.problem)
            caller = await self._callers.find(header, state.limiters.tokens, store_is_away=is_away)
        if caller is None:
            missing = "a token is needed" if header is None else "the token is unknown or has expired"
            answer = problem(401, f"{missing}: send Authorization: Bearer TOKEN (bgad token makes one)")
            answer.headers["WWW-Authenticate"] = "Bearer"
            return answer
        if path == "/metrics" and caller.models is not None:  # they tell about all models
            return problem(403, "the metrics are of all models: use a token without --model")
        request.state.caller = caller
        return None


def refuse(request: Request, rules: AccessRules) -> Response | None:
    """Return the answer to a request that must not be handled, or None.

    Refused are unknown host names, requests that another site's page makes a browser send, and requests from other
    machines through a local proxy while no token protects the service.
    """
    host = re.sub(r":\d+$", "", request.headers.get("host", "")).strip("[]").lower()
    if rules.hosts and host not in rules.hosts:
        return problem(421, f"{host[:100]!r} is not a name of this service: use {rules.hosts[0]}")
    if not rules.tokens_required and any(name in request.headers for name in PROXY_HEADERS):
        return problem(403, f"this came through a proxy, and no token guards the service: {FIRST_TOKEN}")
    if "\0" in request.scope["path"] or b"%00" in request.scope["query_string"]:
        return problem(400, "there is a NUL character in the address")
    if request.method in SAFE_METHODS:
        return None
    origin = request.headers.get("origin")
    cross_origin = origin is not None and origin.partition("://")[2] != request.headers.get("host")
    cross_site = request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none")
    if cross_origin or cross_site:
        return problem(403, "requests from pages of other sites are refused")
    return None


# --- roles


def needs(role: str) -> Callable[[Request], Awaitable[Caller]]:
    """Make a dependency that returns the caller, or raises ForbiddenError if the caller lacks a role."""

    async def check(request: Request) -> Caller:
        caller: Caller = request.state.caller
        if not caller.may(role):
            raise ForbiddenError(f"{caller.name} may {caller.role}: this needs the role {role}")
        return caller

    return check


ROLE_CHECKS = may_score, may_review, may_administer = needs("score"), needs("review"), needs("admin")
MayScore = Annotated[Caller, Depends(may_score)]
MayReview = Annotated[Caller, Depends(may_review)]
MayAdminister = Annotated[Caller, Depends(may_administer)]


class RoleCheckedRoute(APIRoute):
    """Checks what caller and service may do before the body is read; FastAPI alone parses the body first.

    A scorer answers questions, and does what a token with the role `score` may do: it scores images.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap FastAPI's handler in the role checks among its dependencies."""
        handle = super().get_route_handler()
        checks = [dependency.call for dependency in self.dependant.dependencies if dependency.call in ROLE_CHECKS]
        is_for_main = not (self.methods or set()) <= set(SAFE_METHODS) and may_score not in checks

        async def checked(request: Request) -> Response:
            for check in checks:
                await check(request)
            if is_for_main and request.app.state.workbench.role is Role.SCORER:
                what = f"{request.method} {request.scope['path']}"
                raise MisdirectedError(f"a scorer only scores images: send {what} to the main service")
            await scoping.check(request, self.path)
            return await handle(request)

        return checked


def api_router() -> APIRouter:
    """Make a router of the API, below /v1, whose routes check roles and describe their errors."""
    return APIRouter(prefix="/v1", route_class=RoleCheckedRoute, responses=DESCRIPTIONS)


router = api_router()


@router.get("/me")
def me(caller: MayScore) -> schemas.Me:
    """Return the name, the role and the models of the caller."""
    models = None if caller.models is None else list(caller.models)
    return schemas.Me(name=caller.name, role=caller.role, models=models)  # type: ignore[arg-type]
