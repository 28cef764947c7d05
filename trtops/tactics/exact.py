"""Exact tests of one choice, their correction for many, and the interval of a rate."""

from __future__ import annotations

import math

import numpy as np

from trtops.tactics.features import Floats, Ints


class FisherTest:
    """Fisher's exact test, one-sided, for one campaign: are builds with a choice bad more often than by chance?"""

    def __init__(self, builds: int, bad: int) -> None:
        self.builds, self.bad = builds, bad
        self._factorials = log_gammas(1.0, builds)

    def __call__(self, size: int, hits: int) -> float:
        """Probability that at least ``hits`` of ``size`` builds are bad if chance alone chose which are.

        The upper tail of the hypergeometric distribution.
        """
        if hits <= max(0, size + self.bad - self.builds):
            return 1.0
        hit = np.arange(hits, min(size, self.bad) + 1)
        logs = self._choose(self.bad, hit) + self._choose(self.builds - self.bad, size - hit)
        return float(min(1.0, np.exp(logs - self._choose(self.builds, size)).sum()))

    def _choose(self, n: int, k: int | Ints) -> Floats:
        chosen: Floats = self._factorials[n] - self._factorials[k] - self._factorials[n - k]
        return chosen


def holm(p_values: Floats) -> Floats:
    """Holm's step-down correction (Scandinavian Journal of Statistics, 1979); in the order given."""
    order = np.argsort(p_values)
    stepped = p_values[order] * (len(p_values) - np.arange(len(p_values)))
    corrected = np.empty(len(p_values))
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(stepped))
    return corrected


def wilson(hits: int, size: int, confidence: float) -> tuple[float, float]:
    """Wilson's interval for a rate (Journal of the American Statistical Association, 1927); (0, 1) without data."""
    from statistics import NormalDist

    if not size:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    rate, spread = hits / size, z * z / size
    middle = (rate + spread / 2) / (1 + spread)
    half = math.sqrt(rate * (1 - rate) * spread + spread * spread / 4) / (1 + spread)
    return max(0.0, middle - half) if hits else 0.0, min(1.0, middle + half) if hits < size else 1.0


def log_gammas(start: float, count: int) -> Floats:
    """Logarithms of the gamma function at ``start, start + 1, ... start + count``."""
    return math.lgamma(start) + np.concatenate(([0.0], np.cumsum(np.log(start + np.arange(count)))))
