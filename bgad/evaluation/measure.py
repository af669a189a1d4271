"""Computes the metrics of a model from its scores of labelled images."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bgad import metrics
from bgad.artifact.card import Card
from bgad.data.sample_io import read_mask
from bgad.errors import BgadError, DataError
from bgad.geometry.roi import Roi
from bgad.io.masks import defect_cells, resize_mask
from bgad.types import BoolArray, FloatArray, Progress, ProgressTask, Sample, Scores, Shape

MAX_MAP_PIXELS = 200_000_000  # of all maps together, to bound memory; larger sets are measured on every k-th pixel
OUTSIDE_REGION: BoolArray = np.zeros((0, 0), np.bool_)  # the mask of a defect outside of the region of interest


@dataclass(frozen=True)
class Measurement:
    """The scores of a model for labelled images, and the metrics computed from them."""

    cell: dict[str, Any]  # as in results.json
    rows: list[dict[str, Any]]  # one for each image, as in results.json
    samples: list[Sample]
    results: list[Scores]  # one for each sample
    masks: list[BoolArray | None]  # one for each sample
    observed: metrics.Observed
    notes: list[str]
    shapes: list[Shape]  # of the images, one for each sample
    region: BoolArray | None = None  # the model's region of interest, in the pixels that are measured; None: all


def measure(
    card: Card,
    scored: Iterable[tuple[Sample, Scores | BgadError]],
    count: int,
    notes: list[str],
    *,
    data: str,
    category: str,
    progress: Progress | None = None,
) -> Measurement:
    """Measure the model with this card on `count` scored images; notes on problems are appended to `notes`."""
    began = time.monotonic()
    samples, results, shapes, step = _collect(scored, count, notes, progress)
    seconds = time.monotonic() - began
    roi = None if card.roi_png is None else Roi.from_png(card.roi_png).mask
    all_masks = [_read_mask(sample, shape, step, notes, roi) for sample, shape in zip(samples, shapes, strict=True)]
    kept = [i for i, mask in enumerate(all_masks) if mask is not OUTSIDE_REGION]
    samples, results, masks = [samples[i] for i in kept], [results[i] for i in kept], [all_masks[i] for i in kept]
    shapes = [shapes[i] for i in kept]
    region = None if roi is None else roi[::step, ::step]
    labels = [s.label for s in samples]
    observed = metrics.observe([r.score for r in results], labels, [r.map for r in results], masks, region)
    cell = {
        "data": data,
        "category": category,
        "protocol": card.data.protocol,
        "known_class": card.data.known_class,
        "subset": card.data.subset,
        "method": card.method,
        "known": card.data.known,
        "seed": card.config.seed,
        "metrics": {name: metric.compute(observed) for name, metric in metrics.METRICS.items()},
        "seconds": {"train": card.training.seconds, "score": round(seconds, 3)},
        "images": {"normal": labels.count(0), "anomalous": labels.count(1)},
    }
    rows = [_row(sample, result) for sample, result in zip(samples, results, strict=True)]
    return Measurement(cell, rows, samples, results, masks, observed, notes, shapes, region)


def _row(sample: Sample, result: Scores) -> dict[str, Any]:
    """Return the row of an image in results.json."""
    return {
        "name": sample.name,
        "defect": sample.defect,
        "label": sample.label,
        "score": result.score,
        "p_value": result.p_value,
        "is_anomaly": result.is_anomaly,
        "parts": dict(result.parts),
        "reason": result.reason or None,
        "region": None if result.region is None else list(result.region),
    }


def _collect(
    scored: Iterable[tuple[Sample, Scores | BgadError]], count: int, notes: list[str], progress: Progress | None
) -> tuple[list[Sample], list[Scores], list[Shape], int]:
    """Return the readable samples, their scores and sizes, and the step between the map pixels that are kept."""
    samples: list[Sample] = []
    results: list[Scores] = []
    shapes: list[Shape] = []
    step = 1
    task = ProgressTask(progress, "scoring", count)
    for sample, result in scored:
        if isinstance(result, BgadError):
            notes.append(f"left out: {result}")
        else:
            if not results:
                step = max(1, math.ceil(math.sqrt(result.map.size * count / MAX_MAP_PIXELS)))
                if step > 1:
                    notes.append(f"pixel metrics are measured on one in {step} rows and columns, to bound the memory")
            samples.append(sample)
            shapes.append((result.map.shape[0], result.map.shape[1]))
            results.append(replace(result, map=result.map[::step, ::step].copy()) if step > 1 else result)
        task.advance()
    if not results:
        raise DataError(f"none of the {count} images could be read; the last: {notes[-1]}")
    return samples, results, shapes, step


def _read_mask(sample: Sample, shape: Shape, step: int, notes: list[str], roi: BoolArray | None) -> BoolArray | None:
    """Read the mask of a sample at the pixels that are measured.

    The result is None where the sample has no usable mask, and OUTSIDE_REGION where the whole defect lies outside of
    the model's region of interest.
    """
    try:
        mask = read_mask(sample)
    except BgadError as error:
        notes.append(f"mask not used: {error}")
        return None
    if mask is None:
        return None
    if not mask.any():
        notes.append(f"{sample.mask} marks no pixel: {sample.name} counts as an anomaly without a mask")
        return None
    if mask.shape != shape:
        sizes = f"{mask.shape[1]}x{mask.shape[0]} instead of {shape[1]}x{shape[0]}"
        notes.append(f"{sample.mask} is {sizes}: it is resized to its image")
        mask = resize_mask(mask, shape)
    if roi is not None:
        mask = mask & roi
        if not mask.any():
            notes.append(f"not measured: the defect of {sample.name} lies outside of the model's region of interest")
            return OUTSIDE_REGION
    return mask[::step, ::step]


def level_values(
    samples: Sequence[Sample], values: Sequence[FloatArray], masks: Sequence[BoolArray | None]
) -> tuple[FloatArray, FloatArray]:
    """Return the values of one level, (h, w) of each sample, at normal features and at anomalous ones.

    Features of an anomaly count where its mask marks them, or all of them where it has no mask.
    """
    normal, anomalous = [np.empty(0, np.float32)], [np.empty(0, np.float32)]
    for sample, grid_values, mask in zip(samples, values, masks, strict=True):
        height, width = grid_values.shape
        cells = slice(None) if mask is None or not sample.label else defect_cells(mask, (height, width))
        (anomalous if sample.label else normal).append(grid_values.ravel()[cells])
    return np.concatenate(normal), np.concatenate(anomalous)
