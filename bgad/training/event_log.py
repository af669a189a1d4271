"""TensorBoard event files of a training, on request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bgad.errors import OutputError
from bgad.methods.checkpoint import LogRow

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
