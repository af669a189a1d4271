"""The drift test: a sequential test of whether the scores have changed, with a stated rate of false alarms.

While parts stay like the calibration normals, the rank of each new score among all earlier ones is uniform and
independent of the others, whatever the model. These ranks are conformal p-values (Vovk, Gammerman, Shafer, Algorithmic
Learning in a Random World). The test bets against uniformity: its stake grows while the p-values lean to one side (the
simple jumper; Vovk and others, Retrain or not retrain, 2021). The stakes placed with each image are summed (Shiryaev,
Roberts), so that a long quiet time does not hide a new change. Without a change, the sum grows by 1 per image on
average. An alarm at a sum of N therefore occurs at most once in N images on average.
"""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

PATIENCE = 10_000  # smallest mean number of images between false alarms, and the level of an alarm
JUMP_RATE = 0.01  # share of the stakes that is spread evenly again with each image
EVEN_STAKES = (1 / 3, 1 / 3, 1 / 3)  # on rising, unchanged and falling scores
QUIET_LEVEL = 2.0  # at or below it, earlier images no longer count as drivers
MAX_DRIVERS = 12
RECENT_SHARE = 0.1  # of the patience: after so many images without another alarm, an alarm is no longer recent
BLOCK = 4096  # scores that are merged into the sorted earlier scores at a time


@dataclass(frozen=True)
class DriftResult:
    """The state of the drift test after each image."""

    levels: Floats  # sum after each image; an alarm is raised at `patience`
    alarms: list[int]  # indices of the images that raised an alarm; the test restarts after each
    drivers: list[int]  # indices of the images that contributed most to the last alarm, or to the present level
    p_values: Floats  # rank of each image among those before it, from 0 (highest score) to 1
    patience: float
    change: range  # indices of the images behind the last alarm, or behind the present level

    @property
    def since_alarm(self) -> int | None:
        """Number of images after the last alarm; None without an alarm."""
        return len(self.levels) - 1 - self.alarms[-1] if self.alarms else None

    @property
    def is_recent(self) -> bool:
        """Whether the last alarm still describes the present.

        After an alarm the test restarts and ranks new scores among the changed ones too. Without another alarm, the
        scores have been steady since, at their old level or at a new one: a further shift by half a standard deviation
        raises an alarm within about 300 images, and a false alarm within RECENT_SHARE of the patience is unlikely.
        """
        return self.since_alarm is not None and self.since_alarm < RECENT_SHARE * self.patience

    def guarantee(self) -> str:
        """Return the guarantee of the test in words."""
        return (
            "While the parts stay as they were, and no good one is called bad, there is at most one false alarm in "
            f"{self.patience:,.0f} images on average."
        )


class ConformalRanks:
    """Ranks each score among the calibration scores and all earlier ones, from 0 (highest) to 1; ties are randomised.

    >>> ConformalRanks([1.0, 2.0, 3.0]).update([9.0])[0] < 0.25
    True
    """

    def __init__(self, calibration: Sequence[float], seed: int = 0) -> None:
        self._earlier = np.sort(np.asarray(calibration, np.float64))
        self._random = np.random.default_rng(seed)

    def update(self, scores: Sequence[float] | Floats) -> list[float]:
        """Return the ranks of new scores; they do not depend on how the scores are divided among calls."""
        ranks: list[float] = []
        for start in range(0, len(scores), BLOCK):
            ranks += self._rank_block(np.asarray(scores[start : start + BLOCK], np.float64))
        return ranks

    def _rank_block(self, scores: Floats) -> list[float]:
        """Rank a block among itself one score at a time, then among the many earlier scores at once."""
        block: list[float] = []
        below, up_to = [], []
        for score in scores.tolist():
            below.append(bisect.bisect_left(block, score))
            up_to.append(bisect.bisect_right(block, score))
            block.insert(up_to[-1], score)
        left = np.searchsorted(self._earlier, scores, "left") + below
        right = np.searchsorted(self._earlier, scores, "right") + up_to
        count = len(self._earlier) + np.arange(len(scores))
        higher, tied = count - right, right - left + 1
        self._earlier = np.insert(self._earlier, np.searchsorted(self._earlier, block), block)
        ranks: list[float] = ((higher + self._random.random(len(scores)) * tied) / (count + 1)).tolist()
        return ranks


class DriftTest:
    """The running test. Its memory grows with the number of images; the cost of the next image hardly does."""

    def __init__(self, calibration: Sequence[float], *, patience: float = PATIENCE, seed: int = 0) -> None:
        self.patience = patience
        self.levels, self.p_values, self.alarms = array("d"), array("d"), list[int]()
        self._ranks = ConformalRanks(calibration, seed)
        self._stakes, self._level = EVEN_STAKES, 0.0
        self._gains: list[tuple[float, int]] = []  # gain and index of the images since the last quiet level
        self._alarm_gains: list[tuple[float, int]] = []  # the same, up to the last alarm

    def update(self, scores: Sequence[float] | Floats) -> None:
        """Continue the test with scores in order of arrival."""
        for index, p_value in enumerate(self._ranks.update(scores), len(self.levels)):
            share = JUMP_RATE * sum(self._stakes) / len(EVEN_STAKES)
            rise, same, fall = [(1 - JUMP_RATE) * stake + share for stake in self._stakes]
            placed = sum((rise, same, fall))
            rise, fall = rise * (1 - (p_value - 0.5)), fall * (1 + (p_value - 0.5))
            returned = sum((rise, same, fall))
            gain = returned / placed
            self._stakes = (rise / returned, same / returned, fall / returned)
            self._level = (self._level + 1) * gain
            self.levels.append(self._level)
            self.p_values.append(p_value)
            if self._level <= QUIET_LEVEL:
                self._gains = []
            self._gains.append((gain, index))
            if self._level >= self.patience:
                self.alarms.append(index)
                self._alarm_gains, self._gains = self._gains, []
                self._level, self._stakes = 0.0, EVEN_STAKES

    def result(self) -> DriftResult:
        """Return the present state of the test."""
        gains = self._alarm_gains or self._gains
        drivers = [index for _, index in sorted(gains, reverse=True)[:MAX_DRIVERS]]
        levels, p_values = np.array(self.levels), np.array(self.p_values)
        change = _change(p_values, gains[0][1], gains[-1][1]) if gains else range(0)
        return DriftResult(levels, self.alarms.copy(), drivers, p_values, self.patience, change)


def _change(p_values: Floats, first: int, last: int) -> range:
    """Return the indices of the images behind a change: from the one on from which the ranks lean most to one side.

    The mean of n uniform ranks deviates from one half by about 1 over the root of n, so the deviation is taken times
    the root.
    """
    deviations = 0.5 - p_values[first : last + 1][::-1]  # the last image first
    leaning = np.abs(np.cumsum(deviations)) / np.sqrt(np.arange(1, len(deviations) + 1))
    return range(last - int(leaning.argmax()), last + 1)


def run(
    calibration: Sequence[float],
    scores: Sequence[float] | Floats,
    *,
    patience: float = PATIENCE,
    seed: int = 0,
) -> DriftResult:
    """Run the drift test over scores in order of arrival."""
    test = DriftTest(calibration, patience=patience, seed=seed)
    test.update(scores)
    return test.result()
