"""The HTTP service: security around everything, then the API and the page."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bgad._version import __version__
from bgad.client import MAX_BATCH
from bgad.errors import BgadError, ConfigError, DataError, ImageError, OutputError
from bgad.service.http import admission as queues
from bgad.service.http import images as api
from bgad.service.http import tokens as auth
from bgad.service.http import uploads as forms
from bgad.service.http.admission import Pile
from bgad.service.http.roles import ForbiddenError
from bgad.service.scoring.batcher import BATCH, PATIENT, WAITING, BusyError
from bgad.service.store.dialects import GONE
from bgad.service.store.store import MissingError, Store
from bgad.service.teaching.runner import Jobs
from bgad.service.workbench import Workbench

WEB = Path(__file__).parents[1] / "web"
RETRY_AFTER = 1  # seconds
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob: data:; style-src 'self'; "
    "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
RAW_HEADERS = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
OPEN = ("/", "/v1/docs", "/healthz", "/readyz", "/static")  # without a token: the pages, which then ask for one
SAFE = ("GET", "HEAD", "OPTIONS")
METHODS = (*SAFE, "POST", "PUT", "DELETE", "PATCH")
WHOLE = 2  # pictures, with or without their maps, that are drawn as large as they are, at a time
DOORS = 8  # tokens that are looked up at a time
ROOM = 2 * 2**20  # bytes of a request beside its pictures
PICTURES = {"batches": MAX_BATCH, "reviews": 3, "score": 2}  # by the end of the path; a review has two in base64
LEFT = 499  # the status that is counted where the client has gone before it was answered
READY_SECONDS = 3.0  # in which a store that is well answers
FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip")  # what a proxy adds
FIRST_TOKEN = "make one with `bgad token add NAME --role admin`, then start the service again"  # noqa: S105
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


class Meters(Collector):
    """What Prometheus gets to see."""

    def __init__(self, workbench: Workbench, waiting: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "bgad_requests_total", "Requests answered", ["method", "route", "status"], registry=self.registry
        )
        self.seconds = Histogram("bgad_request_seconds", "Time to answer", ["route"], registry=self.registry)
        gauge = Gauge("bgad_waiting", "Pictures that wait to be scored", registry=self.registry)
        gauge.set_function(waiting)
        self.workbench = workbench
        self.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """What the workbench itself counts."""
        scored = CounterMetricFamily("bgad_scored", "Pictures scored", labels=["model", "decision"])
        for (model, decision), number in self.workbench.scored.copy().items():
            scored.add_metric([model, decision], number)
        level = GaugeMetricFamily("bgad_drift_level", "Where the drift test stands", labels=["model"])
        alarms = CounterMetricFamily("bgad_drift_alarms", "Alarms of the drift test in the history", labels=["model"])
        for model, (now, called) in self.workbench.watch.figures().items():
            level.add_metric([model], now)
            alarms.add_metric([model], called)
        dropped = CounterMetricFamily("bgad_dropped", "Pictures dropped as nobody reviewed them")
        dropped.add_metric([], self.workbench.keeping.dropped)
        yield from (scored, level, alarms, dropped)

    def count(self, scope: Scope, status: int, seconds: float) -> None:
        """One request was answered."""
        route = getattr(scope.get("route"), "path", "other")
        method = scope["method"] if scope["method"] in METHODS else "other"
        self.requests.labels(method, route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)


def create(
    workbench: Workbench,
    jobs: Jobs,
    *,
    hosts: tuple[str, ...] = LOCAL_NAMES,
    tokens: bool = False,
) -> FastAPI:
    """The application. `hosts` are the names that it answers to; any where it is empty. `tokens` says that everyone
    needs one."""

    @asynccontextmanager
    async def living(app: FastAPI) -> AsyncIterator[None]:
        # More threads than places, so that who finds none hears it at once; batches wait for each other instead.
        app.state.scoring, app.state.batches = CapacityLimiter(2 * WAITING), CapacityLimiter(2 * BATCH)
        # Threads of their own: what takes long, or waits for a score, must not keep others from being let in.
        app.state.whole, app.state.doors = CapacityLimiter(WHOLE), CapacityLimiter(DOORS)
        app.state.overlays, app.state.drawing = CapacityLimiter(WHOLE), CapacityLimiter(PATIENT)
        jobs.start()
        workbench.again.start()
        workbench.watch.start()
        workbench.keeping.start()
        yield
        await to_thread.run_sync(jobs.stop)
        await to_thread.run_sync(workbench.close)

    app = FastAPI(
        title="bgad",
        version=__version__,
        description="Score pictures, review what was found, teach the model, release it.",
        lifespan=living,
        docs_url=None,  # its scripts come from another place; /v1/docs is our own
        redoc_url=None,
        openapi_url="/v1/openapi.json",
    )
    pile, probe = Pile(), Probe(workbench.store)
    meters = Meters(workbench, lambda: workbench.waiting() + pile.waiting())
    app.state.workbench, app.state.jobs, app.state.meters, app.state.pile = workbench, jobs, meters, pile

    app.add_middleware(Bounded, workbench.max_bytes)
    app.add_middleware(Guard, workbench, meters, hosts, tokens)

    for kind, status in STATUS.items():
        app.add_exception_handler(kind, _answer(status))
    app.add_exception_handler(RequestValidationError, _not_valid)
    for gone in GONE:
        app.add_exception_handler(gone, _no_store)
    app.include_router(api.router)

    @app.api_route("/healthz", methods=["GET", "HEAD"], include_in_schema=False)
    async def healthz() -> dict[str, str]:
        return {"status": "alive"}

    @app.api_route("/readyz", methods=["GET", "HEAD"], include_in_schema=False)
    async def readyz(response: Response) -> dict[str, str]:
        ready = await probe.alive()
        response.status_code = 200 if ready else 503
        return {"status": "ready" if ready else "the store does not answer"}

    @app.get("/metrics", include_in_schema=False)
    def metrics() -> Response:
        return Response(generate_latest(meters.registry), media_type="text/plain; version=0.0.4")

    @app.get("/", include_in_schema=False)
    def page() -> FileResponse:
        return FileResponse(WEB / "index.html")

    @app.get("/v1/docs", include_in_schema=False)
    def docs() -> FileResponse:
        return FileResponse(WEB / "docs.html")

    app.mount("/static", StaticFiles(directory=WEB), name="static")
    return app


class Probe:
    """Whether the store answers in time; one look at a time, however many ask and however long it takes."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._look: asyncio.Task[bool] | None = None

    async def alive(self) -> bool:
        """What the look at hand finds."""
        if self._look is None or self._look.done():
            self._look = asyncio.create_task(queues.now(self.store.alive))
        done, _ = await asyncio.wait([self._look], timeout=READY_SECONDS)
        return bool(done) and self._look.result()


class Guard:
    """Around everything: who may come in, the headers of every answer, and the counting."""

    def __init__(
        self, app: ASGIApp, workbench: Workbench, meters: Meters, hosts: tuple[str, ...], tokens: bool
    ) -> None:
        self.app, self.workbench, self.meters, self.hosts, self.tokens = app, workbench, meters, hosts, tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse or pass on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 0

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                there = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(pair for pair in RAW_HEADERS if pair[0] not in there)]
            await send(message)

        request = Request(scope)
        try:
            try:
                answer = refused(request, self.hosts, self.tokens)
                answer = answer or await identified(request, self.workbench, self.tokens)
            except GONE as error:  # of the tokens; the API's own are answered further inside
                answer = _no_store(request, error)
            await (answer or self.app)(scope, receive, sent)
        except ClientDisconnect:  # nobody hears an answer
            status = status or LEFT
        except Exception:
            if not status:
                await _problem(500, "something went wrong here: the log of the service says what")(scope, receive, sent)
            raise  # to the log
        finally:
            self.meters.count(scope, status or 500, time.perf_counter() - began)


def refused(request: Request, hosts: tuple[str, ...], tokens: bool) -> Response | None:
    """An answer to what another site's page, or a name that is not ours, makes a browser send; and to what comes from
    another machine by way of a proxy on this one, while everybody may do everything."""
    host = re.sub(r":\d+$", "", request.headers.get("host", "")).strip("[]").lower()
    if hosts and host not in hosts:
        return _problem(421, f"{host[:100]!r} is not a name of this service: use {hosts[0]}")
    if not tokens and any(name in request.headers for name in FORWARDED):
        return _problem(403, f"this came through a proxy, and no token guards the service: {FIRST_TOKEN}")
    if "\0" in request.scope["path"] or b"%00" in request.scope["query_string"]:
        return _problem(400, "there is a NUL character in the address")
    if request.method in SAFE:
        return None
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
        return _problem(403, "requests from pages of other sites are refused")
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return _problem(403, "requests from pages of other sites are refused")
    return None


async def identified(request: Request, workbench: Workbench, tokens: bool) -> Response | None:
    """Put the caller into the request; an answer where there is none."""
    path = request.scope["path"]  # url.path is made of what the client says of the host
    if path in OPEN or path.startswith("/static/"):
        return None
    header = request.headers.get("authorization")
    found: auth.Caller | None
    if header is None:
        found = auth.caller(workbench.store, None, needed=tokens)  # which needs no store
    else:
        doors = request.app.state.doors
        found = await to_thread.run_sync(lambda: auth.caller(workbench.store, header, needed=tokens), limiter=doors)
    if found is None:
        answer = _problem(401, "a token is needed: send Authorization: Bearer TOKEN (bgad token makes one)")
        answer.headers["WWW-Authenticate"] = "Bearer"
        return answer
    request.state.caller = found
    return None


def _problem(status: int, text: str) -> JSONResponse:
    return JSONResponse({"detail": text}, status_code=status)


def _answer(status: int) -> Callable[[Request, Exception], JSONResponse]:
    def handler(_: Request, error: Exception) -> JSONResponse:
        answer = _problem(status, str(error))
        if status == 503:
            answer.headers["Retry-After"] = str(RETRY_AFTER)
        return answer

    return handler


def _no_store(request: Request, _: Exception) -> JSONResponse:
    return _answer(503)(request, BusyError("the store does not answer: try again later"))


def _not_valid(_: Request, error: Exception) -> JSONResponse:
    """One line instead of a list of structures."""
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for this one alone
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return _problem(422, f"{where}: {first['msg']}")


class Bounded:
    """Takes no more bytes of a request than its pictures may have, whether or not it says how many come."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app, self.max_bytes = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, counting."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        pictures = PICTURES.get(scope["path"].rpartition("/")[2], 0)
        limit, seen, more = pictures * self.max_bytes + ROOM, 0, True
        closes = any(name == b"connection" and value.lower() == b"close" for name, value in scope["headers"])

        async def taken() -> Message:
            nonlocal seen, more
            message = await receive()
            seen, more = seen + len(message.get("body", b"")), message.get("more_body", False)
            return message

        async def counted() -> Message:
            message = await taken()
            if seen > limit:
                raise HTTPException(413, f"a request may have {limit} bytes here: send less at a time")
            return message

        async def heard(message: Message) -> None:
            # The connection ends with the answer: who still sends would hear of a broken pipe, and nothing else.
            while closes and more and seen <= limit and message.get("status", 0) >= 400:
                await taken()
            await send(message)

        await self.app(scope, counted, heard)


STATUS: dict[type[Exception], int] = {
    BusyError: 503,
    MissingError: 404,
    ForbiddenError: 403,
    forms.TooLargeError: 413,
    forms.NoLengthError: 411,
    ImageError: 422,
    ConfigError: 422,
    DataError: 410,
    OutputError: 507,
    BgadError: 500,
}
