"""Decide if an engine is slower than another, from logarithms of ratios measured in rounds, by some clocks.

The gate compares a candidate with the accepted engine, and ONNX Runtime's builder compares settings with the defaults.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from trtops.extras import require
from trtops.record import Record

Metric: TypeAlias = Literal["wall", "cpu-time", "instructions"]
"""What of an inference is compared: its latency, the CPU time of all threads, or their instructions."""

Starts: TypeAlias = tuple[tuple[float, ...], ...]
"""Logarithms of ratios, one row for each start of the processes. One look was taken after each start."""

UNDISTURBED = 0.1
"""The quantile of a visit's inferences that counts: on a loaded machine, most of them are interrupted or share their
processor's units with other work, and the spread of the median was 5 to 50 times larger."""

MIN_STARTS = 4
"""Starts before a decision: fewer do not show how much starts differ, unless other engines showed it."""
_LEAST_FREEDOM = 6  # degrees of freedom from which the noise of other engines is used
_LATEST = 8  # engines whose noise counts: it changes with the load of the machine


@dataclass(frozen=True, kw_only=True)
class StartNoise(Record):
    """How much starts of other engines of the same network differ: the variance of logarithms of ratios."""

    variance: float
    freedom: int  # its degrees of freedom

    @classmethod
    def pooled(cls, engines: Sequence[Starts]) -> "StartNoise | None":
        """The variance within the latest of these engines; None if they have too few starts."""
        medians = [[np.median(start) for start in starts] for starts in engines[-_LATEST:] if len(starts) > 1]
        freedom = sum(len(engine_medians) - 1 for engine_medians in medians)
        squares = sum(float(np.var(engine_medians)) * len(engine_medians) for engine_medians in medians)
        return cls(variance=squares / freedom, freedom=freedom) if freedom >= _LEAST_FREEDOM else None


@dataclass(frozen=True, kw_only=True)
class RatioEstimate(Record):
    """A ratio with its interval at this look (infinite if unknown), compared with a limit."""

    ratio: float
    low: float
    high: float
    rounds: int
    noise: float  # standard deviation between starts, of the logarithm and without outliers; infinite if unknown
    decision: Literal["below", "above", "open"]  # of the whole interval
    metric: Metric = "wall"


def estimate(
    starts: Starts, limit: float, confidence: float, *, last: bool = False, start_noise: StartNoise | None = None
) -> RatioEstimate:
    """Estimate a ratio and compare it with the largest allowed one, with a confidence over all looks together.

    ``last`` says that no look follows, which is known from the time spent and not from the ratios. With ``start_noise``
    noise of other engines two starts can decide, unless these differ by more.
    """
    require("scipy")
    from scipy import special

    # Memory layout and thread placement are the same in all rounds of a process, so rounds are not independent: each
    # start counts as one value. The median leaves out rounds in which one of the engines was disturbed.
    values = np.sort([np.median(start) for start in starts])
    count, cut = len(values), len(values) // 8
    # The interval of Tukey and McLaughlin (Sankhya A 25, 1963), which is robust against disturbed starts: of eight or
    # more, the smallest and the largest eighth are replaced by their neighbours.
    middle = float(values[cut : count - cut].mean())
    noise = float(np.clip(values, values[cut], values[-1 - cut]).std(ddof=1)) if count > 1 else math.inf
    freedom, half = count - 2 * cut - 1, math.inf
    looks = count - (2 if start_noise else MIN_STARTS) + 1
    is_known = count >= MIN_STARTS
    if start_noise is not None and 1 < count < 8:
        # Where these starts differ more than those of the others, their own variance counts.
        total = noise**2 * freedom + start_noise.variance * start_noise.freedom
        freedom, is_known = freedom + start_noise.freedom, True
        noise = max(noise, math.sqrt(total / freedom))
    if looks > 0 and is_known:
        # The k-th look that can decide spends half of 1/(k (k+1)) of the error probability, and the last one the other
        # half in addition, so that all looks together spend no more than the whole (Bonferroni's inequality).
        error = (1 - confidence) / 2 * (1 / (looks * (looks + 1)) + last)
        half = special.stdtrit(freedom, 1 - error) * noise / (1 - 2 * cut / count) / math.sqrt(count)
    low, high, bound = middle - half, middle + half, math.log(limit)
    return RatioEstimate(
        ratio=math.exp(middle),
        low=math.exp(low),
        high=math.exp(min(high, 700.0)),  # the largest power of e that a float holds is 709
        rounds=sum(map(len, starts)),
        noise=noise,
        decision="below" if high < bound else "above" if low > bound else "open",
    )


def decide_ratio(
    by_metric: Mapping[Metric, Starts],
    limit: float,
    confidence: float,
    *,
    last: bool = False,
    start_noise: Mapping[Metric, StartNoise] | None = None,
) -> RatioEstimate:
    """Return the deciding estimate among all metrics; the one with the shortest interval if none decides.

    Latency is the claim, so it decides if it can. CPU time hardly depends on other work on the machine, and decides
    where latency is open: it refuses, and it accepts if the estimated latency is within the limit as well, since an
    engine may also get slower by waiting.
    """
    # Each of the metrics may decide wrongly, so they share the error probability.
    shared = 1 - (1 - confidence) / len(by_metric)
    estimates = [
        replace(estimate(starts, limit, shared, last=last, start_noise=(start_noise or {}).get(metric)), metric=metric)
        for metric, starts in by_metric.items()
    ]
    for metric_estimate in estimates:
        if metric_estimate.decision == "above" or (metric_estimate.decision == "below" and estimates[0].ratio <= limit):
            return metric_estimate
    return replace(
        min(estimates, key=lambda metric_estimate: metric_estimate.high / max(metric_estimate.low, 1e-300)),
        decision="open",
    )


def starts_needed(noise: float, change: float, confidence: float) -> int:
    """Return the starts for an 80 % chance to show a change by this factor (above 1), at this noise."""
    require("scipy")
    from scipy import special

    # The usual sample size: the quantiles of the last look's error probability, and of the probability to miss.
    quantiles = special.ndtri(1 - (1 - confidence) / 2) + special.ndtri(0.8)
    return max(MIN_STARTS, math.ceil(float(quantiles * noise / math.log(change)) ** 2))
