"""Number of CPUs to use."""

from __future__ import annotations

import os

THREADS = "BGAD_THREADS"  # environment variable: upper limit, which a task on a cluster sets to its share of a node


def usable_cpus() -> int:
    """Return the number of CPUs this process may use, honouring its affinity mask and BGAD_THREADS."""
    # macOS and Windows have no affinity mask to ask for.
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = os.environ.get(THREADS, "")
    return min(cpus, int(limit)) if limit.isdecimal() and int(limit) > 0 else cpus
