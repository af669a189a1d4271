"""Split conformal prediction: p-values and thresholds from the scores of calibration normals, held out from training.

If the calibration normals and a new normal image come from the same distribution, its p-value is (super-)uniform:
P(p <= rate) <= rate. The guarantee needs no assumption about the model. It is an average over sets of calibration
normals; with a confidence, the threshold is higher and the rate holds for the set at hand with that probability.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from bgad.errors import ConfigError

DEFAULT_RATE = 0.05
CONFIDENCE = 0.9
MIN_CONFIDENCE = 0.64  # below 1 - 1 / e, a rate with a confidence could promise less than one on average
RESOLUTION = 2.0**-20  # of a score, in standard deviations of the calibration scores
MARGIN = 2.0**-14  # likewise: other batches, threads and engines move a score by a few 1e-6


@dataclass(frozen=True)
class Calibration:
    """Scores of the calibration normals and the false-reject rate."""

    scores: tuple[float, ...]
    rate: float
    is_default: bool = False  # nobody asked for the rate; see `effective_rate`
    confidence: float | None = None  # with which the rate holds for these scores; None: on average over such sets

    def __post_init__(self) -> None:
        if not self.scores:
            raise ConfigError("calibration needs at least one held-out normal image")
        require_supported(len(self.scores), self.rate, self.confidence)

    @classmethod
    def from_scores(
        cls, scores: Sequence[float], rate: float, *, is_default: bool = False, confidence: float | None = None
    ) -> Calibration:
        """Calibrate with scores as an engine gives them; each is raised by one to two steps of MARGIN.

        Another engine or batch then never puts a calibration image above its own score, and p-values stay valid.
        """
        step = _step(scores, MARGIN)
        return cls(tuple((math.ceil(score / step) + 1) * step for score in scores), rate, is_default, confidence)

    @cached_property
    def _resolution(self) -> float:
        return _step(self.scores, RESOLUTION)

    def rounded(self, score: float) -> float:
        """Round the score of an image to the resolution: digits below it depend on the machine.

        >>> Calibration((0.0, 1.0, 2.0), 0.5).rounded(1.00000001)
        1.0
        """
        return round(score / self._resolution) * self._resolution

    @cached_property
    def _ascending(self) -> npt.NDArray[np.float64]:
        return np.sort(np.asarray(self.scores, np.float64))

    @property
    def threshold(self) -> float:
        """Score above which an image is called anomalous; without a confidence, its p-value is at most the rate."""
        return self.threshold_at(self.rate)

    def threshold_at(self, rate: float) -> float:
        """Return the threshold of a rate: the k-th highest of the n scores, where k is their `rank`.

        >>> Calibration(tuple(range(1, 100)), 0.05).threshold_at(0.05)
        95.0
        """
        k = require_supported(len(self.scores), rate, self.confidence)
        return float(self._ascending[-k])

    def p_value(self, score: float) -> float:
        """Return the conformal p-value of a score: (1 + calibration normals that score as high) / (n + 1)."""
        n = len(self._ascending)
        at_least = n - int(np.searchsorted(self._ascending, score, side="left"))
        return (1 + at_least) / (n + 1)

    def guarantee(self) -> str:
        """State in words what the threshold guarantees."""
        n = len(self.scores)
        k = rank(n, self.rate, self.confidence)
        bound = rate_bound(n, k, self.confidence or CONFIDENCE)
        source = "default" if self.is_default else "asked for"
        if self.confidence is not None:
            return (
                f"With {self.confidence:.12g} confidence, a good part is rejected with probability at most "
                f"{bound:.4g} ({source}: {self.rate:.4g}), if the parts to come are drawn like the {n} held-out "
                "normals and the rate was chosen without their scores; the average over such sets is "
                f"{k / (n + 1):.4g}. The smallest rate that {n} held-out normals can support with this confidence is "
                f"{smallest_rate(n, self.confidence):.4g}."
            )
        return (
            f"A good part is rejected with probability at most {k / (n + 1):.4g} ({source}: {self.rate:.4g}), "
            f"on average over sets of {n} held-out normals drawn like the parts to come; for the set at hand the "
            f"true rate is below {bound:.3g} with {CONFIDENCE:.0%} confidence. "
            f"The smallest rate that {n} held-out normals can support is {smallest_rate(n):.4g}."
        )


def _step(scores: Sequence[float], share: float) -> float:
    """Return a share of the standard deviation of scores, as a power of two, so that multiples of it are exact."""
    return 2.0 ** math.floor(math.log2((float(np.std(scores)) or 1.0) * share))


def rank(n: int, rate: float, confidence: float | None = None) -> int:
    """Return the rank of the threshold among n scores, counted from the highest; 0 if n is too small for the rate.

    On average over sets of n normals, the rate holds at the rank floor(rate (n + 1)), made safe against rounding of the
    product. With a confidence, the rank is the largest k whose `rate_bound` is at most the rate. The true rate at rank
    k exceeds r with probability P(Binomial(n, r) < k), so that is the largest k with P(Binomial(n, rate) < k) <=
    1 - confidence.

    >>> rank(99, 0.01), rank(98, 0.01), rank(5, 1 - 2**-52)
    (1, 0, 5)
    >>> rank(100, 0.05), rank(100, 0.05, 0.9), rank(44, 0.05, 0.9)
    (5, 2, 0)
    """
    if confidence is None:
        return min(n, math.floor(rate * (n + 1) + 1e-9))
    count = np.arange(n)
    steps = np.log(n - count) - np.log(count + 1) + math.log(rate) - math.log1p(-rate)
    log_probability = n * math.log1p(-rate) + np.concatenate([[0.0], np.cumsum(steps)])
    below = np.cumsum(np.exp(log_probability[:n]))  # P(Binomial(n, rate) < k) for k = 1 to n
    return int(np.sum(below <= (1 - confidence) * (1 + 1e-9)))


def smallest_rate(n: int, confidence: float | None = None) -> float:
    """Return the smallest false-reject rate that n calibration normals support."""
    return 1 / (n + 1) if confidence is None else -math.expm1(math.log1p(-confidence) / n)


def normals_needed(rate: float, confidence: float | None = None) -> int:
    """Return the number of calibration normals that a rate needs.

    It is ceil(1 / rate) - 1, and with a confidence the smallest n with (1 - rate) ** n <= 1 - confidence.

    >>> normals_needed(0.01), normals_needed(0.05), normals_needed(0.05, 0.9)
    (99, 19, 45)
    """
    if confidence is None:
        return math.ceil(1 / rate - 1e-9) - 1
    return math.ceil(math.log1p(-confidence) / math.log1p(-rate) - 1e-9)


def typeable_rate(n: int, confidence: float | None = None) -> float:
    """Return the smallest rate that n normals support, rounded up to four digits, so that it works when typed back."""
    return math.ceil(1e4 * smallest_rate(n, confidence) - 1e-9) / 1e4


def check_confidence(confidence: float) -> None:
    """Raise ConfigError unless the confidence is at least MIN_CONFIDENCE and below 1."""
    if not MIN_CONFIDENCE <= confidence < 1:
        raise ConfigError(f"a confidence is at least {MIN_CONFIDENCE} and below 1, such as 0.9, not {confidence:.12g}")


def check_rate(rate: float) -> None:
    """Raise ConfigError unless the rate lies between 0 and 1."""
    if not 0 < rate < 1:
        raise ConfigError(f"a false-reject rate lies between 0 and 1, such as 0.01, not {rate:g}")


def is_supported(n: int, rate: float, confidence: float | None = None) -> bool:
    """Return whether n calibration normals are enough for a false-reject rate."""
    return rank(n, rate, confidence) >= 1


def require_supported(n: int, rate: float, confidence: float | None = None) -> int:
    """Return the rank of the threshold among n scores; ConfigError when n is too small for the rate."""
    check_rate(rate)
    if confidence is not None:
        check_confidence(confidence)
    k = rank(n, rate, confidence)
    if k < 1:
        possible = typeable_rate(n, confidence)
        raise ConfigError(
            f"{rate_words(rate, confidence)} needs {normals_needed(rate, confidence)} held-out normals, there are {n}: "
            + (f"add normals, or ask for {possible:g} or more" if possible < 1 else "add normals")
        )
    return k


def rate_words(rate: float, confidence: float | None = None) -> str:
    """Name a false-reject rate.

    >>> rate_words(0.05, 0.9)
    'a false-reject rate of 0.05 with a confidence of 0.9'
    """
    return f"a false-reject rate of {rate:g}" + (f" with a confidence of {confidence:.12g}" if confidence else "")


def rate_bound(n: int, k: int, confidence: float = CONFIDENCE) -> float:
    """Return the upper confidence bound on the true false-reject rate at the k-th highest of n scores."""
    return float(rate_bounds(n, [k], confidence)[0])


def rate_bounds(n: int, ranks: Sequence[int], confidence: float = CONFIDENCE) -> npt.NDArray[np.float64]:
    """Return the upper confidence bounds on the true false-reject rate at the k-th highest of n scores, for each k.

    The probability mass above an order statistic of a continuous distribution is Beta(k, n + 1 - k) distributed, so the
    bounds are Beta quantiles. They are computed here because the runtime install has no scipy; the tests compare them
    with scipy. The method is bisection on the binomial tail. By Cantelli's inequality a quantile lies at most `below`
    standard deviations below the mean and 1 / `below` above it, so terms ten deviations further down are left out.

    >>> [f"{bound:.3f}" for bound in rate_bounds(24, [1, 2])]
    ['0.091', '0.153']
    """
    k = np.asarray(ranks, np.float64)
    mean, below = k / (n + 1), math.sqrt((1 - confidence) / confidence)
    deviation = np.sqrt(mean * (1 - mean) / (n + 2))
    low, high = np.maximum(mean - below * deviation, 0), np.minimum(mean + deviation / below, 1)
    terms = min(max(ranks), math.ceil((10 + below) * math.sqrt(n) / 2) + 10)
    successes = (k - 1)[:, None] - np.arange(terms)  # (ranks, terms)
    is_term, successes = successes >= 0, np.maximum(successes, 0)
    log_factorial = np.array([math.lgamma(i + 1) for i in range(n + 1)])  # not the factorial: large n would overflow
    i = successes.astype(np.intp)
    log_choose = log_factorial[n] - log_factorial[i] - log_factorial[n - i]
    for _ in range(60):
        middle = (low + high) / 2
        log_term = log_choose + successes * np.log(middle)[:, None] + (n - successes) * np.log1p(-middle)[:, None]
        # P(Beta(k, n + 1 - k) <= r) = P(Binomial(n, r) >= k)
        reached = 1 - np.sum(np.exp(log_term), axis=1, where=is_term) >= confidence
        low, high = np.where(reached, low, middle), np.where(reached, middle, high)
    return high


def binomial_interval(count: int, total: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the Clopper-Pearson interval of a rate that was measured as `count` of `total`.

    >>> [f"{limit:.3f}" for limit in binomial_interval(6, 30)]
    ['0.077', '0.386']
    """
    tail = (1 - confidence) / 2
    low = rate_bound(total, count, tail) if count else 0.0
    high = rate_bound(total, count + 1, 1 - tail) if count < total else 1.0
    return low, high


def percent(share: float) -> str:
    """Format a share as per cent with three digits at most.

    >>> percent(0.05), percent(1 / 9), percent(0.0005)
    ('5 %', '11.1 %', '0.05 %')
    """
    return f"{100 * share:.3g} %"


def effective_rate(n: int, asked: float | None, confidence: float | None = None) -> float:
    """Return the requested rate, or without one the larger of DEFAULT_RATE and the smallest that n normals support."""
    return asked if asked is not None else max(DEFAULT_RATE, smallest_rate(n, confidence))


def beta_binomial_tail(count: int, total: int, n: int, k: int) -> float:
    """Return the probability that at least `count` of `total` new normals exceed the k-th highest of n scores.

    All normals are drawn from one distribution, so their number is beta-binomial, with parameters k and n + 1 - k.

    >>> round(beta_binomial_tail(1, 1, 19, 1), 6)
    0.05
    """
    a, b = float(k), float(n + 1 - k)
    number = np.arange(total)
    steps = np.log((total - number) / (number + 1)) + np.log((a + number) / (b + total - number - 1))
    none = math.lgamma(b + total) + math.lgamma(a + b) - math.lgamma(a + b + total) - math.lgamma(b)
    log_probability = none + np.concatenate([[0.0], np.cumsum(steps)])  # of 0 to `total` of them
    return float(min(1.0, np.exp(log_probability[count:]).sum()))


def rate_table(
    calibration: Calibration, normal: Sequence[float], anomalous: Sequence[float], rates: Sequence[float]
) -> list[tuple[float, float | None, float | None, float | None]]:
    """Return for each rate: the rate, its threshold, and the miss and false-reject rates measured on test images.

    A value is None where the rate is not supported or where there are no such images.
    """
    rows: list[tuple[float, float | None, float | None, float | None]] = []
    for rate in rates:
        if not is_supported(len(calibration.scores), rate, calibration.confidence):
            rows.append((rate, None, None, None))
            continue
        threshold = calibration.threshold_at(rate)
        missed = float(np.mean(np.asarray(anomalous) <= threshold)) if len(anomalous) else None
        rejected = float(np.mean(np.asarray(normal) > threshold)) if len(normal) else None
        rows.append((rate, threshold, missed, rejected))
    return rows


def odds(p_value: float, held_out: int = 0) -> str:
    """Express a p-value as the share of good parts that score as high; never finer than the calibration normals allow.

    >>> odds(1 / 301), odds(0.8), odds(1 / 25, 24), odds(2 / 25, 24)
    ('1 in 300', 'most', 'none of 24', '1 in 12')
    """
    if held_out and p_value * (held_out + 1) < 1.5:
        return f"none of {held_out}"
    if p_value >= 0.4:
        return "most"
    one_in = 1 / p_value
    rounded = round(one_in, 1 - math.floor(math.log10(one_in))) if one_in >= 100 else round(one_in)
    return f"1 in {rounded:,.0f}"


def p_words(p_value: float, held_out: int = 0) -> str:
    """Express a p-value as a sentence for people.

    >>> p_words(1 / 301)
    '1 in 300 good parts scores this high'
    >>> p_words(1 / 25, 24)
    'scores higher than all 24 good parts it was compared with'
    >>> p_words(0.8)
    'scores like most good parts'
    """
    if not 0 < p_value <= 1:
        return ""
    share = odds(p_value, held_out)
    if share.startswith("none"):
        return f"scores higher than all {held_out} good parts it was compared with"
    return "scores like most good parts" if share == "most" else f"{share} good parts scores this high"
