from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from bgad.artifact import folder as model_folder
from bgad.service import access, demo_seed
from bgad.service.folders import DATA, WORKSPACE
from bgad.service.store.image_list import ImageQuery
from bgad.service.store.store import Store
from tests.service.conftest import Maker, page_and_total


def serve(*options: str) -> tuple[int, list[str]]:
    command = [sys.executable, "-m", "bgad", "serve", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr.strip().splitlines()


@pytest.mark.parametrize("option", ["--host 0.0.0.0", "--allowed-host inspection.example.org"])
def test_a_service_for_others_needs_a_token(models: Path, option: str) -> None:
    code, lines = serve("--models", str(models), *option.split(), "--port", "0")
    assert (code, len(lines)) == (2, 1)
    assert f"{option.split()[1]} can be reached from other machines, and no token guards it" in lines[0]
    assert "bgad token add NAME --role admin" in lines[0]


def test_a_name_that_a_proxy_passes_on(models: Path, live: Callable[..., Any]) -> None:
    with closing(Store(f"sqlite:///{models / WORKSPACE / 'store.sqlite'}")) as store:
        token = access.new_token(store.tokens, "bea", "admin")
    service = live("--allowed-host", "Inspection.example.org")

    def asked(host: str) -> int:
        headers = {"Host": host, "Authorization": f"Bearer {token}"}
        return httpx.get(f"{service.address}/v1/models", headers=headers).status_code

    assert [asked(host) for host in ("inspection.example.org", "localhost", "example.org")] == [200, 200, 421]


@pytest.mark.parametrize("name", ["https://inspection.example.org", "inspection.example.org:8443", ""])
def test_a_name_is_a_name(models: Path, name: str) -> None:
    code, lines = serve("--models", str(models), "--allowed-host", name)
    assert (code, len(lines)) == (2, 1)
    assert "is no name of a host: give it without https:// and without a port" in lines[0]


def test_serving_what_is_not_there(tmp_path: Path) -> None:
    code, lines = serve("--models", str(tmp_path / "none"))
    assert (code, len(lines)) == (2, 1)
    assert "no such folder of models" in lines[0]
    code, lines = serve("--models", str(tmp_path))
    assert (code, len(lines)) == (2, 1)
    assert "no model that could be read" in lines[0]
    assert list(tmp_path.iterdir()) == []


def test_two_services_for_one_folder_or_one_port(models: Path, live: Any, tmp_path: Path, model: Path) -> None:
    first = live()
    code, lines = serve("--models", str(models), "--port", "0")
    assert (code, len(lines)) == (2, 1)
    assert "is in use by another service" in lines[0]
    shutil.copytree(model, tmp_path / "other" / "plate.bgad")
    code, lines = serve("--models", str(tmp_path / "other"), "--port", str(first.port))
    assert code == 2
    assert f"port {first.port}" in lines[-1]
    assert "bgad: error: " in lines[-1]


def test_tokens_by_command(models: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "bgad", "token", *arguments, "--models", str(models)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    made = run("add", "camera", "--role", "score").stdout.strip()
    assert made.startswith(access.TOKEN_PREFIX)
    assert run("list").stdout == "score   camera\n"
    assert run("drop", "camera").returncode == 0
    again = run("drop", "camera")
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)
    assert "'camera' has no token" in again.stderr
    assert run("list").stdout == ""


def test_a_model_that_is_gone_does_not_keep_the_next_one_from_its_test_images(
    models: Path, make: Maker, model: Path, data_set: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(model, models / "wheel.bgad")
    shutil.copytree(data_set, models / DATA / Path(model_folder.read_card(model).data.name).name)
    service = make()
    shutil.rmtree(models / "plate.bgad")
    demo_seed.seed_test_images(service.bench).join(60)
    assert page_and_total(service.store, ImageQuery("wheel", limit=1))[1] > 0
    (line,) = [line for line in caplog.messages if "test images" in line]
    assert line.startswith("no test images of plate are scored: ")
