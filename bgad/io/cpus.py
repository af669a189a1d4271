"""Number of CPUs to use."""

from __future__ import annotations

import os


def usable_cpus() -> int:
    """Return the number of CPUs this process may run on, honouring its affinity mask."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS and Windows have no affinity mask to ask for
