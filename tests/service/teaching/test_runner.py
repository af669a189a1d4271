from __future__ import annotations

import http.client
import itertools
import json
import shutil
import signal
import subprocess
import threading
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from bgad.artifact import folder as model_folder
from bgad.errors import ConfigError
from bgad.methods import checkpoint
from bgad.service.blobs import BlobKind
from bgad.service.folders import WORKSPACE
from bgad.service.store.jobs import Jobs
from bgad.service.store.store import Store
from bgad.service.store.versions import Versions
from bgad.service.teaching import runner
from tests.conftest import draw_image
from tests.service.conftest import Live, Maker, Service, as_file, new_runner, png, problem, sqlite_address, wait_for

ENDED = ("done", "failed", "cancelled", "interrupted")


def teach(service: Service, *, bad: int = 2, good: int = 1) -> dict[str, Any]:
    """Review some images, then a job; the answer."""
    for i in range(bad + good):
        number = service.score(png(50 + i, defect=i < bad))
        service.store.reviews.add(number, "bad" if i < bad else "good", "ann")
    answer = service.client.post("/v1/jobs", json={"model": "plate"})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def ended(service: Service, number: int, seconds: float = 120) -> dict[str, Any]:
    wait_for(lambda: service.store.jobs.get(number).state in ENDED, seconds)
    return dict(service.client.get(f"/v1/jobs/{number}").json())


def test_teach_compare_release_and_the_way_back(make: Maker, data_set: Path) -> None:
    service = make(data=data_set.parent)
    image, mask = draw_image(np.random.default_rng(5), defect=True)
    number = service.score(as_file(image), "blot.png")
    service.bench.reviewing.review(number, "bad", "ann", mask=as_file(mask.astype(np.uint8) * 255))
    unsure = service.score(png(70))
    service.store.reviews.add(unsure, "unsure", "ann")
    job = teach(service)
    assert (job["state"], job["who"], len(job["images"])) == ("queued", "local", 4)
    assert unsure not in job["images"]

    done = ended(service, job["id"])
    assert (done["state"], done["message"], done["progress"]) == ("done", "done", 1.0)
    assert done["seconds_left"] is None  # nothing
    result = done["result"]
    assert result["threshold"]["before"] == service.client.get("/v1/models/plate").json()["threshold"]
    assert result["reviews"]["images"] == 4
    assert result["reviews"]["bad"] == 3
    assert result["validation"]["images"] == 14  # 18 in the test folders, 4 of them known
    for part in ("validation", "reviews"):
        for side in ("before", "after"):
            assert set(result[part][side]) == {"auroc", "missed", "false_rejects"}
            assert 0 <= result[part][side]["auroc"] <= 1
        assert all({"before", "after", "change", "label", "name"} <= set(row) for row in result[part]["rows"])
        for side, row in ((side, row) for side in ("before", "after") for row in result[part]["rows"]):
            assert (
                (row[side]["margin"] > 0) == (row[side]["score"] > result["threshold"][side]) == row[side]["is_anomaly"]
            )
    assert {row["image"] for row in result["reviews"]["rows"] if row["taught"]} == set(job["images"])
    assert not (service.bench.folders.models / WORKSPACE / "jobs" / str(job["id"])).exists()

    sent = compared_images(service, done, data_set)

    old, new = service.client.get("/v1/models/plate").json()["versions"]
    assert (new["id"], new["state"], new["parent"]) == (done["new_version"], "candidate", old["id"])
    before = service.client.post("/v1/models/plate/score", content=png(80)).json()
    assert before["version"] == old["id"]  # a candidate scores nothing
    preview = service.client.get(f"/v1/images/{number}/overlay.png", params={"model": "plate", "version": new["id"]})
    assert preview.status_code == 200

    seen = service.score(png(81))
    (time,) = (row.created for row in service.store.scores.series(old["id"]) if row.image == seen)
    assert service.client.post(f"/v1/models/plate/versions/{new['id']}/release").json()["version"]["id"] == new["id"]
    after = service.client.post("/v1/models/plate/score", content=png(80)).json()
    assert (after["version"], after["image"]) == (new["id"], before["image"])
    assert after["score"] != before["score"]
    everyone = {*job["images"], unsure, sent, before["image"], seen}  # what was reviewed, and what was only scored

    def shown() -> dict[int, float]:
        found = service.client.get("/v1/images", params={"model": "plate"}).json()["images"]
        return {image["id"]: image["created"] for image in found}

    wait_for(lambda: set(shown()) == everyone)
    learnt = service.client.get("/v1/models/plate/threshold").json()
    assert (learnt["taught"], learnt["good"], learnt["bad"]) == ({"good": 1, "bad": 3}, [], [])
    assert shown()[seen] == pytest.approx(time, abs=1e-6)  # when the part was there, not when it was scored again

    assert service.client.post("/v1/models/plate/rollback").json()["version"]["id"] == old["id"]
    back = service.client.post("/v1/models/plate/score", content=png(80)).json()
    assert back["score"] == pytest.approx(before["score"], rel=1e-5)
    discarded = service.client.post(f"/v1/models/plate/versions/{new['id']}/discard").json()
    assert [v["state"] for v in discarded["versions"]] == ["released", "discarded"]
    assert service.client.post(f"/v1/models/plate/versions/{new['id']}/release").status_code == 422
    assert service.client.post("/v1/models/plate/rollback").status_code == 404
    what = [event["what"] for event in service.client.get("/v1/history", params={"model": "plate"}).json()]
    assert what == [
        "discard",
        "roll back",
        "release",
        "model candidate",
        "teach job",
        *["review"] * 5,
        "model released",
    ]
    for act in ("cancel", "resume"):
        assert service.client.post(f"/v1/jobs/{job['id']}/{act}").status_code == 422


def compared_images(service: Service, job: dict[str, Any], data_set: Path) -> int:
    """Small ones of the test images, by both versions, which are there without the data set. One that is sent to the
    workbench gets its number, which is returned."""
    rows = job["result"]["validation"]["rows"]
    assert {row["image"] for row in rows} == {None}
    route = f"/v1/jobs/{job['id']}/validation"
    both = [service.client.get(f"{route}/3/{side}.jpg") for side in ("before", "after")]
    for answer in both:
        assert (answer.status_code, answer.headers["content-type"]) == (200, "image/jpeg")
    assert both[0].content != both[1].content  # the heat of each
    for wrong in (f"{route}/{len(rows)}/after.jpg", f"{route}/-1/after.jpg", "/v1/jobs/9/validation/0/after.jpg"):
        problem(service.client.get(wrong), 404)
    assert service.client.get(f"{route}/3/../../model.bgad").status_code == 404
    number = service.score((data_set / rows[3]["name"]).read_bytes())
    again = service.client.get(f"/v1/jobs/{job['id']}").json()["result"]["validation"]["rows"]
    assert [row["image"] for row in again] == [number if i == 3 else None for i in range(len(rows))]
    service.bench.blobs.remove(BlobKind.COMPARISON, f"{rows[4]['sha256']}.{job['new_version']}")
    problem(service.client.get(f"{route}/4/after.jpg"), 410)
    return number


def test_a_running_job_says_how_long_it_takes(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    message = {"progress": 0.5, "message": "learning", "seconds_left": 40.5}
    in_its_place(monkeypatch, f"import json, time\nprint(json.dumps({message}), flush=True)\ntime.sleep(100)")
    number = teach(service)["id"]
    wait_for(lambda: service.client.get(f"/v1/jobs/{number}").json()["progress"] == 0.5)
    assert service.client.get(f"/v1/jobs/{number}").json()["seconds_left"] == 40.5
    assert [job["seconds_left"] for job in service.client.get("/v1/jobs").json()] == [40.5]
    service.client.post(f"/v1/jobs/{number}/cancel")
    assert ended(service, number)["seconds_left"] is None


def test_a_running_job_is_cancelled_and_one_that_waits_too(make: Maker, data_set: Path) -> None:
    service = make(data=data_set.parent)
    running = teach(service)
    waiting = service.client.post("/v1/jobs", json={"model": "plate", "images": running["images"][:1]}).json()
    wait_for(lambda: service.store.jobs.get(running["id"]).state == "running")
    wait_for(lambda: service.runner._running is not None)
    assert service.runner._running is not None
    worker = service.runner._running[1]
    assert service.client.post(f"/v1/jobs/{waiting['id']}/cancel").json()["state"] == "cancelled"
    assert service.client.post(f"/v1/jobs/{running['id']}/cancel").status_code == 200
    assert ended(service, running["id"])["state"] == "cancelled"
    assert worker.returncode is not None
    assert service.client.get("/v1/models/plate").json()["versions"][1:] == []
    assert not (service.bench.folders.models / WORKSPACE / "jobs" / str(running["id"])).exists()
    assert service.store.jobs.get(waiting["id"]).state == "cancelled"
    events = service.client.get("/v1/history", params={"model": "plate"}).json()[:2]
    assert [(event["what"], event["detail"]) for event in events] == [
        ("cancel", f"job {running['id']}"),
        ("cancel", f"job {waiting['id']}"),
    ]


def in_its_place(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Another program than the teaching; it gets the same task."""
    real = subprocess.Popen

    def popen(command: list[str], **options: Any) -> Any:
        return real([command[0], "-c", program, command[-1]], **options)

    monkeypatch.setattr(subprocess, "Popen", popen)


SAYS = "import json, time\nprint(json.dumps({'progress': 0.5, 'message': 'learning'}), flush=True)\n"


def test_a_job_is_kept_while_the_store_is_gone(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    take_over = (
        "import shutil, sys, pathlib\ntask = json.load(open(sys.argv[1]))\n"
        "shutil.copytree(task['model'], task['out'])\n"
        "pathlib.Path(sys.argv[1]).with_name('result.json').write_text('{\"a\": 1}')"
    )
    in_its_place(monkeypatch, SAYS + take_over)
    monkeypatch.setattr(runner, "RETRY_SECONDS", (0.001,) * 3)
    gone = sa.exc.OperationalError("update", {}, Exception("gone"))
    for table, name, left in ((Jobs, "update", 20), (Versions, "add", 20)):  # far longer than the pauses
        real, failures = getattr(table, name), [gone] * left

        def failing(self: Any, *given: Any, real: Any = real, failures: Any = failures, **values: Any) -> Any:
            if values.get("progress") == 0.5:
                raise gone
            if values.get("state") in ("done", "candidate") and failures:
                raise failures.pop()
            return real(self, *given, **values)

        monkeypatch.setattr(table, name, failing)
    job = ended(service, teach(service)["id"], 30)
    assert (job["state"], job["result"]) == ("done", {"a": 1}), job["message"]
    assert job["new_version"] is not None


def test_the_comparisons_of_chosen_images_grow_with_their_number(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, comparisons = 4000, 0

    class Counted(int):
        def __eq__(self, other: object) -> bool:
            nonlocal comparisons
            comparisons += 1
            return int(self) == other

        __hash__ = int.__hash__

    rows = [SimpleNamespace(image=i, verdict="good") for i in range(count)]
    monkeypatch.setattr(service.store.reviews, "current", lambda _: rows)
    job = new_runner(service.bench).teach("plate", [Counted(i) for i in range(count)], "ann")  # which does not begin
    assert len(job.images) == count
    assert comparisons <= 3 * count


def test_an_error_of_the_store_ends_the_job_in_one_line(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    in_its_place(monkeypatch, SAYS)
    wrong = sa.exc.ProgrammingError("SELECT\nmany\nlines", {}, Exception("no such table"))

    def failing(*_: Any) -> Any:
        raise wrong

    monkeypatch.setattr(runner, "build_task", failing)
    job = ended(service, teach(service)["id"], 30)
    assert (job["state"], job["message"]) == ("failed", "ProgrammingError: (builtins.Exception) no such table")


def test_a_job_that_fails_does_not_hurt_the_service(make: Maker, models: Path, tmp_path: Path) -> None:
    service = make(data=tmp_path / "nothing")
    expected = service.client.post("/v1/models/plate/score", content=png()).json()["score"]
    (weights := models / "plate.bgad" / "flow.safetensors").unlink()
    weights.write_bytes(b"damaged")
    job = ended(service, teach(service)["id"], 60)
    assert job["state"] == "failed"
    assert "flow.safetensors has been changed" in job["message"]
    assert "\n" not in job["message"]
    assert service.client.post("/v1/models/plate/score", content=png()).json()["score"] == expected


def test_an_image_that_is_gone_fails_the_job_alone(make: Maker, data_set: Path) -> None:
    service = make(data=data_set.parent)
    number = service.score(png())
    service.store.reviews.add(number, "good", "ann")
    service.bench.views.path(number).unlink()
    job = ended(service, service.client.post("/v1/jobs", json={"model": "plate"}).json()["id"], 30)
    assert job["state"] == "failed"
    assert "is not there any more" in job["message"]


def test_teaching_again_where_nobody_remembers_the_first_time(
    make: Maker, data_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = make(data=data_set.parent)
    image, mask = draw_image(np.random.default_rng(5), defect=True)
    region = as_file(np.eye(64, dtype=np.uint8) * 255)
    number = service.score(as_file(image), "blot.png")
    service.bench.reviewing.review(number, "bad", "ann", mask=as_file(mask.astype(np.uint8) * 255), ignore=region)
    first = ended(service, service.client.post("/v1/jobs", json={"model": "plate"}).json()["id"])
    assert first["state"] == "done", first["message"]
    service.client.post(f"/v1/models/plate/versions/{first['new_version']}/release")
    monkeypatch.setenv("BGAD_STATE", str(tmp_path / "another user"))

    more = service.score(png(71, defect=True))
    service.bench.reviewing.review(more, "bad", "ann")
    body = {"model": "plate", "images": [more]}
    second = ended(service, service.client.post("/v1/jobs", json=body).json()["id"])
    assert second["state"] == "done", second["message"]
    card = model_folder.read(service.bench.folders.models / service.store.versions.get(second["new_version"]).folder)
    roles = {image["sha256"]: image["role"] for image in card.split["images"]}
    learnt = [service.store.images.get(n).sha256 for n in (number, more)]
    assert [roles[digest] for digest in learnt] == ["known", "known"]
    assert [row["taught"] for row in second["result"]["reviews"]["rows"]] == [True, True]  # also what both have learnt
    origin = checkpoint.recall(card.checksum)
    assert origin is not None
    assert {path.name for path in origin.taught.values()} == set(learnt)
    assert len(origin.masks) == 1
    assert [path.read_bytes() for path in origin.ignored.values()] == [region]


def test_a_model_learns_from_its_own_reviews_only(make: Maker, models: Path) -> None:
    shutil.copytree(models / "plate.bgad", models / "wheel.bgad")
    service = make()
    number = service.score(png())
    service.store.reviews.add(number, "good", "ann")
    with pytest.raises(ConfigError, match="there is nothing to teach"):
        service.runner.teach("wheel", None, "ann")
    with pytest.raises(ConfigError, match=f"image {number} has no verdict good or bad"):
        service.runner.teach("wheel", [number], "ann")


def test_stopping_the_service_interrupts_its_jobs(make: Maker, data_set: Path) -> None:
    service = make(data=data_set.parent)
    running = teach(service)
    waiting = service.client.post("/v1/jobs", json={"model": "plate"}).json()
    wait_for(lambda: service.runner._running is not None)
    service.runner.stop()
    assert service.store.jobs.get(running["id"]).state == "interrupted"
    second = make()
    assert second.store.jobs.get(waiting["id"]).state == "interrupted"
    assert second.store.jobs.get(waiting["id"]).message == "the service ended before the job did"


def call(live: Live, path: str, *, data: bytes | None = None, method: str | None = None) -> Any:
    kind = {"Content-Type": "application/json"} if data and data[:1] == b"{" else {}
    request = urllib.request.Request(f"{live.address}{path}", data, kind, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def test_a_job_is_interrupted_by_a_kill_and_resumed_after_it(live: Any, models: Path, data_set: Path) -> None:
    service: Live = live("--data", str(data_set.parent))
    image = call(service, "/v1/models/plate/score", data=png(5, defect=True))["image"]
    call(service, f"/v1/images/{image}/reviews", data=b'{"verdict": "bad"}')
    job = call(service, "/v1/jobs", data=b'{"model": "plate"}')["id"]
    wait_for(lambda: call(service, f"/v1/jobs/{job}")["progress"] > 0)
    task = str(models / WORKSPACE / "jobs" / str(job) / "task.json")
    assert len(working_on(task)) == 1
    service.end(signal.SIGKILL)
    wait_for(lambda: not working_on(task))  # the work ends with the service

    service.start()
    killed = call(service, f"/v1/jobs/{job}")
    assert (killed["state"], killed["message"]) == ("interrupted", "the service ended before the job did")
    again = call(service, f"/v1/jobs/{job}/resume", method="POST")
    wait_for(lambda: call(service, f"/v1/jobs/{again['id']}")["state"] in ENDED, 120)
    done = call(service, f"/v1/jobs/{again['id']}")
    assert done["state"] == "done", done["message"]
    assert done["images"] == [image]
    versions = call(service, "/v1/models/plate")["versions"]
    assert [v["state"] for v in versions] == ["released", "candidate"]


def working_on(task: str) -> list[str]:
    """The processes that were given a task."""
    command = ["ps", "-ww", "-e", "-o", "args"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if line.endswith(task)]


def test_every_review_that_was_acknowledged_survives_a_kill(live: Any, models: Path) -> None:
    service: Live = live()
    images = [call(service, "/v1/models/plate/score", data=png(i))["image"] for i in range(4)]
    acknowledged: list[int] = []
    failures: list[Exception] = []
    enough, killed = threading.Event(), threading.Event()

    def review(start: int) -> None:
        for i in itertools.count(start, 4):  # until the kill
            body = json.dumps({"verdict": "bad", "note": f"number {i}"}).encode()
            try:
                call(service, f"/v1/images/{images[i % 4]}/reviews", data=body)
            except Exception as error:  # noqa: BLE001 - the test must see it
                if not (killed.is_set() and isinstance(error, OSError | http.client.HTTPException)):
                    failures.append(error)
                    enough.set()
                return
            acknowledged.append(i)
            if len(acknowledged) >= 80 and {n % 4 for n in acknowledged} == {0, 1, 2, 3}:
                enough.set()

    threads = [threading.Thread(target=review, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    assert enough.wait(180)
    killed.set()
    service.end(signal.SIGKILL)
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(acknowledged) >= 80

    service.start()
    kept = {r["note"] for n in images for r in call(service, f"/v1/images/{n}")["reviews"]}
    assert {f"number {i}" for i in acknowledged} <= kept
    service.end()
    store = Store(sqlite_address(models))
    assert len(store.reviews.current()) == 4  # one last word for each
    store.close()


def test_a_service_that_is_asked_to_end_ends(live: Any, models: Path) -> None:
    service: Live = live()
    assert service.process is not None
    service.end(signal.SIGINT)
    assert service.process.returncode == 0
    assert "stopped; everything is in" in (models / "log.txt").read_text()
