"""Tests. The environment of what reads it when it is imported is set here, as this comes before any conftest."""

import os
import signal

if "PYTEST_XDIST_WORKER" in os.environ:
    # Torch's threads of two processes at once only wait for each other. It looks when it is loaded, not later.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts background jobs so. The child processes of tests would inherit it, and never see a Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
