"""The processes of a job: a process and all that came from it, found through /proc, measured and ended.

A child belongs to the job by its parents, by its session, or by a mark in its environment: so one that leaves the
session, or whose parent has ended, is found as well.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MARK = "BGAD_JOB_MARK"  # environment variable that all processes of a job inherit
PROC = Path("/proc")


@dataclass(frozen=True)
class Usage:
    """What the processes of a job use together."""

    processes: int
    memory_gb: float


@dataclass(frozen=True)
class _Process:
    pid: int
    parent: int
    session: int


class ProcessTree:
    """The living processes that came from one process; none is known where the system has no /proc."""

    def __init__(self, root: int, mark: str) -> None:
        """`root` is the id of the first process, which leads a session; `mark` the value of MARK in its environment."""
        self._root, self._mark = root, f"{MARK}={mark}".encode()

    def pids(self) -> list[int]:
        """Return the ids of the living processes."""
        processes = list(_living())
        members = {self._root} & {process.pid for process in processes}
        members |= {process.pid for process in processes if process.session == self._root or self._has_mark(process)}
        size = -1
        while size != len(members):  # children of members are members
            size = len(members)
            members |= {process.pid for process in processes if process.parent in members}
        return sorted(members)

    def usage(self) -> Usage:
        """Return the number of processes and their memory; what several of them share counts once."""
        pids = self.pids()
        return Usage(len(pids), sum(_memory_bytes(pid) for pid in pids) / 1e9)

    def signal(self, kind: signal.Signals) -> None:
        """Send a signal to all processes."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._root, kind)
        for pid in self.pids():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, kind)

    def _has_mark(self, process: _Process) -> bool:
        try:
            return self._mark in (PROC / str(process.pid) / "environ").read_bytes().split(b"\0")
        except OSError:  # it has ended, or belongs to another user
            return False


def _living() -> Iterator[_Process]:
    """Yield all processes but zombies."""
    for entry in PROC.glob("[0-9]*/stat"):
        try:
            state, parent, _, session = entry.read_text(errors="replace").rpartition(")")[2].split()[:4]
        except (OSError, ValueError):  # it has just ended
            continue
        if state not in "ZX":
            yield _Process(int(entry.parent.name), int(parent), int(session))


def _memory_bytes(pid: int) -> int:
    """Return the proportional set size of a process, or the resident one where the system reports no other."""
    for name, field in (("smaps_rollup", "Pss:"), ("status", "VmRSS:")):
        with suppress(OSError):
            for line in (PROC / str(pid) / name).read_text().splitlines():
                if line.startswith(field):
                    return int(line.split()[1]) * 1024
    return 0
