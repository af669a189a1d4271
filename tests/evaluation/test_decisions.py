from __future__ import annotations

import pytest

from bgad.calibration import Calibration
from bgad.evaluation.decisions import contradiction, decisions


def calibration(n: int, rate: float = 0.05) -> Calibration:
    return Calibration(tuple(float(i) for i in range(n)), rate)


def test_false_rejects_and_misses_with_intervals() -> None:
    decided = [(0, True)] * 6 + [(0, False)] * 24 + [(1, True)] * 11 + [(1, False)]
    counted = decisions(calibration(99), decided)
    assert (counted["false_reject_rate"], counted["threshold"]) == (0.05, 94.0)
    rejects, misses = counted["false_rejects"], counted["misses"]
    assert (rejects["count"], rejects["of"], rejects["rate"]) == (6, 30, 0.2)
    assert rejects["interval"] == pytest.approx([0.0771, 0.3857], abs=1e-4)  # Clopper and Pearson's tables
    assert (misses["count"], misses["of"]) == (1, 12)
    assert misses["interval"] == pytest.approx([0.0021, 0.3848], abs=1e-4)
    assert "6 of 30 normals are rejected" in counted["warning"]


def test_no_images_have_no_rate() -> None:
    counted = decisions(calibration(99), [(1, True)])
    assert counted["false_rejects"] == {"count": 0, "of": 0, "rate": None, "interval": None}
    assert counted["misses"]["interval"] == pytest.approx([0, 0.975])
    assert counted["warning"] is None


@pytest.mark.parametrize(
    ("false_rejects", "normals", "said"),
    [
        (0, 30, ""),
        (3, 30, ""),  # 10 %, but 3 of 30 happen by chance at 5 %
        (8, 100, ""),
        (11, 100, "19 calibration normals only bound the rate of one model to 11.4 % (90% confidence)"),
        (40, 100, "they differ from the calibration normals"),
    ],
)
def test_a_contradiction_names_its_cause(false_rejects: int, normals: int, said: str) -> None:
    text = contradiction(calibration(19), false_rejects, normals)
    if not said:
        assert text is None
        return
    assert text is not None
    assert f"{false_rejects} of {normals} normals are rejected, more than the false-reject rate of 5 % allows" in text
    assert said in text
    assert "train" in text
