"""Groups of errors, tolerances between them, and effects."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trtops.tactics.sizes import between, error_groups, inside, welch


def spread(seed: int, middle: float, builds: int, width: float = 0.2) -> list[float]:
    return (middle * np.exp(np.random.default_rng(seed).normal(0, width, builds))).tolist()


def test_errors_of_two_sizes_are_two_groups_and_the_tolerance_lies_between_them():
    low, high = spread(1, 4e-7, 15), spread(2, 3e-4, 4)

    groups = error_groups([*high, *low])

    assert [group.builds for group in groups] == [15, 4]
    assert groups[0].high == max(low) and groups[1].low == min(high)
    assert max(low) * 3 < between(groups) < min(high) / 3


@pytest.mark.parametrize("width", [0.0, 0.1, 0.5])
def test_errors_of_one_size_are_one_group_however_they_spread(width):
    found = [len(error_groups(spread(seed, 1e-3, 20, width))) for seed in range(200)]

    assert np.mean(np.array(found) == 1) >= 0.97
    assert between(error_groups(spread(0, 1e-3, 20, 0.0))) is None


def test_exact_infinite_and_missing_errors_have_their_place():
    groups = error_groups([0.0, 0.0, 1e-3, 1.1e-3, 0.9e-3, math.inf, math.nan])

    assert [(group.low, group.builds) for group in groups] == [(0.0, 2), (9e-4, 3), (math.inf, 1)]
    assert error_groups([]) == ()
    assert 0 < between(error_groups([0.0, 0.0, 0.0, 0.1, 0.1, 0.1])) < 0.1


def test_a_tolerance_inside_of_a_group_is_noticed():
    groups = error_groups([8e-7, 9e-7, 1e-6, 3e-4, 3.1e-4])

    assert inside(groups, 9e-7) == groups[0]
    assert inside(groups, 1e-5) is None and inside(groups, 1e-3) is None


def test_the_effect_covers_the_truth_in_95_of_100():
    rng = np.random.default_rng(4)
    covered = 0
    for _ in range(400):
        effect = welch(rng.normal(math.log(300), 0.3, 6).tolist(), rng.normal(0, 0.1, 9).tolist())
        covered += effect.low < 300 < effect.high
    assert 0.92 <= covered / 400 <= 0.98
    assert welch([1.0], [0.0, 0.1]) is None
