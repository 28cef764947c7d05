"""Tolerances, and the last bit of what is held against them.

The difference of two numbers that are a tolerance apart comes out a bit above it as often as a bit below: 1.1 and 1.0 differ
by 0.10000002 in float32. What is told as the tolerance itself, in the five digits that lines about errors have, keeps it.
"""

from __future__ import annotations

import math

_DIGITS = 5


def most(limit: float) -> float:
    """The largest error that keeps a tolerance; 0 has no slack."""
    if limit == 0 or not math.isfinite(limit):
        return limit
    return limit + 0.5 * 10.0 ** (math.floor(math.log10(abs(limit))) - _DIGITS + 1)
