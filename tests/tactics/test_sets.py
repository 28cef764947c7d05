"""Sets of several choices that builds alone show: any two of four, none of which need be suspicious by itself."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from tests.tactics.cells import World, table_of, truth
from trtops.tactics import evidence, sets
from trtops.tactics.diff import diff
from trtops.tactics.features import Groups, features_of, groups_of
from trtops.tactics.findings import TacticDiff
from trtops.tactics.rates import Likelihood

Clause = frozenset[frozenset[tuple[int, int]]]
"""Suspects, each as the layers and choices that no verdict tells apart."""


def built(seed: int, layers: int, builds: int) -> tuple[World, TacticDiff]:
    world = World(seed, layers, "two of four")
    rows = [world.draw() for _ in range(builds)]
    return world, diff(table_of(rows, [world.is_bad(row) for row in rows]))


def named(found: TacticDiff) -> list[Clause]:
    assert found.explanation is not None
    suspects = [
        frozenset((int(c.layer.removeprefix("layer-")), int((c.choice or "-1").rpartition("-")[2])) for c in s.choices)
        for s in found.suspects
    ]
    return [frozenset(suspects[place] for place in clause) for clause in found.explanation.clauses]


@pytest.mark.parametrize("seed", [27, 52, 56])
def test_members_that_nothing_simpler_suspects_are_found(seed):
    """Either of two explains nearly all builds here, against a few good ones; and one of the four seems to be innocent."""
    world, found = built(seed, 20, 60)

    clauses, right = named(found), truth(world)
    assert len(clauses) == len(right) == 6
    assert all(any(all(any(key in group for group in c) for key in pair) for pair in right) for c in clauses)


def of_culprit(bad=20, good=40, beside=None):
    """A diff of random builds of eight layers, where one choice of layer 2 is guilty; ``beside`` changes choices, given verdicts."""
    codes = np.random.default_rng(3).integers(0, 3, (200, 8))
    is_bad = codes[:, 2] == 1
    codes = codes[np.sort(np.concatenate((np.flatnonzero(is_bad)[:bad], np.flatnonzero(~is_bad)[:good])))]
    is_bad = codes[:, 2] == 1
    if beside is not None:
        beside(codes, is_bad)
    found = evidence.weigh(groups_of(features_of(codes)), is_bad)
    assert len(found.best) == 1 and found.guilt.max() > 0.9
    return found


@pytest.mark.parametrize("kind", ["bad", "good"])
def test_how_certain_an_explanation_is_grows_with_the_builds_that_show_that_it_is_whole(kind):
    """A few bad builds may all have something else that the culprit needs; and a few good ones do not show what is rare."""
    few, more, many = (of_culprit(**{kind: count}).best_probability for count in (3, 8, 20))

    assert few + 0.03 < more < many - 0.01
    assert many > 0.88


def test_an_explanation_is_less_certain_where_all_bad_builds_have_something_beside():
    def beside(codes, is_bad):
        codes[is_bad, 5] = 0
        codes[~is_bad, 5] = np.arange((~is_bad).sum()) % 3

    found, usual = of_culprit(beside=beside), of_culprit()

    assert found.best_probability < usual.best_probability - 0.02


def test_an_explanation_is_less_certain_where_something_beside_was_in_no_good_build():
    def beside(codes, is_bad):
        codes[:, 5] = np.where(is_bad, np.arange(len(codes)) % 3, 2)

    found, usual = of_culprit(beside=beside), of_culprit()

    assert found.best_probability < usual.best_probability - 0.04


def test_every_set_is_weighed_once_however_many_ways_lead_to_it(monkeypatch):
    """Of nine choices all sets of three are reached from each of their pairs; the sum is that over all sets."""
    codes = np.random.default_rng(8).integers(0, 2, (40, 9))
    bad = codes[:, :3].sum(axis=1) >= 2
    features = features_of(codes)
    ones = features.present[:, features.code == 1]
    groups = Groups(ones, tuple((g,) for g in range(9)), np.full(9, -math.log(9)))
    likelihood = Likelihood(len(bad), int(bad.sum()))
    monkeypatch.setattr(sets, "_LARGEST", 3)
    monkeypatch.setattr(sets, "MAX_SEVERAL", 3)

    pairs = [((a,), (b,)) for a, b in itertools.combinations(range(9), 2)]
    found = sets.weigh_sets(groups, bad, likelihood, pairs, np.full(9, 1 / 9), np.zeros(len(bad), np.bool_))

    scores = {}
    for of in itertools.combinations(range(9), 3):
        count = ones[:, list(of)].sum(axis=1)
        of_set = [count >= least for least in (2, 3)]
        if of == (0, 1, 2):  # the best one, of which everything is weighed: one with either of the two others as well
            of_set += [ones[:, a] & (ones[:, b] | ones[:, c]) for a, b, c in ((0, 1, 2), (1, 0, 2), (2, 0, 1))]
        scores[of] = sum(math.exp(likelihood(e.sum(), (e & bad).sum())) for e in of_set)
    prior = math.log(1 / 4) + math.log(6) - 3 * math.log(9) - math.log(5)
    assert found is not None
    assert {g for clause in found.best for g in clause} == {0, 1, 2}
    assert found.log_sum == pytest.approx(prior + math.log(sum(scores.values())))
    for group in range(9):
        mine = sum(score for of, score in scores.items() if group in of)
        assert found.share[group] == pytest.approx(mine / sum(scores.values()))
