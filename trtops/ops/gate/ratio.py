"""Is a candidate slower? Ratios of latencies by round, looked at again and again until they tell.

A round times both engines twice, in the order A B B A and in every other round B A A B, so that a clock that drifts adds
the same to both. Its number is the logarithm of the ratio of their medians. What differs from process to process (where
memory lies, how threads are placed) is the same in all rounds of one start, so every look is measured by fresh processes,
and where starts differ by more than their rounds explain, the starts are what is counted, each by its median.

The interval is that of Tukey and McLaughlin (Sankhya A 25, 1963) for the mean with a fifth trimmed off each end, which a
burst of other work on the machine cannot carry away. Looking k times would be wrong k times as often, so the k-th
look that can decide spends 1/(k (k+1)) of the error probability: all together, however many there are, spend no more than the whole, whatever
their dependence (Bonferroni's inequality).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from trtops.record import Record
from trtops.tactics.noise import noise, student_quantile

Decision: TypeAlias = Literal["below", "above", "open"]
Starts: TypeAlias = tuple[tuple[float, ...], ...]
"""Logarithms of ratios, one row for each start of the processes."""

_TRIMMED = 0.2
_STARTS_DIFFER = 0.1  # significance of the F-test from which on starts are counted and not rounds
_HOPELESS_ROUNDS = 100_000

FEWEST_STARTS = 3
"""Starts before anything is decided: with fewer it cannot be seen that they differ."""


@dataclass(frozen=True, kw_only=True)
class RatioEstimate(Record):
    """A ratio of latencies, held against a limit.

    Attributes:
        ratio: The estimate.
        low: Lower end of its interval at this look; 0 if nothing can be said.
        high: Upper end; infinite if nothing can be said.
        rounds: Rounds measured.
        looks: Looks taken.
        decision: Whether the whole interval is ``below`` the limit, or ``above`` it; ``open`` otherwise.
        more_rounds: Rounds that are likely to decide it, beside those measured; None if it is decided, or if the ratio is so
            close to the limit that no number of rounds would.
    """

    ratio: float
    low: float
    high: float
    rounds: int
    looks: int
    decision: Decision
    more_rounds: int | None = None


def estimate(starts: Starts, limit: float, confidence: float) -> RatioEstimate:
    """What rounds tell about a ratio so far.

    Args:
        starts: Logarithms of the ratios by start; one look was taken after each.
        limit: The largest allowed ratio.
        confidence: Over all looks together.
    """
    looks = len(starts)
    mean, error, freedom = _mean_and_error(starts)
    half = (
        math.inf
        if not math.isfinite(error)
        else student_quantile(1 - _error_to_spend(looks, confidence), freedom) * error
    )
    low, high = mean - half, mean + half
    bound = math.log(limit)
    decision: Decision = "below" if high < bound else "above" if low > bound else "open"
    if looks < FEWEST_STARTS:
        decision = "open"
    return RatioEstimate(
        ratio=math.exp(mean),
        low=math.exp(low),
        high=math.exp(high) if high < 700 else math.inf,
        rounds=sum(map(len, starts)),
        looks=looks,
        decision=decision,
        more_rounds=_more_rounds(abs(mean - bound), error, starts, confidence) if decision == "open" else None,
    )


def _mean_and_error(starts: Starts) -> tuple[float, float, int]:
    """The mean, its standard error and the degrees of freedom of that."""
    if len(starts) > 2 and noise(starts).p_value < _STARTS_DIFFER:
        return _trimmed_mean([float(np.median(start)) for start in starts])
    return _trimmed_mean([value for start in starts for value in start])


def _trimmed_mean(numbers: Sequence[float]) -> tuple[float, float, int]:
    """The mean with a fifth trimmed off each end, its standard error and the degrees of freedom of that."""
    values = np.sort(np.asarray(numbers, np.float64))
    cut = int(_TRIMMED * len(values))
    kept = values[cut : len(values) - cut]
    if len(kept) < 2:
        return float(values.mean()), math.inf, 1
    winsorized = np.clip(values, kept[0], kept[-1])
    share = len(kept) / len(values)
    return float(kept.mean()), float(winsorized.std(ddof=1)) / (share * math.sqrt(len(values))), len(kept) - 1


def _more_rounds(distance: float, error: float, starts: Starts, confidence: float) -> int | None:
    """How many more rounds are likely to make the interval narrower than the distance to the limit.

    Its width falls as 1/sqrt(rounds), and grows a little with every look at them. The number is doubled: neither the distance
    nor the spread is known well yet, and without that it would be too small half of the time.

    Args:
        distance: From the estimate to the limit.
        error: Standard error of the estimate; infinite if it is not known.
        starts: The rounds so far.
        confidence: Over all looks together.
    """
    rounds = sum(map(len, starts))
    if not math.isfinite(error):
        return rounds
    if distance <= 0:
        return None
    wanted = float(rounds)
    for _ in range(4):  # the number of looks changes the width, which changes the number of rounds
        looks = max(1.0, wanted / rounds * len(starts))
        quantile = student_quantile(1 - _error_to_spend(looks, confidence), max(2.0, wanted * (1 - 2 * _TRIMMED)))
        wanted = 2.0 * rounds * (quantile * error / distance) ** 2
        if wanted > _HOPELESS_ROUNDS:
            return None
    return max(1, math.ceil(wanted) - rounds)


def _error_to_spend(looks: float, confidence: float) -> float:
    """The error probability that the last of some looks spends; those at which nothing is decided spend none."""
    deciding = max(1.0, looks - FEWEST_STARTS + 1)
    return (1 - confidence) / (deciding * (deciding + 1))
