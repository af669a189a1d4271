"""The precisions that a model can compute in, and the choice of the fastest one by a short measurement.

A precision below float32 moves scores by more than engines of one precision may differ. So it has a calibration of its
own, which `bgad export --precision` makes, and is not used without one.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bgad.artifact.card import FLOAT32
from bgad.errors import OutputError
from bgad.inference.base import BaseScorer
from bgad.io.files import sha256_json, write_atomic
from bgad.io.state import state_folder

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Precision:
    """How OpenVINO calls a precision."""

    hint: str  # of INFERENCE_PRECISION_HINT
    capability: str  # in OPTIMIZATION_CAPABILITIES of a device that computes in it


# Every engine computes in float32, and OpenVINO in the others, too. A new precision is an entry here.
PRECISIONS = {
    FLOAT32: Precision("f32", "FP32"),
    "bf16": Precision("bf16", "BF16"),
    "f16": Precision("f16", "FP16"),
}
AUTO = "auto"

# A lower precision must pay more than this to be chosen by itself: another calibration is not worth a few per cent, and
# a measurement of a second on a busy machine varies by as much.
FASTER = 1.1
SECONDS, MIN_ROUNDS = 1.0, 3  # that the engines are measured in turn


def fastest(name: str, scorers: Callable[[], Mapping[str, BaseScorer]], key: Any) -> str:
    """Return the precision with the highest rate; float32 unless another one is FASTER times as fast.

    The rates are measured once for a `key` (whatever they depend on, as JSON values) and remembered in the user's state
    folder. `scorers` loads what is measured, by precision; `name` is that of the model, for the log.
    """
    rates = _remembered(key)
    if rates is None:
        rates = measure(scorers())
        _remember(key, rates)
    best = max(rates, key=lambda precision: rates[precision])
    chosen = best if rates[best] > FASTER * rates[FLOAT32] else FLOAT32
    measured = ", ".join(f"{precision} {rate:.3g}" for precision, rate in rates.items())
    logger.info(f"{name} is scored in {chosen} (images a second here: {measured})")
    return chosen


def measure(scorers: Mapping[str, BaseScorer]) -> dict[str, float]:
    """Return the images a second of each scorer, with as many side by side as it has threads.

    The scorers take turns, and the best round of each counts: so other work on the machine disturbs none more than the
    others. Scores do not matter, so the pixels are noise.
    """
    seconds = dict.fromkeys(scorers, math.inf)
    for scorer in scorers.values():
        _round(scorer)  # compiles and warms up
    started, rounds = time.monotonic(), 0
    while rounds < MIN_ROUNDS or time.monotonic() - started < SECONDS:
        for precision, scorer in scorers.items():
            seconds[precision] = min(seconds[precision], _round(scorer))
        rounds += 1
    return {precision: 1 / value for precision, value in seconds.items()}


def _round(scorer: BaseScorer) -> float:
    """Return the seconds for an image, of a few batches for each thread."""
    side, batches = scorer.card.config.backbone.size, 2 * scorer.threads
    pixels = np.random.default_rng(0).random((scorer.batch, side, side, 3), np.float32)
    with ThreadPoolExecutor(scorer.threads, initializer=scorer.start_thread) as pool:
        list(pool.map(scorer.run, [pixels] * scorer.threads))  # every thread has started
        began = time.monotonic()
        list(pool.map(scorer.run, [pixels] * batches))
        return (time.monotonic() - began) / (batches * scorer.batch)


def _file(key: Any) -> Path:
    return state_folder() / "precision" / f"{sha256_json(key)}.json"


def _remembered(key: Any) -> dict[str, float] | None:
    """Return the stored rates; None where there are none that can be read."""
    try:
        stored = json.loads(_file(key).read_bytes())["images_per_second"]
        return {str(precision): float(rate) for precision, rate in stored.items()} if FLOAT32 in stored else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError):
        return None


def _remember(key: Any, rates: Mapping[str, float]) -> None:
    """Store rates; without write access it is silently left out, and measured again the next time."""
    content = {"of": key, "images_per_second": dict(rates)}
    with suppress(OutputError, OSError, RuntimeError):  # RuntimeError: a user without a home
        write_atomic(_file(key), json.dumps(content, indent=1).encode())
