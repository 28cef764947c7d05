"""Exact quantiles of a stream: brackets that collect the elements that may have a rank, and counts of bit patterns."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from trtops.comparator.arrays import Array


class Bracket:
    """Collects the elements between two bounds, and finds one rank and the next among them."""

    def __init__(self, rank: int, low: float, high: float, tied: bool) -> None:
        self.rank, self.low, self.high = rank, low, high
        self.tied = tied  # many elements may be equal to a bound: these are counted, not collected
        # Elements up to the lower bound, equal to either bound, and collected between both.
        self.up_to_low = self.at_low = self.at_high = self.held = 0
        self.missed = False  # whether what was collected had to be dropped
        self.inside: list[Array] = []

    @classmethod
    def around(cls, level: float, elements: int, sample: Array) -> Bracket:
        """Around the rank of a quantile of so many elements, by a sorted random sample of them."""
        rank = int(level * (elements - 1))
        # Five standard deviations of a rank in a sample, and one more place for luck at the ends.
        reach = 5 * math.sqrt(level * (1 - level) * sample.size) + 5
        first, last = int(level * sample.size - reach), int(level * sample.size + reach)
        low = float(sample[first]) if first >= 0 else -1.0
        high = float(sample[last]) if last < sample.size else math.inf
        tied = first > 0 and sample[first - 1] == low
        tied = tied or (first >= 0 and sample[first + 1] == low) or (last < sample.size and sample[last - 1] == high)
        return cls(rank, low, high, bool(tied))

    def give_up(self) -> None:
        """Drop what was collected, because it is too much."""
        self.missed, self.held, self.inside = True, 0, []

    def add(self, x: Array) -> None:
        """Count a block, and collect what lies inside."""
        if self.missed:
            return
        inside = x > self.low
        self.up_to_low += x.size - int(np.count_nonzero(inside))
        if self.tied:
            self.at_low += int(np.count_nonzero(x == self.low))
            if self.low == self.high:
                return
            self.at_high += int(np.count_nonzero(x == self.high))
        inside &= x < self.high
        found = x[inside]
        self.held += found.size
        self.inside.append(found)

    def pick(self, last: int) -> tuple[float, float] | None:
        """The elements at the rank and the next one (``last`` is the last of all), or None if the bracket missed one."""
        if self.missed:
            return None
        ranks = self.rank - self.up_to_low, min(self.rank + 1, last) - self.up_to_low
        inside = np.concatenate(self.inside) if self.inside else np.empty(0)
        inner = [rank for rank in ranks if 0 <= rank < self.held]
        if inner:
            inside.partition(inner)
        found = [self._element_at(rank, inside) for rank in ranks]
        return None if found[0] is None or found[1] is None else (found[0], found[1])

    def _element_at(self, rank: int, inside: Array) -> float | None:
        if rank < 0:
            return self.low if rank >= -self.at_low else None
        if rank < self.held:
            return float(inside[rank])
        return self.high if rank < self.held + self.at_high else None


def descend(counts: Array, prefix: int, rank: int) -> tuple[int, int]:
    """The next 16 bits of the element at a rank, put to those known, and its rank among those that share them."""
    up_to = np.cumsum(counts)
    digit = int(np.searchsorted(up_to, rank, side="right"))
    return prefix << 16 | digit, rank - (int(up_to[digit - 1]) if digit else 0)


def select(values: Array, levels: Sequence[float], largest: float) -> list[float]:
    """Quantiles of an array that may be overwritten, interpolated linearly."""
    if math.isnan(largest):
        return [math.nan for _ in levels]
    end = values.size - 1
    ranks = [int(level * end) for level in levels]
    values.sort()  # for sizes that come here, faster than selecting several ranks
    return [
        between(float(values[rank]), float(values[min(rank + 1, end)]), level * end - rank)
        for level, rank in zip(levels, ranks)
    ]


def between(low: float, high: float, share: float) -> float:
    """Interpolate linearly."""
    if share == 0 or low == high:
        return low
    return low + (high - low) * share
