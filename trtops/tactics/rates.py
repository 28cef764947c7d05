"""The probability of verdicts where some builds are expected to be bad and others are not, and where that leads."""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass

import numpy as np

from trtops.tactics.exact import log_gammas
from trtops.tactics.features import Floats, Ints
from trtops.tactics.several import Bools

GUILTY_PRIOR = (3.0, 0.5)
"""Beta prior of the rate of bad builds among those with the culprit; reversed, of the rate among those without."""


class Likelihood:
    """Logarithms of the probability of verdicts, ``bad`` of ``builds`` being bad, under hypotheses that split the builds.

    The probability is that of the sequence of verdicts, with the rates of both parts integrated over their Beta priors: a
    quotient of Beta functions for each part. Gamma functions are tabulated, since every one needed is of an integer plus a
    constant.

    Attributes:
        innocent: The same where no choice is guilty: one rate for all builds, integrated over Jeffreys' prior (1/2, 1/2).
        supremum: The same at the one rate that makes the verdicts most probable: the null that the e-value is against.
    """

    def __init__(self, builds: int, bad: int) -> None:
        self.builds, self.bad = builds, bad
        fails, passes = GUILTY_PRIOR
        self._fails, self._passes, self._both = (log_gammas(x, builds) for x in (fails, passes, fails + passes))
        self._norm = 2 * (self._both[0] - self._fails[0] - self._passes[0])
        rate = bad / builds if builds else 0.0
        self.supremum = sum(count * math.log(p) for count, p in ((bad, rate), (builds - bad, 1 - rate)) if count)
        half = log_gammas(0.5, builds)
        self.innocent = float(half[bad] + half[builds - bad] - 2 * half[0] - math.lgamma(builds + 1))

    def __call__(self, size: Ints | np.int64, hits: Ints | np.int64) -> Floats:
        """For hypotheses that expect ``size`` builds to be bad, of which ``hits`` are; arrays of any shape, elementwise."""
        outside, misses = self.builds - size, self.bad - hits
        inside = self._fails[hits] + self._passes[size - hits] - self._both[size]
        rest = self._passes[misses] + self._fails[outside - misses] - self._both[outside]
        result: Floats = inside + rest + self._norm
        return result


@dataclass(frozen=True)
class Trend:
    """Rates that a campaign is expected to keep: of builds with the culprit, and of bad ones among those with and without it.

    Posterior means rather than shares seen, which after one bad build with the culprit would say that it always fails.
    """

    seen: float
    fails: float
    fails_without: float

    @classmethod
    def of(cls, builds: int, bad: int, size: int, hits: int) -> Trend:
        """From the builds so far: ``size`` have the culprit, ``hits`` of these are bad."""
        fails, passes = GUILTY_PRIOR
        return cls(
            seen=(size + 0.5) / (builds + 1),
            fails=(hits + fails) / (size + fails + passes),
            fails_without=(bad - hits + passes) / (builds - size + fails + passes),
        )

    def log_e_value(self, builds: int, prior: float) -> float:
        """The evidence expected after so many builds for a hypothesis, given the logarithm of its prior."""
        size = round(builds * self.seen)
        hits, misses = round(size * self.fails), round((builds - size) * self.fails_without)
        likelihood = Likelihood(builds, hits + misses)
        return prior + float(likelihood(np.int64(size), np.int64(hits))) - likelihood.supremum

    def builds_until(self, log_e_value: float, prior: float, start: int, limit: int = 1 << 17) -> int | None:
        """Builds in all until the evidence is expected to suffice; None if ``limit`` builds would not."""
        enough = start
        while self.log_e_value(enough, prior) < log_e_value:
            enough *= 2
            if enough > limit:
                return None
        return start + bisect.bisect_left(range(start, enough), log_e_value, key=lambda n: self.log_e_value(n, prior))

    def builds_to_tell_apart(self, best: Bools, rival: Bools, missing: float) -> int | None:
        """Builds until verdicts favour one of two hypotheses enough, if they differ as often as they have so far.

        Each build on which they differ is expected to add the Kullback-Leibler divergence of the two rates to the logarithm of
        the odds.

        Args:
            best: The builds that the better one expects to be bad.
            rival: Those that the other does.
            missing: How much the logarithm of the odds must grow.
        """
        p, q = self.fails, self.fails_without
        gain = float((best & ~rival).mean()) * _kl_divergence(p, q) + float((rival & ~best).mean()) * _kl_divergence(
            q, p
        )
        return max(1, math.ceil(missing / gain)) if gain > 0 else None


def _kl_divergence(p: float, q: float) -> float:
    """Kullback-Leibler divergence of a coin of probability ``q`` from one of ``p``, in nats."""
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
