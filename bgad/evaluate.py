"""A scorer and labelled images -> figures, results.json and the report's material."""

from __future__ import annotations

import io
import json
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from bgad import __version__, console, images, metrics, report
from bgad.calibration import rate_table
from bgad.cells import defect_cells
from bgad.data.folders import Dataset, hash_file
from bgad.data.split import Split
from bgad.errors import BgadError, DataError
from bgad.modelfile import Card
from bgad.outputs import write_whole
from bgad.scorer import BaseScorer, Shape
from bgad.types import BoolArray, FloatArray, Sample, Scores

RATES = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
MAX_MAP_PIXELS = 200_000_000  # of all maps together; beyond, every k-th pixel of rows and columns is measured
THUMB = 224
GALLERY = 30
HISTOGRAM_REACH = 3  # times the way from the most likely feature to the abnormal boundary
OUTLINE = (0, 200, 90)


def unseen(card: Card, dataset: Dataset) -> tuple[list[Sample], int]:
    """The labelled images that the model has not seen, recognised by content, and how many it has seen."""
    roles = Split.roles_from_json(card.data["split"])
    hashes = {s.name: hash_file(s.path) for s in dataset.samples}
    divided = any(s.split == "test" for s in dataset.samples)
    pool = [
        s
        for s in dataset.samples
        if s.split == "test" or (s.split == "" and (not divided or roles.get(hashes[s.name]) == "test"))
    ]
    if not pool:
        raise DataError(f"{dataset.root}: every image belongs to the training split, so nothing is left to evaluate on")
    left = [s for s in pool if roles.get(hashes[s.name], "test") == "test"]
    if not left:
        raise DataError(
            f"{dataset.root}: the model was trained or calibrated on all of these images, so nothing is left to "
            "evaluate on; give other data, or train with --test 0.25 to keep some aside"
        )
    return left, len(pool) - len(left)


def evaluate(
    scorer: BaseScorer, dataset: Dataset, *, data: str | None = None
) -> tuple[dict[str, Any], report.Section, list[dict[str, Any]]]:
    """Score the unseen images of a data set: the result cell, the report's section, and one row per image."""
    samples, familiar = unseen(scorer.card, dataset)
    left_out = [f"{familiar} images left out: the model was trained or calibrated on them"] if familiar else []
    notes = list(dataset.notes)
    if all(s.label for s in samples):
        notes.append("no normal images to compare with: train with --test 0.25 to keep some aside, or give others")
    began = time.monotonic()
    seen, results, shapes, step = _score(scorer, samples, notes)
    seconds = time.monotonic() - began
    masks = [_mask(sample, shape, step, notes) for sample, shape in zip(seen, shapes, strict=True)]
    for note in left_out:
        console.say(note)
    for note in notes:
        console.warn(note)
    maps = [r.map for r in results]
    scores, labels = [r.score for r in results], [s.label for s in seen]
    has_masks = any(m is not None for m in masks)
    observed = metrics.observe(scores, labels, maps if has_masks else None, masks if has_masks else None)
    figures = {name: figure(observed) for name, figure in metrics.METRICS.items()}
    card = scorer.card.data
    cell = {
        "data": data or (dataset.root.resolve().parent.name if dataset.layout == "mvtec" else dataset.name),
        "category": dataset.name,
        "protocol": card["data"]["protocol"],
        "method": card["config"]["loss"]["method"],
        "known": card["data"]["known"],
        "seed": card["config"]["seed"],
        "metrics": figures,
        "seconds": {"train": card["training"]["seconds"], "score": round(seconds, 3)},
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
    roc = metrics.roc_curve(scores, labels)
    pro = observed.pixels.pro_curve if observed.pixels is not None else None
    section = report.Section(
        title=f"{dataset.name} ({cell['method']}, {cell['known']} known anomalies, seed {cell['seed']})",
        facts=_facts(scorer.card, cell),
        metrics=figures,
        images=_image_rows(seen, results, masks, scorer.card, rows),
        threshold=scorer.threshold,
        boundary=scorer.card.map_boundary,
        levels=_histograms(seen, results, masks, scorer.card),
        roc=([], []) if roc is None else _lists(metrics.thin(*roc)),
        pro=None if pro is None else _lists(pro),
        classes=_classes(seen, results, maps, masks, has_masks),
        rates=_rates(scorer, scores, labels),
        notes=left_out + notes,
        guarantee=scorer.calibration.guarantee(),
    )
    return cell, section, rows


def write_results(out: Path, cells: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]]) -> Path:
    """results.json: `cells` as documented, `images` with one row per scored image; replaced in one step."""
    path = out / "results.json"
    content = {"bgad": __version__, "cells": list(cells), "images": list(rows)}
    write_whole(path, json.dumps(content, indent=1).encode())
    return path


def _score(
    scorer: BaseScorer, samples: list[Sample], notes: list[str]
) -> tuple[list[Sample], list[Scores], list[Shape], int]:
    """The images that could be read, what the model says of them, their sizes, and which part of the maps is kept."""
    seen: list[Sample] = []
    results: list[Scores] = []
    shapes: list[Shape] = []
    step = 1
    with console.bar("scoring", len(samples)) as bar:
        for sample, result in zip(samples, scorer.score_stream([s.path for s in samples]), strict=True):
            if isinstance(result, BgadError):
                notes.append(f"left out: {result}")
            else:
                if not results:
                    step = max(1, math.ceil(math.sqrt(result.map.size * len(samples) / MAX_MAP_PIXELS)))
                    if step > 1:
                        notes.append(
                            f"pixel figures are measured on one in {step} rows and columns, to bound the memory"
                        )
                seen.append(sample)
                shapes.append((result.map.shape[0], result.map.shape[1]))
                results.append(replace(result, map=result.map[::step, ::step].copy()) if step > 1 else result)
            bar.update()
    if not results:
        raise DataError(f"none of the {len(samples)} images could be read; the last: {notes[-1]}")
    return seen, results, shapes, step


def _mask(sample: Sample, shape: Shape, step: int, notes: list[str]) -> BoolArray | None:
    """Where the defect is, at the pixels that are measured; None where nobody marked it."""
    if sample.mask is None:
        return None
    try:
        mask = images.read_mask(sample.mask)
    except BgadError as error:
        notes.append(f"mask not used: {error}")
        return None
    if not mask.any():
        notes.append(f"{sample.mask} marks no pixel: {sample.name} counts as an anomaly without a mask")
        return None
    if mask.shape != shape:
        sizes = f"{mask.shape[1]}x{mask.shape[0]} instead of {shape[1]}x{shape[0]}"
        notes.append(f"{sample.mask} is {sizes}: it is resized to its image")
        mask = images.resize_mask(mask, shape)
    return mask[::step, ::step]


def _lists(curve: tuple[npt.NDArray[Any], npt.NDArray[Any]]) -> tuple[list[float], list[float]]:
    return curve[0].tolist(), curve[1].tolist()


def _facts(card: Card, cell: dict[str, Any]) -> list[tuple[str, str]]:
    config, training = card.data["config"], card.data["training"]
    counts = cell["images"]
    return [
        ("method", cell["method"]),
        ("backbone", f"{config['backbone']['name']} at {card.size} x {card.size}"),
        ("known anomalies", f"{cell['known']} ({cell['protocol']})"),
        (
            "test images",
            f"{counts['normal']} normal, {counts['anomalous']} anomalous, none of them seen in training",
        ),
        ("held-out normals", str(len(card.calibration["scores"]))),
        ("trained", f"{training['seconds']:.0f} s, {training['steps']} steps on {training['device']}"),
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
    maps: list[FloatArray],
    masks: list[BoolArray | None],
    has_masks: bool,
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
            [maps[i] for i in both] if has_masks else None,
            [masks[i] for i in both] if has_masks else None,
        )
        missed = sum(not results[i].is_anomaly for i in own)
        rows.append(report.ClassRow(defect, len(own), found["image_auroc"], found["pixel_auroc"], found["pro"], missed))
    return rows


def _histograms(
    seen: list[Sample], results: list[Scores], masks: list[BoolArray | None], card: Card
) -> list[report.LevelHistogram]:
    """log p / d of normal features and of those on marked defects (of whole anomalous images without masks)."""
    found = []
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
        both = np.concatenate([*groups, [level["boundary"], level["abnormal_boundary"]]])
        highest = float(both.max())
        lowest = highest - HISTOGRAM_REACH * (highest - level["abnormal_boundary"])  # all beyond is in the first bar
        edges = np.linspace(max(float(np.quantile(both, 0.002)), lowest), highest, 61)
        counts = [np.histogram(np.clip(g, edges[0], edges[-1]), edges)[0].astype(float).tolist() for g in groups]
        found.append(
            report.LevelHistogram(
                title=f"stride {level['stride']}",
                edges=edges.tolist(),
                normal=counts[0],
                anomalous=counts[1],
                normal_boundary=level["boundary"],
                abnormal_boundary=level["abnormal_boundary"],
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
    picture = (images.fit(images.read(sample.path, bits=card.bits), size) * 255).round().astype(np.uint8)
    heat = images.overlay(picture, images.resize_map(result.map, size), card.map_boundary, card.map_centre)
    made = {"picture": _jpeg(picture), "heat": _jpeg(heat)}
    if mask is not None:
        made["truth"] = _jpeg(images.outline(picture, images.resize_mask(mask, size), OUTLINE))
    return made


def _jpeg(picture: npt.NDArray[np.uint8]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()
