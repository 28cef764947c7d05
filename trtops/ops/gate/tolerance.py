"""What builds show of all builds of a candidate, where each is either within the limits or not.

``n`` builds without one outside show that a share ``s`` of all builds is within, with confidence ``c``, if
``s**n <= 1 - c`` (Wilks, Annals of Mathematical Statistics 12, 1941): 20 builds show 86 %, 59 builds 95 %.
"""

import math
from typing import Literal, TypeAlias

BuildsDecision: TypeAlias = Literal["accept", "refuse", "open"]

CONFIDENCE = 0.95
"""Confidence of acceptance and of refusal."""
TOLERATED = 0.01
"""Share of all builds outside the limits up to which a refusal is an error."""


def decide_builds(builds: int, made: int, outside: int, unclear: int = 0) -> BuildsDecision:
    """Decide from the builds made so far of a number of builds; to be called after each one.

    Accepted is a candidate without a build outside or unclear. Refused is one with so many outside as 1 % of all builds
    would put among that number by chance in 5 % of gates. Since the number only grows, it counts after each build.
    """
    refused = next((count for count in range(1, builds + 1) if 1 - _at_most(count - 1, builds) <= 1 - CONFIDENCE), None)
    if refused is not None and outside >= refused:
        return "refuse"
    return "accept" if made == builds and not outside + unclear else "open"


def shown_share(made: int, outside: int) -> float:
    """The lower confidence limit of the share of all builds within the limits (Clopper and Pearson)."""
    low, high = 0.0, 1.0  # of the share outside
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _at_most(outside, made, middle) > 1 - CONFIDENCE else (low, middle)
    return 1 - high


def _at_most(count: int, builds: int, share: float = TOLERATED) -> float:
    """The probability of at most this number of builds outside, where a share of all builds is."""
    return math.fsum(math.comb(builds, n) * share**n * (1 - share) ** (builds - n) for n in range(count + 1))
