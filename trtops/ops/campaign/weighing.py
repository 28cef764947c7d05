"""What all builds and mixtures of a campaign say together about what was convicted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trtops.ops.campaign.bisected import BisectResult
from trtops.ops.campaign.guilty import Guilty
from trtops.tactics.rates import Likelihood
from trtops.tactics.table import CampaignTable
from trtops.verdict import VERDICTS


def with_mixtures(table: CampaignTable, done: Sequence[BisectResult]) -> CampaignTable:
    """A table with the mixtures of its builds as further builds.

    Each has the layers and settings of the good or the bad build that it was to have, and of layers that follow from others what
    the good build has. Left out are mixtures that got something else.
    """
    columns = np.array([*table.layers, *table.settings])
    rows = dict(zip(table.names, np.hstack((table.codes, table.setting_codes))))
    verdicts = dict(zip(table.names, (VERDICTS[code] for code in table.verdicts)))
    for result in done:
        good, bad = rows.get(result.good_run), rows.get(result.bad_run)
        if good is None or bad is None:
            continue
        for trial in result.trials:
            if trial.counted and not trial.strayed:
                taken = np.isin(columns, [*trial.taken, *(unit.name for unit in result.given)])
                rows[trial.run_id] = np.where(taken, bad, good)
                verdicts[trial.run_id] = trial.verdict
    codes = np.array(list(rows.values()), np.int32).reshape(len(rows), len(columns))
    return CampaignTable.from_columns(
        names=list(rows),
        verdicts=list(verdicts.values()),
        layers=table.layers,
        choices=table.choices,
        codes=codes[:, : len(table.layers)],
        settings=table.settings,
        values=table.values,
        setting_codes=codes[:, len(table.layers) :],
    )


def odds_against_chance(found: Sequence[Guilty], table: CampaignTable) -> list[float]:
    """How many times more probable the verdicts are if a culprit decides them than at the one rate that suits them best.

    Of each culprit in turn, by the builds that the others do not explain; natural logarithms. Builds that failed are left out.
    """
    nothing = np.zeros(len(table), np.bool_)
    evaluated, is_bad = table.verdicts != VERDICTS.index("error"), table.verdicts == VERDICTS.index("bad")
    held = [guilty.held_by(table) for guilty in found]
    odds = []
    for place, having in enumerate(held):
        rows = evaluated & ~np.logical_or.reduce([nothing, *held[:place], *held[place + 1 :]])
        bad, has = is_bad[rows], having[rows]
        likelihood = Likelihood(len(bad), int(bad.sum()))
        odds.append(float(likelihood(has.sum(), (has & bad).sum())) - likelihood.supremum)
    return odds
