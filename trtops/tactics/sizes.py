"""The size of errors: groups that they fall into, the tolerance between two groups, and how many times larger a choice makes them.

Numbers in, numbers out. Errors span decades, so everything is done on their logarithms.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trtops.record import Record
from trtops.tactics.noise import student_quantile

_WIDE = math.log(3)
"""The least gap between two groups; and as many times the spread within groups must fit into it (:data:`_SPREADS`)."""
_SPREADS = 4.0
_EXACT = 1e-6
"""Of errors that are equal to the last bit, this is taken for the least spread."""


@dataclass(frozen=True, kw_only=True)
class Effect(Record):
    """How much larger the error is with a choice.

    Attributes:
        ratio: Geometric mean of the largest absolute error with it, divided by that without.
        low: Lower end of the interval of 95 %, by Welch's t on the logarithms (Biometrika, 1947).
        high: Its upper end.
    """

    ratio: float
    low: float
    high: float

    def describe(self) -> str:
        """The effect in words."""
        return f"makes max_abs {self.ratio:.3g} times larger (95 %: {self.low:.3g} to {self.high:.3g})"


def welch(larger: Sequence[float], smaller: Sequence[float]) -> Effect | None:
    """The ratio of two groups of errors, given as natural logarithms; None if one group has fewer than two.

    Errors of one group that are equal to the last bit still get an interval: a spread of 1e-6 is taken for the least.
    """
    if len(larger) < 2 or len(smaller) < 2:
        return None
    means = [float(np.mean(group)) for group in (larger, smaller)]
    parts = [max(float(np.var(group, ddof=1)), _EXACT**2) / len(group) for group in (larger, smaller)]
    freedom = sum(parts) ** 2 / sum(part**2 / (len(g) - 1) for part, g in zip(parts, (larger, smaller)))
    middle, half = means[0] - means[1], student_quantile(0.95, freedom) * math.sqrt(sum(parts))
    # Two builds of spread say so little that the interval's end may be beyond all numbers.
    low, high = (math.exp(min(end, 700.0)) for end in (middle - half, middle + half))
    return Effect(ratio=math.exp(middle), low=low, high=high)


@dataclass(frozen=True, kw_only=True)
class ErrorGroup(Record):
    """Errors of nearly one size.

    Attributes:
        low: The smallest.
        high: The largest.
        builds: How many there are.
    """

    low: float
    high: float
    builds: int

    def describe(self) -> str:
        """The group in words."""
        size = f"{self.low:.3g}" if self.low == self.high else f"{self.low:.3g} to {self.high:.3g}"
        return f"{self.builds} at {size}"


def error_groups(errors: Sequence[float]) -> tuple[ErrorGroup, ...]:
    """The groups that errors fall into, in ascending order; one if they do not.

    Two groups are parted by a gap of a factor of three at least, into which the spread within the groups fits four times.

    Args:
        errors: Not negative; zeros count as a tenth of the smallest other one. Infinite ones are a group of their own, and NaN
            is left out.
    """
    found = sorted(error for error in errors if not math.isnan(error))
    finite = [error for error in found if math.isfinite(error)]
    parts = list(_split_at_gaps(finite)) if finite else []
    if len(finite) < len(found):
        parts.append([math.inf] * (len(found) - len(finite)))
    return tuple(ErrorGroup(low=part[0], high=part[-1], builds=len(part)) for part in parts)


def _split_at_gaps(errors: list[float]) -> list[list[float]]:
    logs = log_errors(errors)
    if len(errors) < 3:
        return [errors]
    gaps = np.diff(logs)
    cut = int(gaps.argmax()) + 1
    halves = logs[:cut], logs[cut:]
    spread = math.sqrt(sum(float(((half - half.mean()) ** 2).sum()) for half in halves) / max(len(errors) - 2, 1))
    if gaps[cut - 1] < max(_WIDE, _SPREADS * spread):
        return [errors]
    return [*_split_at_gaps(errors[:cut]), *_split_at_gaps(errors[cut:])]


def log_errors(errors: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Natural logarithms; zeros count as a tenth of the smallest other error, and infinite ones as ten times the largest."""
    values = np.asarray(errors, np.float64)
    inside = values[(values > 0) & np.isfinite(values)]
    least, most = (float(inside.min()), float(inside.max())) if len(inside) else (1.0, 1.0)
    logs: np.ndarray[tuple[int], np.dtype[np.float64]] = np.log(np.clip(values, least / 10, most * 10))
    return logs


def between(groups: Sequence[ErrorGroup]) -> float | None:
    """The tolerance that parts the two groups with the widest gap: its middle, on a logarithmic scale; None if there is one."""
    gaps = []
    for below, above in itertools.pairwise(groups):
        low = below.high or above.low / 10
        gaps.append((low, above.low if math.isfinite(above.low) else low * 1e6))
    if not gaps:
        return None
    low, high = max(gaps, key=lambda gap: gap[1] / gap[0])
    return math.sqrt(low * high)


def inside(groups: Sequence[ErrorGroup], tolerance: float) -> ErrorGroup | None:
    """The group that a tolerance lies inside of, so that rounding alone decides its builds' verdicts; None if in none."""
    return next((group for group in groups if group.low < tolerance < group.high), None)
