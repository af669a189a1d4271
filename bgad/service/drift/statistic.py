"""Have the parts changed? A sequential test on the scores of what comes in, with a stated rate of false alarms.

While the parts are like those that the model was calibrated on, the rank of each new score among all earlier ones is
as likely high as low, and independent of the others: such p-values are uniform, exactly, whatever the model (Vovk,
Gammerman, Shafer, Algorithmic Learning in a Random World). One bets against that: a stake that grows as long as the
p-values lean to one side (Vovk and others, Retrain or not retrain, 2021, the simple jumper). The stakes that were put
in with each image are added up (Shiryaev and Roberts), so that old quiet times do not hide a new change. While nothing
changes, the sum grows by 1 with each image on average, so it takes at least as many images to a false alarm as the
sum that calls it, on average.
"""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

PATIENCE = 10_000  # images to a false alarm, on average, at least
JUMP = 0.01  # share of the stakes that changes sides with each image
EVEN = (1 / 3, 1 / 3, 1 / 3)  # stakes: that the scores rise, stay, fall
DRIVERS = 12
FRESH = 0.1  # of the patience: images without an alarm after which the last one is old
BLOCK = 4096  # scores that are put among the earlier ones at a time


@dataclass(frozen=True)
class Drift:
    """How the test stands after each image."""

    levels: Floats  # the sum after each image; `patience` calls the alarm
    alarms: list[int]  # the images, by number, that called it; the test begins anew after each
    drivers: list[int]  # the images, by number, that moved it most: to the last alarm, or since it was last quiet
    p_values: Floats  # rank of each image among those before it, from 0 (highest score) to 1
    patience: float

    @property
    def since(self) -> int | None:
        """Images after the last alarm; None where there was none."""
        return len(self.levels) - 1 - self.alarms[-1] if self.alarms else None

    @property
    def is_fresh(self) -> bool:
        """Whether the last alarm still speaks of now. After it the test begins anew, and ranks what comes among the
        changed scores, too. Without another alarm in so many images, the scores have been steady since, at their old
        level or at a new one: a further shift by half a deviation is called within some 300, and a false alarm in
        FRESH of the patience is unlikely."""
        return self.since is not None and self.since < FRESH * self.patience

    def promise(self) -> str:
        """What the alarm means, in words."""
        return (
            "While the parts stay as they were, and no good one is called bad, there is at most one false alarm in "
            f"{self.patience:,.0f} images on average."
        )


class Ranks:
    """The rank of each score among those before it and the calibration's, from 0 (strangest) to 1; ties by lot.

    >>> Ranks([1.0, 2.0, 3.0]).next([9.0])[0] < 0.25
    True
    """

    def __init__(self, calibration: Sequence[float], seed: int = 0) -> None:
        self._earlier = np.sort(np.asarray(calibration, np.float64))
        self._lots = np.random.default_rng(seed)

    def next(self, scores: Sequence[float] | Floats) -> list[float]:
        """Of scores that came after all others so far; the same ones whether they come at once or one by one."""
        found: list[float] = []
        for start in range(0, len(scores), BLOCK):
            found += self._block(np.asarray(scores[start : start + BLOCK], np.float64))
        return found

    def _block(self, scores: Floats) -> list[float]:
        """Few are put in order among themselves one by one; then all of them among the many at once."""
        block: list[float] = []
        below, up_to = [], []
        for score in scores.tolist():
            below.append(bisect.bisect_left(block, score))
            up_to.append(bisect.bisect_right(block, score))
            block.insert(up_to[-1], score)
        left = np.searchsorted(self._earlier, scores, "left") + below
        right = np.searchsorted(self._earlier, scores, "right") + up_to
        count = len(self._earlier) + np.arange(len(scores))
        higher, alike = count - right, right - left + 1
        self._earlier = np.insert(self._earlier, np.searchsorted(self._earlier, block), block)
        ranks: list[float] = ((higher + self._lots.random(len(scores)) * alike) / (count + 1)).tolist()
        return ranks


class Jumper:
    """The test, as far as it has come; what it holds grows with the images, what the next one costs hardly does."""

    def __init__(self, calibration: Sequence[float], *, patience: float = PATIENCE, seed: int = 0) -> None:
        self.patience = patience
        self.levels, self.p_values, self.alarms = array("d"), array("d"), list[int]()
        self._ranks = Ranks(calibration, seed)
        self._stakes, self._total = EVEN, 0.0
        self._gains: list[tuple[float, int]] = []
        self._moved: list[tuple[float, int]] = []  # up to the last alarm

    def feed(self, scores: Sequence[float] | Floats) -> None:
        """Go on with scores in the order in which they came."""
        for number, p in enumerate(self._ranks.next(scores), len(self.levels)):
            share = JUMP * sum(self._stakes) / len(EVEN)
            rise, same, fall = [(1 - JUMP) * stake + share for stake in self._stakes]
            put = sum((rise, same, fall))
            rise, fall = rise * (1 - (p - 0.5)), fall * (1 + (p - 0.5))
            back = sum((rise, same, fall))
            gain = back / put
            self._stakes = (rise / back, same / back, fall / back)
            self._total = (self._total + 1) * gain
            self.levels.append(self._total)
            self.p_values.append(p)
            if self._total <= 2:
                self._gains = []
            self._gains.append((gain, number))
            if self._total >= self.patience:
                self.alarms.append(number)
                self._moved, self._gains = self._gains, []
                self._total, self._stakes = 0.0, EVEN

    def found(self) -> Drift:
        """How it stands."""
        drivers = [number for _, number in sorted(self._moved or self._gains, reverse=True)[:DRIVERS]]
        return Drift(np.array(self.levels), self.alarms.copy(), drivers, np.array(self.p_values), self.patience)


def watch(
    calibration: Sequence[float],
    scores: Sequence[float] | Floats,
    *,
    patience: float = PATIENCE,
    seed: int = 0,
) -> Drift:
    """Run the test over scores in the order in which they came."""
    test = Jumper(calibration, patience=patience, seed=seed)
    test.feed(scores)
    return test.found()
