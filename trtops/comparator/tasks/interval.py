"""Values of a metric as a function of how often each sample counts, and paired intervals of their difference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from trtops.comparator.arrays import Array
from trtops.extras import require

CONFIDENCE = 0.95
_BLOCK = 1 << 22  # weights in memory at a time


@dataclass(frozen=True)
class Sampled:
    """A metric on samples.

    ``statistic`` maps weights ``(draws, samples)``, how often each sample counts, to values ``(draws,)``. ``values``
    are those of each sample, for a metric that is their mean.
    """

    samples: int
    statistic: Callable[[Array], Array]
    values: Array | None = None
    draws: int = 1000

    @property
    def value(self) -> float:
        """The metric, with every sample once."""
        return float(self.statistic(np.ones((1, self.samples)))[0])


def mean_of(values: Array) -> Sampled:
    """Return a metric that is the mean of a value per sample."""
    values = np.asarray(values, np.float64)
    return Sampled(len(values), lambda weights: weights @ values / weights.sum(axis=1), values)


def from_sums(parts: Array, value: Callable[[Array], Array]) -> Sampled:
    """Return a metric of sums over samples.

    Args:
        parts: Summands of each sample, ``(samples, parts)``.
        value: Maps sums ``(draws, parts)`` to values ``(draws,)``.
    """
    parts = np.asarray(parts, np.float64)
    return Sampled(len(parts), lambda weights: value(weights @ parts))


def ratio(sums: Array) -> Array:
    """Return the ratio of two sums ``(draws, 2)``; 0 where the second is 0."""
    return np.divide(sums[:, 0], sums[:, 1], out=np.zeros(len(sums)), where=sums[:, 1] != 0)


def difference_interval(first: Sampled, second: Sampled) -> tuple[float, float, bool]:
    """Return the interval of ``first - second`` on the same samples, and whether it is exact.

    A share of samples has an exact interval: that of Clopper and Pearson (Biometrika 26, 1934) for the share of samples
    where only the first is right, among those where one of the two is. Other metrics have the percentiles of a paired
    bootstrap (Efron and Tibshirani, 1993). Fewer than two samples have an infinite interval.
    """
    if first.samples < 2:
        return -np.inf, np.inf, False
    if first.values is not None and second.values is not None:
        changes = first.values - second.values
        if not changes.any():
            return 0.0, 0.0, True
        if np.isin((first.values, second.values), (0, 1)).all():
            return *_exact_interval(int((changes > 0).sum()), int((changes < 0).sum()), len(changes)), True
    random = np.random.default_rng(0)
    count, draws = first.samples, min(first.draws, second.draws)
    differences = list[Array]()
    step = max(1, _BLOCK // count)
    for start in range(0, draws, step):
        drawn = random.integers(0, count, (min(step, draws - start), count))
        weights = np.stack([np.bincount(row, minlength=count) for row in drawn]).astype(np.float64)
        differences.append(first.statistic(weights) - second.statistic(weights))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(np.concatenate(differences), (tail, 1 - tail))
    return float(low), float(high), False


def _exact_interval(gained: int, lost: int, samples: int) -> tuple[float, float]:
    require("scipy")
    from scipy import special

    tail, changed = (1 - CONFIDENCE) / 2, gained + lost
    low = float(special.betaincinv(gained, lost + 1, tail)) if gained else 0.0
    high = float(special.betaincinv(gained + 1, lost, 1 - tail)) if lost else 1.0
    return (2 * low - 1) * changed / samples, (2 * high - 1) * changed / samples
