"""Decide whether a candidate is slower, from ratios of latencies measured in rounds.

A round times both engines twice in the order A B B A (every other round B A A B), so that a drifting clock affects both
alike. Its value is the logarithm of the ratio of the medians. Memory layout and thread placement are the same in all
rounds of a process, so each look uses fresh processes. If these differ by more than their rounds explain, each process
counts as one value, its median.

The confidence interval is that of Tukey and McLaughlin (Sankhya A 25, 1963) for the 20 % trimmed mean, which is robust
against bursts of other work. The k-th look that can decide spends 1/(k (k+1)) of the error probability, so that all
looks together spend no more than the whole (Bonferroni's inequality).
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from trtops.record import Record

Decision: TypeAlias = Literal["below", "above", "open"]
Starts: TypeAlias = tuple[tuple[float, ...], ...]
"""Logarithms of ratios, one row for each start of the processes."""

MIN_STARTS = 3
"""Starts before a decision: fewer do not show whether starts differ."""

_TRIMMED = 0.2
_STARTS_DIFFER = 0.1  # p-value of the F-test below which starts are counted instead of rounds
_MAX_ROUNDS = 100_000


@dataclass(frozen=True, kw_only=True)
class RatioEstimate(Record):
    """A ratio of latencies, compared with a limit.

    Attributes:
        low: Lower end of its interval at this look; 0 if unknown.
        high: Upper end; infinite if unknown.
        decision: ``below`` or ``above`` if the whole interval is on that side of the limit; ``open`` otherwise.
        more_rounds: Estimated number of further rounds that decide; None if decided or too close to the limit.
    """

    ratio: float
    low: float
    high: float
    rounds: int
    decision: Decision
    more_rounds: int | None = None


def estimate(starts: Starts, limit: float, confidence: float) -> RatioEstimate:
    """Estimate a ratio and compare it with a limit.

    Args:
        starts: Logarithms of the ratios by start; one look was taken after each start.
        limit: The largest allowed ratio.
        confidence: Over all looks together.
    """
    from scipy import stats

    values = [value for start in starts for value in start]
    if len(starts) > 2:
        with warnings.catch_warnings():  # about starts with equal rounds, whose p-value is 0 or NaN
            warnings.simplefilter("ignore")
            p_value = stats.f_oneway(*starts).pvalue
        if p_value < _STARTS_DIFFER:
            values = [float(np.median(start)) for start in starts]
    ordered = np.sort(np.asarray(values, np.float64))
    cut = int(_TRIMMED * len(ordered))
    kept = ordered[cut : len(ordered) - cut]
    mean, error, freedom = float(kept.mean()), math.inf, 1
    if len(kept) > 1:
        winsorized = np.clip(ordered, kept[0], kept[-1])
        share = len(kept) / len(ordered)
        error = float(winsorized.std(ddof=1)) / (share * math.sqrt(len(ordered)))
        freedom = len(kept) - 1

    def quantile(looks: float, freedom: float) -> float:
        deciding = max(1.0, looks - MIN_STARTS + 1)
        return float(stats.t.ppf(1 - (1 - confidence) / (deciding * (deciding + 1)), freedom))

    half = quantile(len(starts), freedom) * error
    low, high, bound = mean - half, mean + half, math.log(limit)
    decision: Decision = "below" if high < bound else "above" if low > bound else "open"
    rounds, more = sum(map(len, starts)), None
    if len(starts) < MIN_STARTS:
        decision = "open"
    if decision == "open" and math.isinf(error):
        more = rounds
    elif decision == "open" and mean != bound:
        # The width falls as 1/sqrt(rounds), and the number of looks grows with the rounds. The result is doubled,
        # because distance and spread are estimates: otherwise it would be too small half of the time.
        wanted = float(rounds)
        for _ in range(4):
            looks = max(1.0, wanted / rounds * len(starts))
            t = quantile(looks, max(2.0, wanted * (1 - 2 * _TRIMMED)))
            wanted = min(2.0 * rounds * (t * error / abs(mean - bound)) ** 2, 2.0 * _MAX_ROUNDS)
        more = None if wanted > _MAX_ROUNDS else max(1, math.ceil(wanted) - rounds)
    return RatioEstimate(
        ratio=math.exp(mean),
        low=math.exp(low),
        high=math.exp(high) if high < 700 else math.inf,
        rounds=rounds,
        decision=decision,
        more_rounds=more,
    )
