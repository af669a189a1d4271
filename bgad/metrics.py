"""Scores and truth -> numbers: pure functions, exact over all distinct scores, equal scores taken together.

Every metric here comes from one sweep of the threshold over the distinct scores of the anomalous side:
between two of them only false alarms change, so the normal side, some fifty million pixels, has to be
sorted but never merged with the rest. A metric that needs both classes and sees one is None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cc3d
import numpy as np
import numpy.typing as npt

from bgad.types import BoolArray, FloatArray

Floats = npt.NDArray[np.floating[Any]]
Curve = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]  # x, y; both rise


@dataclass(frozen=True, slots=True)
class PixelMetrics:
    """How well maps tell anomalous from normal pixels; None where one of the two kinds is missing."""

    auroc: float | None = None
    ap: float | None = None
    pro: float | None = None
    pro_curve: Curve | None = None  # false positive rate up to the limit, mean overlap; thinned for drawing


@dataclass(frozen=True, slots=True)
class Observed:
    """What the entries of METRICS are computed from."""

    scores: Floats
    labels: BoolArray
    pixels: PixelMetrics


@dataclass(frozen=True, slots=True)
class _Sweep:
    """Counts as the threshold goes down, one entry for each distinct anomalous score."""

    scores: Floats  # (K,) descending
    hits: npt.NDArray[np.int64]  # anomalous at or above the score
    above: npt.NDArray[np.int64]  # normals above it
    reached: npt.NDArray[np.int64]  # normals at or above it
    normals: int

    @property
    def anomalies(self) -> int:
        return int(self.hits[-1])

    def auroc(self) -> float:
        new = np.diff(self.hits, prepend=0)
        inversions = int(np.sum(new * (self.above + self.reached)))  # twice: a tie is half an inversion
        return 1.0 - inversions / (2 * self.anomalies * self.normals)

    def ap(self) -> float:
        new = np.diff(self.hits, prepend=0)
        return float(np.sum(new * (self.hits / (self.hits + self.reached)))) / self.anomalies

    def curve(self, gain: npt.NDArray[np.float64]) -> Curve:
        """Corners of the curve that has risen to `gain` at each score, against the false positive rate.

        Two corners for each score, before and after it, so that a tie of both sides is a diagonal.
        """
        x, y = np.ones(2 * len(gain) + 2), np.ones(2 * len(gain) + 2)
        x[0] = y[0] = y[1] = 0.0
        x[1:-1:2], x[2:-1:2] = self.above / self.normals, self.reached / self.normals
        y[3:-1:2], y[2:-1:2] = gain[:-1], gain
        fresh = np.append(True, (np.diff(x) > 0) | (np.diff(y) > 0))
        return x[fresh], y[fresh]


def _sweep(normal: Floats, anomalous: Floats) -> _Sweep:
    """Both sides sorted, not empty. Sorted keys keep the binary searches within the cache."""
    starts = np.flatnonzero(np.append(True, anomalous[1:] != anomalous[:-1]))[::-1]
    scores = anomalous[starts]
    rising = scores[::-1]
    return _Sweep(
        scores,
        hits=len(anomalous) - starts,
        above=len(normal) - np.searchsorted(normal, rising, side="right")[::-1],
        reached=len(normal) - np.searchsorted(normal, rising, side="left")[::-1],
        normals=len(normal),
    )


def _checked(scores: npt.ArrayLike, labels: npt.ArrayLike) -> tuple[Floats, BoolArray]:
    values, truth = np.asarray(scores), np.asarray(labels)
    if not np.issubdtype(values.dtype, np.floating):
        values = values.astype(np.float64)
    if values.ndim != 1 or values.shape != truth.shape:
        raise ValueError(f"scores {values.shape} and labels {truth.shape} must be two lists of one length")
    if np.isnan(values).any():
        raise ValueError(f"score {int(np.isnan(values).argmax())} is not a number")
    if not np.isin(truth, (0, 1)).all():
        raise ValueError("labels must be 0 (normal) or 1 (anomalous)")
    return values, truth.astype(np.bool_)


def _image_sweep(scores: npt.ArrayLike, labels: npt.ArrayLike) -> _Sweep | None:
    values, truth = _checked(scores, labels)
    if not truth.any() or truth.all():
        return None
    return _sweep(np.sort(values[~truth]), np.sort(values[truth]))


def auroc(scores: npt.ArrayLike, labels: npt.ArrayLike) -> float | None:
    """The chance that an anomaly scores above a normal; a tie counts half.

    >>> auroc([0.1, 0.4, 0.4, 0.8], [0, 0, 1, 1])
    0.875
    """
    sweep = _image_sweep(scores, labels)
    return None if sweep is None else sweep.auroc()


def average_precision(scores: npt.ArrayLike, labels: npt.ArrayLike) -> float | None:
    """Precision at each distinct score, weighted by the recall gained there; no interpolation."""
    sweep = _image_sweep(scores, labels)
    return None if sweep is None else sweep.ap()


def f1_best(scores: npt.ArrayLike, labels: npt.ArrayLike) -> tuple[float, float] | None:
    """The best F1 and a threshold that gives it, where `score > threshold` means anomalous.

    The threshold lies halfway to the next lower score; of equal F1 the highest threshold wins.

    >>> f1_best([0.0, 1.0, 2.0, 3.0], [0, 0, 1, 1])
    (1.0, 1.5)
    """
    sweep = _image_sweep(scores, labels)
    if sweep is None:
        return None
    f1 = 2 * sweep.hits / (sweep.hits + sweep.reached + sweep.anomalies)
    best = int(f1.argmax())
    lowest = sweep.scores[best]  # of those called anomalous
    values = _checked(scores, labels)[0]
    below = values[values < lowest].max(initial=-np.inf)
    with np.errstate(invalid="ignore"):  # infinite scores
        middle = below / 2 + lowest / 2
    # Without a number strictly between, the nearest float below does it, in the type of the scores.
    fits = np.isfinite(middle) and below <= middle < lowest
    threshold = middle if fits else np.nextafter(lowest, -np.inf)
    return float(f1[best]), float(threshold)


def f1_max(scores: npt.ArrayLike, labels: npt.ArrayLike) -> float | None:
    """The best F1 that any threshold gives."""
    best = f1_best(scores, labels)
    return None if best is None else best[0]


def roc_curve(scores: npt.ArrayLike, labels: npt.ArrayLike) -> Curve | None:
    """False and true positive rate at the corners of the ROC curve, from (0, 0) to (1, 1)."""
    sweep = _image_sweep(scores, labels)
    return None if sweep is None else sweep.curve(sweep.hits / sweep.anomalies)


def thin(x: npt.ArrayLike, y: npt.ArrayLike, n: int = 400) -> Curve:
    """At most `n` of the points of a rising curve, for drawing; both ends stay.

    Points are kept at even steps along the curve, not by index, so steep and flat parts keep their shape.
    """
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if n < 2:
        raise ValueError(f"a curve needs at least 2 points, not {n}")
    if len(xs) <= n:
        return xs, ys
    way = (xs - xs[0]) / (np.ptp(xs) or 1.0) + (ys - ys[0]) / (np.ptp(ys) or 1.0)
    keep = np.unique(np.searchsorted(way, np.linspace(way[0], way[-1], n)))
    keep[-1] = len(xs) - 1
    return xs[keep], ys[keep]


def _check_map(index: int, values: FloatArray, mask: BoolArray | None) -> None:
    if values.ndim != 2:
        raise ValueError(f"map {index} has shape {values.shape}; it must be (height, width)")
    if mask is not None and mask.shape != values.shape:
        raise ValueError(f"mask {index} has shape {mask.shape}, its map {values.shape}; they must be equal")
    if np.isnan(values).any():
        raise ValueError(f"map {index} holds values that are not numbers")


def _up_to(curve: Curve, limit: float) -> Curve:
    """The part of the curve with x <= limit; its last segment is cut at the limit."""
    x, y = curve
    end = int(np.searchsorted(x, limit, side="right"))
    if end == len(x):
        return curve
    cut = np.interp(limit, x[end - 1 : end + 1], y[end - 1 : end + 1])
    return np.append(x[:end], limit), np.append(y[:end], cut)


def pixel_metrics(
    maps: Sequence[FloatArray],
    masks: Sequence[BoolArray | None],
    limit: float = 0.3,
    inside: BoolArray | None = None,
) -> PixelMetrics:
    """AUROC and AP over all pixels, or those `inside`, and PRO up to a false positive rate of `limit`; mask None: all
    normal.

    PRO is the area under the mean overlap of the anomalous regions (8-connected, holes left open), divided
    by the limit; the false positive rate is that of all normal pixels, those of anomalous images too.
    """
    if len(maps) != len(masks):
        raise ValueError(f"{len(maps)} maps and {len(masks)} masks; give one mask or None for each map")
    if not 0 < limit <= 1:
        raise ValueError(f"limit {limit} must be above 0 and at most 1")
    for index, (values, mask) in enumerate(zip(maps, masks, strict=True)):
        _check_map(index, values, mask)
        if inside is not None and inside.shape != values.shape:
            raise ValueError(f"map {index} has shape {values.shape}, what is looked at {inside.shape}")
    # Filled in place, since the normal pixels are nearly all of the memory.
    kind = np.result_type(np.float32, *{values.dtype for values in maps})
    normal = np.empty(sum(values.size for values in maps), kind)
    end = 0
    anomalies: list[FloatArray] = []
    shares: list[npt.NDArray[np.float64]] = []  # of its region, for each anomalous pixel
    for values, mask in zip(maps, masks, strict=True):
        truth = None if mask is None else mask.astype(np.bool_, copy=False)
        if truth is not None and inside is not None:
            truth = truth & inside
        if truth is None or not truth.any():
            rest = values.ravel() if inside is None else values[inside]
        else:
            rest = values[~truth if inside is None else ~truth & inside]
            anomalies.append(values[truth])
            regions = cc3d.connected_components(truth, connectivity=8)[truth]
            shares.append(1.0 / np.bincount(regions)[regions])
        normal[end : end + len(rest)] = rest
        end += len(rest)
    if not anomalies or not end:
        return PixelMetrics()

    normal = normal[:end]
    normal.sort()
    anomalous = np.concatenate(anomalies)
    order = np.argsort(anomalous)
    sweep = _sweep(normal, anomalous[order])

    covered = np.cumsum(np.concatenate(shares)[order[::-1]])
    x, y = _up_to(sweep.curve(covered[sweep.hits - 1] / covered[-1]), limit)
    area = float(np.sum(np.diff(x) * (y[1:] + y[:-1]))) / 2
    return PixelMetrics(sweep.auroc(), sweep.ap(), area / limit, thin(x, y))


METRICS: dict[str, Callable[[Observed], float | None]] = {
    "image_auroc": lambda seen: auroc(seen.scores, seen.labels),
    "image_ap": lambda seen: average_precision(seen.scores, seen.labels),
    "image_f1_max": lambda seen: f1_max(seen.scores, seen.labels),
    "pixel_auroc": lambda seen: seen.pixels.auroc,
    "pixel_ap": lambda seen: seen.pixels.ap,
    "pro": lambda seen: seen.pixels.pro,
}


def observe(
    scores: npt.ArrayLike,
    labels: npt.ArrayLike,
    maps: Sequence[FloatArray] | None = None,
    masks: Sequence[BoolArray | None] | None = None,
    inside: BoolArray | None = None,
) -> Observed:
    """Check the input and go over the pixels once, or over those `inside`, where to look is the same in all maps.

    A normal image without mask is all normal; the pixels of an anomalous one without mask are unknown, so
    they stay out.
    """
    values, truth = _checked(scores, labels)
    if maps is None or masks is None:
        return Observed(values, truth, PixelMetrics())
    if not len(maps) == len(masks) == len(truth):
        raise ValueError(f"{len(maps)} maps and {len(masks)} masks for {len(truth)} images; give one each")
    known = [i for i, mask in enumerate(masks) if mask is not None or not truth[i]]
    pixels = pixel_metrics([maps[i] for i in known], [masks[i] for i in known], inside=inside)
    return Observed(values, truth, pixels)


def compute(
    scores: npt.ArrayLike,
    labels: npt.ArrayLike,
    maps: Sequence[FloatArray] | None = None,
    masks: Sequence[BoolArray | None] | None = None,
    inside: BoolArray | None = None,
) -> dict[str, float | None]:
    """All METRICS by name; the pixel ones are None without maps, masks or an anomalous pixel."""
    seen = observe(scores, labels, maps, masks, inside)
    return {name: metric(seen) for name, metric in METRICS.items()}
