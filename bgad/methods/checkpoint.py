"""What a training leaves on disk, and the fingerprint by which a later run recognises it.

- The work folder beside the model keeps the state of a run until it ends well: checkpoint, log and cached features. A
  checkpoint holds tensors, and a note in its header; it is written atomically. The log train.csv has one row for each
  step; TensorBoard event files are written on request.
- Equal fingerprints mean equal results, so an unfinished run is recognised.
- The provenance of a model, which is where its images are on this machine, is kept outside of the model, so that a
  model does not tell where it was made: one small file for each model in the user's state folder ($BGAD_STATE, or bgad
  in $XDG_STATE_HOME), named by the checksum of the card. It only saves typing: without it, `bgad update` asks for
  --data.
"""

from __future__ import annotations

import csv
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from bgad._version import __version__
from bgad.artifact import folder as model_folder
from bgad.config import BackboneConfig, Config, to_dict
from bgad.data import layouts
from bgad.data.datasets import registry
from bgad.data.layouts import Dataset
from bgad.data.sample_io import hash_masks
from bgad.data.split import Split
from bgad.errors import ModelError, OutputError
from bgad.features.cache import SHARD_FILES
from bgad.geometry.roi import Roi
from bgad.io import files as output_files
from bgad.io.files import sha256_bytes, sha256_json, write_atomic
from bgad.io.state import state_folder
from bgad.model.scoring import FLOW_FILE

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

logger = logging.getLogger(__name__)

# Files in the work folder: the fingerprint of the run, and its state after the last saved step.
RUN_FILE, CHECKPOINT = "run.json", "checkpoint.safetensors"
TRAINING_LOG = "train.csv"

LogRow = dict[str, float]
CHECKPOINT_SECONDS = 20.0  # between two checkpoints: the work that a killed run may lose


def work_folder(out: Path) -> Path:
    """Return the folder beside a model in which its training keeps its state."""
    return out.with_name(f"{out.name}.work")


def unfinished(out: Path) -> bool:
    """Return whether a training that was to write this model has left a checkpoint or feature shards of a cluster."""
    work = work_folder(out)
    return (work / CHECKPOINT).exists() or any(work.glob(f"*/{SHARD_FILES}"))


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
        write_atomic(work / RUN_FILE, json.dumps({"key": key, "data": data}).encode())
        try:
            yield work
        except KeyboardInterrupt:
            option = "" if resume else " and --resume"
            logger.info(f"stopped; what was learnt is in {work}: go on with the same command{option}")
            raise
        except OSError as error:
            raise OutputError(f"cannot write to {work}: {error.strerror or error}; go on with --resume") from error
        shutil.rmtree(work)


def write_state(path: Path, tensors: Mapping[str, Tensor], note: Mapping[str, Any]) -> None:
    """Write tensors and a note to a file, atomically."""
    temporary = path.with_name(f"{path.name}.new")
    content = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
    with temporary.open("wb") as output:  # safetensors' own writer does not raise OSError on a full disk
        output.write(safetensors.torch.save(content, metadata={"note": json.dumps(note)}))
        output.flush()
        os.fsync(output.fileno())
    temporary.replace(path)


def read_state(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the note of a file; ModelError where it is damaged."""
    note = read_note(path)
    with safetensors.safe_open(path, framework="pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}, note  # noqa: SIM118


def read_note(path: Path) -> dict[str, Any]:
    """Return the note of a file, without its tensors; ModelError where the file is damaged."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            note: dict[str, Any] = json.loads(file.metadata()["note"])
    except safetensors.SafetensorError as error:
        raise ModelError(f"{path} is damaged ({error}): delete {path.parent} and start again") from error
    return note


class TrainingLog:
    """Appends rows to train.csv, and takes back those that no checkpoint covers."""

    def __init__(self, folder: Path, columns: Sequence[str]) -> None:
        """`columns` are the keys of the rows; the first is `step`."""
        self.path, self.columns = folder / TRAINING_LOG, columns

    def append(self, rows: Sequence[LogRow]) -> None:
        """Add rows; the first ones come with the header."""
        is_new = not self.path.exists()
        with self.path.open("a", newline="") as file:
            writer = csv.DictWriter(file, self.columns, lineterminator="\n")
            if is_new:
                writer.writeheader()
            writer.writerows({name: f"{value:.8g}" for name, value in row.items()} for row in rows)

    def truncate(self, step: int) -> None:
        """Drop the rows of this step and later ones, and a last row that is not complete."""
        if self.path.exists():
            lines = self.path.read_text().splitlines(keepends=True)
            kept = [line for line in lines[1:] if line.endswith("\n") and float(line.split(",")[0]) < step]
            self.path.write_text("".join(lines[:1] + kept))

    def delete(self) -> None:
        """Start again with an empty log."""
        self.path.unlink(missing_ok=True)

    def read(self) -> str:
        """Return the text of the file."""
        return self.path.read_text()

    def replace(self, text: str) -> None:
        """Take over the text of another log."""
        self.path.write_text(text)

    def count(self) -> int:
        """Return the number of logged steps: fewer than the schedule has where a phase ended early."""
        return len(self.path.read_bytes().splitlines()) - 1


class EventLog:
    """Writes the log rows of a training as scalars; without a writer it does nothing."""

    def __init__(self, writer: SummaryWriter | None) -> None:
        self._writer = writer

    def write(self, step: int, row: LogRow) -> None:
        """Add the values of one row that are defined."""
        if self._writer is None:
            return
        for name, value in row.items():
            if name != "step" and not np.isnan(value):
                self._writer.add_scalar(name, value, step)


@contextmanager
def open_event_log(folder: str | Path | None) -> Iterator[EventLog]:
    """Open an event log in a folder; None opens one that does nothing."""
    if folder is None:
        yield EventLog(None)
        return
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise OutputError("TensorBoard is not installed: pip install 'bgad[tensorboard]'") from error
    with SummaryWriter(str(folder)) as writer:
        yield EventLog(writer)


def hash_weights(config: BackboneConfig) -> str:
    """Return the sha256 of the file with the weights of a backbone; empty where the recipe names none."""
    return layouts.hash_file(Path(config.weights)) if config.weights else ""


def run_key(
    config: Config, split: Split, device: torch.device, roi: Roi | None = None, parent: Path | None = None
) -> str:
    """Return the fingerprint of a run: two runs with the same one make the same model."""
    masks, weights = hash_masks(split.known), hash_weights(config.backbone)
    parts = [to_dict(config), split.to_json(), masks, weights, device.type, torch.__version__, __version__]
    ignored = {s.name: layouts.hash_file(s.ignore) for s in (*split.train, *split.known) if s.ignore is not None}
    if ignored:
        parts.append(ignored)
    if roi is not None:
        parts.append(sha256_bytes(roi.png()))
    if parent is not None:
        parts.append(layouts.hash_file(parent / FLOW_FILE))
    return sha256_json(parts)


_PATHS = ("taught", "masks", "ignored")  # fields of Provenance


@dataclass(frozen=True)
class Provenance:
    """The data set of a model, and the images that updates have added; the dictionaries go by names in the split."""

    data: Path  # a folder or a manifest; or the name of a public data set
    root: Path | None = None  # the folder of the public data sets; None: `data` is a path
    taught: dict[str, Path] = field(default_factory=dict)
    masks: dict[str, Path] = field(default_factory=dict)
    ignored: dict[str, Path] = field(default_factory=dict)  # regions to ignore

    def load(self) -> Dataset:
        """Load the data set; DataError where it does not exist any more."""
        if self.root is None:
            return layouts.locate(self.data)
        return registry.load(self.data.parts[0], "".join(self.data.parts[1:]), self.root)


def provenance_of(data: str | Path, root: str | Path | None) -> Provenance:
    """Return the provenance of a data set given by the user, independent of the working directory."""
    if layouts.set_name(data) is None:
        return Provenance(Path(data).absolute())
    return Provenance(Path(data), (registry.default_root() if root is None else Path(root)).absolute())


def remember(checksum: str, provenance: Provenance) -> None:
    """Store the provenance of a model; without write access it is silently left out, as it is only a convenience."""
    content = {
        "data": str(provenance.data),
        "root": None if provenance.root is None else str(provenance.root),
        **{kind: {name: str(path.absolute()) for name, path in getattr(provenance, kind).items()} for kind in _PATHS},
    }
    with suppress(OutputError, OSError, RuntimeError):  # RuntimeError: a user without a home
        write_atomic(_provenance_file(checksum), json.dumps(content, indent=1).encode())


def recall(checksum: str) -> Provenance | None:
    """Return the stored provenance of a model; None where there is none that can be read."""
    try:
        stored = json.loads(_provenance_file(checksum).read_bytes())
        paths = {kind: {n: Path(p) for n, p in stored[kind].items()} for kind in _PATHS}
        root = stored["root"]
        return Provenance(Path(stored["data"]), None if root is None else Path(root), **paths)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError):
        return None


@contextmanager
def passing_on_provenance(folder: Path) -> Iterator[None]:
    """Pass the provenance of a model on to the one that the block writes in its place, whose checksum is another."""
    provenance = recall(model_folder.read_card(folder).checksum)
    yield
    if provenance is not None:
        remember(model_folder.read_card(folder).checksum, provenance)


def _provenance_file(checksum: str) -> Path:
    return state_folder() / "provenance" / f"{checksum}.json"
