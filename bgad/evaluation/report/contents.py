"""The content of a report as plain data: what the page shows about one model on one data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

WORST = 6  # how many of the highest-scoring normals and of the lowest-scoring anomalies are shown


@dataclass(frozen=True)
class ImageRow:
    """One scored test image; its thumbnails are JPEG or PNG files, None where the image is not in the gallery."""

    name: str
    defect: str
    label: int
    score: float
    p_value: float
    is_anomaly: bool
    thumbnail: bytes | None = None
    heat_map: bytes | None = None
    mask_outline: bytes | None = None
    parts: dict[str, float] = field(default_factory=dict)  # contributions that add up to the score
    reason: str | None = None  # why the image is rejected; None where it is not
    region: list[int] | None = None  # left, top, right, bottom of the region that stands out, in the image


@dataclass(frozen=True)
class LevelHistogram:
    """Values of normal and anomalous features at one level, as counts per bin."""

    title: str
    edges: list[float]
    normal: list[float]
    anomalous: list[float]
    normal_boundary: float
    abnormal_boundary: float


@dataclass(frozen=True)
class ClassRow:
    """The figures of one defect class; `missed` counts its images that score below the threshold."""

    defect: str
    images: int
    image_auroc: float | None
    pixel_auroc: float | None
    pro: float | None
    missed: int


@dataclass(frozen=True)
class RateRow:
    """A requested false-reject rate, its threshold, and the rates measured with that threshold."""

    rate: float
    threshold: float
    miss_rate: float | None
    false_rejects: float | None
    supported: bool


@dataclass(frozen=True)
class Section:
    """Everything that the page shows about one category or model."""

    title: str
    facts: list[tuple[str, str]]
    metrics: dict[str, float | None]
    images: list[ImageRow]
    threshold: float
    map_threshold: float  # map value above which there is a contour
    with_contour: tuple[int, int]  # normals with any contour, of all
    levels: list[LevelHistogram]
    roc: tuple[list[float], list[float]]  # false-positive rates, true-positive rates
    pro: tuple[list[float], list[float]] | None  # false-positive rates, mean region overlap
    classes: list[ClassRow]
    rates: list[RateRow]
    notes: list[str]
    guarantee: str  # the sentence that states what the threshold promises
    held_out: int = 0  # calibration normals behind the p-values; 0: unknown
    legend: bytes | None = None  # colour bar of the anomaly maps, a PNG file
    level_value: str = "log-likelihood"  # name of the values in `levels`


def worst(images: Sequence[ImageRow], count: int = WORST) -> tuple[list[ImageRow], list[ImageRow]]:
    """Return the highest-scoring normals and the lowest-scoring anomalies, worst first."""
    normals = sorted((i for i in images if i.label == 0), key=lambda i: -i.score)
    anomalies = sorted((i for i in images if i.label == 1), key=lambda i: i.score)
    return normals[:count], anomalies[:count]
