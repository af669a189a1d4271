"""The explicit boundary of a level: a quantile of the log-likelihoods of its normals. Anomalies have no part in it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bgad.types import FloatArray


def normal_boundary(log_p: npt.NDArray[np.floating], beta: float) -> float:
    """Return b_n, the beta quantile of the normal log-likelihoods, in their units.

    >>> normal_boundary(np.arange(101.0), 0.01)
    1.0
    """
    return float(np.quantile(log_p, beta))


def abnormal_boundary(b_n: float, tau: float) -> float:
    """Return b_a = b_n - tau, in normalised units."""
    return b_n - tau


class RunningBoundary:
    """The boundary of one level during training: the quantile over a window of normal log-likelihoods.

    The window starts with the log-likelihoods of the training normals. Each step then replaces the oldest values by
    those that it computes anyway, so the boundary follows the model at no extra cost.
    """

    def __init__(self, beta: float, capacity: int = 65_536) -> None:
        self.beta = beta
        self.window = np.empty(capacity, np.float32)
        self.filled, self.next = 0, 0

    def start(self, log_p: FloatArray) -> None:
        """Fill the window; beyond its capacity, with evenly spaced order statistics, which have the same quantiles."""
        size = len(self.window)
        if len(log_p) > size:
            order = np.sort(log_p)
            log_p = order[np.linspace(0, len(order) - 1, size).round().astype(np.int64)]
            log_p = np.random.default_rng(0).permutation(log_p)  # else the first updates would replace one tail
        self.filled, self.next = len(log_p), len(log_p) % size
        self.window[: self.filled] = log_p

    def update(self, log_p: FloatArray) -> None:
        """Replace the oldest values by new ones."""
        values = log_p[-len(self.window) :]
        at = (self.next + np.arange(len(values))) % len(self.window)
        self.window[at] = values
        self.next = int((self.next + len(values)) % len(self.window))
        self.filled = min(len(self.window), self.filled + len(values))

    def value(self) -> float:
        """Return the present b_n."""
        return normal_boundary(self.window[: self.filled], self.beta)
