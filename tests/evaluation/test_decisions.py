from __future__ import annotations

from typing import Any

import pytest

from bgad.calibration import Calibration
from bgad.evaluation.decisions import contradiction, decisions


def calibration(n: int, rate: float = 0.05) -> Calibration:
    return Calibration(tuple(float(i) for i in range(n)), rate)


def row(label: int, is_anomaly: bool, region: list[int] | None = None) -> dict[str, Any]:
    return {"label": label, "is_anomaly": is_anomaly, "region": region}


def test_false_rejects_and_misses_with_intervals() -> None:
    decided = [row(0, True)] * 6 + [row(0, False)] * 24 + [row(1, True)] * 11 + [row(1, False)]
    counted = decisions(calibration(99), 0.75, decided)
    assert (counted["false_reject_rate"], counted["threshold"], counted["map_threshold"]) == (0.05, 94.0, 0.75)
    rejects, misses = counted["false_rejects"], counted["misses"]
    assert (rejects["count"], rejects["of"], rejects["rate"]) == (6, 30, 0.2)
    assert rejects["interval"] == pytest.approx([0.0771, 0.3857], abs=1e-4)  # Clopper and Pearson's tables
    assert (misses["count"], misses["of"]) == (1, 12)
    assert misses["interval"] == pytest.approx([0.0021, 0.3848], abs=1e-4)
    assert "6 of 30 normals are rejected" in counted["warning"]


def test_contours_of_normals_are_counted_whatever_the_decision() -> None:
    rows = [row(0, False, [1, 2, 3, 4]), row(0, True), row(0, False), row(1, True, [1, 2, 3, 4])]
    contours = decisions(calibration(99), 0.75, rows)["normals_with_contour"]
    assert (contours["count"], contours["of"]) == (1, 3)


def test_no_images_have_no_rate() -> None:
    counted = decisions(calibration(99), 0.75, [row(1, True)])
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
