"""Tests. The environment of what reads it when it is imported is set here, as this comes before any conftest."""

import os

if "PYTEST_XDIST_WORKER" in os.environ:
    # Torch's threads of two processes at once only wait for each other. It looks when it is loaded, not later.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
