"""Liveness, readiness, and metrics for Prometheus."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from fastapi import APIRouter, Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import Scope

from bgad.service.http.admission import run_now
from bgad.service.http.security import SAFE_METHODS
from bgad.service.teaching.runner import JobRunner
from bgad.service.workbench import Workbench

METHODS = (*SAFE_METHODS, "POST", "PUT", "DELETE", "PATCH")
READY_SECONDS = 3.0  # in which a healthy store answers
STORE_SILENT = "the store does not answer"


class Metrics(Collector):
    """The metrics of the service."""

    def __init__(self, workbench: Workbench, runner: JobRunner, waiting: Callable[[], int]) -> None:
        """`waiting` returns the number of images that wait to be scored."""
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "bgad_requests_total", "Requests answered", ["method", "route", "status"], registry=self.registry
        )
        self._seconds = Histogram("bgad_request_seconds", "Time to answer", ["route"], registry=self.registry)
        gauge = Gauge("bgad_waiting", "Images that wait to be scored", registry=self.registry)
        gauge.set_function(waiting)
        self._workbench, self._runner = workbench, runner
        self.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield the figures that the workbench counts itself."""
        scored = CounterMetricFamily("bgad_scored", "Images scored", labels=["model", "decision"])
        for (model, decision), number in self._workbench.decisions.copy().items():
            scored.add_metric([model, decision], number)
        level = GaugeMetricFamily("bgad_drift_level", "Level of the drift test", labels=["model"])
        alarms = CounterMetricFamily("bgad_drift_alarms", "Alarms of the drift test in the history", labels=["model"])
        for model, (current_level, count) in self._workbench.drift.figures().items():
            level.add_metric([model], current_level)
            alarms.add_metric([model], count)
        not_kept = CounterMetricFamily(
            "bgad_not_kept", "Images scored and not stored, because the store did not answer", labels=["model"]
        )
        for model, count in self._workbench.not_kept.copy().items():
            not_kept.add_metric([model], count)
        up = GaugeMetricFamily("bgad_store_up", "1 if nothing is known against the store, 0 if scores are not kept")
        up.add_metric([], 0 if self._workbench.recorder.problem else 1)
        free = GaugeMetricFamily("bgad_free_bytes", "Free space on the disk of the images")
        free.add_metric([], self._workbench.free_space.free_bytes())
        dropped = CounterMetricFamily("bgad_dropped", "Images dropped because nobody reviewed them")
        dropped.add_metric([], self._workbench.retention.dropped)
        paused = GaugeMetricFamily("bgad_retention_paused", "1 while retention does not trust the clock")
        paused.add_metric([], 1 if self._workbench.retention.clock.problem else 0)
        yield from (scored, level, alarms, dropped, not_kept, up, free, paused)
        yield from self._engines()
        yield from self._threads()

    def _engines(self) -> Iterator[Metric]:
        """Yield the engines that hung, and those of them that still do."""
        replaced = CounterMetricFamily("bgad_engine_replaced", "Engines that hung and were replaced", labels=["model"])
        for model, count in self._workbench.models.replaced.copy().items():
            replaced.add_metric([model], count)
        hanging = GaugeMetricFamily("bgad_engine_hanging", "Engines that hang and keep their memory", labels=["model"])
        for model, count in self._workbench.models.hanging().items():
            hanging.add_metric([model], count)
        yield from (replaced, hanging)

    def _threads(self) -> Iterator[Metric]:
        """Yield the signs of life of the background threads."""
        silence = GaugeMetricFamily(
            "bgad_thread_heartbeat_seconds", "Time since the last sign of life of a thread", labels=["thread"]
        )
        failures = CounterMetricFamily("bgad_thread_failures", "Errors that a thread has survived", labels=["thread"])
        threads = self._workbench.threads()
        for thread in [*threads, self._runner.thread] if self._runner.thread.is_running else threads:
            silence.add_metric([thread.name], thread.silence)
            failures.add_metric([thread.name], thread.failures)
        yield from (silence, failures)

    def count(self, scope: Scope, status: int, seconds: float) -> None:
        """Count an answered request."""
        route = getattr(scope.get("route"), "path", "other")
        method = scope["method"] if scope["method"] in METHODS else "other"
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)


class Probe:
    """Asks whether images can be scored and kept; at most one query runs, however many callers wait and however long it
    takes."""

    def __init__(self, workbench: Workbench) -> None:
        self._workbench = workbench
        self._query: asyncio.Task[str] | None = None

    async def problem(self) -> str:
        """Return what keeps images from being scored and kept: the store that does not answer in READY_SECONDS, the
        disk, or engines of a released version that hang."""
        if self._query is None or self._query.done():
            self._query = asyncio.create_task(run_now(self._ask))
        done, _ = await asyncio.wait([self._query], timeout=READY_SECONDS)
        if not done or self._workbench.recorder.problem:
            return STORE_SILENT
        return self._query.result() or self._workbench.free_space.problem()

    def _ask(self) -> str:
        """Ask the store whether it answers and, where engines hang, which versions are released."""
        return self._workbench.models.problem() if self._workbench.store.database.alive() else STORE_SILENT


def make_router(metrics: Metrics, workbench: Workbench) -> APIRouter:
    """Return the routes for monitoring; they are not part of the documented API."""
    router, probe = APIRouter(include_in_schema=False), Probe(workbench)

    @router.api_route("/healthz", methods=["GET", "HEAD"])
    async def healthz() -> dict[str, str]:
        return {"status": "alive", "role": workbench.role}

    @router.api_route("/readyz", methods=["GET", "HEAD"])
    async def readyz(response: Response) -> dict[str, str]:
        problem = await probe.problem()
        response.status_code = 503 if problem else 200
        return {"status": problem or "ready"}

    @router.get("/metrics")
    def prometheus_metrics() -> Response:
        return Response(generate_latest(metrics.registry), media_type="text/plain; version=0.0.4")

    return router
