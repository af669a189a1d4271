"""The options of a training, besides its data and its recipe."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bgad.calibration import check_rate
from bgad.data.validation import MAX_UNREADABLE
from bgad.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The options of `train`, which are those of `bgad train`; a value that cannot work raises."""

    root: str | Path | None = None  # folder of the public data sets; None: $BGAD_DATA, else ./data
    known: int | None = None  # known anomalies to train on; None: all of the training part, or 10 of a test set
    test_share: float = 0.0  # share of the normals to keep for the test, where the data has no test set
    split: str | Path | None = None  # file that gives every image its role; replaces `known` and `test_share`
    false_reject_rate: float | None = None  # share of good parts that may be rejected; None: 0.05 if possible
    device: str = "auto"  # cpu, cuda or mps; auto takes an accelerator where there is one
    memory_gb: float = 4.0  # memory for cached features; the rest goes to disk
    max_unreadable: int = MAX_UNREADABLE  # unreadable images to skip before giving up
    resume: bool = False  # continue a training that was stopped
    overwrite: bool = False  # replace an existing model folder
    tensorboard: str | Path | None = None  # folder for TensorBoard's event files
    export: bool = True  # add the graph that scores without torch
    roi: str | Path | None = None  # region of interest: an image (black: outside), or a JSON file with polygons

    def __post_init__(self) -> None:
        if self.max_unreadable < 0 or not 0 <= self.test_share < 1:
            raise ConfigError("max_unreadable must be 0 or more, and test_share 0 or more and below 1")
        if self.split is not None and (self.known is not None or self.test_share):
            raise ConfigError(
                "a split file says which images are known and which are tested: leave out --known and --test"
            )
        if self.false_reject_rate is not None:
            check_rate(self.false_reject_rate)
