"""What TensorBoard gets to see of a training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from bgad.errors import OutputError
from bgad.training.loop import Trainer


@contextmanager
def writer(folder: Path | None) -> Iterator[Callable[[Trainer, dict[str, float]], None] | None]:
    """A TensorBoard writer, when asked for and installed; what it still holds is written at the end."""
    if folder is None:
        yield None
        return
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise OutputError("TensorBoard is not installed: pip install 'bgad[tensorboard]'") from error
    with SummaryWriter(str(folder)) as made:

        def watch(trainer: Trainer, row: dict[str, float]) -> None:
            for key, value in row.items():
                if key != "step" and not np.isnan(value):
                    made.add_scalar(key, value, trainer.step)

        yield watch
