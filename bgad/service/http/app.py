"""Assembles the HTTP application: middleware, API, pages and monitoring."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from anyio import to_thread
from fastapi import FastAPI
from fastapi.responses import FileResponse

from bgad import __version__
from bgad.service.http import health, history, images, jobs, models, problems, reviews, scoring, security
from bgad.service.http.admission import BatchAdmission, Limiters
from bgad.service.http.caching import RevalidatedFiles
from bgad.service.http.security import AccessRules, SecurityMiddleware
from bgad.service.http.uploads import BodyLimitMiddleware
from bgad.service.role import Role
from bgad.service.store.reviews import ReviewChangedError
from bgad.service.teaching.runner import JobRunner
from bgad.service.workbench import Workbench

WEB = Path(__file__).parents[1] / "web"


def create(workbench: Workbench, runner: JobRunner, rules: AccessRules | None = None) -> FastAPI:
    """Create the application; its lifespan starts and stops the workbench and, in the main service, the job runner."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.limiters = Limiters()
        if workbench.role is Role.MAIN:
            runner.start()
        workbench.start()
        yield
        await to_thread.run_sync(runner.stop)
        await to_thread.run_sync(workbench.close)

    app = FastAPI(
        title="bgad",
        version=__version__,
        description="Score images, review the results, teach the model and release it.",
        lifespan=lifespan,
        docs_url=None,  # FastAPI's page loads scripts from another site; /v1/docs is ours
        redoc_url=None,
        openapi_url="/v1/openapi.json",
    )
    batches = BatchAdmission()
    metrics = health.Metrics(workbench, runner, lambda: workbench.models.waiting() + batches.waiting())
    app.state.workbench, app.state.runner, app.state.batch_admission = workbench, runner, batches
    app.add_middleware(BodyLimitMiddleware, workbench.limits.max_bytes)
    app.add_middleware(SecurityMiddleware, rules or AccessRules(), workbench.store.tokens, metrics.count)
    problems.install(app)
    app.add_exception_handler(ReviewChangedError, reviews.changed)
    for module in (security, models, scoring, images, reviews, jobs, history):
        app.include_router(module.router)
    app.include_router(health.make_router(metrics, workbench))
    _add_pages(app)
    return app


def _add_pages(app: FastAPI) -> None:
    @app.get("/", include_in_schema=False)
    def page() -> FileResponse:
        return FileResponse(WEB / "index.html", headers={"Cache-Control": "no-cache"})

    @app.get("/v1/docs", include_in_schema=False)
    def docs() -> FileResponse:
        return FileResponse(WEB / "docs.html", headers={"Cache-Control": "no-cache"})

    app.mount("/static", RevalidatedFiles(directory=WEB), name="static")
