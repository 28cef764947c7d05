"""A sequential tolerance limit: the share of all builds within the limits, from the builds made so far.

Distribution-free: a build is either within the limits or not, so only the number of builds outside counts. Without one
outside, ``n`` builds show a share ``s`` with confidence ``c`` if ``s**n <= 1 - c`` (Wilks, Annals of Mathematical
Statistics 12, 1941): 95 % of builds with confidence 95 % take 59 builds, and 20 builds show 86 %.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from trtops import errors
from trtops.record import Record

ShareDecision: TypeAlias = Literal["accept", "refuse", "open"]
Numbers: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class BuildShare(Record):
    """What a gate on builds has to show.

    Attributes:
        builds: Maximum number of builds of the candidate; with 1, the gate is on one engine.
        share: Share of all builds that must be within the limits; by default the largest that this number of builds can
            show (20 builds: 0.86, 59 builds: 0.95).
        share_confidence: Confidence of acceptance and of refusal, over all looks at the builds.
        tolerated: Share of builds outside the limits up to which a refusal is an error. Between it and ``1 - share``,
            the decision may be either, or open.
    """

    builds: int = 1
    share: float | None = None
    share_confidence: float = 0.95
    tolerated: float = 0.01

    def __post_init__(self) -> None:
        if self.builds < 1 or not 0.5 <= self.share_confidence < 1:
            raise errors.ConfigError(
                f"builds is {self.builds} and share_confidence {self.share_confidence}; expected 1 or more builds, and "
                "a confidence of 0.5 or more, and less than 1."
            )
        largest = self.error ** (1 / self.builds)
        if self.builds > 1 and self.required > largest * (1 + 1e-9):
            raise errors.ConfigError(
                f"{self.builds} builds can show that a share of {largest:.3g} is within the limits, with confidence "
                f"{self.share_confidence:g}, and not {self.share:g}. Raise builds, or lower share or share_confidence."
            )
        if self.builds > 1 and not 0 < self.tolerated <= 1 - self.required:
            raise errors.ConfigError(
                f"tolerated is {self.tolerated:g}; expected more than 0, up to {1 - self.required:.3g} (1 - share)."
            )

    @property
    def error(self) -> float:
        """The probability of a wrong acceptance, and that of a wrong refusal."""
        return 1 - self.share_confidence

    @property
    def required(self) -> float:
        """The share to show."""
        return self.error ** (1 / self.builds) if self.share is None else self.share


@dataclass(frozen=True, kw_only=True)
class ShareEstimate(Record):
    """Builds so far, and the largest share that they show to be within the limits."""

    builds: int
    outside: int
    unclear: int  # neither known to be within the limits, nor outside
    low: float  # lower confidence limit of the share within the limits
    decision: ShareDecision


def decide_share(wanted: BuildShare, builds: int, outside: int, unclear: int = 0) -> ShareDecision:
    """Decide from the builds so far; to be called after each build, until it decides.

    An unclear build counts as outside for acceptance, and as within for refusal.
    """
    accepts, refuses = _bounds(wanted)
    if outside >= refuses.get(builds, builds + 1):
        return "refuse"
    return "accept" if outside + unclear <= accepts.get(builds, -1) else "open"


def estimate_share(wanted: BuildShare, builds: int, outside: int, unclear: int = 0) -> ShareEstimate:
    """The decision at the last look, and the share that is shown whatever the decision is."""
    from scipy.optimize import brentq

    (accepts, _), worst = _bounds(wanted), outside + unclear
    # Exact for a sequential test: the share outside at which an outcome at least as good as this one has the
    # probability of the error. Better are an earlier acceptance, and fewer builds outside at this look (stage-wise
    # ordering; Jennison and Turnbull, Group Sequential Methods, 2000, chapter 8). Refusals before are left out, which
    # makes the limit smaller.
    low = 0.0
    if 0 < builds > worst:
        low = 1 - brentq(lambda p: _chance(p, accepts, builds, worst) - wanted.error, 0.0, 1.0)
    decision = decide_share(wanted, builds, outside, unclear)
    return ShareEstimate(builds=builds, outside=outside, unclear=unclear, low=low, decision=decision)


@functools.lru_cache(maxsize=8)
def _bounds(wanted: BuildShare) -> tuple[Mapping[int, int], Mapping[int, int]]:
    """By the number of builds: the most outside that accept, and the fewest that refuse.

    Both tests spend their error probability over all looks (Lan and DeMets, Biometrika 70, 1983), with the exact
    distribution of the builds that are left at each look. Acceptance spends it at the first look that it suffices for,
    which takes the fewest builds where none is outside. Refusal spends it evenly over the looks: at once, a single
    build outside would refuse early, and nothing would be left for later.
    """
    accepts: dict[int, int] = {}
    refuses: dict[int, int] = {}
    for p, found, sign in ((1 - wanted.required, accepts, 1), (wanted.tolerated, refuses, -1)):
        left, spent = np.ones(1), 0.0  # probability by the number of builds outside
        for builds in range(1, wanted.builds + 1):
            left = _after_one_more(left, p)
            available = wanted.error * (1 if sign > 0 else builds / wanted.builds) * (1 + 1e-9)
            for outside in np.flatnonzero(left)[::sign]:
                if spent + left[outside] > available:
                    break
                spent += left[outside]
                left[outside] = 0
                found[builds] = int(outside)
    return accepts, refuses


def _chance(p: float, accepts: Mapping[int, int], builds: int, outside: int) -> float:
    """The probability of an acceptance before this look, or of not more builds outside at it."""
    left, better = np.ones(1), 0.0
    for look in range(1, builds + 1):
        left = _after_one_more(left, p)
        if bound := 1 + (outside if look == builds else accepts.get(look, -1)):
            better += left[:bound].sum()
            left[:bound] = 0
    return float(better)


def _after_one_more(left: Numbers, p: float) -> Numbers:
    after: Numbers = np.append(left * (1 - p), 0.0) + np.append(0.0, left * p)
    return after
