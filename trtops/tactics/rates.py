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
"""Beta prior of the rate of bad builds among those with a culprit that fails most of the time; reversed, of the rate among those
without it."""
_ALWAYS_PRIOR = (40.0, 0.1)
_ALWAYS = 0.3
"""The same of a culprit that always fails, but for a verdict in some hundreds that is wrong; and its share of the evidence's prior.
A larger share convicts such culprits hardly sooner, and those that need company, or fail only sometimes, some builds later."""


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
        self._mostly = _Tabulated.of(GUILTY_PRIOR, builds)
        self._always = _Tabulated.of(_ALWAYS_PRIOR, builds)
        rate = bad / builds if builds else 0.0
        self.supremum = sum(count * math.log(p) for count, p in ((bad, rate), (builds - bad, 1 - rate)) if count)
        half = log_gammas(0.5, builds)
        self.innocent = float(half[bad] + half[builds - bad] - 2 * half[0] - math.lgamma(builds + 1))

    def __call__(self, size: Ints | np.int64, hits: Ints | np.int64) -> Floats:
        """For hypotheses that expect ``size`` builds to be bad, of which ``hits`` are; arrays of any shape, elementwise."""
        return self._mostly(size, hits, self.builds - size, self.bad - hits)

    def for_evidence(self, size: Ints | np.int64, hits: Ints | np.int64, mostly: Floats | None = None) -> Floats:
        """The same for evidence: a part of the prior is for rates of nearly one and nearly none, for which fewer builds suffice.

        A tactic that rounds wrongly does so in each build. Probabilities do without that part: where verdicts are wrong here and
        there, it makes innocence seem probable too soon, while evidence only takes longer.

        Args:
            size: As above.
            hits: As above.
            mostly: What the above gives, if it is known.
        """
        mostly = self(size, hits) if mostly is None else mostly
        always = self._always(size, hits, self.builds - size, self.bad - hits)
        result: Floats = np.logaddexp(math.log(_ALWAYS) + always, math.log(1 - _ALWAYS) + mostly)
        return result


@dataclass(frozen=True)
class _Tabulated:
    """Gamma functions of a Beta prior's parameters plus each integer that is needed, for builds with the culprit and without."""

    fails: Floats
    passes: Floats
    both: Floats
    norm: float

    @classmethod
    def of(cls, prior: tuple[float, float], builds: int) -> _Tabulated:
        fails, passes, both = (log_gammas(x, builds) for x in (*prior, sum(prior)))
        return cls(fails, passes, both, 2 * float(both[0] - fails[0] - passes[0]))

    def __call__(
        self, size: Ints | np.int64, hits: Ints | np.int64, outside: Ints | np.int64, misses: Ints | np.int64
    ) -> Floats:
        inside = self.fails[hits] + self.passes[size - hits] - self.both[size]
        rest = self.passes[misses] + self.fails[outside - misses] - self.both[outside]
        logs: Floats = inside + rest + self.norm
        return logs


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
