from __future__ import annotations

import numpy as np
import pytest

from bgad.arrays import top_mean


@pytest.mark.parametrize("count", [1, 3, 7])
def test_top_mean_is_the_mean_of_the_highest_values(count: int) -> None:
    rows = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)
    expected = np.sort(rows, axis=1)[:, 7 - count :].mean(axis=1)
    assert top_mean(rows, count).dtype == np.float32
    np.testing.assert_allclose(top_mean(rows, count), expected, rtol=1e-6)
