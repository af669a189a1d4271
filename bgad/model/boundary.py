"""The explicit boundary: where normal ends, taken from the normal log-likelihoods alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bgad.types import FloatArray

NORMALISER = 10.0  # log-likelihoods per dimension are divided by it before margin, weights and losses


def normal_boundary(log_p: npt.NDArray[np.floating], beta: float) -> float:
    """b_n: the beta quantile of the normal log-likelihoods (same units as they have).

    >>> normal_boundary(np.arange(101.0), 0.01)
    1.0
    """
    return float(np.quantile(log_p, beta))


def abnormal_boundary(b_n: float, tau: float) -> float:
    """b_a = b_n - tau, in normalised units."""
    return b_n - tau


class RunningBoundary:
    """The boundary of one level while the model still moves: the quantile over a window of normal values.

    The window starts with the log-likelihoods of the whole normal set and is then refreshed, oldest first,
    by those that each step computes anyway, so that the boundary follows the model at no extra cost.
    """

    def __init__(self, beta: float, capacity: int = 65_536) -> None:
        self.beta = beta
        self.window = np.empty(capacity, np.float32)
        self.filled, self.next = 0, 0

    def start(self, log_p: FloatArray) -> None:
        """Begin with the whole set; beyond the capacity, with an even pick of its sorted values (same quantiles)."""
        size = len(self.window)
        if len(log_p) > size:
            order = np.sort(log_p)
            log_p = order[np.linspace(0, len(order) - 1, size).round().astype(np.int64)]
            log_p = np.random.default_rng(0).permutation(log_p)  # so that refreshing does not eat one tail first
        self.filled, self.next = len(log_p), len(log_p) % size
        self.window[: self.filled] = log_p

    def update(self, log_p: FloatArray) -> None:
        """Put the newest values in place of the oldest."""
        values = log_p[-len(self.window) :]
        at = (self.next + np.arange(len(values))) % len(self.window)
        self.window[at] = values
        self.next = int((self.next + len(values)) % len(self.window))
        self.filled = min(len(self.window), self.filled + len(values))

    def value(self) -> float:
        """b_n now."""
        return normal_boundary(self.window[: self.filled], self.beta)
