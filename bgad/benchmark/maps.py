"""Anomaly maps of some test anomalies, which a cell keeps so that a page can show the methods side by side."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt

from bgad.artifact.card import Card
from bgad.data.sample_io import read
from bgad.evaluation.measure import Measurement
from bgad.io import images, render
from bgad.io.masks import resize_mask
from bgad.types import Sample

SIDE = 160  # pixels of the longer side


def draw_maps(card: Card, measured: Measurement, count: int) -> list[dict[str, Any]]:
    """Return up to `count` test anomalies as JSON objects: name, class, decision, image and map as JPEG in base64.

    Measurements of the same test images give the same anomalies, whatever the method.
    """
    return [_entry(card, measured, i) for i in selected(measured.samples, count)]


def selected(samples: Sequence[Sample], count: int) -> list[int]:
    """Return the numbers of up to `count` anomalies, with the classes in turn, in the order of their names."""
    classes: dict[str, list[int]] = {}
    for i in sorted(range(len(samples)), key=lambda i: samples[i].name):
        if samples[i].label:
            classes.setdefault(samples[i].defect, []).append(i)
    turns = zip_longest(*(classes[name] for name in sorted(classes)))
    return [i for turn in turns for i in turn if i is not None][:count]


def _entry(card: Card, measured: Measurement, number: int) -> dict[str, Any]:
    sample, result, mask = measured.samples[number], measured.results[number], measured.masks[number]
    image = read(sample, card.input.bits)
    size = images.fit_shape(image.shape[:2], SIDE)
    small = (images.fit(image, size) * 255).round().astype(np.uint8)
    heat_map = render.overlay(small, images.shrink_map(result.map, size), result.map_threshold, card.map.mean)
    marked = small if mask is None else render.outline(small, resize_mask(mask, size), render.OUTLINE)
    return {
        "name": sample.name,
        "defect": sample.defect,
        "score": result.score,
        "p_value": result.p_value,
        "is_anomaly": result.is_anomaly,
        "image": _base64(marked),
        "map": _base64(heat_map),
    }


def _base64(pixels: npt.NDArray[np.uint8]) -> str:
    return base64.b64encode(render.encode(pixels, "JPEG", quality=85)).decode("ascii")
