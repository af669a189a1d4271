"""Made-up outcomes for the tests of tables and notes."""

from __future__ import annotations

from bgad.benchmark.paper_tables import Column
from bgad.benchmark.plan import Outcome, Request
from bgad.data.protocols import Case


def outcome(category: str, column: Column, seed: int, image: float | None, known_class: str = "") -> Outcome:
    """Return the outcome of a one-class run with this image AUROC."""
    request = Request(0, "mvtec", category, "one-class", Case(known_class), column, 10, seed)
    cell = request.facts() | {
        "metrics": {"image_auroc": image, "pixel_auroc": None},
        "seconds": {"train": 10.0 + seed, "score": 2.0},
        "cost": {"image_ms": 20.0 + seed, "model_mb": 14.0, "fit_mb": None if seed else 300.0},
        "drawn": 10,
    }
    return Outcome(request, cell)
