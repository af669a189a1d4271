"""Tells more defects from changed imaging by the scores behind a change.

More defects raise the share of images above the threshold and leave the others as they were. Another light, focus,
camera position or material moves the scores of all images, also of those that are called normal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Kind = Literal["defects", "imaging", "unclear"]

MIN_NORMALS = 5  # images below the threshold that a comparison of them needs
MIN_SHIFT = 0.1  # of the probability that a new normal image scores higher than an old one, from one half
MIN_DEVIATIONS = 3.0  # standard deviations of that probability without a change
MOST_DEFECTS = 0.7  # more images above the threshold than this share are hardly all defects


@dataclass(frozen=True)
class Cause:
    """What a change of the scores looks like."""

    kind: Kind
    images: int  # behind the change
    flagged: int  # of them, above the threshold
    images_before: int  # before the change, with the calibration normals
    flagged_before: int
    shift: float  # probability that an image below the threshold scores higher than one of those before

    def __str__(self) -> str:
        """Say it in words."""
        shares = (
            f"Of the {self.images} images behind the change, {self.flagged} score above the threshold; of the "
            f"{self.images_before} before it, {self.flagged_before}."
        )
        if self.kind == "unclear":
            return f"{shares} Whether there are more defects or the imaging has changed cannot be told from the scores."
        if self.kind == "defects":
            return f"This looks like more defects, not like changed imaging. {shares} The others score as before."
        if self.flagged > MOST_DEFECTS * self.images:
            return f"This looks like changed imaging (light, focus, position, material) or a bad series. {shares}"
        side = "higher" if self.shift > 0.5 else "lower"
        return (
            f"This looks like changed imaging (light, focus, position, material), not like more defects. {shares} The "
            f"images called normal score {side} than before, too."
        )


def find_cause(before: Floats, changed: Floats, threshold: float) -> Cause:
    """Compare the scores behind a change with those before it, which include the calibration scores."""
    flagged, flagged_before = int((changed > threshold).sum()), int((before > threshold).sum())
    old, new = before[before <= threshold], changed[changed <= threshold]
    shift, deviations = superiority(old, new)
    is_shifted = len(new) >= MIN_NORMALS and abs(shift - 0.5) > MIN_SHIFT and abs(deviations) > MIN_DEVIATIONS
    kind: Kind = "unclear"
    if is_shifted or flagged > MOST_DEFECTS * len(changed):
        kind = "imaging"
    elif flagged * len(before) > flagged_before * len(changed):  # the share is larger
        kind = "defects"
    return Cause(kind, len(changed), flagged, len(before), flagged_before, shift)


def superiority(old: Floats, new: Floats) -> tuple[float, float]:
    """Return the probability that a new value is higher than an old one, a tie counting half, and its distance from
    one half in standard deviations if nothing has changed (Mann and Whitney).

    >>> superiority(np.array([1.0, 2.0]), np.array([2.0, 3.0]))[0]
    0.875
    """
    if not len(old) or not len(new):
        return 0.5, 0.0
    ordered = np.sort(old)
    wins = np.searchsorted(ordered, new, "left") + np.searchsorted(ordered, new, "right")
    probability = float(wins.mean() / (2 * len(old)))
    deviation = np.sqrt((len(old) + len(new) + 1) / (12 * len(old) * len(new)))
    return probability, float((probability - 0.5) / deviation)
