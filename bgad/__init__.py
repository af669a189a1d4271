"""bgad finds defects in images: `load("part.bgad").score("photo.png")`."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from bgad._version import __version__
from bgad.errors import BgadError

if TYPE_CHECKING:
    from bgad.inference.load import load
    from bgad.training.pipeline import TrainOptions, train
    from bgad.types import Sample, Scorer, Scores

# Let idle OpenMP threads sleep instead of spin; OpenMP reads the variable once, when torch is loaded. Without it, a
# second busy process on a small machine makes every training step many times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Disable ONNX Runtime's telemetry; the variable must be set before the library loads.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__all__ = ["BgadError", "Sample", "Scorer", "Scores", "TrainOptions", "__version__", "load", "train"]


_LAZY = {
    "Sample": "bgad.types",
    "Scorer": "bgad.types",
    "Scores": "bgad.types",
    "TrainOptions": "bgad.training.pipeline",
    "load": "bgad.inference.load",
    "train": "bgad.training.pipeline",
}


def __getattr__(name: str) -> Any:
    """Import numpy and torch only when something that needs them is asked for."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'bgad' has no attribute {name!r}")
