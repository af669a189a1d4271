"""One training run: what it is made of, and the work folder that keeps its state until it ends well."""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from bgad.data.layouts import Dataset
from bgad.data.split import Split
from bgad.errors import ModelError, OutputError
from bgad.geometry.roi import Roi
from bgad.io import files as output_files
from bgad.training.checkpoint import CHECKPOINT
from bgad.training.loop import RunControl
from bgad.training.warm_start import WarmStart

logger = logging.getLogger(__name__)

RUN_FILE = "run.json"  # in the work folder: the fingerprint of the run


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
    key: str  # fingerprint
    false_reject_rate: float | None = None
    roi: Roi | None = None
    warm_start: WarmStart | None = None
    started: float = field(default_factory=time.monotonic)
    control: RunControl = field(default_factory=RunControl)


def work_folder(out: Path) -> Path:
    """Return the folder beside a model in which its training keeps its state."""
    return out.with_name(f"{out.name}.work")


def unfinished(out: Path) -> bool:
    """Return whether there is a checkpoint of a training that was to write this model."""
    return (work_folder(out) / CHECKPOINT).exists()


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
