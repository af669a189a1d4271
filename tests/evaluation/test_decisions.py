from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import betabinom

from bgad.calibration import Calibration, beta_binomial_tail
from bgad.evaluation.decisions import contradiction, decisions


def calibration(n: int, rate: float = 0.05, confidence: float | None = None) -> Calibration:
    return Calibration(tuple(float(i) for i in range(n)), rate, confidence=confidence)


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


def test_a_confidence_that_is_exceeded_by_chance_is_told_from_other_normals() -> None:
    asked = calibration(45, 0.05, 0.9)  # the highest of 45 scores
    by_chance, other = contradiction(asked, 80, 1000), contradiction(asked, 300, 1000)
    assert by_chance is not None
    assert "that rate has a confidence of 0.9, so some models exceed it" in by_chance
    assert other is not None
    assert "they differ from the calibration normals" in other


@pytest.mark.parametrize(("n", "confidence"), [(24, None), (99, None), (45, 0.9)])
def test_normals_of_one_distribution_are_hardly_ever_said_to_differ(n: int, confidence: float | None) -> None:
    rng, models, total = np.random.default_rng(0), 4000, 2000
    asked = calibration(n, 0.05, confidence)
    k = n - int(asked.threshold)  # rank of the threshold
    rates = 1 - np.sort(rng.uniform(size=(models, n)), axis=1)[:, -k]  # true rate above the k-th highest score
    counts = rng.binomial(total, rates)
    distinct, models_with = np.unique(counts, return_counts=True)
    words = [contradiction(asked, int(count), total) or "" for count in distinct]
    assert models_with[["they differ" in text for text in words]].sum() < 0.003 * models
    assert models_with[[bool(text) for text in words]].sum() > 0.02 * models  # but a rate above the promise is told


@pytest.mark.parametrize(
    ("count", "total", "n", "k"), [(0, 5, 19, 1), (3, 30, 19, 1), (11, 100, 99, 5), (100, 100, 9, 9)]
)
def test_tail_of_the_beta_binomial(count: int, total: int, n: int, k: int) -> None:
    expected = betabinom(total, k, n + 1 - k).sf(count - 1)
    assert beta_binomial_tail(count, total, n, k) == pytest.approx(expected, rel=1e-9)
