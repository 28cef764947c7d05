"""Tolerances, and the last bit of what is held against them.

The difference of two numbers that are a tolerance apart comes out a bit above it as often as a bit below: 1.1 and 1.0 differ
by 0.10000002 in float32. A millionth of a tolerance is not held against anybody.
"""

from __future__ import annotations

_LAST_BIT = 1e-6


def most(limit: float) -> float:
    """The largest error that keeps a tolerance; 0 has no slack."""
    return limit + abs(limit) * _LAST_BIT
