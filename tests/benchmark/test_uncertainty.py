from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from bgad.benchmark.uncertainty import HeldOut, auroc_interval, difference_interval, fold_auroc, t_quantile

Sizes = Sequence[tuple[int, int]]  # of each fold: normals, anomalies


def folds(shift: float, sizes: Sizes, seed: int = 3) -> list[HeldOut]:
    """Scores of folds whose models have units of their own; anomalies lie `shift` standard deviations higher."""
    return methods(shift, sizes, seed, count=1)[0]


def methods(shift: float, sizes: Sizes, seed: int, *, count: int = 2, correlation: float = 0.5) -> list[list[HeldOut]]:
    """Scores of equally good methods, which find the same images hard."""
    rng = np.random.default_rng(seed)
    made: list[list[HeldOut]] = [[] for _ in range(count)]
    for number, size in enumerate(sizes):
        shared = [rng.normal(0, 1, images) for images in size]
        for method in made:
            normal, anomalous = (
                math.sqrt(correlation) * common + math.sqrt(1 - correlation) * rng.normal(0, 1, len(common))
                for common in shared
            )
            method.append(HeldOut(100.0 * number + normal, 100.0 * number + shift + anomalous))
    return made


def test_auroc_is_the_mean_of_the_folds_where_they_are_of_one_size() -> None:
    made = folds(1.0, [(20, 4)] * 3)
    each = [roc_auc_score([0] * 20 + [1] * 4, np.concatenate([fold.normal, fold.anomalous])) for fold in made]
    assert fold_auroc(made) == pytest.approx(np.mean(each))


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7, 30, 999])
def test_quantile_of_student(degrees: int) -> None:
    assert t_quantile(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), rel=1e-10)


@pytest.mark.parametrize(
    ("sizes", "shift"),
    [
        ([(20, 1)] * 2, 1.0),
        ([(20, 1)] * 3, 1.987),
        ([(40, 1)] * 5, 2.476),
        ([(20, 2)] * 5, 1.987),
        ([(40, 4)] * 5, 2.476),
        ([(20, 8)] * 5, 1.0),
        ([(5, 20)] * 2, 1.5),
    ],
)
def test_the_interval_of_few_anomalies_holds_the_true_value(sizes: Sizes, shift: float) -> None:
    truth = float(stats.norm.cdf(shift / math.sqrt(2)))
    intervals = [auroc_interval(folds(shift, sizes, seed)) for seed in range(300)]
    held = np.mean([low <= truth <= high for low, high in intervals])
    assert held >= 0.95
    # nor is it too wide to be of use: less than twice as wide as the figures vary
    spread = np.std([fold_auroc(folds(shift, sizes, seed)) for seed in range(300)])
    assert np.mean([high - low for low, high in intervals]) < 2 * (2 * 1.96 * spread)


@pytest.mark.parametrize("sizes", [[(20, 1)] * 2, [(20, 1)] * 3, [(40, 1)] * 5, [(20, 2)] * 5, [(20, 8)] * 5])
def test_equally_good_methods_are_rarely_told_apart(sizes: Sizes) -> None:
    intervals = [difference_interval(*methods(1.0, sizes, seed)) for seed in range(300)]
    apart = np.mean([not low <= 0 <= high for low, high in intervals])
    assert apart <= 0.07  # 5 %, and the noise of 300 trials


def test_a_perfect_score_of_few_anomalies_is_no_certainty() -> None:
    for anomalies in (1, 4):
        perfect = [HeldOut(np.arange(20.0), np.full(anomalies, 99.0))] * 2
        low, high = auroc_interval(perfect)
        assert high == 1
        assert 0.3 < low < (0.7 if anomalies == 1 else 0.9)
        assert auroc_interval([HeldOut(-fold.normal, -fold.anomalous) for fold in perfect]) == pytest.approx(
            (1 - high, 1 - low)
        )


def test_the_variance_of_one_fold_is_that_of_hanley_and_mcneil() -> None:
    """At the limit, the distance is the quantile of the normal distribution times the standard deviation there."""
    made = folds(1.0, [(30, 6)])
    auroc, (low, high) = fold_auroc(made), auroc_interval(made)
    for limit in (low, high):
        one, two = limit / (2 - limit), 2 * limit**2 / (1 + limit)  # two anomalies above a normal, or one above two
        variance = limit * (1 - limit) + 5 * (one - limit**2) + 29 * (two - limit**2)
        assert abs(limit - auroc) == pytest.approx(1.95996 * math.sqrt(variance / 180), rel=1e-5)


def test_a_difference_has_the_variance_of_delong() -> None:
    """One fold: the covariance matrix of the placements of both methods, as DeLong et al. have it."""
    a, b = methods(1.0, [(30, 12)], 5)
    placements = [
        [np.array([np.mean(fold.normal < score) for score in fold.anomalous]) for fold in (a[0], b[0])],
        [np.array([np.mean(fold.anomalous > score) for score in fold.normal]) for fold in (a[0], b[0])],
    ]
    variance = sum(np.array([1, -1]) @ np.cov(group) @ np.array([1, -1]) / len(group[0]) for group in placements)
    low, high = difference_interval(a, b)
    assert (low + high) / 2 == pytest.approx(fold_auroc(a) - fold_auroc(b))
    assert (high - low) / 2 == pytest.approx(stats.t.ppf(0.975, 11) * math.sqrt(variance))


def test_a_difference_is_paired_over_the_images() -> None:
    """Scores that differ by a monotone function order every pair alike; independent methods vary more than similar."""
    made = folds(1.0, [(20, 5), (20, 4)])
    other = [HeldOut(np.exp(fold.normal / 50), np.exp(fold.anomalous / 50)) for fold in made]
    assert difference_interval(made, other) == (0.0, 0.0)
    similar, independent = (
        difference_interval(*methods(1.0, [(40, 10)] * 4, 1, correlation=correlation)) for correlation in (0.9, 0.0)
    )
    assert similar[1] - similar[0] < 0.7 * (independent[1] - independent[0])
