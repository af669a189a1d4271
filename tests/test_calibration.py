from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, binomtest

from bgad.calibration import (
    MARGIN,
    RESOLUTION,
    Calibration,
    binomial_interval,
    effective_rate,
    is_supported,
    normals_needed,
    rank,
    rate_bound,
    rate_table,
    smallest_rate,
)
from bgad.errors import ConfigError


def test_p_value_by_hand() -> None:
    calibration = Calibration((1.0, 2.0, 3.0, 4.0), 0.2)
    assert [calibration.p_value(s) for s in (0.5, 1.0, 2.5, 4.0, 4.5)] == [1.0, 1.0, 0.6, 0.4, 0.2]


@given(
    st.lists(st.floats(-10, 10), min_size=1, max_size=60),
    st.floats(-11, 11),
    st.floats(0.02, 0.99),
)
def test_threshold_and_p_value_say_the_same(scores: list[float], score: float, rate: float) -> None:
    if rate < smallest_rate(len(scores)):
        with pytest.raises(ConfigError, match="held-out normals"):
            Calibration(tuple(scores), rate)
        return
    calibration = Calibration(tuple(scores), rate)
    assert (score > calibration.threshold) == (calibration.p_value(score) <= rate + 1e-12)


def test_promised_rate_holds_over_many_splits() -> None:
    """A good part is rejected at most as often as promised, whatever the distribution: 4,000 random splits."""
    rng = np.random.default_rng(0)
    for rate, n in ((0.01, 99), (0.05, 60), (0.1, 25)):
        pool = rng.gamma(2.0, 1.0, 5_000) + (rng.random(5_000) < 0.03) * 8
        rejected = []
        for _ in range(4_000):
            drawn = rng.choice(pool, n + 1, replace=False)
            rejected.append(drawn[0] > Calibration(tuple(drawn[1:]), rate).threshold)
        promised = np.floor(rate * (n + 1) + 1e-9) / (n + 1)
        error = np.sqrt(promised * (1 - promised) / 4_000)
        assert np.mean(rejected) <= promised + 4 * error
        assert np.mean(rejected) >= promised - 4 * error  # and the threshold is not wasteful


def test_a_biased_calibration_would_be_noticed() -> None:
    """The statistical test has power: scores of training images, which are lower, break the promise."""
    rng = np.random.default_rng(1)
    rejected = [rng.normal() > Calibration(tuple(rng.normal(-0.5, 1, 60)), 0.05).threshold for _ in range(4_000)]
    assert np.mean(rejected) > 0.05 + 4 * np.sqrt(0.05 * 0.95 / 4_000)


@pytest.mark.parametrize(("n", "k"), [(99, 1), (60, 3), (1000, 50), (20_000, 200)])
def test_confidence_bound_is_the_beta_quantile(n: int, k: int) -> None:
    assert rate_bound(n, k, 0.9) == pytest.approx(beta(k, n + 1 - k).ppf(0.9), abs=1e-9)


@pytest.mark.parametrize(("count", "total"), [(0, 1), (1, 1), (0, 30), (6, 30), (30, 30), (1, 822), (148, 822)])
def test_interval_is_that_of_clopper_and_pearson(count: int, total: int) -> None:
    exact = binomtest(count, total).proportion_ci(0.95, "exact")
    assert binomial_interval(count, total) == pytest.approx((exact.low, exact.high), abs=1e-9)


def test_refuses_what_cannot_be_promised() -> None:
    with pytest.raises(ConfigError, match="needs 99 held-out normals, there are 40"):
        Calibration(tuple(range(40)), 0.01)
    for rate in (0.0, 1.0, -0.1, 2.0):
        with pytest.raises(ConfigError, match="between 0 and 1"):
            Calibration((1.0,), rate)
    with pytest.raises(ConfigError, match="at least one"):
        Calibration((), 0.5)


def test_needs_and_defaults() -> None:
    assert [normals_needed(r) for r in (0.5, 0.05, 0.01, 0.001, 0.03)] == [1, 19, 99, 999, 33]
    assert effective_rate(100, None) == 0.05
    assert effective_rate(9, None) == pytest.approx(0.1)
    assert effective_rate(9, 0.3) == 0.3


def test_guarantee_states_rate_count_and_limit() -> None:
    text = Calibration(tuple(range(99)), 0.05).guarantee()
    assert "at most 0.05" in text
    assert "99 held-out" in text
    assert "0.01" in text


def test_rate_table() -> None:
    calibration = Calibration(tuple(float(i) for i in range(1, 20)), 0.05)
    rows = rate_table(calibration, normal=[1.0, 19.5], anomalous=[5.0, 18.5, 30.0, 40.0], rates=[0.01, 0.05, 0.1])
    assert rows[0] == (0.01, None, None, None)
    assert rows[1] == (0.05, 19.0, 0.5, 0.5)
    assert rows[2] == (0.1, 18.0, 0.25, 0.5)
    assert rate_table(calibration, [], [], [0.05]) == [(0.05, 19.0, None, None)]


def test_a_calibration_image_is_never_above_its_own_score_on_another_engine() -> None:
    noise = np.random.default_rng(0)
    scores = noise.normal(3, 0.7, 200)
    calibration = Calibration.from_scores(scores.tolist(), 0.1)
    assert np.all(np.array(calibration.scores) - scores < 2.1 * MARGIN)
    elsewhere = scores + noise.uniform(-1e-5, 1e-5, 200)
    raised = np.array(calibration.scores)
    assert all(calibration.rounded(score) <= raised[i] for i, score in enumerate(elsewhere))
    threshold = calibration.threshold
    assert sum(calibration.rounded(score) > threshold for score in elsewhere) == rank(200, 0.1) - 1


@pytest.mark.parametrize("spread", [0.0, 1e-9, 0.3, 1e6])
def test_rounding_is_far_below_the_spread_and_exact(spread: float) -> None:
    calibration = Calibration((5.0, 5.0 + spread, 5.0 + 2 * spread), 0.5)
    unit = float(np.std(calibration.scores)) or 1.0
    for score in np.random.default_rng(1).normal(5, 3 * unit, 50):
        rounded = calibration.rounded(float(score))
        assert abs(rounded - score) <= 0.5 * RESOLUTION * unit
        assert calibration.rounded(rounded) == rounded


@pytest.mark.parametrize("confidence", [0.64, 0.9, 0.999])
@pytest.mark.parametrize("rate", [0.01, 0.05, 0.3])
@pytest.mark.parametrize("n", [5, 45, 230, 3000])
def test_confident_rank_is_the_largest_whose_bound_is_below_the_rate(n: int, rate: float, confidence: float) -> None:
    bounds = beta.ppf(confidence, np.arange(1, n + 1), n - np.arange(n))
    assert rank(n, rate, confidence) == np.sum(bounds <= rate)
    assert is_supported(n, rate, confidence) == (n >= normals_needed(rate, confidence))
    assert smallest_rate(n, confidence) == pytest.approx(bounds[0])
    assert rank(n, rate, confidence) <= rank(n, rate)  # never a lower threshold than on average
    for k in {1, n // 2 + 1}:  # a bound that is given as the rate gives its own rank
        assert rank(n, rate_bound(n, k, confidence), confidence) == k


def test_a_confident_rate_holds_for_the_set_at_hand_in_as_many_sets_as_promised() -> None:
    rng = np.random.default_rng(0)
    rate, confidence, sets = 0.05, 0.9, 4000
    exceeded = {None: 0, confidence: 0}
    for _ in range(sets):
        scores = tuple(rng.uniform(size=100))  # the true rate above a threshold t is 1 - t
        for asked in exceeded:
            exceeded[asked] += 1 - Calibration(scores, rate, confidence=asked).threshold > rate
    assert exceeded[confidence] / sets <= 1 - confidence
    assert exceeded[None] / sets > 0.3  # without a confidence the average holds, the set at hand often does not


def test_what_a_confidence_promises_and_refuses() -> None:
    calibration = Calibration.from_scores(list(range(100)), 0.05, confidence=0.9)
    assert calibration.guarantee() == (
        "With 0.9 confidence, a good part is rejected with probability at most 0.03834 (asked for: 0.05), if the parts "
        "to come are drawn like the 100 held-out normals and the rate was chosen without their scores; the average "
        "over such sets is 0.0198. The smallest rate that 100 held-out normals can support with this confidence is "
        "0.02276."
    )
    with pytest.raises(ConfigError, match=r"0\.05 with a confidence of 0\.9 needs 45 held-out normals, there are 44: "):
        Calibration(tuple(range(44)), 0.05, confidence=0.9)
    assert Calibration(tuple(range(44)), 0.0510, confidence=0.9).threshold == 43  # the rate that the message names
    with pytest.raises(ConfigError, match=r"a confidence is at least 0\.64 and below 1"):
        Calibration(tuple(range(44)), 0.1, confidence=1.0)
    with pytest.raises(
        ConfigError, match=r"confidence of 0\.99999 needs 17 held-out normals, there are 1: add normals$"
    ):
        Calibration((1.0,), 0.5, confidence=0.99999)
    assert rate_table(calibration, [], [], [0.01, 0.05])[0][1] is None  # 0.01 would need 230 normals
