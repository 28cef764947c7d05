"""What else than choices the rate of bad builds may depend on: time, or a machine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trtops.tactics.features import Floats, Ints
from trtops.tactics.several import Bools


@dataclass(frozen=True)
class Confounder:
    """Something beside choices that the rate of bad builds depends on.

    Attributes:
        gain: Logarithm of how much more probable verdicts are with a rate for each part than with one for all.
        parts: The parts' names, each with its builds and the bad ones among them.
    """

    gain: float
    parts: tuple[tuple[str, int, int], ...]


def drift(bad: Bools) -> Confounder:
    """The change of the rate at that build which explains verdicts best, builds being in their order of arrival."""
    builds, hits = len(bad), int(bad.sum())
    before = np.cumsum(bad, dtype=np.int64)[1:-2]
    count = np.arange(2, 2 + len(before))
    if not len(before):
        return Confounder(0.0, ())
    gains = _at_own_rate(count, before) + _at_own_rate(builds - count, hits - before) - _at_own_rate(builds, hits)
    best = int(np.argmax(gains))
    # The best of many builds to change at is better than chance would be at one; half of its logarithm, as in BIC.
    searched = math.log(builds) / 2
    k, m = int(count[best]), int(before[best])
    parts = ((f"the first {k} builds", k, m), (f"the {builds - k} after them", builds - k, hits - m))
    return Confounder(float(gains[best]) - searched, parts)


def blocked(bad: Bools, labels: Sequence[str]) -> Confounder:
    """A rate for the builds of each label: of each machine, say."""
    parts = []
    for label in dict.fromkeys(labels):
        has = np.array([other == label for other in labels])
        parts.append((label, int(has.sum()), int(bad[has].sum())))
    apart = sum(float(_at_own_rate(size, hits)) for _, size, hits in parts)
    return Confounder(apart - float(_at_own_rate(len(bad), int(bad.sum()))), tuple(parts))


def _at_own_rate(size: Ints | int, hits: Ints | int) -> Floats:
    """Logarithm of the probability of verdicts at the rate that makes them most probable; elementwise."""
    rate = np.clip(np.asarray(hits) / np.maximum(size, 1), 1e-12, 1 - 1e-12)
    logs: Floats = hits * np.log(rate) + (size - np.asarray(hits)) * np.log1p(-rate)
    return logs
