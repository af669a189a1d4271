from __future__ import annotations

import numpy as np
import pytest

from bgad.model.boundary import RunningBoundary, abnormal_boundary, normal_boundary


def test_percentile_over_the_set() -> None:
    values = np.random.default_rng(0).normal(size=10_001)
    for beta in (0.01, 0.05, 0.1):
        assert normal_boundary(values, beta) == pytest.approx(np.sort(values)[round(beta * 10_000)])
        assert np.mean(values < normal_boundary(values, beta)) == pytest.approx(beta, abs=1e-3)


def test_margin() -> None:
    assert abnormal_boundary(-0.3, 0.1) == pytest.approx(-0.4)


def test_running_boundary_starts_with_the_whole_set() -> None:
    values = np.random.default_rng(1).normal(size=200_000).astype(np.float32)
    small, large = RunningBoundary(0.01, capacity=300_000), RunningBoundary(0.01, capacity=20_000)
    small.start(values)
    large.start(values)
    assert small.value() == pytest.approx(np.quantile(values, 0.01))
    assert large.value() == pytest.approx(np.quantile(values, 0.01), abs=0.01)  # thinned, same quantiles


def test_running_boundary_follows_the_model() -> None:
    rng = np.random.default_rng(2)
    boundary = RunningBoundary(0.05, capacity=5_000)
    boundary.start(rng.normal(0, 1, 5_000).astype(np.float32))
    before = boundary.value()
    for _ in range(10):
        boundary.update(rng.normal(3, 1, 500).astype(np.float32))
    assert boundary.value() == pytest.approx(before + 3, abs=0.15)  # every old value has been replaced
    boundary.update(np.full(7_000, 9.0, np.float32))  # more than fits
    assert boundary.value() == 9.0


def test_window_before_it_is_full() -> None:
    boundary = RunningBoundary(0.5, capacity=100)
    boundary.update(np.array([1, 2, 3], np.float32))
    assert boundary.value() == 2.0


def test_small_set_then_updates_never_sees_unset_memory() -> None:
    boundary = RunningBoundary(0.01, capacity=1_000)
    boundary.window[:] = np.nan  # what memory holds before it is set
    boundary.start(np.full(300, -0.5, np.float32))
    for _ in range(5):
        boundary.update(np.full(250, -0.4, np.float32))
        assert -0.5 <= boundary.value() <= -0.4
    assert boundary.filled == 1_000
