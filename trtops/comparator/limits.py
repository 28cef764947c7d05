"""The slack of tolerances: an error that prints as the tolerance, in five digits, is within it."""

from __future__ import annotations

import math

# The difference of two numbers that are a tolerance apart is a bit above it as often as a bit below: 1.1 and 1.0 differ
# by 0.10000002 in float32.
_DIGITS = 5


def most(limit: float) -> float:
    """The largest error within a tolerance; a tolerance of 0 has no slack."""
    if limit == 0 or not math.isfinite(limit):
        return limit
    return limit + 0.5 * 10.0 ** (math.floor(math.log10(abs(limit))) - _DIGITS + 1)
