"""The seed of tests that try many inputs: fixed, or the one in BGAD_FUZZ_SEED (`random`, or a number to repeat)."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import TypeVar

import hypothesis

F = TypeVar("F", bound=Callable[..., object])
_GIVEN = os.environ.get("BGAD_FUZZ_SEED", "")
FUZZ_SEED: int | None = None if not _GIVEN else random.randrange(2**31) if _GIVEN == "random" else int(_GIVEN)


def seeded(test: F) -> F:
    """Let a test of hypothesis use the seed, and say it, so that a failure can be repeated."""
    if FUZZ_SEED is None:
        return test
    print(f"BGAD_FUZZ_SEED={FUZZ_SEED}")  # noqa: T201 - pytest shows it with a failure
    return hypothesis.seed(FUZZ_SEED)(test)
