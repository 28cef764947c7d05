"""Time and machines that decide verdicts, and choices that go with them: nobody is accused of that."""

from __future__ import annotations

import numpy as np
import pytest

from tests.amounts import amount
from trtops.tactics.diff import diff
from trtops.tactics.table import CampaignTable, Choice


def innocent(seed: int, kind: str, builds: int = 60, layers: int = 20) -> tuple[CampaignTable, dict[str, str]]:
    """Choices and verdicts that change with the second half of builds, or from machine to machine, and else are chance."""
    rng = np.random.default_rng(seed)
    later = np.arange(builds) >= rng.integers(15, 45) if kind == "drift" else rng.random(builds) < 0.5
    shares = rng.dirichlet(np.full(4, 0.8), (2, layers))
    codes = np.array([[rng.choice(4, p=shares[int(half), layer]) for layer in range(layers)] for half in later])
    bad = rng.random(builds) < np.where(later, 0.7, 0.1)
    table = CampaignTable.from_columns(
        names=[f"build-{i}" for i in range(builds)],
        verdicts=["bad" if b else "good" for b in bad],
        layers=[f"layer-{i}" for i in range(layers)],
        choices=[Choice(tactic=f"tactic-{i}", op="Conv") for i in range(4)],
        codes=codes,
    )
    return table, {name: f"machine {int(half)}" for name, half in zip(table.names, later)}


def first(table: CampaignTable, builds: int) -> CampaignTable:
    return CampaignTable.from_columns(
        names=table.names[:builds],
        verdicts=["bad" if v else "good" for v in table.verdicts[:builds]],
        layers=table.layers,
        choices=table.choices,
        codes=table.codes[:builds],
    )


@pytest.mark.parametrize("kind", ["drift", "machines"])
def test_choices_that_go_with_time_or_a_machine_are_seldom_accused_of_what_these_do(kind):
    accused = accused_without = said = 0
    seeds = amount(50, in_every_run=15)
    for seed in range(seeds):
        table, machines = innocent(seed, kind)
        blocks = machines if kind == "machines" else {}
        looks = [diff(first(table, n), blocks=blocks) for n in range(12, 61, 6)]
        accused += any(found.conclusion == "convicted" for found in looks)
        accused_without += diff(table).e_value_log10 < diff(table, blocks=blocks).e_value_log10
        said += bool(looks[-1].confounder)

    assert accused <= 1
    assert accused_without == 0  # what else matters never makes anybody more suspicious
    assert said >= 0.8 * seeds


def test_a_culprit_is_convicted_where_nothing_else_matters():
    rng = np.random.default_rng(0)
    table, _ = innocent(1, "drift")
    codes = rng.integers(0, 4, (60, 20))
    culprit = CampaignTable.from_columns(
        names=table.names,
        verdicts=["bad" if row[3] == 2 else "good" for row in codes],
        layers=table.layers,
        choices=table.choices,
        codes=codes,
    )

    found = diff(culprit, blocks={name: f"machine {i % 2}" for i, name in enumerate(table.names)})

    assert found.conclusion == "convicted" and found.confounder == ""
