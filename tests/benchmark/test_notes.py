from __future__ import annotations

from dataclasses import replace

from bgad.benchmark.notes import MAX_NOTES, data_notes
from bgad.benchmark.paper_tables import methods
from bgad.benchmark.plan import Outcome
from tests.benchmark.outcomes import outcome


def test_a_note_appears_once_with_the_categories_it_concerns() -> None:
    (bgad,) = methods("bgad")

    def noted(category: str, case: str, seed: int, *notes: str) -> Outcome:
        return replace(outcome(category, bgad, seed, 0.9, case), notes=notes)

    outcomes = [noted("tile", case, seed, "half of it", "odd") for case in ("oil", "crack") for seed in (0, 1)]
    outcomes += [noted("wood", case, 0, "half of it", f"only {case}") for case in ("hole", "color")]
    assert data_notes(outcomes) == [
        "tile; wood: half of it",
        "tile: odd",
        "wood hole: only hole",
        "wood color: only color",
    ]
    many = data_notes([noted("tile", "", 0, *(f"note {i}" for i in range(100)))])
    assert len(many) == MAX_NOTES + 1
    assert many[-1] == f"tile: {100 - MAX_NOTES} more notes are in the files of its cells"
