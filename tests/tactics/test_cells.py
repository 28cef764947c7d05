"""A sample of the campaigns in :mod:`tests.tactics.cells`, whose figures over a hundred seeds it prints as a script."""

from __future__ import annotations

import numpy as np
import pytest

from tests.amounts import amount
from tests.tactics import alone
from tests.tactics.cells import Cell, names_wrongly, truth

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
    ],
    ids=str,
)
def test_campaigns_name_exactly_the_culprits(cell, right, builds):
    played = list(cell.play(range(SEEDS)))

    assert sum(p.confirmed == truth(world) for world, p in played) >= int(right * SEEDS)
    assert np.median([p.when for _, p in played if p.when]) <= builds


def test_two_of_four_is_named_as_a_combination():
    played = list(Cell(20, "two of four").play(range(SEEDS)))

    assert sum(p.unresolved for _, p in played) >= int(0.7 * SEEDS)
    assert not any(names_wrongly(world, p.confirmed) for world, p in played)


@pytest.mark.parametrize("kind", ["none", "drift", "machines"])
def test_campaigns_without_culprits_name_none(kind):
    assert sum(bool(p.confirmed) for _, p in Cell(20, kind).play(range(amount(12, in_every_run=5)))) <= 1


def test_diffs_confirm_within_few_builds():
    watched = list(alone.played(Cell(20, "one"), range(amount(100, in_every_run=12)), 30))

    assert np.median([w.when or 31 for w in watched]) <= 16
    assert not any(w.named_wrongly for w in watched)
    assert np.mean([w.complete for w in watched]) >= 0.9


@pytest.mark.parametrize("kind", ["one", "either"])
def test_complete_explanations_are_complete(kind):
    watched = list(alone.played(Cell(20, kind), range(amount(100, in_every_run=10)), 40))

    assert sum(not all(w.explanations) for w in watched) <= 0.03 * len(watched)
    assert np.mean([said for w in watched for said in w.suspects]) >= 0.95
