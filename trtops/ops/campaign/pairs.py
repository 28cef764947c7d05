"""Which good and which bad build of a campaign to compare or to mix."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trtops.tactics.table import CampaignTable
from trtops.verdict import VERDICTS

_PAIRED = (
    200  # builds of each verdict that are looked at: all pairs of a long campaign would be millions of comparisons
)


def most_alike(table: CampaignTable, good: Sequence[str], bad: Sequence[str]) -> tuple[str, str]:
    """The good and the bad build that differ in the fewest layers and settings."""
    place = {name: row for row, name in enumerate(table.names)}
    codes = np.hstack((table.codes, table.setting_codes))
    good, bad = good[:_PAIRED], bad[:_PAIRED]
    ours, theirs = codes[[place[name] for name in good]], codes[[place[name] for name in bad]]
    distances = np.array([(theirs != row).sum(axis=1) for row in ours])
    i, j = np.unravel_index(int(distances.argmin()), distances.shape)
    return good[int(i)], bad[int(j)]


def most_telling(table: CampaignTable, good: Sequence[str], bad: Sequence[str]) -> tuple[str, str]:
    """The good and the bad build that differ most in choices which bad builds have more often than good ones.

    A good build that failed only by chance not to be bad has the culprit as well, and so do the good builds most like bad ones.
    """
    good, bad = good[:_PAIRED], bad[:_PAIRED]
    place = {name: row for row, name in enumerate(table.names)}
    codes = np.hstack((table.codes, table.setting_codes))
    ours = codes[[place[name] for name in good]]
    evaluated = [codes[table.verdicts == VERDICTS.index(verdict)] for verdict in ("bad", "good")]
    told = np.zeros((len(good), len(bad)))
    for column, name in enumerate(bad):
        choices = codes[place[name]]
        in_bad, in_good = (((of == choices).sum(axis=0) + 1) / (len(of) + 2) for of in evaluated)
        suspicion = np.where(choices >= 0, np.log(in_bad / in_good).clip(0) ** 2, 0)
        told[:, column] = (ours != choices) @ suspicion
    i, j = np.unravel_index(int(told.argmax()), told.shape)
    return good[int(i)], bad[int(j)]
