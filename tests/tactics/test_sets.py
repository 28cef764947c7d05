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


@pytest.mark.parametrize("bad", [3, 6, 12])
def test_how_certain_an_explanation_is_grows_with_the_bad_builds_that_show_it(bad):
    """Those with the culprit may all have something else that it needs: a few of them show little."""
    codes = np.random.default_rng(3).integers(0, 3, (60, 8))
    codes = np.delete(codes, np.flatnonzero(codes[:, 2] == 1)[bad:], axis=0)

    found = evidence.weigh(groups_of(features_of(codes)), codes[:, 2] == 1)

    assert len(found.best) == 1 and found.guilt.max() > 0.9
    assert 0.8 * (bad + 1) / (bad + 2) < found.best_probability <= (bad + 1) / (bad + 2)


@pytest.mark.parametrize("good", [3, 6, 12])
def test_how_certain_an_explanation_is_grows_with_the_good_builds_that_show_nothing_else(good):
    """Something rare may make builds bad as well, without the culprit: a few builds without it that are all good show little."""
    codes = np.random.default_rng(3).integers(0, 3, (60, 8))
    codes = np.delete(codes, np.flatnonzero(codes[:, 2] != 1)[good:], axis=0)

    found = evidence.weigh(groups_of(features_of(codes)), codes[:, 2] == 1)

    assert len(found.best) == 1 and found.guilt.max() > 0.9
    assert 0.8 * (good + 1) / (good + 2) < found.best_probability <= (good + 1) / (good + 2)


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
