"""Notes below a benchmark table: what the figures leave out, and what the cells report about their data."""

from __future__ import annotations

import re
from collections.abc import Sequence

from bgad.benchmark.paper_tables import Matrix
from bgad.benchmark.plan import Outcome
from bgad.data.cross_validation import CROSS_VALIDATION

MAX_NOTES = 8  # on one category; the files of the cells have all of them
# notes that repeat the protocol's definition, and notes that `_fewer_known` summarises
REDUNDANT = re.compile(r"\d+ anomalies have no role: (of|anomaly of) |\d+ known anomalies instead of ")


def table_notes(matrix: Matrix, outcomes: Sequence[Outcome]) -> list[str]:
    """Return the notes on the cells of one table."""
    return _no_pixel_metrics(matrix, outcomes) + _fewer_known(outcomes) + data_notes(outcomes)


def _no_pixel_metrics(matrix: Matrix, outcomes: Sequence[Outcome]) -> list[str]:
    """Name the categories without pixel metrics."""
    if not {"pixel_auroc", "pro"} & set(matrix.metrics):
        return []
    unmasked = dict.fromkeys(
        o.request.category for o in outcomes if o.cell is not None and o.cell["metrics"]["pixel_auroc"] is None
    )
    return [f"- : no pixel metrics for {', '.join(unmasked)}: no masks of the test images"] if unmasked else []


def _fewer_known(outcomes: Sequence[Outcome]) -> list[str]:
    """Name the cells whose class has fewer known anomalies to draw than requested; a fold always holds some out."""
    cells = [
        o.cell
        for o in outcomes
        if o.cell is not None and o.cell["drawn"] < o.cell["known"] and o.request.protocol != CROSS_VALIDATION
    ]
    cases = [c["known_class"] or (f"subset {c['subset']}" if c["subset"] else "") for c in cells]
    counts = [
        " ".join(filter(None, (c["category"], case))) + f": {c['drawn']}" for c, case in zip(cells, cases, strict=True)
    ]
    return [f"fewer known anomalies than requested: {', '.join(dict.fromkeys(counts))}"] if counts else []


def data_notes(outcomes: Sequence[Outcome]) -> list[str]:
    """Return each note of the cells on data and splits once, with the categories or cases that it concerns."""
    noted: dict[str, dict[str, set[str]]] = {}  # note -> category -> cases
    cases: dict[str, set[str]] = {}
    for outcome in outcomes:
        if outcome.cell is None:
            continue
        _, category, case = outcome.request.row
        cases.setdefault(category, set()).add(case)
        for note in outcome.notes:
            if not REDUNDANT.match(note):
                noted.setdefault(note, {}).setdefault(category, set()).add(case)
    by_place: dict[str, list[str]] = {}  # places -> notes
    for note, concerned in noted.items():
        names = [
            category if noted_cases == cases[category] else f"{category} {', '.join(sorted(noted_cases))}"
            for category, noted_cases in concerned.items()
        ]
        by_place.setdefault("; ".join(names), []).append(note)
    lines = []
    for place, notes in by_place.items():
        lines += [f"{place}: {note}" for note in notes[:MAX_NOTES]]
        if len(notes) > MAX_NOTES:
            lines.append(f"{place}: {len(notes) - MAX_NOTES} more notes are in the files of its cells")
    return lines
