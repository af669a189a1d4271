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
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

PATIENCE = 10_000  # images to a false alarm, on average, at least
JUMP = 0.01  # share of the stakes that changes sides with each image
SIDES = (-1.0, 0.0, 1.0)
DRIVERS = 12
FRESH = 0.1  # of the patience: images without an alarm after which the last one is old


@dataclass(frozen=True)
class Drift:
    """How the test stands after each image."""

    levels: list[float]  # the sum after each image; `patience` calls the alarm
    alarms: list[int]  # the images, by number, that called it; the test begins anew after each
    drivers: list[int]  # the images, by number, that moved it most: to the last alarm, or since it was last quiet
    p_values: list[float]  # rank of each image among those before it, from 0 (highest score) to 1
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
            f"While the parts stay as they were, there is at most one false alarm in {self.patience:,.0f} images on "
            "average."
        )


def online_p_values(calibration: Sequence[float], scores: Sequence[float], seed: int = 0) -> list[float]:
    """The rank of each score among those before it and the calibration's, from 0 (strangest) to 1; ties by lot.

    >>> online_p_values([1.0, 2.0, 3.0], [9.0])[0] < 0.25
    True
    """
    lots = np.random.default_rng(seed).random(len(scores)).tolist()
    earlier = sorted(calibration)
    found = []
    for score, lot in zip(scores, lots, strict=True):
        left, right = bisect.bisect_left(earlier, score), bisect.bisect_right(earlier, score)
        higher, alike = len(earlier) - right, right - left + 1
        found.append((higher + lot * alike) / (len(earlier) + 1))
        earlier.insert(right, score)
    return found


def watch(calibration: Sequence[float], scores: Sequence[float], *, patience: float = PATIENCE, seed: int = 0) -> Drift:
    """Run the test over scores in the order in which they came."""
    start = [1 / len(SIDES)] * len(SIDES)
    stakes = start
    total, levels, alarms = 0.0, [], []
    gains: list[tuple[float, int]] = []
    moved: list[tuple[float, int]] = []  # up to the last alarm
    p_values = online_p_values(calibration, scores, seed)
    for number, p in enumerate(p_values):
        share = JUMP * sum(stakes) / len(SIDES)
        put = [(1 - JUMP) * stake + share for stake in stakes]
        back = [stake * (1 + side * (p - 0.5)) for stake, side in zip(put, SIDES, strict=True)]
        gain = sum(back) / sum(put)
        stakes = [stake / sum(back) for stake in back]
        total = (total + 1) * gain
        levels.append(total)
        if total <= 2:
            gains = []
        gains.append((gain, number))
        if total >= patience:
            alarms.append(number)
            moved = gains
            total, stakes = 0.0, start
    drivers = [number for _, number in sorted(moved or gains, reverse=True)[:DRIVERS]]
    return Drift(levels, alarms, drivers, p_values, patience)
