"""Metrics of anomaly detection: pure functions of scores and labels, exact over all distinct scores.

Every metric comes from one sweep of the threshold over the distinct scores of the anomalous class. Between two of them
only the false positives change, so the normal class, with some fifty million pixels, is sorted but never merged with
the other. Equal scores are taken together. A metric that needs both classes is None where one is missing.
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
Curve = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]  # x and y, both non-decreasing

PRO_LIMIT = 0.3  # false positive rate up to which PRO is integrated, as in the MVTec AD paper


@dataclass(frozen=True, slots=True)
class PixelMetrics:
    """Metrics of anomaly maps over pixels; None where normal or anomalous pixels are missing."""

    auroc: float | None = None
    ap: float | None = None
    pro: float | None = None
    pro_curve: Curve | None = None  # false positive rate up to the limit, mean overlap; thinned for drawing


@dataclass(frozen=True, slots=True)
class Observed:
    """Scores, labels and pixel metrics, from which the entries of METRICS are computed."""

    scores: Floats
    labels: BoolArray
    pixels: PixelMetrics


@dataclass(frozen=True, slots=True)
class _Sweep:
    """Counts as the threshold falls, one entry for each distinct score of the anomalous class."""

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
        """Return the corners of the curve that reaches `gain` at each score, against the false positive rate.

        Each score has two corners, before and after it, so that a tie of both classes is a diagonal.
        """
        x, y = np.ones(2 * len(gain) + 2), np.ones(2 * len(gain) + 2)
        x[0] = y[0] = y[1] = 0.0
        x[1:-1:2], x[2:-1:2] = self.above / self.normals, self.reached / self.normals
        y[3:-1:2], y[2:-1:2] = gain[:-1], gain
        distinct = np.append(True, (np.diff(x) > 0) | (np.diff(y) > 0))
        return x[distinct], y[distinct]


def _sweep(normal: Floats, anomalous: Floats) -> _Sweep:
    """Sweep two sorted, non-empty classes. Sorted keys keep the binary searches within the cache."""
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
    """Return the probability that an anomaly scores above a normal; a tie counts half.

    >>> auroc([0.1, 0.4, 0.4, 0.8], [0, 0, 1, 1])
    0.875
    """
    sweep = _image_sweep(scores, labels)
    return None if sweep is None else sweep.auroc()


def spearman(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """Return Spearman's rank correlation of two series of scores; equal scores share their mean rank.

    It is 1 where neither order says anything: for fewer than two scores, or where all are equal in both series.

    >>> spearman([1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 4.0])
    0.8
    """
    ranks = [_mean_ranks(np.asarray(values, np.float64)) for values in (a, b)]
    x, y = (r - r.mean() if len(r) else r for r in ranks)
    spread = float(np.sqrt((x @ x) * (y @ y)))
    if not spread:
        return float(not (x.any() or y.any()))
    return round(float(x @ y) / spread, 12)


def _mean_ranks(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the rank of each value from 0; equal values share the mean of their ranks."""
    ascending = np.sort(values)
    first, last = (np.searchsorted(ascending, values, side=side) for side in ("left", "right"))
    ranks: npt.NDArray[np.float64] = (first + last - 1) / 2
    return ranks


def average_precision(scores: npt.ArrayLike, labels: npt.ArrayLike) -> float | None:
    """Return the mean precision at each distinct score, weighted by the recall gained there, without interpolation."""
    sweep = _image_sweep(scores, labels)
    return None if sweep is None else sweep.ap()


def f1_best(scores: npt.ArrayLike, labels: npt.ArrayLike) -> tuple[float, float] | None:
    """Return the best F1 and a threshold that reaches it, where `score > threshold` means anomalous.

    The threshold lies halfway to the next lower score. Of thresholds with equal F1, the highest is returned.

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
    """Return the best F1 over all thresholds."""
    best = f1_best(scores, labels)
    return None if best is None else best[0]


def roc_curve(scores: npt.ArrayLike, labels: npt.ArrayLike) -> Curve | None:
    """Return the false and true positive rates at the corners of the ROC curve, from (0, 0) to (1, 1)."""
    sweep = _image_sweep(scores, labels)
    return None if sweep is None else sweep.curve(sweep.hits / sweep.anomalies)


def thin(x: npt.ArrayLike, y: npt.ArrayLike, n: int = 400) -> Curve:
    """Return at most `n` points of a rising curve, for drawing; both ends are kept.

    Points are chosen at even steps along the curve, not by index, so steep and flat parts keep their shape.
    """
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if n < 2:
        raise ValueError(f"a curve needs at least 2 points, not {n}")
    if len(xs) <= n:
        return xs, ys
    length = (xs - xs[0]) / (np.ptp(xs) or 1.0) + (ys - ys[0]) / (np.ptp(ys) or 1.0)
    keep = np.unique(np.searchsorted(length, np.linspace(length[0], length[-1], n)))
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
    """Return the part of a curve with x <= limit; its last segment is cut at the limit."""
    x, y = curve
    end = int(np.searchsorted(x, limit, side="right"))
    if end == len(x):
        return curve
    cut = np.interp(limit, x[end - 1 : end + 1], y[end - 1 : end + 1])
    return np.append(x[:end], limit), np.append(y[:end], cut)


def pixel_metrics(
    maps: Sequence[FloatArray],
    masks: Sequence[BoolArray | None],
    limit: float = PRO_LIMIT,
    inside: BoolArray | None = None,
) -> PixelMetrics:
    """Return AUROC and AP over all pixels, or those `inside`, and PRO up to a false positive rate of `limit`.

    A map whose mask is None has normal pixels only. PRO is the area under the mean overlap of the anomalous regions
    (8-connected, holes left open), divided by the limit. The false positive rate is that of all normal pixels,
    including those of anomalous images.
    """
    if len(maps) != len(masks):
        raise ValueError(f"{len(maps)} maps and {len(masks)} masks; give one mask or None for each map")
    if not 0 < limit <= 1:
        raise ValueError(f"limit {limit} must be above 0 and at most 1")
    for index, (values, mask) in enumerate(zip(maps, masks, strict=True)):
        _check_map(index, values, mask)
        if inside is not None and inside.shape != values.shape:
            raise ValueError(f"map {index} has shape {values.shape}, the region of interest {inside.shape}")
    # Filled in place, since the normal pixels take nearly all of the memory.
    dtype = np.result_type(np.float32, *{values.dtype for values in maps})
    normal = np.empty(sum(values.size for values in maps), dtype)
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


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric's title in reports, and how it is computed."""

    title: str
    compute: Callable[[Observed], float | None]


METRICS: dict[str, Metric] = {
    "image_auroc": Metric("Image AUROC", lambda seen: auroc(seen.scores, seen.labels)),
    "image_ap": Metric("Image AP", lambda seen: average_precision(seen.scores, seen.labels)),
    "image_f1_max": Metric("Image F1 max", lambda seen: f1_max(seen.scores, seen.labels)),
    "pixel_auroc": Metric("Pixel AUROC", lambda seen: seen.pixels.auroc),
    "pixel_ap": Metric("Pixel AP", lambda seen: seen.pixels.ap),
    "pro": Metric("PRO", lambda seen: seen.pixels.pro),
}


def observe(
    scores: npt.ArrayLike,
    labels: npt.ArrayLike,
    maps: Sequence[FloatArray] | None = None,
    masks: Sequence[BoolArray | None] | None = None,
    inside: BoolArray | None = None,
) -> Observed:
    """Check the input and compute the pixel metrics, over all pixels or over those `inside` a region of interest.

    A normal image without a mask has normal pixels only. The pixels of an anomalous image without a mask are unknown
    and left out.
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
    """Compute all METRICS by name; those of pixels are None without maps, masks or an anomalous pixel."""
    seen = observe(scores, labels, maps, masks, inside)
    return {name: metric.compute(seen) for name, metric in METRICS.items()}
