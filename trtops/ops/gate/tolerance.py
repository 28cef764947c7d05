"""A sequential tolerance limit: the share of all builds within the limits, from the builds made so far.

Distribution-free: a build is either within the limits or not, so only the number of builds outside counts. Without one
outside, ``n`` builds show a share ``s`` with confidence ``c`` if ``s**n <= 1 - c`` (Wilks, Annals of Mathematical
Statistics 12, 1941): 95 % of builds with confidence 95 % take 59 builds, and 20 builds show 86 %.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from trtops import errors
from trtops.extras import require
from trtops.record import Config, setting

ShareDecision: TypeAlias = Literal["accept", "refuse", "open"]

CONFIDENCE = 0.95
"""Confidence of acceptance and of refusal, over all looks at the builds."""
_ERROR = 1 - CONFIDENCE


@dataclass(frozen=True, kw_only=True)
class BuildShare(Config):
    """What a gate on builds has to show.

    Attributes:
        builds: Maximum number of builds of the candidate; with 1, the gate is on one engine.
        share: Share of all builds that must be within the limits; by default the largest that this number of builds can
            show (20 builds: 0.86, 59 builds: 0.95).
        tolerated: Share of builds outside the limits up to which a refusal is an error. Between it and ``1 - share``,
            the decision may be either, or open.
    """

    builds: int = setting(1, least=1)
    share: float | None = setting(None, most=1)
    tolerated: float = setting(0.01, most=1)

    def __post_init__(self) -> None:
        largest = _ERROR ** (1 / self.builds)
        if self.builds > 1 and not 0 < self.required <= largest * (1 + 1e-9):
            raise errors.ConfigError(
                f"{self.builds} builds can show that a share of {largest:.3g} is within the limits, with confidence "
                f"{CONFIDENCE:g}, and not {self.share:g}. Raise builds, or lower share."
            )
        if self.builds > 1 and not 0 < self.tolerated <= 1 - self.required:
            max_tolerated = f"{1 - self.required:.3g} (1 - share)"
            raise errors.ConfigError(
                f"tolerated is {self.tolerated:g}; expected more than 0, and at most {max_tolerated}."
            )

    @property
    def required(self) -> float:
        """The share to show."""
        return _ERROR ** (1 / self.builds) if self.share is None else self.share


def decide_share(build_share: BuildShare, builds: int, outside: int, unclear: int = 0) -> ShareDecision:
    """Decide from the builds so far; to be called after each build, until it decides.

    An unclear build counts as outside for acceptance, and as within for refusal.
    """
    accepts, refuses = _bounds(build_share)
    if outside >= refuses.get(builds, builds + 1):
        return "refuse"
    return "accept" if outside + unclear <= accepts.get(builds, -1) else "open"


def shown_share(build_share: BuildShare, builds: int, outside: int) -> float:
    """The lower confidence limit of the share within the limits, at the last look of :func:`decide_share`.

    Exact for a sequential test: the share outside at which an outcome at least as good as this one has the probability
    of the error. Better are an earlier acceptance, and fewer builds outside at this look (stage-wise ordering; Jennison
    and Turnbull, Group Sequential Methods, 2000, chapter 8). Leaving out earlier refusals makes the limit smaller.
    """
    require("scipy")
    from scipy.optimize import brentq

    accepts = {**_bounds(build_share)[0], builds: outside}

    def exceeds(p: float) -> float:
        left, better = np.ones(1), 0.0  # the probabilities of builds outside, of those that are not accepted yet
        for look in range(1, builds + 1):
            left, bound = _with_one_more(left, p), 1 + accepts.get(look, -1)
            better, left[:bound] = better + float(left[:bound].sum()), 0
        return better - _ERROR

    return 1 - float(brentq(exceeds, 0.0, 1.0)) if outside < builds else 0.0


@functools.lru_cache(maxsize=8)
def _bounds(build_share: BuildShare) -> tuple[Mapping[int, int], Mapping[int, int]]:
    """By the number of builds: the most outside for acceptance, and the fewest for refusal.

    Both tests spend their error probability over all looks (Lan and DeMets, Biometrika 70, 1983), with the exact
    distribution of the builds that are left at each look. Acceptance spends it at the first look that it suffices for,
    which takes the fewest builds where none is outside. Refusal spends it evenly over the looks: otherwise a single
    build outside would refuse early, and nothing would be left for later.
    """
    bounds: tuple[dict[int, int], dict[int, int]] = ({}, {})
    for side_bounds, p, sign in zip(bounds, (1 - build_share.required, build_share.tolerated), (1, -1)):
        left, spent = np.ones(1), 0.0
        for builds in range(1, build_share.builds + 1):
            left = _with_one_more(left, p)
            available = _ERROR * (1 if sign > 0 else builds / build_share.builds) * (1 + 1e-9)
            for outside in np.flatnonzero(left)[::sign]:
                if spent + left[outside] > available:
                    break
                spent, left[outside], side_bounds[builds] = spent + left[outside], 0, int(outside)
    return bounds


def _with_one_more(left: npt.NDArray[np.float64], p: float) -> npt.NDArray[np.float64]:
    after: npt.NDArray[np.float64] = np.append(left * (1 - p), 0.0) + np.append(0.0, left * p)
    return after
