"""Builds the section of the report from a measurement: facts, curves, histograms, rows and thumbnails."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from bgad import metrics
from bgad.artifact.card import Card
from bgad.calibration import Calibration, rate_table
from bgad.config import LEVELS
from bgad.data.sample_io import read
from bgad.evaluation.gallery import Thumbnail, select, thumbnail
from bgad.evaluation.measure import Measurement, level_values
from bgad.evaluation.report.contents import ClassRow, ImageRow, LevelHistogram, RateRow, Section, worst
from bgad.inference.base import BaseScorer
from bgad.inference.explain import scale_region
from bgad.io import images, render
from bgad.io.masks import resize_mask
from bgad.types import BoolArray, Scores, Shape

RATES = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)  # false-reject rates of the report's table
HISTOGRAM_BINS = 60
HISTOGRAM_REACH = 1.5  # times the distance from the most likely feature to the abnormal boundary
FRAME = (0, 229, 255)  # colour of the frame around the region that stands out
LEGEND_WIDTH = 360
FRAME_MARGIN = 2  # pixels of the thumbnail between region and frame


def build_section(
    scorer: BaseScorer,
    legend: render.Legend,
    measured: Measurement,
    left_out: list[str],
    thumbnails: Mapping[str, Thumbnail],
) -> Section:
    """Return the content of the report about one model on one data set; images without a thumbnail are read again."""
    card, calibration, cell = scorer.card, scorer.calibration, measured.cell
    with_contour = cell["decisions"]["normals_with_contour"]
    warning = cell["decisions"]["warning"]
    scores, labels = [r.score for r in measured.results], [s.label for s in measured.samples]
    roc = metrics.roc_curve(scores, labels)
    pro = measured.observed.pixels.pro_curve
    return Section(
        title=f"{cell['category']} ({cell['method']}, {cell['known']} known anomalies, seed {cell['seed']})",
        facts=_facts(card, cell, len(calibration.scores)),
        metrics=cell["metrics"],
        images=_image_rows(measured, card, legend, thumbnails),
        threshold=calibration.threshold,
        map_threshold=scorer.map_threshold,
        with_contour=(with_contour["count"], with_contour["of"]),
        levels=_histograms(measured, card),
        level_value=LEVELS[card.config.level].value if card.levels else "",
        roc=([], []) if roc is None else _lists(metrics.thin(*roc)),
        pro=None if pro is None else _lists(pro),
        classes=_class_rows(measured),
        rates=_rate_rows(calibration, scores, labels),
        notes=([warning] if warning else []) + left_out + measured.notes,
        guarantee=calibration.guarantee(),
        held_out=len(calibration.scores),
        legend=render.png(render.draw_legend(legend, LEGEND_WIDTH)),
    )


def _lists(curve: tuple[npt.NDArray[Any], npt.NDArray[Any]]) -> tuple[list[float], list[float]]:
    return curve[0].tolist(), curve[1].tolist()


def _facts(card: Card, cell: dict[str, Any], held_out: int) -> list[tuple[str, str]]:
    training, (height, width) = card.training, card.input.shape
    counts = cell["images"]
    return [
        ("method", cell["method"]),
        ("backbone", f"{card.config.backbone.name} at {width} x {height}"),
        ("known anomalies", f"{cell['known']} ({cell['protocol']})"),
        (
            "test images",
            f"{counts['normal']} normal, {counts['anomalous']} anomalous, none of them used in training",
        ),
        ("held-out normals", str(held_out)),
        ("precision", cell["precision"]),
        ("trained", f"{training.seconds:.0f} s, {training.steps} steps on {training.device}"),
    ]


def _rate_rows(calibration: Calibration, scores: list[float], labels: list[int]) -> list[RateRow]:
    normal = [s for s, label in zip(scores, labels, strict=True) if label == 0]
    anomalous = [s for s, label in zip(scores, labels, strict=True) if label == 1]
    rates = sorted({*RATES, calibration.rate})
    return [
        RateRow(rate, math.nan if threshold is None else threshold, missed, rejected, threshold is not None)
        for rate, threshold, missed, rejected in rate_table(calibration, normal, anomalous, rates)
    ]


def _class_rows(measured: Measurement) -> list[ClassRow]:
    """Measure each defect class against all normal images."""
    samples, results = measured.samples, measured.results
    normal = [i for i, s in enumerate(samples) if s.label == 0]
    rows = []
    for defect in sorted({s.defect for s in samples if s.label}):
        members = [i for i, s in enumerate(samples) if s.label and s.defect == defect]
        chosen = normal + members
        figures = metrics.compute(
            [results[i].score for i in chosen],
            [samples[i].label for i in chosen],
            [results[i].map for i in chosen],
            [measured.masks[i] for i in chosen],
            measured.region,
        )
        missed = sum(not results[i].is_anomaly for i in members)
        shown = {name: figures[name] for name in ("image_auroc", "pixel_auroc", "pro")}
        rows.append(ClassRow(defect, len(members), missed=missed, **shown))
    return rows


def _histograms(measured: Measurement, card: Card) -> list[LevelHistogram]:
    """Count log p / d of normal features, and of features on defects (of complete anomalous images without a mask)."""
    if not all(result.levels for result in measured.results):  # a model of tiles gives none
        return []
    histograms = []
    for i, level in enumerate(card.levels):
        groups = level_values(measured.samples, [result.levels[i] for result in measured.results], measured.masks)
        both = np.concatenate([*groups, [level.normal_boundary, level.abnormal_boundary]])
        highest = float(both.max())
        # features below the axis are counted in the first bar
        lowest = highest - HISTOGRAM_REACH * (highest - level.abnormal_boundary)
        edges = np.linspace(max(float(np.quantile(both, 0.002)), lowest), highest, HISTOGRAM_BINS + 1)
        counts = [np.histogram(np.clip(g, edges[0], edges[-1]), edges)[0].astype(float).tolist() for g in groups]
        histograms.append(
            LevelHistogram(
                title=level.title,
                edges=edges.tolist(),
                normal=counts[0],
                anomalous=counts[1],
                normal_boundary=level.normal_boundary,
                abnormal_boundary=level.abnormal_boundary,
            )
        )
    return histograms


def _image_rows(
    measured: Measurement, card: Card, legend: render.Legend, made: Mapping[str, Thumbnail]
) -> list[ImageRow]:
    """Return a row for every image; the worst mistakes and a selection over the classes have thumbnails."""
    samples = measured.samples
    false_rejects, misses = worst([ImageRow(**row) for row in measured.rows])
    shown = select(samples, (row.name for row in [*false_rejects, *misses]))
    rows = []
    measurements = zip(measured.rows, samples, measured.results, measured.masks, measured.shapes, strict=True)
    for row, sample, result, mask, shape in measurements:
        files: dict[str, Any] = {}
        if sample.name in shown:
            small = made.get(sample.name)
            small = thumbnail(read(sample, card.input.bits)) if small is None else small
            frame = _frame(result, shape, (small.shape[0], small.shape[1]))
            files = _thumbnails(small, result, mask, frame, legend)
        rows.append(ImageRow(**row, **files))
    return rows


def _frame(result: Scores, shape: Shape, size: Shape) -> BoolArray | None:
    """Return a mask of the region that stands out in a rejected image, at the size of its thumbnail."""
    region = scale_region(result.region, shape, size)
    if region is None or not result.is_anomaly:
        return None
    left, top, right, bottom = region
    mask = np.zeros(size, np.bool_)
    mask[max(0, top - FRAME_MARGIN) : bottom + FRAME_MARGIN, max(0, left - FRAME_MARGIN) : right + FRAME_MARGIN] = True
    return mask


def _thumbnails(
    small: Thumbnail, result: Scores, mask: BoolArray | None, frame: BoolArray | None, legend: render.Legend
) -> dict[str, bytes]:
    size = (small.shape[0], small.shape[1])
    heat_map = render.overlay(small, images.shrink_map(result.map, size), legend.contour, legend.low)
    heat_map = heat_map if frame is None else render.outline(heat_map, frame, FRAME)
    files = {"thumbnail": _jpeg(small), "heat_map": _jpeg(heat_map)}
    if mask is not None:
        files["mask_outline"] = _jpeg(render.outline(small, resize_mask(mask, size), render.OUTLINE))
    return files


def _jpeg(pixels: npt.NDArray[np.uint8]) -> bytes:
    return render.encode(pixels, "JPEG", quality=85)
