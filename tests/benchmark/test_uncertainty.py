from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from bgad.benchmark import uncertainty
from bgad.benchmark.uncertainty import HeldOut, bootstrap, fold_auroc, interval


def folds(shift: float, sizes: list[tuple[int, int]], seed: int = 3) -> list[HeldOut]:
    """Scores of folds whose models have units of their own; anomalies lie `shift` standard deviations higher."""
    rng = np.random.default_rng(seed)
    made = []
    for number, (normal, anomalous) in enumerate(sizes):
        scores = rng.normal(0, 1, normal), rng.normal(shift, 1, anomalous)
        made.append(HeldOut(*(100.0 * number + score for score in scores)))
    return made


def test_auroc_is_the_mean_of_the_folds_where_they_are_of_one_size() -> None:
    made = folds(1.0, [(20, 4)] * 3)
    each = [roc_auc_score([0] * 20 + [1] * 4, np.concatenate([fold.normal, fold.anomalous])) for fold in made]
    assert fold_auroc(made) == pytest.approx(np.mean(each))


def test_replicates_agree_with_a_slow_bootstrap() -> None:
    """Folds of one anomaly each: only a draw over the folds can vary them."""
    made = folds(1.0, [(30, 1)] * 8)
    rng = np.random.default_rng(0)
    slow = []
    for _ in range(2000):
        shares = []
        for fold in (made[i] for i in rng.integers(8, size=8)):
            normal = rng.choice(fold.normal, len(fold.normal))
            shares.append(np.mean(fold.anomalous[0] > normal))
        slow.append(np.mean(shares))
    fast = bootstrap({"a": made})["a"]
    assert fast.mean() == pytest.approx(np.mean(slow), abs=0.01)
    assert fast.std() == pytest.approx(np.std(slow), rel=0.1)
    assert interval(fast) == pytest.approx(np.quantile(slow, [0.025, 0.975]), abs=0.02)


def test_methods_share_the_draws() -> None:
    """Scores that differ by a monotone function have the same AUROC in every replicate."""
    made = folds(1.0, [(20, 5), (20, 4)])
    other = [HeldOut(np.exp(fold.normal / 50), np.exp(fold.anomalous / 50)) for fold in made]
    replicates = bootstrap({"a": made, "b": other})
    np.testing.assert_allclose(replicates["a"], replicates["b"])
    assert bootstrap({"a": made})["a"].tolist() == replicates["a"].tolist()


def test_the_interval_holds_the_true_value_about_as_often_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uncertainty, "REPLICATES", 400)
    truth = 0.7602  # of normals and anomalies one standard deviation apart: the normal distribution at 1 / sqrt(2)
    intervals = [interval(bootstrap({"a": folds(1.0, [(40, 10)] * 4, seed)})["a"]) for seed in range(60)]
    held = sum(low <= truth <= high for low, high in intervals)
    assert 52 <= held <= 60
