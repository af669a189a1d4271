"""Scorers beside a main service: real processes on one PostgreSQL, and what a scorer does not do."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from bgad.cli.main import main
from bgad.service.blobs import BlobKind, BlobStore
from bgad.service.folders import WORKSPACE
from bgad.service.role import Role
from bgad.service.scoring.thumbnails import Thumbnails
from bgad.service.store.store import Store
from bgad.service.store.tables import images, scores
from tests.service.conftest import SCORE, Live, Maker, new_database, new_schema, png, problem
from tests.service.scoring.test_rescore import add_candidate, taught

THRESHOLD = "/v1/models/plate/threshold"
SCORER = ("--role", "scorer")


def send(service: Live, content: bytes) -> dict[str, Any]:
    answer = httpx.post(f"{service.address}{SCORE}", content=content, timeout=60)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def is_recorded(store: Store, models: Path, answer: dict[str, Any]) -> bool:
    """Whether the image of an answer has its file, and exactly one score by the version that answered."""
    image = store.images.get(answer["image"])
    rows = [row for row in store.scores.of_image(image.id) if row.version == answer["version"]]
    has_file = BlobStore(models / WORKSPACE).has(BlobKind.IMAGE, image.sha256)
    return has_file and [(row.score, row.threshold) for row in rows] == [(answer["score"], answer["threshold"])]


def test_two_scorers_and_a_main_service_on_one_store(models: Path, postgres: Path, live: Callable[..., Live]) -> None:
    address = new_database(postgres)
    first = live("--store", address)
    scorers = [live("--store", address, *SCORER) for _ in range(2)]
    roles = [httpx.get(f"{one.address}/healthz", timeout=60).json()["role"] for one in (first, *scorers)]
    assert roles == ["main", "scorer", "scorer"]
    with closing(Store(address)) as store:
        # Each image is recorded once, whoever scores it and however often it is sent.
        answers = [send(scorers[i % 2], png(i)) for i in range(6)] + [send(one, png(0)) for one in (*scorers, first)]
        assert len({answer["image"] for answer in answers}) == 6
        assert len({answer["score"] for answer in answers if answer["image"] == answers[0]["image"]}) == 1
        assert all(is_recorded(store, models, answer) for answer in answers)
        assert [store.database.count(sa.select(table.c.id)) for table in (images, scores)] == [6, 6]

        # What changes anything but results is for the main service.
        for one in scorers:
            refused = httpx.post(f"{one.address}/v1/jobs", json={"model": "plate"}, timeout=60)
            assert problem(refused, 421) == "a scorer only scores images: send POST /v1/jobs to the main service"

        # A release and a new threshold count from the next image on.
        second = add_candidate(store, models)
        released = httpx.post(f"{first.address}/v1/models/plate/versions/{second.id}/release", timeout=60)
        assert released.status_code == 200, released.text
        after = [send(one, png(10 + i)) for i, one in enumerate(scorers)]
        assert [answer["version"] for answer in after] == [second.id] * 2
        changed = httpx.put(f"{first.address}{THRESHOLD}", json={"rate": 0.5}, timeout=60).json()
        after += [send(one, png(20 + i)) for i, one in enumerate(scorers)]
        assert [answer["threshold"] for answer in after[2:]] == [changed["threshold"]] * 2
        assert all(is_recorded(store, models, answer) for answer in after[2:])
        shown = httpx.get(f"{scorers[0].address}{THRESHOLD}", timeout=60).json()
        assert (shown["rate"], shown["threshold"]) == (0.5, changed["threshold"])

        # A scorer that is killed loses nothing that it has acknowledged.
        acknowledged: list[dict[str, Any]] = []
        started = threading.Event()

        def stream(begin: int) -> None:
            for i in range(begin, begin + 200):
                try:
                    acknowledged.append(send(scorers[0], png(i)))
                except httpx.TransportError:
                    return
                if len(acknowledged) >= 5:
                    started.set()

        senders = [threading.Thread(target=stream, args=(1000 * (i + 1),)) for i in range(3)]
        for sender in senders:
            sender.start()
        assert started.wait(60)
        scorers[0].end(signal.SIGKILL)
        for sender in senders:
            sender.join(60)
        assert 5 <= len(acknowledged) < 600
        assert all(is_recorded(store, models, answer) for answer in acknowledged)
        assert is_recorded(store, models, send(scorers[1], png(30)))


def test_scorers_work_without_a_main_service_and_keep_other_versions_out(
    models: Path, postgres: Path, live: Callable[..., Live], capsys: pytest.CaptureFixture[str]
) -> None:
    address = new_database(postgres)
    assert main(["serve", "--models", str(models), "--store", address, "--port", "0", *SCORER]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "does not have the schema of bgad" in line
    live("--store", address).end()
    scorer = live("--store", address, *SCORER)
    with closing(Store(address)) as store:
        assert is_recorded(store, models, send(scorer, png(1)))

    def other_version(*options: str) -> str:
        code = (
            "import sys, bgad._version as v; v.__version__ = '9.9.9'\n"
            "from bgad.cli.main import main\nsys.exit(main(sys.argv[1:]))"
        )
        command = [sys.executable, "-c", code, "serve", "--models", str(models), "--store", address, "--port", "0"]
        done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=180)
        assert done.returncode == 2, done.stderr
        (line,) = done.stderr.splitlines()
        return line

    for options in ((), SCORER):
        assert "in use by services of another version than bgad 9.9.9: end all of them first" in other_version(*options)
    assert send(scorer, png(2))["version"] == send(scorer, png(3))["version"]
    live("--store", address)  # of the same version


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "an SQLite file has one service, and no scorer beside it"),
        (("--retention-days", "3"), "--retention-days is for the main service: leave it out with --role scorer"),
        (("--job-memory", "3"), "--job-memory is for the main service"),
        (("--data", "."), "--data is for the main service"),
    ],
)
def test_options_that_a_scorer_does_not_take(
    models: Path, options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--models", str(models), "--port", "0", *SCORER, *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_scorer_needs_the_folder_of_the_main_service(
    models: Path, model: Path, postgres: Path, make: Maker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = new_schema(postgres)
    make(address).score(png(1))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    def refused() -> str:
        assert main(["serve", "--models", str(elsewhere), "--store", address, "--port", "0", *SCORER]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    assert "no such folder; give the --models of the main service" in refused()
    (elsewhere / WORKSPACE).mkdir()
    assert "lacks the models of the store" in refused()
    shutil.copytree(model, elsewhere / "plate.bgad")
    assert "lacks the images of the store" in refused()


def test_a_scorer_changes_nothing_but_results(make: Maker, postgres: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = new_schema(postgres)
    first = make(address, retention_days=30)
    number = first.score(png(1))
    job = first.store.jobs.add("teach", first.store.versions.released("plate"), [number], "ann")
    events = first.store.history.events()
    monkeypatch.setattr(Thumbnails, "enqueue", lambda *_: None)
    scorer = make(address, retention_days=30, role=Role.SCORER)
    workers = [thread.name for thread in threading.enumerate() if thread.name in ("drift", "retention", "jobs")]
    assert sorted(workers) == ["drift", "jobs", "retention"]  # of the main service alone
    refused = set()
    for path, operations in scorer.client.get("/v1/openapi.json").json()["paths"].items():
        for method in operations.keys() - {"get"}:
            what = f"{method.upper()} {path.format(number=number, name='plate')}"
            answer = scorer.client.request(*what.split())
            if not path.endswith(("/score", "/batches")):
                assert problem(answer, 421) == f"a scorer only scores images: send {what} to the main service"
                refused.add(path.rpartition("/")[2])
    changes = {"release", "discard", "rollback", "threshold", "reviews", "undo", "jobs", "cancel", "resume"}
    assert refused == changes
    scorer.score(png(2))
    for path in ("/v1/models", "/v1/images?model=plate", "/v1/jobs", "/v1/history", "/v1/models/plate/drift"):
        assert scorer.client.get(path).status_code == 200, path
    assert scorer.store.jobs.get(job.id).state == "queued"  # a main service would have called it interrupted
    assert scorer.store.history.events() == events


def test_an_image_that_a_scorer_has_in_hand_at_a_release_is_scored_by_the_new_version(
    make: Maker, postgres: Path, gate: threading.Event
) -> None:
    address = new_schema(postgres)
    first = make(address)
    second = taught(first)
    scorer = make(address, role=Role.SCORER)
    scorer.score(png(1))
    gate.clear()
    answers: list[dict[str, Any]] = []
    sender = threading.Thread(target=lambda: answers.append(scorer.client.post(SCORE, content=png(2)).json()))
    sender.start()
    first.store.versions.release(second.id, "ann")
    gate.set()
    sender.join(60)
    assert answers[0]["version"] == second.id
    assert [row.version for row in scorer.store.scores.of_image(answers[0]["image"])] == [second.id]


def test_a_file_that_another_service_removes_meanwhile_is_written_again(
    make: Maker, postgres: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = new_schema(postgres)
    first, scorer = make(address), make(address, role=Role.SCORER)
    add = scorer.store.scores.add_image_if_current

    def removed_before(new: Any, *rest: Any) -> int | None:
        with first.store.images.removing(new.sha256) as unused:
            assert unused
            first.bench.blobs.remove(BlobKind.IMAGE, new.sha256)
        return add(new, *rest)

    monkeypatch.setattr(scorer.store.scores, "add_image_if_current", removed_before)
    number = scorer.score(png(1))
    assert scorer.client.get(f"/v1/images/{number}/original").content == png(1)
