"""When ratios of latencies and shares of builds are decided: rarely wrongly, and after how many looks."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trtops import errors
from trtops.ops.gate.ratio import RatioEstimate, estimate
from trtops.ops.gate.tolerance import BuildShare, ShareEstimate, decide_share, estimate_share


def look_until_decided(
    random: np.random.Generator,
    ratio: float,
    noise: float,
    *,
    starts: float = 0.0,
    bursts: float = 0.0,
    limit: float = 1.05,
    confidence: float = 0.99,
) -> RatioEstimate:
    """What the gate does, with random rounds: 6 a start, 96 at most."""
    seen: list[tuple[float, ...]] = []
    while True:
        rounds = math.log(ratio) + random.normal(0, starts) + random.normal(0, noise, 6)
        rounds += (random.random(6) < bursts) * random.normal(0, 0.5, 6)
        seen.append(tuple(rounds))
        found = estimate(tuple(seen), limit, confidence)
        if found.decision != "open" or found.rounds >= 96:
            return found


@pytest.mark.parametrize(
    ("noise", "starts", "bursts"),
    [(0.03, 0.0, 0.0), (0.06, 0.0, 0.0), (0.03, 0.02, 0.0), (0.05, 0.01, 0.1)],
    ids=["quiet", "noisy", "starts differ", "bursts of other work"],
)
def test_unchanged_pairs_are_never_refused(noise, starts, bursts) -> None:
    random = np.random.default_rng(1)

    found = [look_until_decided(random, 1.0, noise, starts=starts, bursts=bursts).decision for _ in range(100)]

    assert found.count("above") == 0
    assert found.count("below") > 0


@pytest.mark.parametrize(("ratio", "expected"), [(1.2, "above"), (1.3, "above"), (0.9, "below")])
def test_clear_differences_need_few_rounds(ratio, expected) -> None:
    random = np.random.default_rng(2)

    found = [look_until_decided(random, ratio, 0.05, bursts=0.05) for _ in range(50)]

    assert [each.decision for each in found].count(expected) == 50
    assert np.mean([each.rounds for each in found]) < 30


@pytest.mark.parametrize(("seed", "confidence", "open_share"), [(3, 0.99, 0.97), (5, 0.8, 0.7)])
def test_error_probability_holds_over_all_looks(seed, confidence, open_share) -> None:
    """A quantile that ignores earlier looks decides about half of the pairs wrongly at a confidence of 0.8."""
    random = np.random.default_rng(seed)

    found = [look_until_decided(random, 1.05, 0.03, confidence=confidence).decision for _ in range(150)]

    assert found.count("open") / len(found) >= open_share  # the confidence, less the chance of 150 pairs


def test_differing_starts_are_counted_instead_of_rounds() -> None:
    rounds = (0.0, 0.002, -0.002, 0.001, -0.001, 0.0, 0.001, -0.001)
    apart = tuple(tuple(value + shift for value in rounds) for shift in (0.0, 0.03, -0.025, 0.02))
    together = tuple(rounds for _ in range(4))

    assert estimate(together, 1.05, 0.99).decision == "below"
    assert estimate(apart, 1.05, 0.99).decision == "open"


def test_three_equal_starts_decide_and_two_do_not() -> None:
    assert estimate(((0.0,) * 8,) * 3, 1.05, 0.99).decision == "below"
    assert estimate(((0.1,) * 8,) * 3, 1.05, 0.99).decision == "above"
    assert estimate(((0.3,) * 8,) * 2, 1.05, 0.99).decision == "open"
    assert estimate(((0.3,) * 8, (0.0,) * 8, (0.001,) * 8), 1.05, 0.99).decision == "open"


def build_until_decided(random: np.random.Generator, wanted: BuildShare, outside: float) -> ShareEstimate:
    """What the gate on builds does, where a share of all builds is outside the limits."""
    found = 0
    for builds in range(1, wanted.builds + 1):
        found += random.random() < outside
        if decide_share(wanted, builds, found) != "open":
            break
    return estimate_share(wanted, builds, found)


@pytest.mark.parametrize("builds", [20, 60, 200])
def test_wrong_decisions_on_builds_are_rare(builds) -> None:
    """Four of a hundred more than the stated five are what chance allows 200 gates."""
    random, wanted = np.random.default_rng(builds), BuildShare(builds=builds, share=0.86 if builds == 20 else 0.95)

    at_the_limit = [build_until_decided(random, wanted, 1 - wanted.required) for _ in range(200)]
    tolerated = [build_until_decided(random, wanted, wanted.tolerated) for _ in range(200)]
    planted = [build_until_decided(random, wanted, 0.1).decision for _ in range(100)]
    sound = build_until_decided(random, wanted, 0.0)

    assert sum(each.decision == "accept" for each in at_the_limit) <= 0.09 * 200
    assert sum(each.low > wanted.required for each in at_the_limit) <= 0.09 * 200
    assert sum(each.decision == "refuse" for each in tolerated) <= 0.09 * 200
    assert planted.count("refuse") >= (50 if builds == 20 else 90)
    assert sound.decision == "accept" and sound.builds == (20 if builds == 20 else 59)


def test_few_builds_show_less() -> None:
    assert BuildShare(builds=20).required == pytest.approx(0.861, abs=1e-3)
    assert estimate_share(BuildShare(builds=20), 20, 0).low == pytest.approx(0.861, abs=1e-3)
    assert estimate_share(BuildShare(builds=20), 20, 0, 1).decision == "open"  # an unclear build shows nothing
    assert estimate_share(BuildShare(builds=20), 2, 0, 2).decision == "open"
    assert estimate_share(BuildShare(builds=20), 2, 2).decision == "refuse"
    with pytest.raises(errors.ConfigError, match="58 builds can show"):
        BuildShare(builds=58, share=0.95)
    with pytest.raises(errors.ConfigError, match="tolerated is 0"):
        BuildShare(builds=59, share=0.95, tolerated=0.2)
