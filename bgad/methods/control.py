"""How a caller follows a fit and ends it, and the file that a fit continues from. Does not import torch."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bgad.types import Progress

CHECKPOINT = "checkpoint.safetensors"  # in the work folder of a fit: its state after the last saved step


class StopRequest:
    """Asks a training to stop; the caller sets it, for example on Ctrl-C, and the loop looks at it after every step.

    While `honoured` is true, the loop ends the current step, saves a checkpoint and raises KeyboardInterrupt. At other
    times nobody looks at the request, and a caller has to interrupt the work itself.
    """

    def __init__(self) -> None:
        self._requested = threading.Event()
        self.honoured = False

    @property
    def requested(self) -> bool:
        """Whether somebody has asked to stop."""
        return self._requested.is_set()

    def request(self) -> None:
        """Ask the training to stop."""
        self._requested.set()

    @contextmanager
    def honour(self) -> Iterator[None]:
        """Mark the time during which the loop looks at the request."""
        self.honoured = True
        try:
            yield
        finally:
            self.honoured = False


@dataclass(frozen=True)
class RunControl:
    """How a caller follows a run and ends it."""

    progress: Progress | None = None
    stop: StopRequest | None = None
