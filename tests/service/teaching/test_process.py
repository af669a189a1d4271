from __future__ import annotations

import signal
from pathlib import Path

import pytest

from bgad.service.teaching import process
from bgad.service.teaching.process import JobLimits, WorkerProcess, failure_reason
from bgad.service.teaching.runner import JobRunner
from tests.service.conftest import Maker, Service
from tests.service.teaching.test_runner import SAYS, ended, in_its_place, teach


def test_a_job_that_takes_too_long_is_ended(make: Maker, data_set: Path) -> None:
    service = make(limits=JobLimits(minutes=0.01), data=data_set.parent)
    job = ended(service, teach(service)["id"], 30)
    assert (job["state"], job["message"]) == (
        "failed",
        "it took more than 0.01 minutes: give the service more --job-minutes",
    )


def test_a_job_that_takes_too_much_memory_is_ended(make: Maker, data_set: Path) -> None:
    service = make(limits=JobLimits(memory_gb=0.05), data=data_set.parent)
    job = ended(service, teach(service)["id"], 30)
    wanted = "it took more than 0.05 GB of memory: give the service more --job-memory"
    assert (job["state"], job["message"]) == ("failed", wanted)


def test_a_process_is_ended_where_it_cannot_be_followed(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    in_its_place(monkeypatch, SAYS + "time.sleep(600)")
    seen: list[WorkerProcess] = []

    def broken(self: JobRunner, number: int, line: str) -> None:
        assert self._running is not None
        seen.append(self._running[1])
        raise RuntimeError("broken")

    monkeypatch.setattr(JobRunner, "_on_message", broken)
    monkeypatch.setattr(process, "GRACE_SECONDS", 1.0)
    job = ended(service, teach(service)["id"], 30)
    assert (job["state"], job["message"]) == ("failed", "RuntimeError: broken")
    assert seen[0].returncode is not None
    assert service.runner._running is None


def test_why_a_process_failed(tmp_path: Path) -> None:
    assert "most likely for want of memory: free some" in failure_reason(-signal.SIGKILL, "a warning", tmp_path)
    assert f"was ended by SIGSEGV: resume the job; if it fails again, see {tmp_path}" in failure_reason(
        -11, "", tmp_path
    )
    assert failure_reason(2, "no such picture", tmp_path) == "no such picture"
    assert "with exit code 1 and said nothing: resume the job" in failure_reason(1, "", tmp_path)
