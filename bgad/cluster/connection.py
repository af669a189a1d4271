"""The connection to a Ray cluster, and what it offers."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from bgad.errors import ConfigError, first_line
from bgad.io.cpus import usable_cpus

LOCAL = "local"
CONNECT_SECONDS = 10.0  # a head node that takes longer is taken for one that does not answer
HEALTH_SECONDS = 15.0  # for Ray's own check of the head node, of which the start of Python takes two or more


@contextmanager
def connected(address: str, cpus: int | None = None) -> Iterator[None]:
    """Connect to a cluster: `local` starts one on this machine, `auto` takes the one that runs here, else HOST:PORT."""
    check(address)
    import ray

    # Tasks without a GPU see the devices that there are.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    terminated = signal.getsignal(signal.SIGTERM)
    options = {"address": address, "namespace": "bgad", "log_to_driver": False, "logging_level": logging.ERROR}
    if address == LOCAL:  # given as the address, it takes precedence over RAY_ADDRESS and over a cluster that runs here
        options |= {"num_cpus": cpus or usable_cpus(), "include_dashboard": False}
    try:
        ray.init(**options)
    except (ConnectionError, RuntimeError, OSError, ValueError) as error:
        raise _no_answer(address, first_line(error)) from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, terminated)  # Ray ends the process at once, our commands drain
    try:
        yield
    finally:
        ray.shutdown()


def check(address: str) -> None:
    """Raise ConfigError where Ray is not installed, or where no cluster answers at an address within seconds."""
    try:
        import ray  # noqa: F401 - only whether it can be imported
    except ImportError as error:
        raise ConfigError("--cluster needs Ray, which is not installed: pip install 'bgad[ray]'") from error
    if address == LOCAL:
        return
    _check_answers(address)
    if not address.startswith("ray://"):  # Ray's own client has a time-out
        _check_health(address)


def _check_answers(address: str) -> None:
    """Raise ConfigError where nothing listens at an address; Ray itself would wait for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if address == "auto":
        return
    if not colon or not port.isdigit():
        raise ConfigError(f"--cluster {address}: give local, auto or HOST:PORT, such as 10.0.0.1:6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        raise _no_answer(address, error.strerror or first_line(error)) from error


def _check_health(address: str) -> None:
    """Raise ConfigError where what listens at an address is no head node of Ray that lets us in.

    The check is a process of its own, because Ray's client neither ends after a given time nor heeds Ctrl-C.
    """
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
    try:
        # In a session of its own, Ctrl-C reaches this process alone, which then ends the check.
        ended = subprocess.run(  # noqa: S603 - our own Python; the address has been checked
            command, capture_output=True, text=True, timeout=HEALTH_SECONDS, check=False, start_new_session=True
        )
    except subprocess.TimeoutExpired as error:
        raise _no_answer(address, f"no head node of Ray within {HEALTH_SECONDS:g} s") from error
    if ended.returncode:
        lines = (ended.stderr.strip() or ended.stdout.strip()).splitlines()
        reason = lines[-1].removeprefix("ray.exceptions.") if lines else f"exit code {ended.returncode}"
        raise _no_answer(address, reason[:160])


def _no_answer(address: str, reason: str) -> ConfigError:
    auto = address == "auto"
    advice = "start one with `ray start --head`" if auto else "check the address, or start the head node"
    return ConfigError(f"--cluster {address}: no cluster answers ({reason}): {advice}")


def worker_places(cpus: float, gpus: float) -> int:
    """Return the number of workers with these resources that the nodes can run at once, those in use included.

    ConfigError where no node can run one: Ray would wait for such a node for ever.
    """
    import ray

    places = 0
    for node in ray.nodes():
        if node["Alive"]:
            offered = node["Resources"]
            wanted = [(offered.get(kind, 0), share) for kind, share in (("CPU", cpus), ("GPU", gpus)) if share]
            places += min(int(there / share + 1e-9) for there, share in wanted)  # 1 // 0.1 is 9
    if not places:
        raise ConfigError(f"no node of the cluster has the {cpus:g} CPUs and {gpus:g} GPUs that one worker takes")
    return places
