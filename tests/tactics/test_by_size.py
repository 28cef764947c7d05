"""Errors as numbers: what they say of campaigns whose verdicts say nothing."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tactics.synthetic import campaign
from trtops.tactics.by_size import SizeFindings, by_size, size_lines
from trtops.tactics.diff import diff
from trtops.tactics.table import CampaignTable, Choice


def table_of(codes: np.ndarray, verdicts: list[str]) -> CampaignTable:
    return CampaignTable.from_columns(
        names=[f"build-{i}" for i in range(len(codes))],
        verdicts=verdicts,
        layers=[f"layer-{i}" for i in range(codes.shape[1])],
        choices=[Choice(tactic=f"tactic-{i}", op="Conv") for i in range(8)],
        codes=codes,
    )


def found_in(codes: np.ndarray, errors: np.ndarray, tolerance: float | None = None) -> SizeFindings:
    table = table_of(codes, ["good"] * len(codes))
    sizes = dict(zip(table.names, errors.tolist()))
    found = by_size(table, sizes, diff(table), tolerance=tolerance)
    assert found is not None
    return found


def test_where_the_tolerance_is_too_wide_the_errors_convict_and_say_how_large_the_effect_is():
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 3, (40, 12))
    errors = 4e-7 * np.exp(rng.normal(0, 0.2, 40)) * np.where(codes[:, 5] == 1, 300, 1)

    found = found_in(codes, errors, tolerance=1e-3)

    assert len(found.groups) == 2 and found.groups[0].high < found.tolerance < found.groups[1].low
    assert found.found.conclusion == "convicted" and "layer-5: tactic-1" in found.found.summary
    first = found.effects[0]
    assert "layer-5: tactic-1" in first.suspect and first.guilt > 0.95
    assert first.effect.low < 300 < first.effect.high and first.effect.low > 200
    assert any("would part them" in line for line in size_lines(found))


def test_a_layer_that_decides_by_several_of_its_tactics_is_named_with_them():
    rng = np.random.default_rng(2)
    codes = rng.integers(0, 7, (24, 6))
    errors = np.where(np.isin(codes[:, 2], [1, 4, 6]), 0.3, 1e-3) * np.exp(rng.normal(0, 0.1, 24))

    (layer,) = found_in(codes, errors).layers

    assert layer.layer == "layer-2" and layer.bad == ("tactic-1", "tactic-4", "tactic-6")
    assert layer.p_value < 0.01


def test_contributors_of_a_sum_are_named_with_their_shares():
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 2, (60, 20))
    errors = 1e-4 + 3e-4 * (codes[:, 3] == 1) + 2e-4 * (codes[:, 8] == 1) + 1e-5 * rng.normal(size=60)

    found = found_in(codes, errors)

    assert [c.layer for c in found.contributors] == ["layer-3", "layer-8"]
    assert [abs(c.adds) for c in found.contributors] == pytest.approx([3e-4, 2e-4], rel=0.05)
    assert found.contributors[0].share > found.contributors[1].share > 0.1


def test_a_tolerance_inside_of_one_group_is_warned_of():
    rng = np.random.default_rng(4)
    codes = rng.integers(0, 3, (30, 8))

    found = found_in(codes, 1e-6 * np.exp(rng.normal(0, 0.2, 30)), tolerance=1e-6)

    assert found.inside == found.groups[0] and found.tolerance is None
    assert any("rounding decides" in line for line in size_lines(found))


def test_errors_that_depend_on_no_choice_convict_nobody():
    accused = 0
    for seed in range(60):
        table = campaign(seed, 30, culprit="none", layers=30).table
        rng = np.random.default_rng(seed)
        errors = np.where(rng.random(30) < 0.3, 1e-1, 1e-4) * np.exp(rng.normal(0, 0.2, 30))
        found = by_size(table, dict(zip(table.names, errors.tolist())), diff(table))
        accused += found.found.conclusion in ("convicted", "narrowed down") or bool(found.layers)
    assert accused <= 5


def test_too_few_errors_say_nothing():
    table = table_of(np.array([[0], [1], [0]]), ["good", "bad", "good"])

    assert by_size(table, {"build-0": 1.0, "build-1": 2.0}, diff(table)) is None
