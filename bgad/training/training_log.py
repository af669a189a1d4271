"""The log of a training: train.csv with one row for each step, and TensorBoard event files on request."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bgad.errors import OutputError

TRAINING_LOG = "train.csv"
COLUMNS = ("step", "lr", "loss", "likelihood", "pull", "push")  # then one boundary for each level

LogRow = dict[str, float]


class TrainingLog:
    """Appends rows to train.csv, and takes back those that no checkpoint covers."""

    def __init__(self, folder: Path, levels: int) -> None:
        self.path = folder / TRAINING_LOG
        self.columns = [*COLUMNS, *(f"boundary{i}" for i in range(levels))]

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


if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


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
