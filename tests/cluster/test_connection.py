"""Connecting to a cluster: whatever is at the address, the answer is a connection or one line within seconds."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from bgad.cluster import connection
from bgad.errors import ConfigError

ray = pytest.importorskip("ray")


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a port that listens and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_a_port_that_is_not_ray(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEALTH_SECONDS", 4.0)
    started = time.monotonic()
    with pytest.raises(ConfigError, match="no cluster answers") as raised, connection.connected(silent):
        pass
    assert time.monotonic() - started < 15
    assert "\n" not in str(raised.value)


def test_ctrl_c_while_connecting(silent: str) -> None:
    program = f"from bgad.cluster.connection import check\nprint('on', flush=True)\ncheck('{silent}')"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=10)
    assert b"KeyboardInterrupt" in errors


def test_ray_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"bgad\[ray\]"):
        connection.check("local")


def test_local_is_local_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with connection.connected("local", cpus=1):
        assert connection.worker_places(1, 0) == 1
        with pytest.raises(ConfigError, match="no node of the cluster has the 1 CPUs and 1 GPUs"):
            connection.worker_places(1, 1)


@pytest.mark.parametrize(
    ("cpus", "gpus", "places"),
    [(1, 0, 12), (4, 0, 3), (3, 0, 3), (1, 1, 2), (1, 0.5, 4), (1, 0.1, 8), (8, 2, 1)],
)
def test_places_count_cpus_and_gpus(cpus: float, gpus: float, places: int, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes: list[dict[str, Any]] = [
        {"Alive": True, "Resources": {"CPU": 8.0, "GPU": 2.0}},
        {"Alive": True, "Resources": {"CPU": 4.0}},
        {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}},
    ]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    assert connection.worker_places(cpus, gpus) == places
    monkeypatch.setattr(ray, "nodes", lambda: nodes[:1])
    assert connection.worker_places(0.1, 0.1) == 20
