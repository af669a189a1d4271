"""What `bgad predict --cluster` and `--report` say, without a cluster."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from bgad.calibration import Calibration
from bgad.cli.main import main
from bgad.cluster import archive as archive_module
from bgad.cluster.archive import Options
from bgad.cluster.job import Job, Settings
from bgad.cluster.report import BINS, Summary, summarise
from bgad.cluster.worker import ShardScorer
from bgad.errors import OutputError
from bgad.inference.load import load
from bgad.io.cpus import usable_cpus

Open = Callable[..., Job]
Load = Callable[[Job], ShardScorer]


@pytest.fixture
def scored(job: Open, scorer: Load) -> Job:
    """A job with the first two of three shards finished."""
    opened = job()
    worker = scorer(opened)
    for shard in (0, 1):
        worker.score_shard(shard)
    return opened


def test_a_summary_is_that_of_the_rows(scored: Job, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row for file in sorted(Path(scored.out, "scores").iterdir()) for row in pq.read_table(file).to_pylist()]
    summary = summarise(scored.out)
    assert (summary.finished, summary.scored, summary.failed) == (2, 16, 0)
    assert summary.anomalous == sum(row["is_anomaly"] for row in rows)
    assert [row["score"] for row in summary.worst] == sorted((row["score"] for row in rows), reverse=True)
    p_values = np.array([row["p_value"] for row in rows])
    edges = np.linspace(0, 1, BINS + 1)
    expected = [int(((p_values > low) & (p_values <= high)).sum()) for low, high in pairwise(edges)]
    assert summary.p_values.tolist() == expected
    assert summary.expected.sum() == pytest.approx(16)
    values = np.arange(1, 7) / 6  # of 5 calibration normals
    assert summary.drift == pytest.approx(max(abs(float(np.mean(p_values <= value)) - value) for value in values))
    assert main(["predict", "--report", scored.out]) == 0
    shown = capsys.readouterr().out
    assert "1 of 3 shards are not finished" in shown
    assert Path(summary.worst[0]["uri"]).name in shown


@pytest.mark.parametrize("normals", [5, 19, 33, 199])
def test_drift_of_images_like_the_calibration_normals(normals: int, job: Open) -> None:
    opened = job()
    summary = Summary(replace(opened, settings=replace(opened.settings, calibration_normals=normals)), 1)
    summary.ranks[:] = 7  # each p-value that the normals can give, equally often
    summary.scored = 7 * (normals + 1)
    assert summary.drift == pytest.approx(0)
    assert summary.p_values.tolist() == pytest.approx(summary.expected.tolist())
    calibration = Calibration(tuple(np.random.default_rng(5).normal(size=normals)), 0.5)
    drawn = np.random.default_rng(6).choice(calibration.scores, 20_000) - 1e-9  # new images from their distribution
    summary.ranks[:] = np.bincount(
        [round(calibration.p_value(score) * (normals + 1)) for score in drawn], minlength=normals + 2
    )[1:]
    summary.scored = len(drawn)
    assert summary.drift < 1 / (normals + 1) + 0.02
    summary.ranks[:] = 0
    summary.ranks[-1] = summary.scored  # all below every normal
    assert summary.drift == pytest.approx(normals / (normals + 1))


def test_a_folder_without_a_job_has_no_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--report", str(tmp_path)]) == 2
    assert "holds no scores of `bgad predict --cluster`" in capsys.readouterr().err


@pytest.fixture
def command(model: Path, archive: Path, tmp_path: Path) -> list[str]:
    return ["predict", str(model), str(archive), "--cluster", "local", "--out", str(tmp_path / "out")]


def test_a_dry_run_writes_nothing(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--dry-run", "--workers", "4"]) == 0
    said = capsys.readouterr().err
    assert "images: 18, of which to score: 18; shards: 1" in said
    assert "4 workers like it need" in said
    assert not (tmp_path / "out").exists()


def test_a_dry_run_of_a_job_that_is_begun(scored: Job, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in Path(scored.out).rglob("*")}
    assert main([*command, "--dry-run"]) == 0
    assert "images: 18, of which to score: 2; shards: 3" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in Path(scored.out).rglob("*")} == before


def test_the_memory_of_a_dry_run_is_that_of_a_worker(
    model: Path, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = load(model, "cpu", engine="onnx", threads=1)
    ballast = b"1" * 600_000_000  # of this process
    estimate = archive_module.estimate(
        scorer, archive_module.model_files(model, scorer), str(archive), str(tmp_path / "out"), Options(workers=1)
    )
    assert 50 < estimate.worker_mb < 600
    assert len(ballast) > 0
    assert estimate.unfinished == 18
    assert estimate.hours == pytest.approx(18 / estimate.images_per_second / 3600)


def test_a_dry_run_counts_the_cpus_of_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    @contextmanager
    def connected(address: str) -> Iterator[None]:
        asked.append(address)
        yield

    monkeypatch.setattr(archive_module, "connected", connected)
    monkeypatch.setattr(archive_module, "worker_places", lambda cpus, gpus: 640 if (cpus, gpus) == (1, 0.5) else 0)
    assert archive_module._default_workers(Options("10.0.0.1:6379", gpus_per_worker=0.5)) == 640
    assert asked == ["10.0.0.1:6379"]
    assert archive_module._default_workers(Options("local")) == usable_cpus()


def test_the_batch_does_not_depend_on_the_device_of_the_driver(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = []

    def stopped(out: str, source: str, settings: Settings, *_: object) -> None:
        batches.append(settings.batch)
        raise OutputError("stopped here")

    monkeypatch.setattr(archive_module, "open_job", stopped)
    for options in ([], ["--gpus-per-worker", "1"], ["--gpus-per-worker", "1", "--batch", "8"]):
        assert main([*command, *options]) == 2
    assert batches == [1, 4, 8]


def test_ray_is_not_installed(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(command) == 2
    assert "pip install 'bgad[ray]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense"])
def test_a_cluster_that_does_not_answer_is_told_first(
    address: str, command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--cluster", address]) == 2
    assert f"--cluster {address}" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", ["--overwrite", "--no-overlays", "--json"])
def test_options_of_one_machine(option: str, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, option]) == 2
    assert f"{option} is not for --cluster" in capsys.readouterr().err


def test_a_uri_needs_a_cluster(model: Path, archive: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(model), str(archive), "--out", "s3://KEY:SECRET@bucket/out"]) == 2
    said = capsys.readouterr().err
    assert "s3://***@bucket/out: a URI needs --cluster ADDRESS" in said
    assert not Path("s3:").exists()


def test_options_of_a_cluster_need_one(model: Path, archive: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(model), str(archive), "--workers", "2"]) == 2
    assert "--workers needs --cluster ADDRESS" in capsys.readouterr().err


def test_a_full_disk_ends_the_job_and_keeps_what_is_finished(
    scored: Job, scorer: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished = {file.name: file.read_bytes() for file in Path(scored.out, "scores").iterdir()}

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OutputError, match="No space left on device"):
        scorer(scored).score_shard(2)
    monkeypatch.undo()
    assert scored.finished().missing == [2]
    assert {file.name: file.read_bytes() for file in Path(scored.out, "scores").glob("*.parquet")} == finished
    scorer(scored).score_shard(2)
    assert not scored.finished().missing
