"""Compares the version before a teaching job with the one after it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bgad.artifact.card import FLOAT32
from bgad.data import layouts
from bgad.errors import BgadError
from bgad.inference import load as loading
from bgad.inference.base import BaseScorer
from bgad.methods import checkpoint
from bgad.metrics import auroc
from bgad.service.scoring.thumbnails import render
from bgad.service.teaching.task import TaskImage
from bgad.types import Sample, Scores

MAX_VALIDATION = 400  # validation images that both versions score


@dataclass(frozen=True)
class _Case:
    """An image that both versions score."""

    name: str
    path: Path
    label: int
    extra: dict[str, Any]  # further fields of its row in the result


class Comparison:
    """Two versions of a model, and where the thumbnails of their validation images go."""

    def __init__(self, old: Path, new: Path, rate: float | None, thumbnails: Path, precision: str = FLOAT32) -> None:
        """Load both versions; `rate` and `precision` are those of the old one.

        The new one has the same rate in its card, and is calibrated for float32 alone.
        """
        self.before, self.after = loading.load_exported(old, precision), loading.load_exported(new, FLOAT32)
        if rate is not None:
            self.before.set_rate(rate)
        self._thumbnails = thumbnails
        thumbnails.mkdir(exist_ok=True)

    def run(
        self, reviewed: Sequence[TaskImage], data: Path | None, progress: Callable[[float], None]
    ) -> dict[str, Any]:
        """Compare both versions on the test images of the split and on all reviewed images.

        `progress` receives the share that is done.
        """
        training_images = self.before.card.used_sha256 | self.after.card.used_sha256
        validation, reason = validation_images(self.after, data)
        tests = [_Case(s.name, s.path, s.label, {"sha256": sha256}) for s, sha256 in validation]
        reviews = [
            _Case(
                row.name,
                Path(row.path),
                int(row.verdict == "bad"),
                {"image": row.image, "taught": row.sha256 in training_images},
            )
            for row in reviewed
        ]
        scored = itertools.count(1)

        def on_scored() -> None:
            progress(next(scored) / (len(tests) + len(reviews)))

        return {
            "threshold": {"before": self.before.threshold, "after": self.after.threshold},
            "validation": self._side_by_side(tests, on_scored) | {"reason": reason},
            "reviews": self._side_by_side(reviews, on_scored),
        }

    def _side_by_side(self, cases: Sequence[_Case], on_scored: Callable[[], None]) -> dict[str, Any]:
        """Return AUROC and errors of both versions, and what changed image by image."""
        paths = [case.path for case in cases]
        rows: list[dict[str, Any]] = []
        pairs = zip(self.before.score_stream(paths), self.after.score_stream(paths), strict=True)
        for case, (old, new) in zip(cases, pairs, strict=True):
            if not isinstance(old, BgadError) and not isinstance(new, BgadError):
                self._draw(case, old, new)
                rows.append(self._row(case, old, new))
            on_scored()
        labels = [row["label"] for row in rows]
        return {"images": len(rows), "bad": sum(labels), **_figures(rows, labels), "rows": rows}

    def _row(self, case: _Case, old: Scores, new: Scores) -> dict[str, Any]:
        return {
            "name": case.name,
            "label": case.label,
            **case.extra,
            "before": _describe(old, self.before),
            "after": _describe(new, self.after),
            "change": _change(case.label, old.is_anomaly, new.is_anomaly),
        }

    def _draw(self, case: _Case, old: Scores, new: Scores) -> None:
        """Draw thumbnails of a validation image by both versions, because its file may move."""
        sha256 = case.extra.get("sha256")
        if sha256 is None:
            return
        for side, scores, scorer in (("before", old, self.before), ("after", new, self.after)):
            with suppress(OSError):  # a full disk only costs the comparison its thumbnails
                (self._thumbnails / f"{sha256}.{side}").write_bytes(render(case.path, scores, scorer.card))


def validation_images(model: BaseScorer, data: Path | None) -> tuple[list[tuple[Sample, str]], str]:
    """Return the test images of a model's split with their sha256, or the reason why there are none.

    They are the test images of the old version that were not taught; of very many, always the same ones.
    """
    card = model.card
    tested = {image["name"]: image["sha256"] for image in card.split["images"] if image["role"] == "test"}
    if not tested:
        return [], "No image was kept for tests, or all of these were taught: bgad train --test keeps some."
    origin = checkpoint.recall(card.checksum)
    try:
        dataset = layouts.locate(data) if data else origin.load() if origin else None
    except BgadError as error:
        return [], f"The data set cannot be read: {error}"
    if dataset is None:
        return [], "The data set is not here: bgad serve --data says where it is."
    samples = sorted((s for s in dataset.samples if s.name in tested and s.box is None), key=lambda s: tested[s.name])
    unchanged = [(s, tested[s.name]) for s in samples[:MAX_VALIDATION] if layouts.hash_file(s.path) == tested[s.name]]
    return unchanged, "" if unchanged else "The test images of the data set are not those of the training any more."


def _figures(rows: Sequence[dict[str, Any]], labels: Sequence[int]) -> dict[str, dict[str, Any]]:
    return {
        side: {
            "auroc": auroc([row[side]["score"] for row in rows], labels),
            "missed": sum(row["label"] and not row[side]["is_anomaly"] for row in rows),
            "false_rejects": sum(not row["label"] and row[side]["is_anomaly"] for row in rows),
        }
        for side in ("before", "after")
    }


def _describe(scores: Scores, scorer: BaseScorer) -> dict[str, Any]:
    """Describe a score. Scores of two versions are not comparable; the margin is: the distance from the threshold in
    standard deviations of the version's own calibration scores."""
    spread = float(np.std(scorer.calibration.scores)) or 1.0
    description = {"score": scores.score, "p_value": scores.p_value, "is_anomaly": scores.is_anomaly}
    return description | {"margin": (scores.score - scores.threshold) / spread}


def _change(label: int, before: bool, after: bool) -> str:
    was_right, is_right = before == bool(label), after == bool(label)
    return "same" if was_right == is_right else "better" if is_right else "worse"
