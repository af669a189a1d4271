"""Types that packages exchange: a sample of a data set, the scores of an image, a scorer, a progress callback."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from bgad.errors import BgadError

AnyArray = npt.NDArray[Any]
FloatArray = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]
Index = npt.NDArray[np.int64]
ImageLike = str | Path | AnyArray

Box = tuple[int, int, int, int]  # left, top, right, bottom, in pixels
Shape = tuple[int, int]  # height, width

GOOD = "good"
TAUGHT = "taught"  # defect class, and first part of the names, of images given to `bgad update`


@dataclass(frozen=True, slots=True)
class Sample:
    """One image of a data set, or one tile of it, with its label and annotations."""

    path: Path
    name: str  # path relative to the data root, with forward slashes; identifies the sample in reports and splits
    label: int  # 0 normal, 1 anomalous
    defect: str = GOOD  # defect class; GOOD for a normal image
    mask: Path | None = None  # image that marks the defect; None where it is not marked
    split: str = ""  # "train", "test", or "" where the layout does not say
    box: Box | None = None  # the tile of the image; None: the image itself
    more_masks: tuple[Path, ...] = ()  # further masks of the same defect
    roi: Path | None = None  # mask of the region of interest: black is outside
    ignore: Path | None = None  # mask of what training ignores: all but black


@dataclass(frozen=True, slots=True)
class Scores:
    """The anomaly score and anomaly map of one image, and the decision that follows."""

    score: float  # higher is more anomalous
    p_value: float  # conformal: share of normal images that score at least as high
    threshold: float
    is_anomaly: bool  # score > threshold
    map: FloatArray  # (H, W) at the resolution of the given image; higher is more anomalous
    boundary: float  # map values above it lie outside the normal boundary
    levels: tuple[FloatArray, ...] = ()  # log p / d of each level, (h, w), before fusion


class Progress(Protocol):
    """Callback for long work: the task, the units done, the total, and a note on the current state."""

    def __call__(self, task: str, done: int, total: int, note: str = "") -> None: ...


class ProgressTask:
    """Counts the finished units of one task and reports each change to a callback, if given."""

    def __init__(self, report: Progress | None, task: str, total: int, done: int = 0) -> None:
        self._report, self._task, self._total, self._done = report, task, total, done
        self.advance(0)

    def advance(self, units: int = 1, note: str = "") -> None:
        """Add finished units."""
        self._done += units
        if self._report is not None:
            self._report(self._task, self._done, self._total, note)


class Scorer(Protocol):
    """Scores images; the score of an image does not depend on the others in its batch."""

    @property
    def threshold(self) -> float: ...

    def score(self, image: ImageLike) -> Scores: ...

    def score_many(self, images: Sequence[ImageLike]) -> list[Scores]: ...

    def score_stream(self, images: Iterable[ImageLike]) -> Iterator[Scores | BgadError]: ...
