"""When a ratio of latencies is decided: rarely wrongly, whatever the rounds look like, and after how many."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trtops.ops.gate.ratio import RatioEstimate, estimate


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
