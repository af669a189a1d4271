"""What a model costs: memory of its fit, size of its weights and time to score an image.

The seconds of the fit are those of the training, which every cell has.
"""

from __future__ import annotations

import ctypes
import gc
import platform
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bgad.data.sample_io import ImageCache
from bgad.features.cache import even_pick
from bgad.inference.torch_engine import Detector
from bgad.types import Sample, Shape

TIMED_IMAGES = 5  # images that are scored one at a time; their median counts
MEGABYTE = 1e6
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # resets the peak of the resident memory: proc(5)


@dataclass
class FitMemory:
    """The growth of the resident memory during a fit; None where the system does not tell it."""

    megabytes: float | None = None


@contextmanager
def fit_memory() -> Iterator[FitMemory]:
    """Measure by how much the resident memory of the process peaks above its start while the block runs.

    Features that were cached before are not in it. Freed memory is first given back to the system, so that the block
    does not fill it unnoticed. Only Linux tells the peak of a part of a process.
    """
    measured = FitMemory()
    before = _reset_peak()
    yield measured
    peak = _resident("VmHWM")
    if before is not None and peak is not None:
        measured.megabytes = round(max(0.0, peak - before) / MEGABYTE, 1)


def _reset_peak() -> float | None:
    """Make the resident memory of now the peak, and return it in bytes; None where the system cannot."""
    gc.collect()
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
    try:
        _CLEAR.write_text(_RESET_PEAK)
    except OSError:
        return None
    return _resident("VmRSS")


def _resident(key: str) -> float | None:
    try:
        found = re.search(rf"{key}:\s+(\d+) kB", _STATUS.read_text())
    except OSError:
        return None
    return float(found[1]) * 1024 if found else None


def model_cost(
    detector: Detector, samples: Sequence[Sample], shapes: Sequence[Shape], images: ImageCache, memory: FitMemory
) -> dict[str, Any]:
    """Return the key `cost` of a cell; `samples`, with the sizes of their images, may be timed."""
    state = detector.model.state_dict().values()
    chosen = even_pick(len(samples), TIMED_IMAGES)
    seconds = _image_seconds(detector, [(samples[i], shapes[i]) for i in chosen], images)
    return {
        "image_ms": round(1000 * seconds, 3),
        "model_mb": round(sum(values.numel() * values.element_size() for values in state) / MEGABYTE, 3),
        "fit_mb": memory.megabytes,
    }


def _image_seconds(detector: Detector, samples: Sequence[tuple[Sample, Shape]], images: ImageCache) -> float:
    """Return the median time from an image at the size of the model's input to its score and its map, by torch."""
    inputs = [np.stack([images.read(sample)]) for sample, _ in samples]
    detector.run(inputs[0])  # the first run allocates
    seconds = []
    for pixels, (_, shape) in zip(inputs, samples, strict=True):
        began = time.perf_counter()
        detector.finish(detector.run(pixels), [shape])
        seconds.append(time.perf_counter() - began)
    return median(seconds)
