"""The seams of the package: what goes in (Sample), what comes out (Scores), and who does it (Scorer)."""

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
ImageLike = str | Path | npt.NDArray[Any]

Box = tuple[int, int, int, int]  # left, top, right, bottom, in pixels
Shape = tuple[int, int]  # height, width

GOOD = "good"
TAUGHT = "taught"  # the kind of a defect, and the folder in the names, of what `bgad update` was given


@dataclass(frozen=True, slots=True)
class Sample:
    """One image of a data set and what is known about it."""

    path: Path
    name: str  # path relative to the data root, with forward slashes: how reports and splits call it
    label: int  # 0 normal, 1 anomalous
    defect: str = GOOD  # defect class; GOOD for a normal image
    mask: Path | None = None  # where the defect is; None when nobody marked it
    split: str = ""  # "train", "test", or "" where the layout does not say
    box: Box | None = None  # left, top, right, bottom: the tile of the picture that this is
    more_masks: tuple[Path, ...] = ()  # files that mark the rest of the defect, where one is not all
    roi: Path | None = None  # a picture of where to look; what is black there is not looked at
    ignore: Path | None = None  # a picture of what is not learnt from; what is black there is


@dataclass(frozen=True, slots=True)
class Scores:
    """What a model says about one image."""

    score: float  # higher is stranger
    p_value: float  # the share of good images at least this strange
    threshold: float
    is_anomaly: bool  # score > threshold
    map: FloatArray  # (H, W) in the pixel grid of the image that came in; higher is stranger
    boundary: float  # map values above it lie outside the normal boundary
    levels: tuple[FloatArray, ...] = ()  # log p / d of each level, (h, w), before fusion


class Progress(Protocol):
    """Callback that long work reports to: the task, the units done, all units, and a note on the present state."""

    def __call__(self, task: str, done: int, total: int, note: str = "") -> None: ...


class ProgressTask:
    """Counts the units of one task and reports every change to a callback, if there is one."""

    def __init__(self, report: Progress | None, task: str, total: int, done: int = 0) -> None:
        self._report, self._task, self._total, self._done = report, task, total, done
        self.advance(0)

    def advance(self, units: int = 1, note: str = "") -> None:
        """Add finished units."""
        self._done += units
        if self._report is not None:
            self._report(self._task, self._done, self._total, note)


class Scorer(Protocol):
    """Images in, Scores out; a score belongs to the image alone, not to its batch."""

    @property
    def threshold(self) -> float: ...

    def score(self, image: ImageLike) -> Scores: ...

    def score_many(self, images: Sequence[ImageLike]) -> list[Scores]: ...

    def score_stream(self, images: Iterable[ImageLike]) -> Iterator[Scores | BgadError]: ...
