"""Campaigns of :mod:`tests.tactics.simulated_campaigns`."""

import numpy as np
import pytest

from tests.long_runs import amount
from tests.tactics.simulated_campaigns import Cell, World, bisected, is_right, names_wrongly
from tests.tactics.synthetic import layer_table
from trtops.ops.campaign.bisection_planner import BuildPair, Planner
from trtops.ops.campaign.config import DebugBuildConfig

SEEDS = amount(10, in_every_run=6)


@pytest.mark.parametrize(
    ("cell", "right", "builds"),
    [
        (Cell(20, "one"), 1.0, 14),
        (Cell(20, "one", repeats=True), 1.0, 11),
        (Cell(20, "common", repeats=True), 1.0, 12),
        (Cell(20, "one", 0.05), 0.8, 21),
        (Cell(20, "one", 0.1, repeats=True), 0.8, 24),
        (Cell(100, "one"), 1.0, 17),
        (Cell(100, "one", repeats=True), 1.0, 14),
        (Cell(20, "reformat"), 0.8, 26),
        (Cell(20, "format"), 1.0, 17),
        (Cell(20, "neighbours"), 1.0, 20),
        (Cell(20, "layer"), 0.8, 28),
        (Cell(20, "together"), 0.8, 36),
        (Cell(20, "either"), 0.8, 33),
        (Cell(20, "sometimes"), 0.8, 66),
    ],
    ids=str,
)
def test_campaigns_name_exactly_the_culprits(cell, right, builds):
    played = list(cell.play(range(SEEDS)))

    assert sum(is_right(world, p) for world, p in played) >= int(right * SEEDS)
    assert np.median([p.when for _, p in played if p.when]) <= builds


@pytest.mark.parametrize("layers", [20, 100])
def test_errors_that_add_up_have_shares(layers):
    played = list(Cell(layers, "sum", repeats=True).play(range(SEEDS)))

    assert not any(names_wrongly(world, p.confirmed) for world, p in played)
    assert sum(is_right(world, p) for world, p in played) >= int(0.95 * SEEDS)
    assert max(p.builds for _, p in played) <= 21
    assert np.median([p.builds for _, p in played]) <= 17


@pytest.mark.parametrize(("kind", "clauses"), [("either", ((0,), (1,))), ("together", ((0, 1),))])
def test_bisection_tells_either_of_two_from_together(kind, clauses):
    world = World(0, 8, kind)
    world.culprits = {"either": (((2, 1),), ((5, 1),)), "together": (((2, 1), (5, 1)),)}[kind]
    builds = layer_table([[0] * 8, [1] * 8], [0, 1])

    result = bisected(world, builds, BuildPair("0", "1"), Planner(DebugBuildConfig()), 60)

    [culprit] = result.culprits
    assert ([unit.name for unit in culprit.units], culprit.clauses) == (["layer-2", "layer-5"], clauses)
    assert (result.outcome, len(result.trials)) == ("confirmed", world.built)


def test_two_of_four_are_named_as_pairs():
    played = list(Cell(20, "two of four").play(range(SEEDS)))

    assert sum(len(p.confirmed) > 1 for _, p in played) >= int(0.7 * SEEDS)
    assert not any(names_wrongly(world, p.confirmed) for world, p in played)


@pytest.mark.parametrize("kind", ["none", "drift", "machines"])
def test_campaigns_without_culprits_name_none(kind):
    assert sum(bool(p.confirmed) for _, p in Cell(20, kind).play(range(amount(12, in_every_run=5)))) <= 1
