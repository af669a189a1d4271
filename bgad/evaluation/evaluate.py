"""A scorer and labelled images -> figures, results.json and the report's material."""

from __future__ import annotations

import io
import json
import logging
import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from bgad import metrics
from bgad._version import __version__
from bgad.artifact.card import Card
from bgad.calibration import rate_table
from bgad.data.layouts import Dataset
from bgad.data.sample_io import digest, read, read_mask
from bgad.data.split import UNUSED, Split
from bgad.errors import BgadError, DataError
from bgad.evaluation.report import page as report
from bgad.geometry.grid import defect_cells
from bgad.geometry.roi import Roi
from bgad.inference.base import BaseScorer
from bgad.io import images, render
from bgad.io.files import write_atomic
from bgad.types import BoolArray, FloatArray, ImageLike, Progress, ProgressTask, Sample, Scores, Shape

logger = logging.getLogger(__name__)

RATES = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
MAX_MAP_PIXELS = 200_000_000  # of all maps together; beyond, every k-th pixel of rows and columns is measured
HIDDEN: BoolArray = np.zeros((0, 0), np.bool_)  # the mask of a defect that the model does not look at
THUMB = 224
GALLERY = 30
HISTOGRAM_REACH = 1.5  # times the way from the most likely feature to the abnormal boundary
OUTLINE = (0, 200, 90)


def unseen(card: Card, dataset: Dataset) -> tuple[list[Sample], list[str]]:
    """The labelled images that the model's split leaves for test, recognised by content, and what was left out.

    Images that the split does not know are new to the model and count as test images.
    """
    role = _roles(card, dataset)
    divided = any(s.split == "test" for s in dataset.samples)
    pool = [
        s for s in dataset.samples if s.split == "test" or role[s.name] == "test" or (s.split == "" and not divided)
    ]
    if not pool:
        raise DataError(f"{dataset.root}: every image belongs to the training split, so nothing is left to evaluate on")
    left = [s for s in pool if role[s.name] in ("test", None)]
    roleless = sum(role[s.name] == UNUSED for s in pool)
    familiar = len(pool) - len(left) - roleless
    if not left:
        raise DataError(
            f"{dataset.root}: the model was trained or calibrated on all of these images, so nothing is left to "
            "evaluate on; give other data, or train with --test 0.25 to keep some aside"
        )
    left_out = [f"{familiar} images left out: the model was trained or calibrated on them"] if familiar else []
    left_out += [f"{roleless} images left out: the model's split gives them no role"] if roleless else []
    return left, left_out


def _roles(card: Card, dataset: Dataset) -> dict[str, str | None]:
    """Name -> role of the picture when the model was made: that of its name, or of another name for it; or None."""
    by_hash = Split.roles_from_json(card.split)
    by_name = {(image["name"], image["sha256"]): image["role"] for image in card.split["images"]}
    hashes = {s.name: digest(s) for s in dataset.samples}
    return {name: by_name.get((name, content), by_hash.get(content)) for name, content in hashes.items()}


@dataclass(frozen=True)
class Measured:
    """What a model says of labelled images, and the figures of it."""

    cell: dict[str, Any]  # as in results.json
    rows: list[dict[str, Any]]  # one for each image
    samples: list[Sample]
    results: list[Scores]  # beside the samples
    masks: list[BoolArray | None]
    observed: metrics.Observed
    notes: list[str]
    inside: BoolArray | None = None  # the pixels that the model looks at; None: all


def evaluate(
    scorer: BaseScorer, dataset: Dataset, *, data: str | None = None, progress: Progress | None = None
) -> tuple[dict[str, Any], report.Section, list[dict[str, Any]]]:
    """Score the unseen images of a data set: the result cell, the report's section, and one row per image."""
    samples, left_out = unseen(scorer.card, dataset)
    notes = list(dataset.notes)
    if all(s.label for s in samples):
        notes.append("no normal images to compare with: train with --test 0.25 to keep some aside, or give others")
    name = data or (dataset.root.resolve().parent.name if dataset.layout == "mvtec" else dataset.name)
    found = measure(
        scorer.card,
        _stream(scorer, samples),
        len(samples),
        notes,
        data=name,
        category=dataset.name,
        progress=progress,
    )
    for note in left_out:
        logger.info(note)
    for note in found.notes:
        logger.warning(note)
    cell, seen, results, masks = found.cell, found.samples, found.results, found.masks
    scores, labels = [r.score for r in results], [s.label for s in seen]
    has_masks = any(m is not None for m in masks)
    roc = metrics.roc_curve(scores, labels)
    pro = found.observed.pixels.pro_curve if found.observed.pixels is not None else None
    section = report.Section(
        title=f"{dataset.name} ({cell['method']}, {cell['known']} known anomalies, seed {cell['seed']})",
        facts=_facts(scorer.card, cell),
        metrics=cell["metrics"],
        images=_image_rows(seen, results, masks, scorer.card, found.rows),
        threshold=scorer.threshold,
        boundary=scorer.card.map.boundary,
        levels=_histograms(seen, results, masks, scorer.card),
        roc=([], []) if roc is None else _lists(metrics.thin(*roc)),
        pro=None if pro is None else _lists(pro),
        classes=_classes(seen, results, masks, has_masks, found.inside),
        rates=_rates(scorer, scores, labels),
        notes=left_out + found.notes,
        guarantee=scorer.calibration.guarantee(),
        held_out=len(scorer.calibration.scores),
    )
    return cell, section, found.rows


def measure(
    card: Card,
    scored: Iterable[tuple[Sample, Scores | BgadError]],
    count: int,
    notes: list[str],
    *,
    data: str,
    category: str,
    progress: Progress | None = None,
) -> Measured:
    """The figures of a model with this card on `count` images, from what it says of each."""
    began = time.monotonic()
    seen, results, shapes, step = _collect(scored, count, notes, progress)
    seconds = time.monotonic() - began
    region = None if card.roi_png is None else Roi.from_png(card.roi_png).mask
    marked = [_mask(sample, shape, step, notes, region) for sample, shape in zip(seen, shapes, strict=True)]
    kept = [i for i, mask in enumerate(marked) if mask is not HIDDEN]
    seen, results, masks = [seen[i] for i in kept], [results[i] for i in kept], [marked[i] for i in kept]
    inside = None if region is None else region[::step, ::step]
    scores, labels = [r.score for r in results], [s.label for s in seen]
    has_masks = any(m is not None for m in masks)
    maps = [r.map for r in results] if has_masks else None
    observed = metrics.observe(scores, labels, maps, masks if has_masks else None, inside)
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
    rows = [
        {
            "name": s.name,
            "defect": s.defect,
            "label": s.label,
            "score": r.score,
            "p_value": r.p_value,
            "is_anomaly": r.is_anomaly,
        }
        for s, r in zip(seen, results, strict=True)
    ]
    return Measured(cell, rows, seen, results, masks, observed, notes, inside)


def write_results(out: Path, cells: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]]) -> Path:
    """results.json: `cells` as documented, `images` with one row per scored image; replaced in one step."""
    path = out / "results.json"
    content = {"bgad": __version__, "cells": list(cells), "images": list(rows)}
    write_atomic(path, json.dumps(content, indent=1).encode())
    return path


def _stream(scorer: BaseScorer, samples: list[Sample]) -> Iterator[tuple[Sample, Scores | BgadError]]:
    """What the model says of each image; a tile is cut out of its picture here."""
    readable: deque[Sample] = deque()
    broken: deque[tuple[Sample, BgadError]] = deque()

    def pictures() -> Iterator[ImageLike]:
        for sample in samples:
            try:
                picture = sample.path if sample.box is None else read(sample, scorer.card.input.bits)
            except BgadError as error:
                broken.append((sample, error))
            else:
                readable.append(sample)
                yield picture

    for result in scorer.score_stream(pictures()):
        yield readable.popleft(), result
    yield from broken


def _collect(
    scored: Iterable[tuple[Sample, Scores | BgadError]], count: int, notes: list[str], progress: Progress | None
) -> tuple[list[Sample], list[Scores], list[Shape], int]:
    """The images that could be read, what the model says of them, their sizes, and which part of the maps is kept."""
    seen: list[Sample] = []
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
                    notes.append(f"pixel figures are measured on one in {step} rows and columns, to bound the memory")
            seen.append(sample)
            shapes.append((result.map.shape[0], result.map.shape[1]))
            results.append(replace(result, map=result.map[::step, ::step].copy()) if step > 1 else result)
        task.advance()
    if not results:
        raise DataError(f"none of the {count} images could be read; the last: {notes[-1]}")
    return seen, results, shapes, step


def _mask(sample: Sample, shape: Shape, step: int, notes: list[str], region: BoolArray | None) -> BoolArray | None:
    """Where the defect is, at the pixels that are measured; None where nobody marked it, HIDDEN where the model looks
    at none of it."""
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
        mask = images.resize_mask(mask, shape)
    if region is not None:
        mask = mask & region
        if not mask.any():
            notes.append(f"not measured: the defect of {sample.name} lies where the model does not look")
            return HIDDEN
    return mask[::step, ::step]


def _lists(curve: tuple[npt.NDArray[Any], npt.NDArray[Any]]) -> tuple[list[float], list[float]]:
    return curve[0].tolist(), curve[1].tolist()


def _facts(card: Card, cell: dict[str, Any]) -> list[tuple[str, str]]:
    training, (height, width) = card.training, card.input.shape
    counts = cell["images"]
    return [
        ("method", cell["method"]),
        ("backbone", f"{card.config.backbone.name} at {width} x {height}"),
        ("known anomalies", f"{cell['known']} ({cell['protocol']})"),
        (
            "test images",
            f"{counts['normal']} normal, {counts['anomalous']} anomalous, none of them seen in training",
        ),
        ("held-out normals", str(len(card.calibration_at().scores))),
        ("trained", f"{training.seconds:.0f} s, {training.steps} steps on {training.device}"),
    ]


def _rates(scorer: BaseScorer, scores: list[float], labels: list[int]) -> list[report.RateRow]:
    normal = [s for s, label in zip(scores, labels, strict=True) if label == 0]
    anomalous = [s for s, label in zip(scores, labels, strict=True) if label == 1]
    rates = sorted({*RATES, scorer.calibration.rate})
    return [
        report.RateRow(rate, math.nan if threshold is None else threshold, missed, rejected, threshold is not None)
        for rate, threshold, missed, rejected in rate_table(scorer.calibration, normal, anomalous, rates)
    ]


def _classes(
    seen: list[Sample],
    results: list[Scores],
    masks: list[BoolArray | None],
    has_masks: bool,
    inside: BoolArray | None,
) -> list[report.ClassRow]:
    """Each defect class against all normal images."""
    normal = [i for i, s in enumerate(seen) if s.label == 0]
    rows = []
    for defect in sorted({s.defect for s in seen if s.label}):
        own = [i for i, s in enumerate(seen) if s.label and s.defect == defect]
        both = normal + own
        found = metrics.compute(
            [results[i].score for i in both],
            [seen[i].label for i in both],
            [results[i].map for i in both] if has_masks else None,
            [masks[i] for i in both] if has_masks else None,
            inside,
        )
        missed = sum(not results[i].is_anomaly for i in own)
        rows.append(report.ClassRow(defect, len(own), found["image_auroc"], found["pixel_auroc"], found["pro"], missed))
    return rows


def _histograms(
    seen: list[Sample], results: list[Scores], masks: list[BoolArray | None], card: Card
) -> list[report.LevelHistogram]:
    """log p / d of normal features and of those on marked defects (of whole anomalous images without masks)."""
    found = []
    if not all(result.levels for result in results):  # of tiles
        return []
    for i, level in enumerate(card.levels):
        normal: list[FloatArray] = []
        anomalous: list[FloatArray] = []
        for sample, result, mask in zip(seen, results, masks, strict=True):
            values = result.levels[i]
            if sample.label == 0:
                normal.append(values.ravel())
            elif mask is None:
                anomalous.append(values.ravel())
            else:
                grid = (values.shape[0], values.shape[1])
                anomalous.append(values.ravel()[defect_cells(mask, grid)])
        groups = [np.concatenate(g) if g else np.empty(0, np.float32) for g in (normal, anomalous)]
        both = np.concatenate([*groups, [level.normal_boundary, level.abnormal_boundary]])
        highest = float(both.max())
        lowest = highest - HISTOGRAM_REACH * (highest - level.abnormal_boundary)  # all beyond is in the first bar
        edges = np.linspace(max(float(np.quantile(both, 0.002)), lowest), highest, 61)
        counts = [np.histogram(np.clip(g, edges[0], edges[-1]), edges)[0].astype(float).tolist() for g in groups]
        found.append(
            report.LevelHistogram(
                title=f"stride {level.stride}",
                edges=edges.tolist(),
                normal=counts[0],
                anomalous=counts[1],
                normal_boundary=level.normal_boundary,
                abnormal_boundary=level.abnormal_boundary,
            )
        )
    return found


def _image_rows(
    seen: list[Sample],
    results: list[Scores],
    masks: list[BoolArray | None],
    card: Card,
    rows: list[dict[str, Any]],
) -> list[report.ImageRow]:
    """A row for every image; pictures for the worst mistakes and for a spread over the classes."""
    plain = [report.ImageRow(**row) for row in rows]
    false_rejects, misses = report.worst(plain)
    shown = {row.name for row in [*false_rejects, *misses]}
    by_class: dict[str, list[int]] = {}
    for i, sample in enumerate(seen):
        by_class.setdefault(sample.defect, []).append(i)
    rank = 0
    while len(shown) < min(GALLERY, len(seen)):
        shown |= {seen[members[rank]].name for members in by_class.values() if rank < len(members)}
        rank += 1
    made = []
    for row, sample, result, mask in zip(rows, seen, results, masks, strict=True):
        pictures: dict[str, Any] = _thumbnails(sample, result, mask, card) if sample.name in shown else {}
        made.append(report.ImageRow(**row, **pictures))
    return made


def _thumbnails(sample: Sample, result: Scores, mask: BoolArray | None, card: Card) -> dict[str, bytes]:
    height, width = result.map.shape
    scale = min(1.0, THUMB / max(height, width))
    size = (max(1, round(height * scale)), max(1, round(width * scale)))
    picture = (images.fit(read(sample, card.input.bits), size) * 255).round().astype(np.uint8)
    heat = render.overlay(picture, images.resize_map(result.map, size), card.map.boundary, card.map.mean)
    made = {"picture": _jpeg(picture), "heat": _jpeg(heat)}
    if mask is not None:
        made["truth"] = _jpeg(render.outline(picture, images.resize_mask(mask, size), OUTLINE))
    return made


def _jpeg(picture: npt.NDArray[np.uint8]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()
