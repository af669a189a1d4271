"""Time and memory of all metrics over 200 maps of 512 x 512 against two of them with scikit-learn.

Ours is the median of three runs. scikit-learn computes only pixel AUROC and AP, once, on a quarter of the maps, and its
time is multiplied by 4; as its cost grows a little faster than the number of pixels, that is in its favour.
"""

from __future__ import annotations

import resource
import sys
import time

import numpy as np

from benchmarks import machine, record
from bgad.metrics import compute
from bgad.types import BoolArray, FloatArray

IMAGES, SIDE, REGIONS, REGION_SIDE = 200, 512, 4, 45  # 4 squares of 45 x 45: about 3 % of the pixels
PART = 4  # scikit-learn gets one image in PART


def make(images: int, seed: int = 0) -> tuple[list[FloatArray], list[BoolArray]]:
    """Random maps whose anomalous pixels score somewhat higher, and their masks."""
    rng = np.random.default_rng(seed)
    maps, masks = [], []
    for _ in range(images):
        values, mask = rng.random((SIDE, SIDE), dtype=np.float32), np.zeros((SIDE, SIDE), dtype=np.bool_)
        for top, left in rng.integers(0, SIDE - REGION_SIDE, size=(REGIONS, 2)):
            mask[top : top + REGION_SIDE, left : left + REGION_SIDE] = True
        values[mask] += np.float32(0.5)
        maps.append(values)
        masks.append(mask)
    return maps, masks


def peak_bytes() -> int:
    """The most memory that this process has held so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def sklearn_seconds(maps: list[FloatArray], masks: list[BoolArray]) -> float:
    """Pixel AUROC and AP with scikit-learn, scaled to all images."""
    from sklearn.metrics import average_precision_score, roc_auc_score

    scores, truth = np.concatenate(maps[::PART], axis=None), np.concatenate(masks[::PART], axis=None)
    start = time.perf_counter()
    roc_auc_score(truth, scores)
    average_precision_score(truth, scores)
    return (time.perf_counter() - start) * PART


def main() -> None:
    """Measure, print, append."""
    print(machine())
    maps, masks = make(IMAGES)
    labels = np.arange(IMAGES) % 2  # every mask has regions, the heaviest case; labels only feed the image metrics
    scores = np.random.default_rng(1).random(IMAGES) + 0.3 * labels
    before, times = peak_bytes(), []
    for _ in range(3):
        start = time.perf_counter()
        compute(scores, labels, maps, masks)
        times.append(time.perf_counter() - start)
    extra = (peak_bytes() - before) / 2**30
    ours, other = float(np.median(times)), sklearn_seconds(maps, masks)

    name = f"metrics, {IMAGES} maps of {SIDE} x {SIDE} (other: scikit-learn AUROC + AP, 1/{PART} size, scaled)"
    share = float(np.mean([mask.mean() for mask in masks]))
    print(f"slowest of three {max(times):.2f} s, {extra:.2f} GiB extra at the peak, {share:.1%} anomalous pixels")
    record(name, ours, other, "s")


if __name__ == "__main__":
    main()
