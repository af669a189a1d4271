"""The worker process of a teaching job: starts it, follows its messages, and enforces the limits of a job.

The limits hold for the worker and all its children together. The worker has a low priority and a session of its own. Of
the service's environment it inherits only what is listed here: no password, no token.
"""

from __future__ import annotations

import logging
import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from bgad.errors import ConfigError
from bgad.service.teaching.process_tree import MARK, ProcessTree
from bgad.service.teaching.task import LOG_FILE, TASK_FILE

IS_WINDOWS = os.name == "nt"
POLL_SECONDS = 0.5
MEASURE_SECONDS = 1.0  # between two looks at the processes of a job
NICENESS = 10
GRACE_SECONDS = 10.0  # for the process to end by itself
WAIT_SECONDS = 0.05  # between two looks whether its children have ended

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class JobLimits:
    """The largest time and memory of one job, and the number of its processes and of the files that each may open."""

    minutes: float = 120.0
    memory_gb: float = 12.0
    processes: int = 64
    open_files: int = 4096


# What a worker inherits of the environment: where programs, libraries, caches and data are, language and threads.
ENVIRONMENT = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TEMP", "TMP"),
        *(
            "PYTHONPATH",
            "PYTHONHOME",
            "PYTHONUTF8",
            "VIRTUAL_ENV",
            "LD_LIBRARY_PATH",
            "DYLD_LIBRARY_PATH",
            "LD_PRELOAD",
        ),
        *("XDG_CACHE_HOME", "XDG_STATE_HOME", "TORCH_HOME", "HF_HOME", "CUDA_VISIBLE_DEVICES"),
        *("BGAD_DATA", "BGAD_STATE", "BGAD_THREADS"),
    )
)
ENVIRONMENT_PREFIXES = ("LC_", "OMP_", "MKL_", "OPENBLAS_", "ORT_", "MALLOC_")


def worker_environment(mark: str) -> dict[str, str]:
    """Return the environment of a worker, with the mark by which its processes are known."""
    kept = {k: v for k, v in os.environ.items() if k in ENVIRONMENT or k.startswith(ENVIRONMENT_PREFIXES)}
    return kept | {MARK: mark}


def check_system() -> None:
    """Raise ConfigError where the processes of a job can be neither grouped nor limited."""
    if IS_WINDOWS:
        raise ConfigError(
            "teaching from the service needs Linux or macOS, as its limits do: use `bgad update` here, put the new "
            "model folder beside the others and start the service again"
        )


class WorkerProcess:
    """A worker process in a session of its own; leaving the context ends it with everything it started."""

    def __init__(self, folder: Path, log: IO[str], limits: JobLimits) -> None:
        """Start the worker on the task in `folder`; its standard error goes to `log`."""
        mark = secrets.token_hex(16)
        self._limits = limits
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", "bgad.service.teaching.worker", str(folder / TASK_FILE)],
            stdin=subprocess.PIPE,  # nothing is sent: the worker ends when the pipe closes, however the service ends
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
            env=worker_environment(mark),
        )
        self._tree = ProcessTree(self._process.pid, mark)
        with suppress(ProcessLookupError):  # it has ended already
            inherited = os.getpriority(os.PRIO_PROCESS, self._process.pid)
            os.setpriority(os.PRIO_PROCESS, self._process.pid, max(NICENESS, inherited))  # only root may lower it
            _limit_open_files(self._process.pid, limits.open_files)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_children()
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
            self._tree.signal(kind)
            deadline = time.monotonic() + GRACE_SECONDS
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE_SECONDS)
                while self._tree.pids() and time.monotonic() < deadline:
                    time.sleep(WAIT_SECONDS)
                if not self._tree.pids():
                    return

    def _end_children(self) -> None:
        """If the process has ended, end what it has left behind."""
        if self._process.poll() is not None and (left := self._tree.pids()):
            logger.warning("a job left %d processes behind, which are ended", len(left))
            self.terminate()

    def follow(self, on_message: Callable[[str], None], on_poll: Callable[[], None]) -> str:
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
            return self._watch(lines, on_message, on_poll)
        finally:
            listener.join(GRACE_SECONDS)

    def _watch(
        self,
        lines: queue.Queue[str | None],
        on_message: Callable[[str], None],
        on_poll: Callable[[], None],
    ) -> str:
        began = measured = time.monotonic()
        while True:
            on_poll()
            try:
                line = lines.get(timeout=POLL_SECONDS)
            except queue.Empty:
                line = ""
                self._end_children()  # they may hold the pipe open
            if line is None:
                self._process.wait()
                return ""
            if line.strip():
                on_message(line)
            now = time.monotonic()
            if now - began <= 60 * self._limits.minutes and now - measured < MEASURE_SECONDS:
                continue
            measured = now
            if reason := self._excess(now - began):
                self.terminate()
                return reason

    def _excess(self, seconds: float) -> str:
        """Return which limit the job exceeds after a time, or an empty string."""
        limits, usage = self._limits, self._tree.usage()
        if seconds > 60 * limits.minutes:
            return f"it took more than {limits.minutes:g} minutes: give the service more --job-minutes"
        if usage.memory_gb > limits.memory_gb:
            return f"it took more than {limits.memory_gb:g} GB of memory: give the service more --job-memory"
        if usage.processes > limits.processes:
            return f"it started more than {limits.processes} processes: a training needs far fewer, so look at its log"
        return ""


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


def _limit_open_files(pid: int, count: int) -> None:
    """Limit the files that a process, and each of its children, may have open; Linux alone can do that from outside."""
    if sys.platform == "linux":
        import resource

        hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]
        limit = count if hard == resource.RLIM_INFINITY else min(count, hard)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, limit))
