"""Numpy operations that several packages share."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def top_mean(rows: npt.NDArray[np.floating[Any]], count: int) -> npt.NDArray[np.floating[Any]]:
    """Return the mean of the `count` highest values of each row, (n, P) -> (n,).

    >>> top_mean(np.array([[1.0, 4.0, 2.0], [0.0, 0.0, 6.0]]), 2)
    array([3., 3.])
    """
    means: npt.NDArray[np.floating[Any]] = np.partition(rows, -count, axis=1)[:, -count:].mean(axis=1)
    return means
