"""The size of errors: groups, tolerances between them, and effects of choices."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.tactics.synthetic import campaign
from trtops.tactics.diff import diff
from trtops.tactics.error_sizes import (
    SizeFindings,
    compare_sizes,
    effect_of,
    error_groups,
    size_lines,
    tolerance_between,
)
from trtops.tactics.table import CampaignTable, Choice


def spread(seed: int, middle: float, builds: int, width: float = 0.2) -> list[float]:
    return (middle * np.exp(np.random.default_rng(seed).normal(0, width, builds))).tolist()


def test_errors_of_two_sizes_are_two_groups():
    low, high = spread(1, 4e-7, 15), spread(2, 3e-4, 4)

    groups = error_groups([*high, *low])

    assert [group.builds for group in groups] == [15, 4]
    assert groups[0].high == max(low) and groups[1].low == min(high)
    assert max(low) * 3 < tolerance_between(groups) < min(high) / 3


@pytest.mark.parametrize("width", [0.0, 0.1, 0.5])
def test_errors_of_one_size_are_one_group(width):
    found = [len(error_groups(spread(seed, 1e-3, 20, width))) for seed in range(200)]

    assert np.mean(np.array(found) == 1) >= 0.97
    assert tolerance_between(error_groups(spread(0, 1e-3, 20, 0.0))) is None


def test_zero_infinite_and_missing_errors_are_grouped():
    groups = error_groups([0.0, 0.0, 1e-3, 1.1e-3, 0.9e-3, math.inf, math.nan])

    assert [(group.low, group.builds) for group in groups] == [(0.0, 2), (9e-4, 3), (math.inf, 1)]
    assert error_groups([]) == ()
    assert 0 < tolerance_between(error_groups([0.0, 0.0, 0.0, 0.1, 0.1, 0.1])) < 0.1


def test_effect_interval_covers_the_truth():
    rng = np.random.default_rng(4)
    covered = 0
    for _ in range(400):
        effect = effect_of(rng.normal(math.log(300), 0.3, 6).tolist(), rng.normal(0, 0.1, 9).tolist())
        covered += effect.low < 300 < effect.high
    assert 0.92 <= covered / 400 <= 0.98
    assert effect_of([1.0], [0.0, 0.1]) is None


def found_in(codes: np.ndarray, errors: np.ndarray, tolerance: float | None = None) -> SizeFindings | None:
    table = CampaignTable.from_columns(
        names=[f"build-{i}" for i in range(len(codes))],
        verdicts=["good"] * len(codes),
        layers=[f"layer-{i}" for i in range(codes.shape[1])],
        choices=[Choice(tactic=f"tactic-{i}", op="Conv") for i in range(8)],
        codes=codes,
    )
    return compare_sizes(table, dict(zip(table.names, errors.tolist())), diff(table), tolerance=tolerance)


def test_errors_show_culprits_below_the_tolerance():
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 3, (40, 12))
    errors = 4e-7 * np.exp(rng.normal(0, 0.2, 40)) * np.where(codes[:, 5] == 1, 300, 1)

    found = found_in(codes, errors, tolerance=1e-3)

    assert len(found.groups) == 2 and found.groups[0].high < found.tolerance < found.groups[1].low
    assert found.found.conclusion == "confirmed" and "layer-5: tactic-1" in found.found.summary
    first = found.effects[0]
    assert "layer-5: tactic-1" in first.suspect and first.probability > 0.95
    assert 200 < first.effect.low < 300 < first.effect.high
    assert any("would part them" in line for line in size_lines(found))
    assert found_in(codes[:3], errors[:3]) is None


def test_tolerance_inside_a_group_is_reported():
    rng = np.random.default_rng(4)
    found = found_in(rng.integers(0, 3, (30, 8)), 1e-6 * np.exp(rng.normal(0, 0.2, 30)), tolerance=1e-6)

    assert found.inside == found.groups[0] and found.tolerance is None
    assert any("rounding decides" in line for line in size_lines(found))


def test_errors_that_depend_on_no_choice():
    named = 0
    for seed in range(60):
        table = campaign(seed, 30, culprit="none", layers=30).table
        rng = np.random.default_rng(seed)
        errors = np.where(rng.random(30) < 0.3, 1e-1, 1e-4) * np.exp(rng.normal(0, 0.2, 30))
        found = compare_sizes(table, dict(zip(table.names, errors.tolist())), diff(table))
        named += found.found.conclusion in ("confirmed", "narrowed down")
    assert named <= 5
