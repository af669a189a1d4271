"""Fixtures of the service's tests: a real PostgreSQL, a folder of models, an application, a live service."""

from __future__ import annotations

import http.client
import io
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import uuid
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from bgad.artifact.card import FLOAT32
from bgad.inference.onnx_engine import Runtime
from bgad.service import access
from bgad.service.folders import WORKSPACE, Folders
from bgad.service.http import app, callers, health
from bgad.service.http.security import AccessRules
from bgad.service.role import Role
from bgad.service.scoring import recorder
from bgad.service.scoring.ingest import ImageLimits
from bgad.service.store import dialects
from bgad.service.store.image_list import ImageQuery, ListedImage
from bgad.service.store.store import Store
from bgad.service.teaching.process import JobLimits
from bgad.service.teaching.runner import JobRunner
from bgad.service.workbench import Workbench, WorkbenchSettings
from tests.conftest import draw_image

SCORE = "/v1/models/plate/score"


def png(seed: int = 0, *, defect: bool = False) -> bytes:
    """An image that the model knows."""
    return as_file(draw_image(np.random.default_rng(1000 + seed), defect=defect)[0])


def as_file(array: np.ndarray, kind: str = "PNG", mode: str | None = None) -> bytes:
    """The bytes of an image file."""
    buffer = io.BytesIO()
    image = Image.fromarray(array)
    (image.convert(mode) if mode else image).save(buffer, kind)
    return buffer.getvalue()


def bomb(width: int = 60000, height: int = 60000) -> bytes:
    """A PNG that says that it is large, and holds next to nothing."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 9)) + chunk(b"IEND", b"")
    )


# --- PostgreSQL


def _binary(name: str) -> str | None:
    places = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda p: int(p.parts[-3]), reverse=True)
    return str(places[0]) if places else shutil.which(name)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Path]:
    """A server of our own for this session; the folder of its socket."""
    initdb, pg_ctl = _binary("initdb"), _binary("pg_ctl")
    if initdb is None or pg_ctl is None:
        pytest.skip("PostgreSQL is not installed: initdb and pg_ctl are needed")
    folder = Path(tempfile.mkdtemp(prefix="bgad-pg-", dir="/tmp"))
    prefix: list[str] = []
    if os.geteuid() == 0:  # PostgreSQL does not run as root
        if shutil.which("runuser") is None:
            pytest.skip("PostgreSQL does not run as root, and there is no runuser to be another one")
        shutil.chown(folder, "postgres", "postgres")
        prefix = ["runuser", "-u", "postgres", "--"]

    def run(*command: str) -> None:
        done = subprocess.run([*prefix, *command], cwd="/", capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr

    data, log = str(folder / "data"), str(folder / "log")
    run(initdb, "-D", data, "-A", "trust", "-U", "bgad", "--no-sync", "-E", "UTF8")
    options = f"-k {folder} -c listen_addresses='' -c fsync=off -c max_connections=60"
    run(pg_ctl, "-D", data, "-l", log, "-w", "-o", options, "start")
    yield folder
    run(pg_ctl, "-D", data, "-m", "immediate", "-w", "stop")
    shutil.rmtree(folder)


def new_database(postgres: Path) -> str:
    """The address of an empty database, for tests that drop it or change its permissions."""
    name = f"t{uuid.uuid4().hex}"
    with psycopg.connect(f"host={postgres} user=bgad dbname=postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"postgresql://bgad@/{name}?host={postgres}"


def new_schema(postgres: Path) -> str:
    """The address of an empty schema, which is created far faster than a database."""
    name = f"t{uuid.uuid4().hex}"
    with psycopg.connect(f"host={postgres} user=bgad dbname=postgres", autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}")
    return f"postgresql://bgad@/postgres?host={postgres}&options=-csearch_path%3D{name}"


@pytest.fixture(params=["sqlite", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an empty database, of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store.sqlite'}"
    return new_schema(request.getfixturevalue("postgres"))


# --- the application


def linked(model: Path, folder: Path) -> Path:
    """A folder with one model, `plate`; its files are links: replace them, do not write into them."""
    shutil.copytree(model, folder / "plate.bgad", copy_function=os.link)
    (folder / WORKSPACE).mkdir()
    return folder


@pytest.fixture
def models(model: Path, tmp_path: Path) -> Path:
    return linked(model, tmp_path / "models")


def sqlite_address(models: Path) -> str:
    return f"sqlite:///{models / WORKSPACE / 'store.sqlite'}"


@dataclass
class Service:
    """An application in this process, with what is behind it."""

    client: TestClient
    bench: Workbench
    runner: JobRunner

    @property
    def store(self) -> Store:
        return self.bench.store

    def score(self, content: bytes, name: str = "part.png") -> int:
        """The number that the image got."""
        answer = self.client.post("/v1/models/plate/score", params={"filename": name}, content=content)
        assert answer.status_code == 200, answer.text
        return int(answer.json()["image"])


def new_runner(bench: Workbench, limits: JobLimits | None = None) -> JobRunner:
    return JobRunner(bench.store, bench.registry, bench.blobs, bench.folders, limits)


def page_and_total(store: Store, query: ImageQuery) -> tuple[list[ListedImage], int]:
    return store.lists.page(query), store.lists.total(query)


@dataclass
class Maker:
    """Makes services and ends them."""

    models: Path
    made: list[Service] = field(default_factory=list)

    def __call__(
        self,
        address: str | None = None,
        *,
        tokens: bool = False,
        limits: JobLimits | None = None,
        max_bytes: int = 2**22,
        max_pixels: int = 10**6,
        data: Path | None = None,
        retention_days: float | None = None,
        role: Role = Role.MAIN,
        precision: str = FLOAT32,
    ) -> Service:
        store = Store(address or sqlite_address(self.models), migrate=role is Role.MAIN)
        settings = WorkbenchSettings(
            ImageLimits(max_bytes, max_pixels), retention_days=retention_days, role=role, precision=precision
        )
        bench = Workbench(Folders.of(self.models, data), store, settings)
        runner = new_runner(bench, limits)
        application = app.create(bench, runner, AccessRules(tokens_required=tokens))
        client = TestClient(application, "http://localhost", raise_server_exceptions=False)
        client.__enter__()
        self.made.append(Service(client, bench, runner))
        return self.made[-1]

    def end(self) -> None:
        for service in self.made:
            service.client.__exit__(None, None, None)
            service.store.close()
        self.made.clear()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is not a store that is away."""
    for module, name in (
        (recorder, "RECORD_SECONDS"),
        (dialects, "RELAXED_SECONDS"),
        (callers, "LOOKUP_SECONDS"),
        (health, "READY_SECONDS"),
    ):
        monkeypatch.setattr(module, name, 60.0)


@pytest.fixture
def make(models: Path) -> Iterator[Maker]:
    maker = Maker(models)
    yield maker
    maker.end()


@pytest.fixture
def service(make: Maker) -> Service:
    return make()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Nothing is scored while it is not set."""
    opened, real = threading.Event(), Runtime.run
    opened.set()

    def held(self: Runtime, pixels: np.ndarray) -> Any:
        assert opened.wait(60)
        return real(self, pixels)

    monkeypatch.setattr(Runtime, "run", held)
    yield opened
    opened.set()


# --- a service of its own process


# `python -m bgad`, with the same patience.
LAUNCHER = """
import runpy
from bgad.service.scoring import recorder
from bgad.service.store import dialects
recorder.RECORD_SECONDS = dialects.RELAXED_SECONDS = 60.0
runpy.run_module("bgad", run_name="__main__", alter_sys=True)
"""


@dataclass
class Live:
    """`bgad serve` as people start it."""

    models: Path
    options: tuple[str, ...] = ()
    launcher: str = LAUNCHER
    process: subprocess.Popen[str] | None = None
    port: int = 0

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> Live:
        self.port = free_port()
        command = [sys.executable, "-c", self.launcher, "serve", "--models", str(self.models), "--port", str(self.port)]
        with (self.models / "log.txt").open("a") as log:
            self.process = subprocess.Popen(
                [*command, *self.options], stdout=log, stderr=log, text=True, start_new_session=True
            )
        wait_for(self._answers, 180)
        return self

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.models / "log.txt").read_text()
        try:
            with urllib.request.urlopen(f"{self.address}/healthz", timeout=5):
                return True
        except (OSError, http.client.HTTPException):
            return False

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(how)
            self.process.wait(120)


@pytest.fixture
def live(models: Path) -> Iterator[Callable[..., Live]]:
    started: list[Live] = []

    def start(*options: str) -> Live:
        started.append(Live(models, options))
        return started[-1].start()

    yield start
    for service in started:
        service.end(signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(done: Callable[[], bool], seconds: float = 90) -> None:
    """Until it is so."""
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.05)


def problem(answer: Any, status: int) -> str:
    """The one line of an error."""
    assert answer.status_code == status, answer.text
    assert list(answer.json()) == ["detail"]
    detail = str(answer.json()["detail"])
    assert "\n" not in detail
    assert "Traceback" not in detail
    return detail


def token(service: Service, role: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {access.new_token(service.store.tokens, role, role)}"}
