"""Exact quantiles without a sort, and the pass over blocks for all other statistics.

A random sample of n^(2/3) elements gives bounds between which a rank lies almost surely (Floyd and Rivest, "Expected
Time Bounds for Selection", Communications of the ACM 18, 1975). Only elements between the bounds are kept.
"""

import copy
import functools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from trtops.comparator.arrays import Array
from trtops.comparator.metrics.difference import BLOCK, Difference
from trtops.comparator.metrics.totals import Totals

_MAX_KEPT_ELEMENTS = 8192  # up to this number, all elements are kept: a sample would cost more
_SAMPLE_ELEMENTS = 1 << 19
_DEVIATIONS = 3.7  # standard deviations of a rank in the sample
# Levels whose bounds are closer than this share of the sample have common bounds: each pair of bounds takes a pass.
_NEAR = 0.02


def quantiles(x: Array, levels: Sequence[float]) -> list[float]:
    """Quantiles of a flat array without NaN, interpolated linearly; the array must have elements."""
    selection = Selection(levels, x.size)
    selection.add(x)
    return selection.pick() or []


def measure_in_one_pass(
    pairs: Sequence[tuple[Array, Array]], differ: Difference, total: Totals, levels: Sequence[float]
) -> list[tuple[float, float]]:
    """Add all elements to ``total``, and return the absolute and the relative error at each level.

    ``pairs`` are flat arrays of the output and its reference, one pair for each iteration. Quantiles are interpolated
    linearly.
    """
    elements = sum(a.size for a, _ in pairs)
    if not elements:
        return [(0.0, 0.0)] * len(levels)

    def blocks() -> Iterator[tuple[Array, Array, Array | None, Array | None]]:
        # Blocks that fit into the cache: temporary arrays of the whole size would take most of the time.
        for whole_a, whole_b in pairs:
            for start in range(0, whole_a.size, BLOCK):
                part_a, part_b = whole_a[start : start + BLOCK], whole_b[start : start + BLOCK]
                # Many tensors are equal to the bit. Infinities have a difference, and for integers 0 / 0 is NaN.
                if differ.floating and np.array_equal(part_a, part_b) and math.isfinite(float(part_a.sum())):
                    x = differ.widened(part_a)
                    yield x, x, None, None
                else:
                    a, b, d = differ(part_a, part_b)
                    yield a, b, d, differ.relative(d, b)

    series = _selections(pairs, differ, total, levels, elements) if levels else ()
    for a, b, d, r in blocks():
        total.add(a, b, d, r)
        for selection, block in zip(series, (d, r)):
            selection.add(np.zeros(1), a.size) if block is None else selection.add(block)
    quantiles_by_error: list[list[float]] = []
    for index, (selection, errors) in enumerate(zip(series, (total.abs, total.rel))):
        picked: list[float] | None = [errors.max] * len(levels)
        if errors.max > 0:  # neither 0 nor NaN
            picked = selection.pick()
        if picked is None:
            # Rarely, a rank lies outside its bounds. The errors are then computed once more, and all are kept.
            selection = Selection(levels, elements)
            for a, _, *block_errors in blocks():
                selection.add(np.zeros_like(a) if (block := block_errors[index]) is None else block)
            picked = selection.pick() or []
        quantiles_by_error.append(picked)
    return list(zip(*quantiles_by_error))


@functools.lru_cache(maxsize=4)  # tensors of one size come one after the other
def _sample_places(elements: int) -> Array:
    # Drawn with a fixed seed, so that the same arrays take the same time in every run.
    count = min(int(elements ** (2 / 3)), _SAMPLE_ELEMENTS)
    return np.random.default_rng(0).integers(0, elements, count)


def _selections(
    pairs: Sequence[tuple[Array, Array]], differ: Difference, total: Totals, levels: Sequence[float], elements: int
) -> "tuple[Selection, Selection]":
    """Selections among both errors, and a first guess of the frontier, from a random sample."""
    if elements <= _MAX_KEPT_ELEMENTS:
        return Selection(levels, elements), Selection(levels, elements)
    sample_indices = _sample_places(elements)
    parts, offset = [], 0
    for whole_a, whole_b in pairs:
        part_indices = (
            sample_indices
            if len(pairs) == 1
            else sample_indices[(sample_indices >= offset) & (sample_indices < offset + whole_a.size)] - offset
        )
        parts.append((whole_a[part_indices], whole_b[part_indices]))
        offset += whole_a.size
    a, b = (np.concatenate(side) for side in zip(*parts))
    differ = copy.copy(differ)  # its buffers, as large as the sample, are freed with it
    _, y, d = differ(a, b)
    r = differ.relative(d, y)
    d[np.isnan(d)], r[np.isnan(r)] = np.inf, np.inf
    if elements > BLOCK and total.frontier is not None:  # otherwise the only block gives a better guess
        total.frontier.aim(d, r)
    return Selection(levels, elements, d), Selection(levels, elements, r)


class Selection:
    """Collects the elements of a series near the ranks of some quantiles, and picks these quantiles."""

    def __init__(self, levels: Sequence[float], elements: int, sample: Array | None = None) -> None:
        """Find bounds in a sample of the series of ``elements`` elements; without a sample, all are kept."""
        self.positions = [level * (elements - 1) for level in levels]
        self.last = elements - 1
        n = 0 if sample is None else sample.size
        ends: list[tuple[int, int, list[int]]] = []
        for index in sorted(range(len(levels)), key=lambda index: levels[index]):
            # Wider bounds keep more elements, narrower ones miss ranks more often. Five places are for the ends.
            reach = _DEVIATIONS * math.sqrt(levels[index] * (1 - levels[index]) * n) + 5
            first, last = int(levels[index] * n - reach), int(levels[index] * n + reach)
            if ends and first <= ends[-1][1] + _NEAR * n:
                first, _, members = ends.pop()
            else:
                members = []
            ends.append((first, last, [*members, index]))
        ranks = set[int]()
        for first, last, _ in ends:
            ranks.update(rank for rank in (first, last) if 0 <= rank < n)
        ordered = np.partition(sample, sorted(ranks)) if sample is not None and ranks else np.empty(0)
        self.groups = []
        for first, last, members in ends:
            low = float(ordered[first]) if first >= 0 else -math.inf
            high = float(ordered[last]) if last < n else math.inf
            self.groups.append(_Bounds(low, high, members))

    def add(self, x: Array, times: int = 1) -> None:
        """Add elements, each ``times`` times; the array may be overwritten afterwards."""
        for group in self.groups:
            group.add(x, times)

    def pick(self) -> list[float] | None:
        """The quantiles, by the order of their levels; None if one is not between its bounds."""
        picked = [0.0] * len(self.positions)
        for group in self.groups:
            ranks = set[int]()
            for index in group.members:
                rank = int(self.positions[index])
                ranks |= {rank, min(rank + 1, self.last)}
            values = group.elements(ranks)
            if values is None:
                return None
            for index in group.members:
                rank = int(self.positions[index])
                low, high, share = values[rank], values[min(rank + 1, self.last)], self.positions[index] - rank
                # Both may be infinite, and their difference is NaN then.
                picked[index] = low if share == 0 or low == high else low + (high - low) * share
        return picked


class _Bounds:
    """Collects the elements between two bounds."""

    def __init__(self, low: float, high: float, members: list[int]) -> None:
        self.low, self.high, self.members = low, high, members
        self.below = self.at_low = 0
        self.inside: list[Array] = []

    def add(self, x: Array, times: int) -> None:
        above = x > self.low
        at_least = int(np.count_nonzero(x >= self.low))
        self.below += times * (x.size - at_least)
        # Elements equal to the lower bound are counted, not kept: of errors, and behind a Relu, many are 0.
        self.at_low += times * (at_least - int(np.count_nonzero(above)))
        if self.low < self.high:
            inside = x.compress(above if self.high == math.inf else above & (x <= self.high))  # faster than an index
            self.inside.append(np.repeat(inside, times) if times > 1 else inside)

    def elements(self, ranks: set[int]) -> dict[int, float] | None:
        """The elements at some ranks of the whole series; None if one is not between the bounds."""
        inside = np.concatenate(self.inside) if self.inside else np.empty(0)
        offsets = {rank: rank - self.below - self.at_low for rank in ranks}
        if not all(-self.at_low <= offset < inside.size for offset in offsets.values()):
            return None
        inside.partition(sorted({0, *(offset for offset in offsets.values() if offset > 0)})) if inside.size else None
        return {rank: self.low if offset < 0 else float(inside[offset]) for rank, offset in offsets.items()}
