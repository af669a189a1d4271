"""One training run: its options, and the work folder that keeps its state until it ends well.

This module does not import torch, so that options can be checked without it.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bgad.calibration import check_rate
from bgad.data.layouts import Dataset
from bgad.data.split import Split
from bgad.data.validation import MAX_UNREADABLE
from bgad.errors import ConfigError, ModelError, OutputError
from bgad.geometry.roi import Roi
from bgad.io import files as output_files
from bgad.methods.control import CHECKPOINT, RunControl

if TYPE_CHECKING:
    import torch

    from bgad.training.warm_start import WarmStart

logger = logging.getLogger(__name__)

RUN_FILE = "run.json"  # file in the work folder: the fingerprint of the run
SHARDS = "*/shards/*.npz"  # feature shards, as bgad.features.shards names them; that module needs torch


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The options of `train`, which are those of `bgad train`; a value that cannot work raises."""

    root: str | Path | None = None  # folder of the public data sets; None: $BGAD_DATA, else ./data
    known: int | None = None  # known anomalies to train on; None: all of the training part, or 10 of a test set
    test_share: float = 0.0  # share of the normals to keep for the test, where the data has no test set
    split: str | Path | None = None  # file that gives every image its role; replaces `known` and `test_share`
    false_reject_rate: float | None = None  # share of good parts that may be rejected; None: 0.05 if possible
    device: str = "auto"  # cpu, cuda or mps; auto takes an accelerator where there is one
    memory_gb: float = 4.0  # memory for cached features; the rest goes to disk
    max_unreadable: int = MAX_UNREADABLE  # unreadable images to skip before giving up
    resume: bool = False  # continue a training that was stopped
    overwrite: bool = False  # replace an existing model folder
    tensorboard: str | Path | None = None  # folder for TensorBoard's event files
    export: bool = True  # add the graph that scores without torch
    roi: str | Path | None = None  # region of interest: an image (black: outside), or a JSON file with polygons

    def __post_init__(self) -> None:
        if self.max_unreadable < 0 or not 0 <= self.test_share < 1:
            raise ConfigError("max_unreadable must be 0 or more, and test_share 0 or more and below 1")
        if self.split is not None and (self.known is not None or self.test_share):
            raise ConfigError(
                "a split file says which images are known and which are tested: leave out --known and --test"
            )
        if self.false_reject_rate is not None:
            check_rate(self.false_reject_rate)


@dataclass(frozen=True)
class TrainingRun:
    """Everything that is decided before the training of one model begins."""

    name: str
    dataset: Dataset
    split: Split
    training_split: Split  # the split with tiles in place of images, where the recipe cuts them
    bits: int
    device: torch.device
    work: Path
    false_reject_rate: float | None = None
    roi: Roi | None = None
    warm_start: WarmStart | None = None
    memory_gb: float = 4.0  # that a fit may take beside the cached features
    started: float = field(default_factory=time.monotonic)
    control: RunControl = field(default_factory=RunControl)


def work_folder(out: Path) -> Path:
    """Return the folder beside a model in which its training keeps its state."""
    return out.with_name(f"{out.name}.work")


def unfinished(out: Path) -> bool:
    """Return whether a training that was to write this model has left a checkpoint or feature shards of a cluster."""
    work = work_folder(out)
    return (work / CHECKPOINT).exists() or any(work.glob(SHARDS))


def check_work_folder(out: Path, *, resume: bool, key: str | None = None) -> Path:
    """Return the work folder of a model; an error where another run or somebody else's files are in it.

    With `key`, a run to resume must have that fingerprint.
    """
    work = work_folder(out)
    if (work / output_files.LOCK).exists():
        with output_files.locked(work, "training"):
            pass  # raises where another process holds the lock
    if unfinished(out) and not resume:
        raise OutputError(f"{work} holds an unfinished run: go on with --resume, or delete the folder")
    foreign = work.exists() and not (work / RUN_FILE).exists()
    if foreign and any(path.name != output_files.LOCK for path in work.iterdir()):
        raise OutputError(f"{work} is in the way and is not ours: move it, or choose another --out")
    file = work / RUN_FILE
    if resume and key is not None and file.exists() and json.loads(file.read_text())["key"] != key:
        raise ModelError(f"{work} belongs to a run with other data or settings: give the same ones, or delete it")
    return work


@contextmanager
def open_work_folder(out: Path, key: str, data: str, *, resume: bool) -> Iterator[Path]:
    """Lock the work folder for this process; it is deleted when the run ends well, and kept when it fails."""
    work = check_work_folder(out, resume=resume, key=key)
    with output_files.locked(work, "training"):
        for path in [] if resume else work.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != output_files.LOCK:
                path.unlink()
        output_files.write_atomic(work / RUN_FILE, json.dumps({"key": key, "data": data}).encode())
        try:
            yield work
        except KeyboardInterrupt:
            option = "" if resume else " and --resume"
            logger.info(f"stopped; what was learnt is in {work}: go on with the same command{option}")
            raise
        except OSError as error:
            raise OutputError(f"cannot write to {work}: {error.strerror or error}; go on with --resume") from error
        shutil.rmtree(work)
