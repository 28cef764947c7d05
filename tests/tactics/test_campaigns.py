"""Hundreds of campaigns with a planted culprit, or none, or a confounder: how often the diff is right."""

from collections import Counter

import numpy as np
import pytest

from tests.long_runs import amount, long_only
from tests.tactics.synthetic import Campaign, Culprit, campaign, layer_table
from trtops.tactics.diff import diff
from trtops.tactics.findings import TacticDiff
from trtops.tactics.model import features_of, groups_of, weigh
from trtops.tactics.table import VERDICTS, CampaignTable

SEEDS = amount(100, in_every_run=10)


def outcomes(culprit: Culprit, builds: int, *, ordered: bool = True) -> list[tuple[Campaign, TacticDiff]]:
    """Every second campaign has all verdicts right, in every other one up to 5 % are wrong."""
    campaigns = []
    for seed in range(SEEDS):
        noise = seed % 2 * (0.03 + 0.02 * (seed % 4 == 1))
        bad_rate = (0.05, 0.2, 0.4, 0.7)[seed % 4]
        played = campaign(seed, builds, culprit=culprit, noise=noise, bad_rate=bad_rate, ordered=ordered)
        campaigns.append((played, diff(played.table)))
    return campaigns


def is_named_first(played: Campaign, difference: TacticDiff) -> bool:
    """Whether the culprits are the first suspects; those that copy a culprit in every build stand with it."""
    first = difference.suspects[: len(played.culprits)]
    return all(any(c in played.culprits for c in ((x.layer, x.choice) for x in s.choices)) for s in first)


def names_wrongly(played: Campaign, difference: TacticDiff) -> bool:
    return any(
        not any((c.layer, c.choice) in played.culprits for c in suspect.choices) for suspect in difference.confirmed
    )


@pytest.mark.parametrize(
    ("builds", "ordered"),
    [(16, False), (40, True), (100, True), *(long_only(*case) for case in ((16, True), (40, False), (500, True)))],
)
@pytest.mark.parametrize("culprit", ["one", "together"])
def test_campaigns_rank_and_confirm_the_culprit(culprit, builds, ordered):
    campaigns = outcomes(culprit, builds, ordered=ordered)

    is_long = builds >= 100
    missing = () if is_long else ("not enough runs", "no bad builds")
    assert sum(is_named_first(*pair) or pair[1].conclusion in missing for pair in campaigns) >= 0.95 * SEEDS
    assert sum(names_wrongly(*pair) for pair in campaigns) <= 0.05 * SEEDS
    if is_long:
        assert sum(outcome.conclusion in ("confirmed", "narrowed down") for _, outcome in campaigns) >= 0.95 * SEEDS


@pytest.mark.parametrize(
    ("builds", "ordered"),
    [(100, True), (20, False), *(long_only(*case) for case in ((16, True), (500, True), (100, False)))],
)
def test_clean_campaigns_name_few_culprits(builds, ordered):
    conclusions = Counter(difference.conclusion for _, difference in outcomes("none", builds, ordered=ordered))

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


def without_culprit(seed: int, kind: str, builds: int = 60, layers: int = 20) -> tuple[CampaignTable, dict[str, str]]:
    """Choices and verdicts that change with the second half of builds, or from machine to machine, and else are
    chance."""
    rng = np.random.default_rng(seed)
    later = np.arange(builds) >= rng.integers(15, 45) if kind == "drift" else rng.random(builds) < 0.5
    shares = rng.dirichlet(np.full(4, 0.8), (2, layers))
    codes = np.array([[rng.choice(4, p=shares[int(half), layer]) for layer in range(layers)] for half in later])
    bad = rng.random(builds) < np.where(later, 0.7, 0.1)
    return layer_table(codes, bad), {str(build): f"machine {int(half)}" for build, half in enumerate(later)}


@pytest.mark.parametrize("kind", ["drift", "machines"])
def test_time_and_machines_are_not_blamed_on_choices(kind):
    named = more_evidence = reported = 0
    seeds = amount(50, in_every_run=10)
    for seed in range(seeds):
        table, machines = without_culprit(seed, kind)
        blocks = machines if kind == "machines" else {}
        looks = [diff(layer_table(table.codes[:n], table.verdicts[:n]), blocks=blocks) for n in range(12, 61, 6)]
        named += any(difference.conclusion == "confirmed" for difference in looks)
        more_evidence += diff(table).e_value_log10 < diff(table, blocks=blocks).e_value_log10
        reported += bool(looks[-1].confounder)

    assert named <= 1
    assert more_evidence == 0  # a confounder never adds evidence
    assert reported >= 0.8 * seeds


def test_culprit_is_confirmed_without_confounders():
    codes = np.random.default_rng(0).integers(0, 4, (60, 20))

    difference = diff(layer_table(codes, codes[:, 3] == 2), blocks={str(i): f"machine {i % 2}" for i in range(60)})

    assert difference.conclusion == "confirmed" and difference.confounder == ""
