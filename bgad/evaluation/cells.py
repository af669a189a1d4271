"""Result cells: the figures of one model on one data set, as results.json and the tables hold them.

A cell is a JSON object with the keys of KEYS, `metrics`, `seconds` and `images`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from bgad.metrics import METRICS

KEYS = ("data", "category", "protocol", "method", "known", "seed")  # what a cell is about, in the order of tables
METRIC_TITLES = {name: metric.title for name, metric in METRICS.items()}
TIME_TITLES = {"train": "Training", "score": "Scoring"}


def cell_time(cell: Mapping[str, Any], key: str) -> str:
    """Format one of the times of a cell, or a dash where the cell has none."""
    seconds = (cell.get("seconds") or {}).get(key)
    return "–" if seconds is None else f"{seconds:,.0f} s" if seconds >= 100 else f"{seconds:.3g} s"


def mean_cells(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a cell of means for each data set, protocol, method and number of known anomalies with several cells."""
    shared = ("data", "protocol", "method", "known")
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for cell in cells:
        groups.setdefault(tuple(str(cell.get(key, "")) for key in shared), []).append(cell)
    return [
        {
            **dict(zip(shared, names, strict=True)),
            "category": f"mean of {len(group)}",
            "metrics": _means(group, "metrics", METRIC_TITLES),
            "seconds": _means(group, "seconds", TIME_TITLES),
        }
        for names, group in groups.items()
        if len(group) > 1
    ]


def _means(group: Sequence[Mapping[str, Any]], part: str, keys: Iterable[str]) -> dict[str, float | None]:
    """Return the mean of each value; None where a cell lacks it, as a mean over fewer cells would not compare."""
    means: dict[str, float | None] = {}
    for key in keys:
        values = [value for cell in group if (value := (cell.get(part) or {}).get(key)) is not None]
        means[key] = fmean(values) if len(values) == len(group) else None
    return means
