"""The API: jobs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from bgad import TrainOptions, train
from bgad.service.http import jobs as job_routes
from bgad.service.store.jobs import Job
from tests.conftest import distance_config
from tests.service.conftest import Maker, Service, png, problem


def test_jobs_that_make_no_sense(service: Service) -> None:
    assert service.client.get("/v1/jobs").json() == []
    assert "nothing to teach" in problem(service.client.post("/v1/jobs", json={"model": "plate"}), 422)
    number = service.score(png())
    wanted = {"model": "plate", "images": [number]}
    assert "review it first" in problem(service.client.post("/v1/jobs", json=wanted), 422)
    service.client.post(f"/v1/images/{number}/reviews", json={"verdict": "unsure"})
    assert "review it first" in problem(service.client.post("/v1/jobs", json=wanted), 422)
    problem(service.client.post("/v1/jobs", json={"model": "wheel"}), 404)
    problem(service.client.post("/v1/jobs", json={"model": "plate\0"}), 422)
    problem(service.client.post("/v1/jobs", json={"model": "plate", "images": [10**30]}), 422)
    problem(service.client.post("/v1/jobs", json={"model": "plate", "images": ["x"]}), 422)
    for number in (99, 0, 2**40):
        for method, what in (("GET", ""), ("GET", "/events"), ("POST", "/cancel"), ("POST", "/resume")):
            problem(service.client.request(method, f"/v1/jobs/{number}{what}"), 404)


def test_a_model_without_flows_cannot_be_taught(make: Maker, models: Path, data_set: Path) -> None:
    """It is said when the job is wanted, before anybody waits for it."""
    options = TrainOptions(known=4, device="cpu", export=False)
    train(data_set, models / "ring.bgad", config=distance_config(train={"push_steps": 0}), options=options)
    service = make()
    said = problem(service.client.post("/v1/jobs", json={"model": "ring"}), 422)
    assert said == "a model of bgad-distance cannot be updated, as it has no flows: train anew with all images"
    assert service.client.get("/v1/jobs").json() == []


def test_a_list_of_jobs_is_without_their_results_and_by_model(make: Maker, models: Path) -> None:
    shutil.copytree(models / "plate.bgad", models / "wheel.bgad")
    service = make()
    jobs = {
        name: service.store.jobs.add("teach", service.store.versions.released(name), [], "ann")
        for name in ("plate", "wheel")
    }
    service.store.jobs.update(jobs["plate"].id, state="done", result={"rows": [1, 2]})
    number = jobs["plate"].id
    assert service.client.get(f"/v1/jobs/{number}").json()["result"] == {"rows": [1, 2]}
    listed = service.client.get("/v1/jobs").json()
    assert [(job["name"], job["result"]) for job in listed] == [("wheel", None), ("plate", None)]
    (only,) = service.client.get("/v1/jobs", params={"model": "plate"}).json()
    assert (only["id"], only["state"], only["result"]) == (number, "done", None)


def events_of(service: Service, monkeypatch: pytest.MonkeyPatch, changes: list[dict[str, Any]]) -> list[str]:
    """The lines sent of a job to which one thing more has happened each time that it is looked at."""
    job = service.store.jobs.add("teach", service.store.versions.released("plate"), [], "ann").id
    look, left = service.store.jobs.get, iter([{}, *changes])  # first it is seen whether there is such a job

    def changed(number: int) -> Job:
        if values := next(left):
            service.store.jobs.update(number, **values)
        return look(number)

    monkeypatch.setattr(job_routes, "POLL_SECONDS", 0)
    monkeypatch.setattr(service.store.jobs, "get", changed)
    with service.client.stream("GET", f"/v1/jobs/{job}/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["x-accel-buffering"] == "no"
        lines = [line for line in answer.iter_lines() if line]
    assert next(left, None) is None
    return lines


def test_the_events_of_a_job_say_that_they_are_alive(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_routes, "KEEPALIVE_SECONDS", 0)
    lines = events_of(service, monkeypatch, [{}, {}, {}, {"progress": 0.5}, {}, {"state": "done"}])
    assert [line[:6] for line in lines] == ["data: ", ": ", ": ", "data: ", ": ", "data: "]


def test_the_events_of_a_job_end_with_the_job(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    running: dict[str, Any] = {"state": "running", "message": "learning"}
    lines = events_of(service, monkeypatch, [{}, {}, running, {}, {"progress": 0.5}, {}, {"state": "done"}])
    assert all(line.startswith("data: ") for line in lines)
    seen = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert [s["state"] for s in seen] == ["queued", "running", "running", "done"]
    assert seen[2]["progress"] == 0.5
