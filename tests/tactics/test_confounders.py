"""Verdicts that depend on time or machines, and choices that go with them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.amounts import amount
from trtops.tactics.diff import diff
from trtops.tactics.record import TacticOption
from trtops.tactics.table import CampaignTable


def without_culprit(seed: int, kind: str, builds: int = 60, layers: int = 20) -> tuple[CampaignTable, dict[str, str]]:
    """Choices and verdicts that change with the second half of builds, or from machine to machine, and else are
    chance."""
    rng = np.random.default_rng(seed)
    later = np.arange(builds) >= rng.integers(15, 45) if kind == "drift" else rng.random(builds) < 0.5
    shares = rng.dirichlet(np.full(4, 0.8), (2, layers))
    codes = np.array([[rng.choice(4, p=shares[int(half), layer]) for layer in range(layers)] for half in later])
    bad = rng.random(builds) < np.where(later, 0.7, 0.1)
    table = CampaignTable(
        names=[f"build-{i}" for i in range(builds)],
        verdicts=["bad" if b else "good" for b in bad],
        columns=[("layer", f"layer-{i}") for i in range(layers)],
        choices=[TacticOption(tactic=f"tactic-{i}", op="Conv") for i in range(4)],
        codes=codes,
    )
    return table, {name: f"machine {int(half)}" for name, half in zip(table.names, later)}


def first(table: CampaignTable, builds: int) -> CampaignTable:
    return CampaignTable(
        names=table.names[:builds],
        verdicts=["bad" if v else "good" for v in table.verdicts[:builds]],
        columns=table.columns,
        choices=table.choices,
        codes=table.codes[:builds],
    )


@pytest.mark.parametrize("kind", ["drift", "machines"])
def test_time_and_machines_are_not_blamed_on_choices(kind):
    named = more_evidence = reported = 0
    seeds = amount(50, in_every_run=15)
    for seed in range(seeds):
        table, machines = without_culprit(seed, kind)
        blocks = machines if kind == "machines" else {}
        looks = [diff(first(table, n), blocks=blocks) for n in range(12, 61, 6)]
        named += any(found.conclusion == "confirmed" for found in looks)
        more_evidence += diff(table).e_value_log10 < diff(table, blocks=blocks).e_value_log10
        reported += bool(looks[-1].confounder)

    assert named <= 1
    assert more_evidence == 0  # a confounder never adds evidence
    assert reported >= 0.8 * seeds


def test_culprit_is_confirmed_without_confounders():
    rng = np.random.default_rng(0)
    table, _ = without_culprit(1, "drift")
    codes = rng.integers(0, 4, (60, 20))
    culprit = CampaignTable(
        names=table.names,
        verdicts=["bad" if row[3] == 2 else "good" for row in codes],
        columns=table.columns,
        choices=table.choices,
        codes=codes,
    )

    found = diff(culprit, blocks={name: f"machine {i % 2}" for i, name in enumerate(table.names)})

    assert found.conclusion == "confirmed" and found.confounder == ""
