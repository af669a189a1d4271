"""Files that hold the state of a training: tensors, and a note in the header. They are written atomically."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from bgad.errors import ModelError

CHECKPOINT = "checkpoint.safetensors"
CHECKPOINT_SECONDS = 20.0  # between two checkpoints: the work that a killed run may lose


@dataclass(frozen=True)
class SharedPhaseOne:
    """A file with the state at the end of phase 1, for runs that have phase 1 in common.

    Such runs have the same normals, recipe and seed; `key` is the fingerprint of these.
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
