"""Threads that survive what nobody expected, and engines that do not return."""

from __future__ import annotations

import gc
import queue
import shutil
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bgad.errors import ConfigError
from bgad.inference import load as loading
from bgad.service import threads
from bgad.service.drift import monitor
from bgad.service.drift.monitor import DriftMonitor
from bgad.service.errors import EngineUnavailableError
from bgad.service.scoring import batcher
from bgad.service.scoring.model_cache import MAX_HANGING
from bgad.service.scoring.thumbnails import Thumbnails
from bgad.service.teaching.runner import JobRunner
from bgad.service.threads import SupervisedThread
from tests.conftest import SIZE
from tests.service.conftest import SCORE, Maker, Service, png, problem, wait_for
from tests.service.http.test_store_away import metric
from tests.service.teaching.test_runner import ended, in_its_place, teach


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "RESTART_SECONDS", 0.01)


def test_work_that_fails_begins_anew_and_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []

    def work() -> None:
        calls.append(1)
        if len(calls) < 3:
            raise RuntimeError("unexpected")

    thread = SupervisedThread("worker", work)
    thread.start()
    wait_for(lambda: not thread.is_running)
    assert (len(calls), thread.failures) == (3, 2)
    assert "the thread 'worker' goes on after an error: unexpected" in caplog.text


def test_a_thread_that_waits_gives_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "BEAT_SECONDS", 0.01)
    items: queue.Queue[int] = queue.Queue()
    event, beats = threading.Event(), []

    class Counting(SupervisedThread):
        def beat(self) -> None:
            beats.append(1)

    thread = Counting("worker", lambda: (thread.get(items), thread.wait(event), None)[2])
    thread.start()
    wait_for(lambda: len(beats) > 5)
    items.put(1)
    at = len(beats)
    wait_for(lambda: len(beats) > at + 5)
    event.set()
    wait_for(lambda: not thread.is_running)


def test_the_drift_thread_survives_and_goes_on_with_the_other_models(
    make: Maker, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "MIN_PAUSE", 0.01)
    monkeypatch.setattr(monitor, "PAUSE_FACTOR", 0)
    shutil.copytree(models / "plate.bgad", models / "wheel.bgad")
    service = make()
    real, failures = DriftMonitor._report_alarms, [RuntimeError("unexpected")]
    reported: list[str] = []

    def failing(self: DriftMonitor, version: Any) -> None:
        if failures:
            raise failures.pop()
        real(self, version)
        reported.append(version.name)

    drift = service.bench.drift
    wait_for(lambda: drift.figures().keys() == {"plate", "wheel"})  # what it had to do at the start
    monkeypatch.setattr(DriftMonitor, "_report_alarms", failing)
    with drift._lock:
        drift._pending |= {"plate", "wheel"}
    drift._wake.set()
    wait_for(lambda: reported == ["wheel"])
    service.score(png(2))
    wait_for(lambda: "plate" in reported)
    text = service.client.get("/metrics").text
    assert 'bgad_thread_failures_total{thread="drift"} 1.0' in text
    assert 'bgad_thread_heartbeat_seconds{thread="drift"}' in text


@pytest.mark.parametrize(("owner", "name", "thread"), [(Thumbnails, "draw", "thumbnails"), (JobRunner, "_run", "jobs")])
def test_the_other_threads_survive_too(
    service: Service, owner: type, name: str, thread: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failures = getattr(owner, name), [RuntimeError("unexpected")]

    def failing(*given: Any) -> None:
        if failures:
            raise failures.pop()
        real(*given)

    in_its_place(monkeypatch, "pass")
    monkeypatch.setattr(owner, name, failing)
    first = teach(service)["id"]
    wait_for(lambda: not failures)
    assert ended(service, first)["state"] == "failed"
    second = ended(service, teach(service)["id"])
    assert second["state"] == "failed"
    assert "RuntimeError" not in second["message"]
    wait_for(lambda: metric(service, f'bgad_thread_heartbeat_seconds{{thread="{thread}"}}') < 60)
    version = service.store.versions.released("plate").id
    sha256 = service.store.images.get(service.score(png(7))).sha256
    wait_for(lambda: service.bench.thumbnails.read(sha256, version, None) is not None)


def test_a_job_that_is_done_cannot_be_cancelled_any_more(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has ended, and its end is being recorded: the state in the store still says that it runs."""
    in_its_place(monkeypatch, "pass")
    said: list[str] = []
    real = JobRunner._update

    def update(self: JobRunner, number: int, **values: Any) -> None:
        with pytest.raises(ConfigError) as refused:
            self.cancel(number, "ann")
        said.append(str(refused.value))
        real(self, number, **values)

    monkeypatch.setattr(JobRunner, "_update", update)
    job = ended(service, teach(service)["id"])
    assert said == [f"job {job['id']} is ending: it cannot be cancelled"]
    assert job["state"] == "failed"
    assert not [event for event in service.store.history.events("plate") if event.what == "cancel"]


def test_an_engine_that_does_not_return_is_replaced(
    make: Maker, gate: threading.Event, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    service = make()
    service.score(png(0))
    version = service.store.versions.released("plate")
    stuck = service.bench.models.batcher(version)
    monkeypatch.setattr(batcher, "WATCH_SECONDS", 0.02)
    gate.clear()
    answers: list[Any] = []
    senders = [
        threading.Thread(target=lambda i=i: answers.append(service.client.post(SCORE, content=png(i))))
        for i in range(1, 6)
    ]
    for sender in senders:
        sender.start()
    wait_for(lambda: service.bench.models.waiting() == len(senders))
    with monkeypatch.context() as patched:
        patched.setattr(batcher, "ENGINE_SECONDS", 0.3)
        for sender in senders:
            sender.join()
    assert len(answers) == len(senders)
    for answer in answers:
        assert "the engine of the model did not answer in 0.3 s and is replaced" in problem(answer, 503)
        assert answer.headers["retry-after"]
    assert metric(service, "bgad_engine_replaced_total") == 1
    assert f"the engine of plate, version {version.id}, hangs and is replaced" in caplog.text
    gate.set()
    assert service.client.post(SCORE, content=png(9)).json()["kept"] is True
    assert service.bench.models.batcher(version) is not stuck
    stuck.close()  # returns at once, and its threads end


def test_engines_that_hang_are_limited_and_freed_when_they_return(
    make: Maker, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every engine that hangs keeps a thread and its memory, so a model that hangs again and again is refused."""
    service = make()
    service.score(png(0))
    version, models = service.store.versions.released("plate"), service.bench.models
    gate.clear()
    stuck: list[weakref.ref[Any]] = []
    loads: list[Any] = []
    with monkeypatch.context() as m:
        m.setattr(batcher, "WATCH_SECONDS", 0.02)
        m.setattr(batcher, "ENGINE_SECONDS", 0.2)
        for i in range(MAX_HANGING):
            stuck.append(weakref.ref(models.batcher(version)))
            assert "is replaced" in problem(service.client.post(SCORE, content=png(i + 1)), 503)
            assert metric(service, 'bgad_engine_hanging{model="plate"}') == i + 1
            assert service.client.get("/readyz").status_code == (503 if i + 1 == MAX_HANGING else 200)
        m.setattr(loading, "load", lambda *given, **_: loads.append(given))
        which = f"3 engines of the model plate, version {version.id}, hang"
        reason = f"{which}, and no other is loaded: wait, or restart the service"
        for _ in range(3):
            assert problem(service.client.post(SCORE, content=png(9)), 503) == reason
        assert service.client.get("/readyz").json() == {"status": reason}
        with pytest.raises(EngineUnavailableError):  # what does not come through the API: rescoring, views
            models.batcher(version)
        assert not loads
        assert metric(service, "bgad_engine_replaced_total") == MAX_HANGING
    gate.set()
    wait_for(lambda: all(gc.collect() >= 0 and ref() is None for ref in stuck))
    assert models.hanging() == {}
    assert service.client.get("/readyz").status_code == 200
    assert service.client.post(SCORE, content=png(9)).json()["kept"] is True


def test_an_engine_that_hangs_in_a_tile_is_replaced_too(
    make: Maker, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = make()
    version, models = service.store.versions.released("plate"), service.bench.models
    stuck = models.batcher(version)
    stuck.scorer.set_tile(SIZE)
    monkeypatch.setattr(batcher, "WATCH_SECONDS", 0.02)
    monkeypatch.setattr(batcher, "ENGINE_SECONDS", 0.2)
    gate.clear()
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(service.client.post, SCORE, content=png(i)) for i in range(2)]
        try:
            for answer in answers:
                assert "is replaced" in problem(answer.result(30), 503)
        finally:
            gate.set()
    assert models.batcher(version) is not stuck
    assert models.tile_budget.used == 0  # there is room for the images of other models
    assert service.client.post(SCORE, content=png(9)).json()["kept"] is True


def test_engines_of_other_versions_do_not_keep_the_released_one_from_scoring(make: Maker) -> None:
    """Whoever looks at a candidate that hangs must not stop the production."""

    class Hanging:
        is_hanging = True

    service = make()
    models, versions = service.bench.models, service.store.versions
    released = versions.released("plate")
    candidate = versions.add("plate", "b" * 64, "plate.bgad", state="candidate")
    held = [Hanging() for _ in range(MAX_HANGING)]
    for engine in held:
        models._drop_stuck(candidate, engine)  # type: ignore[arg-type]
    assert metric(service, 'bgad_engine_hanging{model="plate"}') == MAX_HANGING
    with pytest.raises(EngineUnavailableError, match=f"version {candidate.id}, hang"):
        models.batcher(candidate)
    assert service.client.get("/readyz").status_code == 200
    assert service.client.post(SCORE, content=png(1)).json()["kept"] is True
    versions.release(candidate.id, "ann")
    assert f"version {candidate.id}, hang" in service.client.get("/readyz").json()["status"]
    versions.release(released.id, "ann")
    assert service.client.get("/readyz").status_code == 200
