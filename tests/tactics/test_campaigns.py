"""Hundreds of campaigns with a planted culprit, or none: how often the diff is right; a thousand in `make
test-long`."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from tests.amounts import amount
from tests.tactics.synthetic import Campaign, Culprit, campaign
from trtops.tactics.diff import diff
from trtops.tactics.findings import TacticDiff
from trtops.tactics.model import features_of, groups_of, weigh
from trtops.tactics.table import VERDICTS

SEEDS = amount(100, in_every_run=20)


def outcomes(culprit: Culprit, builds: int, *, ordered: bool = True) -> list[tuple[Campaign, TacticDiff]]:
    """Every second campaign has all verdicts right, in every other one up to 5 % are wrong."""
    made = []
    for seed in range(SEEDS):
        noise = seed % 2 * (0.03 + 0.02 * (seed % 4 == 1))
        bad_rate = (0.05, 0.2, 0.4, 0.7)[seed % 4]
        played = campaign(seed, builds, culprit=culprit, noise=noise, bad_rate=bad_rate, ordered=ordered)
        made.append((played, diff(played.table)))
    return made


def is_named_first(played: Campaign, found: TacticDiff) -> bool:
    """Whether the culprits are the first suspects; those that copy a culprit in every build stand with it."""
    first = found.suspects[: len(played.culprits)]
    return all(any(c in played.culprits for c in ((x.layer, x.choice) for x in s.choices)) for s in first)


def names_wrongly(played: Campaign, found: TacticDiff) -> bool:
    return any(not any((c.layer, c.choice) in played.culprits for c in suspect.choices) for suspect in found.confirmed)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("builds", [16, 40])
@pytest.mark.parametrize("culprit", ["one", "together"])
def test_short_campaigns_rank_the_culprit_first(culprit, builds, ordered):
    found = outcomes(culprit, builds, ordered=ordered)

    missing = ("not enough runs", "no bad builds")
    assert sum(is_named_first(*pair) or pair[1].conclusion in missing for pair in found) >= 0.95 * SEEDS
    assert sum(names_wrongly(*pair) for pair in found) <= 0.05 * SEEDS


@pytest.mark.parametrize("builds", [100, 500])
@pytest.mark.parametrize("culprit", ["one", "together"])
def test_long_campaigns_confirm_the_culprit(culprit, builds):
    found = outcomes(culprit, builds)

    assert sum(is_named_first(*pair) for pair in found) >= 0.95 * SEEDS
    assert sum(outcome.conclusion in ("confirmed", "narrowed down") for _, outcome in found) >= 0.95 * SEEDS
    assert sum(names_wrongly(*pair) for pair in found) <= 0.05 * SEEDS


@pytest.mark.parametrize(("builds", "ordered"), [(16, True), (100, True), (500, True), (20, False), (100, False)])
def test_clean_campaigns_name_few_culprits(builds, ordered):
    conclusions = Counter(found.conclusion for _, found in outcomes("none", builds, ordered=ordered))

    assert conclusions["confirmed"] + conclusions["narrowed down"] <= 0.05 * SEEDS
    if builds >= 100 and ordered:
        assert conclusions["no single tactic explains this"] >= 0.85 * SEEDS


def test_looking_after_every_build_names_few_culprits():
    named = 0
    for seed in range(SEEDS):
        table = campaign(seed, 60, culprit="none", layers=30, bad_rate=(0.1, 0.3, 0.5)[seed % 3]).table
        bad = table.verdicts == VERDICTS.index("bad")
        looks = [n for n in range(4, 61, 2) if bad[:n].any() and not bad[:n].all()]
        groups = {n: groups_of(features_of(table.codes[:n])) for n in looks}
        named += any(
            weigh(groups[n].present, groups[n].log_share, bad[:n]).log_e_value >= np.log(20)
            for n in looks
            if groups[n].members
        )
    assert named <= 0.05 * SEEDS
