"""How many times larger a choice makes the error of builds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trtops.record import Record

_EXACT = 1e-6  # least spread of errors that are equal to the last bit


@dataclass(frozen=True, kw_only=True)
class Effect(Record):
    """How much larger the error is with a choice.

    Attributes:
        ratio: Geometric mean of the largest absolute error with it, divided by that without.
        low: Lower end of the 95 % interval, by Welch's t on the logarithms.
        high: Its upper end.
    """

    ratio: float
    low: float
    high: float

    def describe(self) -> str:
        """The effect in words."""
        return f"makes max_abs {self.ratio:.3g} times larger (95 %: {self.low:.3g} to {self.high:.3g})"


def effect_of(larger: Sequence[float], smaller: Sequence[float]) -> Effect | None:
    """The ratio of two groups of errors, given as natural logarithms; None if a group has fewer than two."""
    from scipy import stats  # takes half a second to import

    if len(larger) < 2 or len(smaller) < 2:
        return None
    means = [float(np.mean(group)) for group in (larger, smaller)]
    spreads = [max(float(np.std(group, ddof=1)), _EXACT) for group in (larger, smaller)]
    parts = [spread**2 / len(group) for spread, group in zip(spreads, (larger, smaller))]
    freedom = sum(parts) ** 2 / sum(part**2 / (len(g) - 1) for part, g in zip(parts, (larger, smaller)))
    middle, half = means[0] - means[1], float(stats.t.ppf(0.975, freedom)) * math.sqrt(sum(parts))
    # With two builds the interval's end may exceed the largest float.
    low, high = (math.exp(min(end, 700.0)) for end in (middle - half, middle + half))
    return Effect(ratio=math.exp(middle), low=low, high=high)
