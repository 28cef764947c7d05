"""A sample of the campaigns in :mod:`tests.tactics.cells`, whose figures over a hundred seeds it prints as a script."""

from __future__ import annotations

import numpy as np
import pytest

from tests.amounts import amount
from tests.tactics import alone
from tests.tactics.cells import Cell, truth

SEEDS = amount(10, in_every_run=6)


@pytest.mark.parametrize(
    ("cell", "right", "builds"),
    [
        (Cell(20, "one"), 1.0, 11),
        (Cell(20, "one", 0.05), 0.8, 18),
        (Cell(100, "one"), 1.0, 13),
        (Cell(20, "layer"), 0.8, 24),
        (Cell(20, "together"), 0.8, 30),
        (Cell(20, "either"), 0.8, 30),
        (Cell(20, "sometimes"), 0.8, 45),
        (Cell(20, "two of four"), 0.8, 95),
    ],
    ids=str,
)
def test_campaigns_name_exactly_what_makes_builds_bad_within_few_builds_and_mixtures(cell, right, builds):
    played = list(cell.play(range(SEEDS)))

    assert sum(p.convicted == truth(world) for world, p in played) >= int(right * SEEDS)
    assert np.median([p.when for _, p in played if p.when]) <= builds


@pytest.mark.parametrize("kind", ["none", "drift", "machines"])
def test_innocent_campaigns_accuse_nobody(kind):
    assert sum(bool(p.convicted) for _, p in Cell(20, kind).play(range(amount(12, in_every_run=5)))) <= 1


def test_diffs_of_builds_alone_convict_within_few_builds_and_do_not_promise_too_much():
    watched = list(alone.played(Cell(20, "one"), range(amount(100, in_every_run=12)), 30))

    assert np.median([w.when or 31 for w in watched]) <= 16
    assert not any(w.accused for w in watched)
    assert np.mean([w.complete for w in watched]) >= 0.9
    ratios = [ratio for w in watched for ratio in w.ratios]
    assert np.mean([0.5 <= ratio <= 2 for ratio in ratios]) >= 0.8


@pytest.mark.parametrize("kind", ["one", "either", "two of four"])
def test_what_a_diff_calls_whole_is_whole(kind):
    """Where a rare second culprit has not shown yet, as in some campaigns of the second kind, it says so rarely."""
    watched = list(alone.played(Cell(20, kind), range(amount(100, in_every_run=10)), 40))

    assert sum(not all(w.explanations) for w in watched) <= 0.03 * len(watched)
    assert np.mean([said for w in watched for said in w.suspects]) >= 0.95
