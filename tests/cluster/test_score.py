"""A real cluster of two nodes: every image has exactly one row, whatever is killed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bgad.cli.main import main
from bgad.cluster import score, worker
from bgad.cluster.connection import connected
from bgad.cluster.job import Job
from bgad.errors import ConfigError
from bgad.inference.batch import predict
from bgad.inference.load import load

ray = pytest.importorskip("ray")
COPIES = 12  # of the 18 images
KEYS = ("score", "p_value", "is_anomaly", "parts", "reason", "region", "error")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of two CPUs each, on this machine."""
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    nodes.add_node(num_cpus=2)
    yield nodes
    nodes.shutdown()


@pytest.fixture(scope="module")
def images(data_set: Path) -> list[Path]:
    return sorted((data_set / "test").rglob("*.png"))


def write_manifest(path: Path, images: list[Path]) -> int:
    rows = [
        {"id": f"{copy:04d}-{image.parent.name}-{image.stem}", "uri": str(image)}
        for copy in range(COPIES)
        for image in images
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return len(rows)


def command(model: Path, source: Path, out: Path, address: str) -> list[str]:
    return [
        "predict",
        str(model),
        str(source),
        "--cluster",
        address,
        "--out",
        str(out),
        "--shard-images",
        "8",
        "--workers",
        "3",
    ]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


def expected(model: Path, images: list[Path]) -> dict[str, dict[str, object]]:
    rows: Iterable[Mapping[str, Any]] = predict(load(model, "cpu", engine="onnx", threads=1), images)
    return {str(path): {key: row[key] for key in KEYS} for path, row in zip(images, rows, strict=True)}


def check(out: Path, count: int, truth: dict[str, dict[str, object]]) -> None:
    rows = [row for file in sorted((out / "scores").glob("*.parquet")) for row in pq.read_table(file).to_pylist()]
    assert len(rows) == count
    assert len({row["id"] for row in rows}) == count
    for row in rows:
        assert {key: row[key] for key in KEYS} == truth[row["uri"]]


def workers() -> list[int]:
    """Return the process numbers of the scorers."""
    found = subprocess.run(["pgrep", "-f", "ray::_Worker"], capture_output=True, text=True, check=True)
    return [int(number) for number in found.stdout.split()]


def test_everything_is_killed_and_every_image_has_one_row(
    cluster: Any, model: Path, images: list[Path], tmp_path: Path
) -> None:
    chance = random.Random(5)
    count = write_manifest(tmp_path / "list.parquet", images)
    out = tmp_path / "out"
    arguments = command(model, tmp_path / "list.parquet", out, cluster.address)
    driver = subprocess.Popen([sys.executable, "-m", "bgad", *arguments], env=environment())
    _wait_for_shards(out, 3)
    os.kill(chance.choice(workers()), signal.SIGKILL)
    _wait_for_shards(out, 6)
    cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
    _wait_for_shards(out, 9)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    finished = {
        file.name: file.stat().st_mtime_ns for file in (out / "scores").glob("*.parquet") if _is_done(out, file)
    }
    assert 0 < len(finished) < 27
    assert main(arguments) == 0
    check(out, count, expected(model, images))
    for name, changed in finished.items():
        assert (out / "scores" / name).stat().st_mtime_ns == changed, "a finished shard was scored again"


class PoisonedWorker(score._Worker):
    """A worker that dies on one image, as one would whose decoder crashes."""

    def score_rows(self, model: list[Any], shard: int, first: int, last: int) -> list[dict[str, Any]]:
        uris = self._about[0].read_shard(shard).column("uri").to_pylist()[first:last]
        if any(uri.endswith("poison.png") for uri in uris):
            os._exit(1)
        return super().score_rows(model, shard, first, last)

    def score_shard(self, model: list[Any], shard: int) -> worker.ShardResult:
        self.score_rows(model, shard, 0, self._about[0].rows_of(shard))
        return super().score_shard(model, shard)


def test_an_image_that_kills_its_worker_is_a_row(
    cluster: Any, model: Path, images: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(score, "_Worker", PoisonedWorker)
    monkeypatch.setattr(score, "DEATHS", 1)
    copies(images, tmp_path)
    out = tmp_path / "out"
    assert main(command(model, tmp_path, out, cluster.address)) == 1
    rows = pq.read_table(out / "scores" / "00000000.parquet").to_pylist()
    assert [Path(row["uri"]).name for row in rows if row["error"]] == ["2-poison.png"]
    assert "the worker died on this image, 1 times" in next(row["error"] for row in rows if row["error"])
    assert len(rows) == 4


class FlakyWorker(PoisonedWorker):
    """Dies on an image in company, and the first time that it has the image alone."""

    def score_rows(self, model: list[Any], shard: int, first: int, last: int) -> list[dict[str, Any]]:
        poison = next(uri for uri in self._about[0].read_shard(shard).column("uri").to_pylist() if "poison" in uri)
        seen = Path(poison).with_suffix(".seen")
        if last - first == 1 and seen.exists():
            return score._Worker.score_rows(self, model, shard, first, last)
        if last - first == 1 and first == POISON:
            seen.touch()
        return super().score_rows(model, shard, first, last)


POISON = 2  # number of the image in its shard


def copies(images: list[Path], folder: Path) -> None:
    """Four images, one of which a PoisonedWorker dies on."""
    for number, image in enumerate(images[:4]):
        shutil.copy(image, folder / (f"{number}-poison.png" if number == POISON else f"{number}.png"))


def test_an_image_is_tried_as_often_alone_as_its_row_says(
    cluster: Any, model: Path, images: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies(images, tmp_path)
    monkeypatch.setattr(score, "DEATHS", 2)
    monkeypatch.setattr(score, "_Worker", FlakyWorker)
    assert main(command(model, tmp_path, tmp_path / "out", cluster.address)) == 0
    rows = pq.read_table(tmp_path / "out" / "scores" / "00000000.parquet").to_pylist()
    assert [row["error"] for row in rows] == [None] * 4
    assert [Path(row["uri"]).name for row in rows] == ["0.png", "1.png", "2-poison.png", "3.png"]


class UncreatableWorker(score._Worker):
    """Cannot be created, as on a node without one of the packages."""

    def __init__(self, *_: Any) -> None:
        raise ModuleNotFoundError("No module named 'onnxruntime'")


class UnstartableWorker(score._Worker):
    """Dies while it loads the model."""

    def start(self, model: list[Any]) -> None:
        os._exit(1)


class UselessWorker(score._Worker):
    """Dies on every image."""

    def score_shard(self, model: list[Any], shard: int) -> worker.ShardResult:
        os._exit(1)

    def score_rows(self, model: list[Any], shard: int, first: int, last: int) -> list[dict[str, Any]]:
        os._exit(1)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (UncreatableWorker, "a worker cannot be started: ModuleNotFoundError: No module named 'onnxruntime'"),
        (UnstartableWorker, "a worker died 2 times before it had loaded the model"),
        (UselessWorker, "3 workers died one after the other and scored nothing"),
    ],
)
def test_workers_that_never_score_end_the_job(
    broken: type,
    message: str,
    cluster: Any,
    model: Path,
    images: list[Path],
    tmp_path: Path,
    capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(score, "_Worker", broken)
    if broken is UnstartableWorker:
        monkeypatch.setattr(score, "STARTS", 2)
    monkeypatch.setattr(score, "DEATHS_IN_A_ROW", 3)
    copies(images, tmp_path)
    assert main(command(model, tmp_path, tmp_path / "out", cluster.address)) == 2
    said = capsys.readouterr().err
    assert message in " ".join(said.split())


def test_workers_that_no_node_can_run(cluster: Any, job: Callable[..., Job]) -> None:
    with connected(cluster.address), pytest.raises(ConfigError, match="2 CPUs and 1 GPUs that one worker takes"):
        score.score(job(), {}, score.Pool(1, cpus=2, gpus=1))


def test_a_cluster_that_does_not_answer(model: Path, images: list[Path], tmp_path: Path, capsys: Any) -> None:
    for address, text in (("127.0.0.1:1", "no cluster answers"), ("nonsense", "give local, auto or HOST:PORT")):
        assert main(command(model, images[0].parent, tmp_path / "out", address)) == 2
        assert text in capsys.readouterr().err


def test_sigterm_drains(cluster: Any, model: Path, images: list[Path], tmp_path: Path) -> None:
    count = write_manifest(tmp_path / "list.parquet", images)
    out = tmp_path / "out"
    arguments = command(model, tmp_path / "list.parquet", out, cluster.address)
    driver = subprocess.Popen([sys.executable, "-m", "bgad", *arguments], env=environment())
    _wait_for_shards(out, 1)
    driver.send_signal(signal.SIGTERM)
    assert driver.wait(60) == 130
    done = len(list((out / "done").glob("*.json")))
    assert len(list((out / "scores").glob("*.parquet"))) == done  # none was cut off
    assert main(arguments) == 0
    check(out, count, expected(model, images))


def _is_done(out: Path, scores: Path) -> bool:
    return any((out / "done").glob(f"{scores.stem}-*.json"))


def _wait_for_shards(out: Path, count: int) -> None:
    deadline = time.monotonic() + 120
    while len(list((out / "done").glob("*.json"))) < count:
        assert time.monotonic() < deadline, "no progress"
        time.sleep(0.05)
