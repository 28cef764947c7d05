"""Causes other than choices that the rate of bad builds may depend on: time, or a machine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from trtops.tactics.model import Bools, Floats


@dataclass(frozen=True)
class Confounder:
    """A cause other than choices.

    Attributes:
        gain: Log-ratio of the probability of the verdicts with a rate for each part to that with one rate for all.
        parts: The parts: name, number of builds, number of bad ones.
    """

    gain: float
    parts: tuple[tuple[str, int, int], ...]


def drift(bad: Bools) -> Confounder:
    """The change of the rate over time that explains verdicts best, for builds in their order of arrival."""
    builds, hits = len(bad), int(bad.sum())
    before = np.cumsum(bad, dtype=np.int64)[1:-2]
    count = np.arange(2, 2 + len(before))
    if not len(before):
        return Confounder(0.0, ())
    gains = _at_own_rate(count, before) + _at_own_rate(builds - count, hits - before) - _at_own_rate(builds, hits)
    best = int(np.argmax(gains))
    # The best of many places to change is better than chance would be at one: half of the logarithm, as in BIC.
    searched = math.log(builds) / 2
    k, m = int(count[best]), int(before[best])
    parts = ((f"the first {k} builds", k, m), (f"the {builds - k} after them", builds - k, hits - m))
    return Confounder(float(gains[best]) - searched, parts)


def blocked(bad: Bools, labels: Sequence[str]) -> Confounder:
    """A rate for the builds of each label, such as each machine."""
    parts = []
    for label in dict.fromkeys(labels):
        has = np.array([other == label for other in labels])
        parts.append((label, int(has.sum()), int(bad[has].sum())))
    apart = sum(float(_at_own_rate(size, hits)) for _, size, hits in parts)
    return Confounder(apart - float(_at_own_rate(len(bad), int(bad.sum()))), tuple(parts))


def _at_own_rate(size: ArrayLike, hits: ArrayLike) -> Floats:
    """Log-probability of verdicts at the rate that makes them most probable; elementwise."""
    size, hits = np.asarray(size), np.asarray(hits)
    rate = np.clip(hits / np.maximum(size, 1), 1e-12, 1 - 1e-12)
    logs: Floats = hits * np.log(rate) + (size - hits) * np.log1p(-rate)
    return logs
