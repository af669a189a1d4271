from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from bgad.service.teaching import process
from bgad.service.teaching.process import JobLimits, WorkerProcess, failure_reason
from bgad.service.teaching.runner import JobRunner
from tests.service.conftest import Maker, Service, problem
from tests.service.teaching.test_runner import SAYS, ended, in_its_place, teach


def test_a_job_that_takes_too_long_is_ended(make: Maker, data_set: Path) -> None:
    service = make(limits=JobLimits(minutes=0.01), data=data_set.parent)
    job = ended(service, teach(service)["id"])
    assert (job["state"], job["message"]) == (
        "failed",
        "it took more than 0.01 minutes: give the service more --job-minutes",
    )


def test_a_job_that_takes_too_much_memory_is_ended(make: Maker, data_set: Path) -> None:
    service = make(limits=JobLimits(memory_gb=0.05), data=data_set.parent)
    job = ended(service, teach(service)["id"])
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
    job = ended(service, teach(service)["id"])
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


def run(service: Service, monkeypatch: pytest.MonkeyPatch, program: str) -> dict[str, Any]:
    """A job with another program in place of the teaching; how it ended."""
    in_its_place(monkeypatch, "import json, os, subprocess, sys, time\nfrom pathlib import Path\n" + program)
    return ended(service, teach(service)["id"])


def test_the_memory_of_a_job_is_that_of_all_its_processes(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    child = "import time; block = b'x' * (300 << 20); time.sleep(600)"
    job = run(
        make(limits=JobLimits(memory_gb=0.25)),
        monkeypatch,
        f'subprocess.Popen([sys.executable, "-c", "{child}"])\ntime.sleep(600)',
    )
    assert job["message"] == "it took more than 0.25 GB of memory: give the service more --job-memory"


def test_the_processes_of_a_job_are_counted(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    job = run(
        make(limits=JobLimits(processes=3)),
        monkeypatch,
        "for _ in range(4): subprocess.Popen(['sleep', '600'])\ntime.sleep(600)",
    )
    assert job["message"].startswith("it started more than 3 processes")


def test_what_a_job_leaves_behind_is_ended(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Also a child that has left the session and whose parent has ended."""
    file = tmp_path / "pids"
    job = run(
        service,
        monkeypatch,
        "children = [subprocess.Popen(['sleep', '600'], start_new_session=new) for new in (False, True)]\n"
        f"Path({str(file)!r}).write_text(' '.join(str(child.pid) for child in children))",
    )
    assert job["state"] == "failed"
    assert "a job left 2 processes behind, which are ended" in caplog.text
    for pid in map(int, file.read_text().split()):
        status = Path(f"/proc/{pid}/stat")
        assert not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_job_inherits_no_secret_and_is_limited(make: Maker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PGPASSWORD", "AWS_SECRET_ACCESS_KEY", "BGAD_TOKEN", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    file = tmp_path / "seen.json"
    run(
        make(limits=JobLimits(open_files=100)),
        monkeypatch,
        "import resource\nend = time.monotonic() + 30\n"
        "while resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 100 and time.monotonic() < end: time.sleep(0.05)\n"
        "files, leads = resource.getrlimit(resource.RLIMIT_NOFILE), os.getsid(0) == os.getpid()\n"
        "seen = [dict(os.environ), os.nice(0), files, leads]\n"
        f"Path({str(file)!r}).write_text(json.dumps(seen))",
    )
    environment, niceness, files, leads = json.loads(file.read_text())
    assert "secret" not in environment.values()
    assert environment["OMP_NUM_THREADS"] == "1"
    assert niceness >= process.NICENESS
    assert (files, leads) == ([100, 100], True)


@pytest.mark.parametrize("shift", [3, -3])
def test_a_job_is_nicer_than_the_service_and_never_less_nice(
    make: Maker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shift: int
) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)  # a service may have been started by `nice`
    monkeypatch.setattr(process, "NICENESS", min(19, own + shift))
    file = tmp_path / "niceness"
    run(
        make(limits=JobLimits(open_files=100)),
        monkeypatch,
        "import resource\nend = time.monotonic() + 30\n"  # the limit is set after the priority
        "while resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 100 and time.monotonic() < end: time.sleep(0.05)\n"
        f"Path({str(file)!r}).write_text(str(os.nice(0)))",
    )
    assert int(file.read_text()) == min(19, own + max(shift, 0))


def test_windows_is_told_what_to_do(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "IS_WINDOWS", True)
    said = problem(service.client.post("/v1/jobs", json={"model": "plate"}), 422)
    assert said.startswith("teaching from the service needs Linux or macOS, as its limits do: use `bgad update`")
