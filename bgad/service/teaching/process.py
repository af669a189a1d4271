"""The worker process of a teaching job: starts it, follows its messages, and enforces limits on time and memory."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from bgad.service.teaching.task import LOG_FILE, TASK_FILE

POLL_SECONDS = 0.5
GRACE_SECONDS = 10.0  # for the process to end by itself


@dataclass(frozen=True)
class JobLimits:
    """The largest time and memory of one job."""

    minutes: float = 120.0
    memory_gb: float = 12.0


class WorkerProcess:
    """A worker process in a session of its own; leaving the context ends it with everything it started."""

    def __init__(self, folder: Path, log: IO[str]) -> None:
        """Start the worker on the task in `folder`; its standard error goes to `log`."""
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", "bgad.service.teaching.worker", str(folder / TASK_FILE)],
            stdin=subprocess.PIPE,  # nothing is sent: the worker ends when the pipe closes, however the service ends
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self.terminate()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    @property
    def pid(self) -> int:
        """The process id, which is also that of its process group."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code; None while the process runs."""
        return self._process.poll()

    def terminate(self) -> None:
        """End the process and everything it started: first by SIGTERM, then by SIGKILL."""
        for kind in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, kind)
            except (ProcessLookupError, PermissionError):
                return
            try:
                self._process.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                continue
            return

    def follow(self, limits: JobLimits, on_message: Callable[[str], None], on_poll: Callable[[], None]) -> str:
        """Pass on each line of output until the process ends; return why it was terminated, or an empty string.

        `on_poll` is called at short intervals.
        """
        lines: queue.Queue[str | None] = queue.Queue()

        def listen() -> None:
            assert self._process.stdout is not None  # noqa: S101 - it was requested
            for line in self._process.stdout:
                lines.put(line)
            lines.put(None)

        listener = threading.Thread(target=listen, daemon=True)
        listener.start()
        try:
            return self._watch(lines, limits, on_message, on_poll)
        finally:
            listener.join(GRACE_SECONDS)

    def _watch(
        self,
        lines: queue.Queue[str | None],
        limits: JobLimits,
        on_message: Callable[[str], None],
        on_poll: Callable[[], None],
    ) -> str:
        began = time.monotonic()
        while True:
            on_poll()
            try:
                line = lines.get(timeout=POLL_SECONDS)
            except queue.Empty:
                line = ""
            if line is None:
                self._process.wait()
                return ""
            if line.strip():
                on_message(line)
            if time.monotonic() - began > 60 * limits.minutes:
                self.terminate()
                return f"it took more than {limits.minutes:g} minutes: give the service more --job-minutes"
            if _memory_gb(self._process.pid) > limits.memory_gb:
                self.terminate()
                return f"it took more than {limits.memory_gb:g} GB of memory: give the service more --job-memory"


def failure_reason(code: int | None, last_line: str, folder: Path) -> str:
    """Explain why a process failed, and what to do about it."""
    if code == -signal.SIGKILL:
        return "the system killed the process, most likely for want of memory: free some, or teach where there is more"
    advice = f"resume the job; if it fails again, see {folder}"
    if code is not None and code < 0:
        return f"the process was ended by {signal.Signals(-code).name}: {advice}"
    return last_line or f"the process ended with exit code {code} and said nothing: {advice}"


def last_log_line(folder: Path) -> str:
    """Return the last line of a worker's log that is not empty."""
    text = (folder / LOG_FILE).read_text(errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:500] if lines else ""


def _memory_gb(pid: int) -> float:
    """Return the resident memory of a process; 0 where the system does not report it."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    line = next((line for line in text.splitlines() if line.startswith("VmRSS")), "VmRSS: 0 kB")
    return int(line.split()[1]) * 1024 / 1e9
