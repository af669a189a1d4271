"""What a fit keeps on disk: checkpoints, and the log train.csv.

A checkpoint holds tensors, and a note in its header; it is written atomically. The log has one row for each step.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from bgad.errors import ModelError

TRAINING_LOG = "train.csv"

LogRow = dict[str, float]
CHECKPOINT_SECONDS = 20.0  # between two checkpoints: the work that a killed run may lose


@dataclass(frozen=True)
class SharedPhase:
    """A file with the state at the end of a phase, for runs that have everything up to there in common.

    `key` is the fingerprint of what these runs have in common: `phase_key` or `phase_two_key`.
    """

    path: Path
    key: str

    def is_usable(self) -> bool:
        """Return whether the file exists and belongs to such a run."""
        return self.path.exists() and read_note(self.path)["key"] == self.key


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
