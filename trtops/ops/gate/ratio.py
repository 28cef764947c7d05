"""Decide whether a candidate is slower, from logarithms of ratios of latencies measured in rounds."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from trtops.record import Record

Starts: TypeAlias = tuple[tuple[float, ...], ...]
"""Logarithms of ratios, one row for each start of the processes. One look was taken after each start."""

MIN_STARTS = 3
"""Starts before a decision: fewer do not show whether starts differ."""

_TRIMMED = (0.2, 0.2)
_STARTS_DIFFER = 0.1  # p-value of the F-test below which starts are counted instead of rounds


@dataclass(frozen=True, kw_only=True)
class RatioEstimate(Record):
    """A ratio of latencies with its interval at this look (infinite if unknown), compared with a limit."""

    ratio: float
    low: float
    high: float
    rounds: int
    decision: Literal["below", "above", "open"]  # of the whole interval


def estimate(starts: Starts, limit: float, confidence: float) -> RatioEstimate:
    """Estimate a ratio and compare it with the largest allowed one, with a confidence over all looks together."""
    from scipy import stats

    # Memory layout and thread placement are the same in all rounds of a process, so rounds are not independent. If
    # processes differ by more than their rounds explain, each counts as one value, its median.
    values = [value for start in starts for value in start]
    rounds = len(values)
    if len(starts) > 2:
        with warnings.catch_warnings():  # about starts with equal rounds, whose p-value is 0 or NaN
            warnings.simplefilter("ignore")
            p_value = stats.f_oneway(*starts).pvalue
        if p_value < _STARTS_DIFFER:
            values = [float(np.median(start)) for start in starts]
    # The k-th look that can decide spends 1/(k (k+1)) of the error probability, so that all looks together spend no
    # more than the whole (Bonferroni's inequality). scipy spreads alpha over both ends of its interval.
    looks = max(1, len(starts) - MIN_STARTS + 1)
    alpha = 2 * (1 - confidence) / (looks * (looks + 1))
    # The interval of Tukey and McLaughlin (Sankhya A 25, 1963), which is robust against bursts of other work.
    low, high = map(float, stats.mstats.trimmed_mean_ci(np.array(values), limits=_TRIMMED, alpha=alpha))
    decision: Literal["below", "above", "open"] = "open"
    if len(starts) >= MIN_STARTS:
        decision = "below" if high < math.log(limit) else "above" if low > math.log(limit) else "open"
    return RatioEstimate(
        ratio=math.exp((low + high) / 2),
        low=math.exp(low),
        high=math.exp(min(high, 700.0)),  # the largest power of e that a float holds is 709
        rounds=rounds,
        decision=decision,
    )
