"""What the OpenAPI page says, against a live service: whatever fits it or nearly does is answered as it promises."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import schemathesis
from fastapi import FastAPI

from bgad.service.folders import WORKSPACE
from bgad.service.http import images, jobs, models, reviews, scoring, security
from bgad.service.store.store import Store
from tests.fuzzing import FUZZ_SEED, seeded
from tests.service.conftest import Live, new_schema, png, wait_for
from tests.service.teaching.test_runner import call

EXAMPLES = 25 if FUZZ_SEED is None else 200  # of each kind, two for each operation
schemathesis.checks.load_all_checks()
CHECKS = schemathesis.checks.CHECKS.get_by_names(
    [
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_headers_conformance",
        "response_schema_conformance",
        "unsupported_method",
    ]
)


@pytest.fixture(scope="module")
def live_on_postgres(model: Path, postgres: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """With one image, one review and one job that has ended; PostgreSQL is the stricter of the stores."""
    models = tmp_path_factory.mktemp("schema")
    shutil.copytree(model, models / "plate.bgad", copy_function=os.link)
    (models / WORKSPACE).mkdir()
    address = new_schema(postgres)
    store = Store(address)
    service = Live(models, ("--store", address, "--max-upload-mb", "1", "--data", str(models / "none"))).start()
    image = call(service, "/v1/models/plate/score", data=png())["image"]
    store.reviews.add(image, "unsure", "ann")
    job = store.jobs.add("teach", store.versions.released("plate"), [], "ann")
    store.jobs.update(job.id, state="failed", message="for the test")
    store.close()
    yield service
    service.end(signal.SIGKILL)


@pytest.fixture(scope="module")
def described(live_on_postgres: Live) -> Any:
    return schemathesis.openapi.from_url(f"{live_on_postgres.address}/v1/openapi.json")


def operations() -> list[str]:
    app = FastAPI()
    for module in (security, models, scoring, images, reviews, jobs):
        app.include_router(module.router)
    return [f"{method.upper()} {path}" for path, item in app.openapi()["paths"].items() for method in item]


SETTINGS = hypothesis.settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=FUZZ_SEED is None,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)


@pytest.mark.parametrize("there", [False, True], ids=["anything", "what is there"])
@pytest.mark.parametrize("operation", operations())
def test_any_request_is_answered_as_the_schema_says(described: Any, operation: str, there: bool) -> None:
    """Once with what hypothesis makes up, and once with the numbers and names of things that exist, to get further."""
    method, path = operation.split()

    @seeded
    @SETTINGS
    @hypothesis.given(case=described[path][method].as_strategy())
    def check(case: Any) -> None:
        known = {"name": "plate", "number": 1, "model": "plate"} if there else {}
        for part in (case.path_parameters, case.query):
            part.update({key: value for key, value in known.items() if key in part})
        case.call_and_validate(checks=CHECKS)

    check()


def test_the_service_is_well_after_all_that(live_on_postgres: Live) -> None:
    wait_for(lambda: call(live_on_postgres, "/readyz")["status"] == "ready")
    log = (live_on_postgres.models / "log.txt").read_text()
    assert "Traceback" not in log, log
