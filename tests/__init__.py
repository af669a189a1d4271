"""Tests. The environment of what reads it when it is imported is set here, as this comes before any conftest."""

import os
import signal

# Torch's threads of several processes at once only wait for each other, and a task of a cluster has one thread: with
# another number, the last bits of a training differ. Torch looks when it is loaded, not later.
os.environ.setdefault("OMP_NUM_THREADS", "1")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts background jobs so. The child processes of tests would inherit it, and never see a Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
