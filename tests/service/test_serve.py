from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest

from bgad.artifact import folder as model_folder
from bgad.cli.main import main
from bgad.service import access, demo_seed
from bgad.service.folders import DATA, WORKSPACE
from bgad.service.store.image_list import ImageQuery
from bgad.service.store.store import Store
from bgad.service.workbench import Workbench
from bgad.types import GOOD
from tests.service.conftest import Maker, Service, page_and_total
from tests.service.store.conftest import scored


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The one line of a service that does not start."""

    def serve(*options: str) -> str:
        capsys.readouterr()
        assert main(["serve", *options]) == 2
        said = capsys.readouterr()
        (line,) = said.err.splitlines()
        assert said.out == ""
        assert line.startswith("bgad: error: ")
        return line

    return serve


@pytest.mark.parametrize("option", ["--host 0.0.0.0", "--allowed-host inspection.example.org"])
def test_a_service_for_others_needs_a_token(models: Path, option: str, refused: Callable[..., str]) -> None:
    line = refused("--models", str(models), *option.split(), "--port", "0")
    assert f"{option.split()[1]} can be reached from other machines, and no token guards it" in line
    assert "bgad token add NAME --role admin" in line


def test_a_name_that_a_proxy_passes_on(models: Path, live: Callable[..., Any]) -> None:
    with closing(Store(f"sqlite:///{models / WORKSPACE / 'store.sqlite'}")) as store:
        token = access.new_token(store.tokens, "bea", "admin")
    service = live("--allowed-host", "Inspection.example.org")

    def asked(host: str) -> int:
        headers = {"Host": host, "Authorization": f"Bearer {token}"}
        return httpx.get(f"{service.address}/v1/models", headers=headers).status_code

    assert [asked(host) for host in ("inspection.example.org", "localhost", "example.org")] == [200, 200, 421]


@pytest.mark.parametrize("name", ["https://inspection.example.org", "inspection.example.org:8443", ""])
def test_a_name_is_a_name(models: Path, name: str, refused: Callable[..., str]) -> None:
    line = refused("--models", str(models), "--allowed-host", name)
    assert "is no name of a host: give it without https:// and without a port" in line


def test_serving_what_is_not_there(tmp_path: Path, refused: Callable[..., str]) -> None:
    assert "no such folder of models" in refused("--models", str(tmp_path / "none"))
    assert "no model that could be read" in refused("--models", str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_two_services_for_one_folder_or_one_port(
    models: Path, live: Any, tmp_path: Path, model: Path, refused: Callable[..., str]
) -> None:
    first = live()
    assert "is in use by another service" in refused("--models", str(models), "--port", "0")
    shutil.copytree(model, tmp_path / "other" / "plate.bgad")
    command = [sys.executable, "-m", "bgad", "serve", "--models", str(tmp_path / "other"), "--port", str(first.port)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert f"port {first.port}" in last
    assert "bgad: error: " in last


def test_tokens_by_command(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["token", *arguments, "--models", str(models)])
        return code, *capsys.readouterr()

    assert run("add", "camera", "--role", "score")[1].startswith(access.TOKEN_PREFIX)
    assert run("list") == (0, "score   camera: all models; never expires; never used\n", "")
    assert run("add", "ann", "--role", "review", "--model", "plate", "--expires", "30d")[0] == 0
    line = run("list")[1].splitlines()[0]
    assert re.fullmatch(r"review  ann: plate; expires 20\d\d-\d\d-\d\d \d\d:\d\d UTC; never used", line)
    for wrong, message in (
        ("--model=wheel", "no model 'wheel'"),
        ("--expires=0d", "is no time"),
        ("--expires=5", "12h"),
    ):
        code, _, said = run("add", "bob", wrong)
        assert code == 2
        assert message in said
    assert run("drop", "ann")[0] == 0
    assert run("drop", "camera")[0] == 0
    code, _, said = run("drop", "camera")
    assert (code, said.count("\n")) == (2, 1)
    assert "'camera' has no token" in said
    assert run("list") == (0, "", "")


def test_the_demo_seeds_a_stream_that_is_no_reason_for_an_alarm(
    models: Path, make: Maker, model: Path, data_set: Path
) -> None:
    """Test sets hold many anomalies, each class in a row: that would look like a change."""
    card = model_folder.read_card(model)
    shutil.copytree(data_set, models / DATA / Path(card.data.name).name)
    tests = [image["defect"] for image in model_folder.read(model).split["images"] if image["role"] == "test"]
    normals = tests.count(GOOD)
    assert len(tests) - normals > normals // demo_seed.NORMALS_PER_ANOMALY > 0
    service = make()
    demo_seed.seed_test_images(service.bench).join(180)
    names = [image.name for image in page_and_total(service.store, ImageQuery("plate", order="newest", limit=99))[0]]
    assert len(names) == normals + normals // demo_seed.NORMALS_PER_ANOMALY
    anomalies = [i for i, name in enumerate(reversed(names)) if not name.startswith(f"{GOOD}-")]
    assert anomalies == [5, 11]  # one after every five normals
    found = service.client.get("/v1/models/plate/drift").json()
    assert (found["total"], found["alarms"]) == (len(names), [])


def test_a_demo_with_as_many_anomalies_as_normals_begins_without_an_alarm(
    models: Path, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nearly as many test images as `bgad demo` has, enough for an alarm; their scores are made up."""
    card = model_folder.read(models / "plate.bgad")
    usual, rng = card.calibration_at().scores, np.random.default_rng(0)
    tests: list[dict[str, Any]] = []
    for defect, count in {"blot": 20, "scratch": 20, GOOD: 40}.items():
        (folder := models / DATA / Path(card.data.name).name / defect).mkdir(parents=True)
        for i in range(count):
            (folder / f"{i}.png").touch()
            tests.append({"name": f"{defect}/{i}.png", "defect": defect, "role": "test"})
    large = SimpleNamespace(data=card.data, split={"images": tests})
    monkeypatch.setattr(demo_seed, "model_folder", SimpleNamespace(read=lambda _: large))

    def score(bench: Workbench, model: str, _: bytes, name: str, **__: Any) -> None:
        value = rng.uniform(min(usual), max(usual)) if name.startswith(GOOD) else max(usual) + 5
        scored(bench.store, bench.store.versions.released(model), value, name)

    monkeypatch.setattr(Workbench, "score", score)
    demo_seed.seed_test_images(service.bench).join(180)
    found = service.client.get("/v1/models/plate/drift").json()
    assert found["total"] > 40
    assert found["alarms"] == []


def test_a_model_that_is_gone_does_not_keep_the_next_one_from_its_test_images(
    models: Path, make: Maker, model: Path, data_set: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(model, models / "wheel.bgad")
    shutil.copytree(data_set, models / DATA / Path(model_folder.read_card(model).data.name).name)
    service = make()
    shutil.rmtree(models / "plate.bgad")
    demo_seed.seed_test_images(service.bench).join(180)
    assert page_and_total(service.store, ImageQuery("wheel", limit=1))[1] > 0
    (line,) = [line for line in caplog.messages if "test images" in line]
    assert line.startswith("no test images of plate are scored: ")


ARENAS = """
import ctypes, tempfile, threading
from pathlib import Path
from bgad.cli import service

service.usable_cpus = lambda: 2
service._limit_arenas()
libc, barrier = ctypes.CDLL(None), threading.Barrier(13)
libc.fopen.restype = ctypes.c_void_p

def allocate():
    barrier.wait()
    libc.malloc(1000)
    barrier.wait()

for _ in range(12):
    threading.Thread(target=allocate).start()
barrier.wait()
barrier.wait()
with tempfile.NamedTemporaryFile() as file:
    stream = ctypes.c_void_p(libc.fopen(file.name.encode(), b"w"))
    libc.malloc_info(0, stream)
    libc.fclose(stream)
    print(Path(file.name).read_text().count("<heap "))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has arenas for threads")
def test_threads_share_the_arenas_of_the_allocator() -> None:
    done = subprocess.run([sys.executable, "-c", ARENAS], capture_output=True, text=True, timeout=120, check=True)
    assert int(done.stdout) <= 2
