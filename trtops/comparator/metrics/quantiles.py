"""Exact quantiles of both errors, found while one pass over blocks adds up everything else."""

import copy
import math
from collections.abc import Iterator, Sequence

import numpy as np

from trtops.comparator.arrays import Array
from trtops.comparator.metrics.difference import BLOCK, Difference
from trtops.comparator.metrics.totals import Totals

# Below, keeping and sorting all errors is faster than bounds around a few ranks.
_SMALL = 1 << 17
_SAMPLE_ELEMENTS = 1 << 19


def measure_in_one_pass(
    pairs: Sequence[tuple[Array, Array]], differ: Difference, total: Totals, levels: Sequence[float]
) -> list[tuple[float, float]]:
    """Add all elements to ``total``, and return the absolute and the relative error at each level.

    ``pairs`` are flat arrays of the output and its reference, one pair for each iteration. Quantiles are interpolated
    linearly.
    """
    elements = sum(a.size for a, _ in pairs)
    if not elements:
        return [(0.0, 0.0) for _ in levels]
    small = elements <= _SMALL
    step = _SMALL if small else BLOCK

    def blocks() -> Iterator[tuple[Array, Array, Array, Array]]:
        # Blocks that fit into the cache: temporary arrays of the whole size would take most of the time.
        for whole_a, whole_b in pairs:
            for start in range(0, whole_a.size, step):
                a, b, d = differ(whole_a[start : start + step], whole_b[start : start + step])
                yield a, b, d, differ.relative(d, b)

    brackets = ([], []) if small else _brackets(pairs, differ, total, levels, elements)
    kept: tuple[list[Array], list[Array]] = ([], [])
    for block in blocks():
        total.add(*block)
        for series, errors in enumerate(block[2:]):
            if small:  # a single block is not overwritten any more
                kept[series].append(errors if len(pairs) == 1 else errors.copy())
            for bracket in brackets[series]:
                bracket.add(errors)
    found: list[list[float]] = []
    for series, largest in enumerate((total.max_abs, total.max_rel)):
        if math.isnan(largest):
            found.append([math.nan for _ in levels])
            continue
        picked = [bracket.pick() for bracket in brackets[series]]
        if small or None in picked:
            # Rarely, a rank lies outside its bounds. The errors are then computed once more, and sorted.
            parts = kept[series] if small else [block[2 + series].copy() for block in blocks()]
            ordered = np.concatenate(parts) if len(parts) > 1 else parts[0]
            ordered.sort()
            picked = []
            for position in (level * (elements - 1) for level in levels):
                rank = int(position)
                above = float(ordered[min(rank + 1, ordered.size - 1)])
                picked.append(_between(float(ordered[rank]), above, position - rank))
        found.append([value for value in picked if value is not None])
    return list(zip(*found))


def _between(low: float, high: float, share: float) -> float:
    # Both may be infinite, and their difference is NaN then.
    return low if share == 0 or low == high else low + (high - low) * share


# A random sample of n^(2/3) elements gives bounds between which a rank lies almost surely (Floyd and Rivest, "Expected
# Time Bounds for Selection", Communications of the ACM 18, 1975). Only elements between the bounds are kept.
def _brackets(
    pairs: Sequence[tuple[Array, Array]], differ: Difference, total: Totals, levels: Sequence[float], elements: int
) -> "tuple[list[_Bracket], list[_Bracket]]":
    """Brackets around the ranks of both errors, and a first guess of the frontier, from a random sample."""
    count = min(int(elements ** (2 / 3)), _SAMPLE_ELEMENTS)
    # Drawn with a fixed seed, so that the same arrays take the same time in every run.
    where = np.random.default_rng(0).integers(0, elements, count)
    parts, offset = [], 0
    for whole_a, whole_b in pairs:
        here = where[(where >= offset) & (where < offset + whole_a.size)] - offset
        parts.append((whole_a[here], whole_b[here]))
        offset += whole_a.size
    a, b = (np.concatenate(side) for side in zip(*parts))
    differ = copy.copy(differ)  # its buffers, as large as the sample, are freed with it
    _, y, d = differ(a, b)
    r = differ.relative(d, y)
    d[np.isnan(d)], r[np.isnan(r)] = np.inf, np.inf
    total.frontier.aim(d, r)
    d.sort()
    r.sort()
    return [_Bracket(level, elements, d) for level in levels], [_Bracket(level, elements, r) for level in levels]


class _Bracket:
    """Collects the elements between two bounds, to find the one at a rank."""

    def __init__(self, level: float, elements: int, sample: Array) -> None:
        self.position, self.last = level * (elements - 1), elements - 1
        # Five standard deviations of a rank in a sample, and five places more for the ends.
        reach = 5 * math.sqrt(level * (1 - level) * sample.size) + 5
        first, last = int(level * sample.size - reach), int(level * sample.size + reach)
        self.low = float(sample[first]) if first >= 0 else -1.0
        self.high = float(sample[last]) if last < sample.size else math.inf
        self.below = self.at_low = self.at_high = 0
        self.inside: list[Array] = []

    def add(self, x: Array) -> None:
        above = x > self.low
        at_low = int(np.count_nonzero(x == self.low))
        self.at_low += at_low
        self.below += x.size - int(np.count_nonzero(above)) - at_low
        # Equal elements are counted, not kept: outputs that are equal have errors of 0 only.
        if self.low < self.high:
            self.at_high += int(np.count_nonzero(x == self.high))
            self.inside.append(x[above & (x < self.high)])

    def pick(self) -> float | None:
        """The interpolated element at the rank; None if it is not between the bounds."""
        rank = int(self.position)
        inside = np.sort(np.concatenate(self.inside)) if self.inside else np.empty(0)
        low, high = (self._element_at(place - self.below, inside) for place in (rank, min(rank + 1, self.last)))
        return None if low is None or high is None else _between(low, high, self.position - rank)

    def _element_at(self, place: int, inside: Array) -> float | None:
        if place < 0:
            return None
        if place < self.at_low:
            return self.low
        place -= self.at_low
        if place < inside.size:
            return float(inside[place])
        return self.high if place < inside.size + self.at_high else None
