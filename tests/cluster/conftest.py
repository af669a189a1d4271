"""Archives of the demo plate, and a job on them without a cluster."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bgad._version import __version__
from bgad.cluster.archive import Options, model_files, prepare
from bgad.cluster.job import Job
from bgad.cluster.worker import ShardScorer
from bgad.inference.load import load

SHARD = 8
os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's own default of 15 starves workers beside other tests


@pytest.fixture
def archive(data_set: Path) -> Path:
    """A folder of 18 images: 10 good ones and 8 with a blot."""
    return data_set / "test"


@pytest.fixture
def job(model: Path, archive: Path, tmp_path: Path) -> Callable[..., Job]:
    """Opens the job of a source."""
    scorer = load(model, "cpu", engine="onnx", threads=1)

    def opened(source: Path = archive, out: Path | str = tmp_path / "out", **options: Any) -> Job:
        return prepare(scorer, str(source), str(out), replace(Options(shard_images=SHARD), **options))

    return opened


@pytest.fixture
def scorer(model: Path) -> Callable[[Job], ShardScorer]:
    """Loads the worker of a job in this process."""
    files = model_files(model, load(model, "cpu", engine="onnx", threads=1))
    return lambda job: ShardScorer(files, job, None, __version__)
