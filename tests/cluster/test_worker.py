"""A worker without a cluster: its rows are those of `bgad predict`, and an image that fails is a row."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from bgad.cluster import storage
from bgad.cluster.job import Job
from bgad.cluster.worker import ShardScorer
from bgad.errors import ModelError
from bgad.inference.batch import predict
from bgad.inference.load import load
from bgad.io.discover import expand

Open = Callable[..., Job]
Load = Callable[[Job], ShardScorer]


def table(job: Job) -> list[dict[str, Any]]:
    return [
        row for shard in range(job.shards) for row in pq.read_table(f"{job.out}/scores/{shard:08d}.parquet").to_pylist()
    ]


def test_rows_are_those_of_predict(model: Path, archive: Path, job: Open, scorer: Load) -> None:
    opened = job()
    worker = scorer(opened)
    for shard in range(opened.shards):
        worker.score_shard(shard)
    expected = list(predict(load(model, "cpu", engine="onnx", threads=2), expand([archive])))
    rows = table(opened)
    assert [row["uri"] for row in rows] == [str(Path(row["path"]).absolute()) for row in expected]
    for ours, theirs in zip(rows, expected, strict=True):
        for key in ("score", "p_value", "is_anomaly", "parts", "reason", "region", "precision", "error"):
            assert ours[key] == theirs[key], key
    assert not opened.finished().missing


def test_images_that_fail_are_rows(archive: Path, job: Open, scorer: Load, tmp_path: Path) -> None:
    images = tmp_path / "images"
    shutil.copytree(archive / "good", images)
    opened = job(images)
    (images / "000.png").write_bytes(b"not an image")
    (images / "003.png").unlink()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(images / "005.png")
    scorer(opened).score_shard(0)
    rows = pq.read_table(f"{opened.out}/scores/00000000.parquet").to_pylist()
    errors = {Path(row["uri"]).name: row["error"] for row in rows if row["error"]}
    assert set(errors) == {"000.png", "003.png", "005.png"}
    assert "has changed since it was listed" in errors["005.png"]
    assert "No such file" in errors["003.png"]
    assert all((row["score"] is None) == (row["error"] is not None) for row in rows)
    assert opened.finished().failed == 3


@pytest.mark.parametrize("overlays", ["none", "all"])
def test_a_file_system_that_fails_ends_the_shard_without_rows(
    overlays: str, job: Open, scorer: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = job(overlays=overlays)
    worker, read = scorer(opened), storage._read

    def failing(uri: str, limit: int | None) -> bytes:
        if uri.endswith("003.png"):
            raise storage._read_error(uri, OSError(errno.EIO, "Input/output error"))
        return read(uri, limit)

    monkeypatch.setattr(storage, "PAUSES", (0, 0))
    monkeypatch.setattr(storage, "_read", failing)
    with pytest.raises(storage.AccessError, match=r"003\.png: cannot be read: Input/output error"):
        worker.score_shard(0)
    assert opened.finished().missing == [0, 1, 2]
    assert not Path(opened.out, "scores").exists()
    monkeypatch.undo()
    worker.score_shard(0)
    assert opened.finished().errors.tolist() == [0, -1, -1]


def test_the_hash_of_a_manifest_is_checked(archive: Path, job: Open, scorer: Load, tmp_path: Path) -> None:
    from bgad.cluster.listing import write_file

    images = tmp_path / "images"
    shutil.copytree(archive / "good", images)
    write_file(str(images), str(tmp_path / "list.parquet"), hashes=True)
    content = bytearray((images / "001.png").read_bytes())
    content[-20] ^= 1  # of the same size
    (images / "001.png").write_bytes(content)
    opened = job(tmp_path / "list.parquet")
    scorer(opened).score_shard(0)
    errors = [row["error"] for row in pq.read_table(f"{opened.out}/scores/00000000.parquet").to_pylist()]
    assert "sha256" in (errors[1] or "")
    assert not any(errors[:1] + errors[2:])


@pytest.mark.parametrize("which", ["anomalous", "all"])
def test_overlays_and_maps(which: str, job: Open, scorer: Load) -> None:
    opened = job(overlays=which)
    worker = scorer(opened)
    for shard in range(opened.shards):
        worker.score_shard(shard)
    rows = table(opened)
    drawn = [row for row in rows if row["overlay"]]
    assert [row["id"] for row in drawn] == [row["id"] for row in rows if which == "all" or row["is_anomaly"]]
    assert drawn
    for row in drawn:
        overlay = Path(opened.out, "overlays", row["overlay"])
        with Image.open(overlay) as image, Image.open(str(overlay).replace(".overlay.png", ".map.tif")) as anomaly_map:
            assert image.width >= anomaly_map.width
            assert image.height > anomaly_map.height  # the legend is below the image


def test_another_version_on_a_worker_is_refused(model: Path, job: Open, scorer: Load) -> None:
    from bgad.cluster.archive import model_files

    files = model_files(model, load(model, "cpu", engine="onnx", threads=1))
    with pytest.raises(ModelError, match=r"install the same on all nodes"):
        ShardScorer(files, job(), None, "0.0.1")
