"""Estimates the progress and the time left of a teaching job from the stages of its work."""

from __future__ import annotations

import time
from collections.abc import Callable

# Share of the total time at which each stage begins and ends, as measured on a small data set. The stages without
# progress of their own, such as the image head and the level weights before the training, are the gaps.
STAGES = {
    "reading": (0.0, 0.05),
    "features": (0.05, 0.25),
    "pseudo anomalies": (0.25, 0.3),
    "training": (0.42, 0.7),
    "calibrating": (0.7, 0.76),
    "comparing the graph with torch": (0.76, 0.84),
    "comparing": (0.84, 1.0),
}
MIN_PROGRESS = 0.06  # of the total before a time is estimated
MIN_STAGE_SHARE = 0.1  # of a stage before its own speed is used


class ProgressEstimate:
    """Combines the speed within the present stage with the speed of all work so far."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._first: tuple[float, float] | None = None  # time and total progress of the first update
        self._stage, self._stage_start = "", (0.0, 0.0)  # time and share done at the stage's first update
        self._progress = 0.0

    def update(self, stage: str, done: float) -> tuple[float, float | None]:
        """Return total progress from 0 to 1 and the seconds left, None if unknown, when a share of a stage is done."""
        now = self._clock()
        start, end = STAGES.get(stage, (self._progress, self._progress))  # an unknown stage changes nothing
        self._progress = max(self._progress, start + (end - start) * done)
        if self._first is None:
            self._first = now, self._progress
        if stage != self._stage:
            self._stage, self._stage_start = stage, (now, done)
        elapsed, advanced = now - self._first[0], self._progress - self._first[1]
        if advanced < MIN_PROGRESS:
            return self._progress, None
        stage_elapsed, stage_done = now - self._stage_start[0], done - self._stage_start[1]
        overall_pace = elapsed / advanced  # seconds for all work
        stage_seconds = stage_elapsed / stage_done if stage_done > MIN_STAGE_SHARE else (end - start) * overall_pace
        return self._progress, round((1 - done) * stage_seconds + (1 - end) * overall_pace, 1)
