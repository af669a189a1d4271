"""bgad finds defects in pictures: `load("part.bgad").score("photo.png")`."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from bgad.errors import BgadError
from bgad.types import Sample, Scorer, Scores

if TYPE_CHECKING:
    from bgad.inference.load import load
    from bgad.training.pipeline import train

# Threads that wait for work sleep instead of spinning. OpenMP reads this once, when torch is loaded; without it a
# second busy process on a small machine makes every step many times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Nothing is told to anybody: ONNX Runtime writes down what it is used for and looks for its makers' server unless this
# is there before it is loaded.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

from bgad._version import __version__

__all__ = ["BgadError", "Sample", "Scorer", "Scores", "__version__", "load", "train"]


def __getattr__(name: str) -> Any:
    """Import torch only when something that needs it is asked for."""
    if name == "train":
        return import_module("bgad.training.pipeline").train
    if name == "load":
        return import_module("bgad.inference.load").load
    raise AttributeError(f"module 'bgad' has no attribute {name!r}")
