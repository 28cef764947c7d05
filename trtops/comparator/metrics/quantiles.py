"""Exact quantiles without a sort, and the pass over blocks for all other statistics.

A random sample of n^(2/3) elements gives bounds between which a rank lies almost surely (Floyd and Rivest, "Expected
Time Bounds for Selection", Communications of the ACM 18, 1975). Only elements between the bounds are kept.
"""

import copy
import functools
import math
from collections.abc import Iterator, Sequence, Set

import numpy as np

from trtops.comparator.arrays import Array
from trtops.comparator.metrics.difference import BLOCK, Difference
from trtops.comparator.metrics.totals import Totals

_SAMPLE_ELEMENTS = 1 << 19
_DEVIATIONS = 3.7  # standard deviations of a rank in the sample
# Levels whose bounds are closer than this share of the sample have common bounds: each pair of bounds takes a pass.
_NEAR = 0.06


def quantiles(x: Array, levels: Sequence[float]) -> list[float]:
    """Quantiles of a flat array without NaN, interpolated linearly; the array must have elements."""
    least = float(x.min())
    selection = Selection(levels, x.size, least, None if x.size <= BLOCK else x[_sample_places(x.size)])
    for start in range(0, x.size, BLOCK):
        selection.add(x[start : start + BLOCK])
    picked = selection.pick()
    if picked is None:  # rarely, a rank lies outside its bounds
        selection = Selection(levels, x.size, least)
        selection.add(x)
        picked = selection.pick()
    return picked or []


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

    series: Sequence[Selection] = ()
    equal_elements = 0
    for a, b, d, r in blocks():
        total.add(a, b, d, r)
        if d is None or r is None:
            equal_elements += a.size
        elif levels:
            series = series or _selections(pairs, differ, total, levels, elements)
            for selection, block in zip(series, (d, r)):
                selection.add(block)
    for selection in series if equal_elements else ():
        selection.add(np.zeros(1), equal_elements)
    quantiles_by_error: list[list[float]] = []
    for index, errors in enumerate((total.abs, total.rel)):
        picked: list[float] | None = [errors.max] * len(levels)
        if levels and errors.max > 0:  # neither 0 nor NaN
            picked = series[index].pick()
        if picked is None:
            # Rarely, a rank lies outside its bounds. The errors are then computed once more, and all are kept.
            selection = Selection(levels, elements, 0.0)
            for a, _, d, r in blocks():
                errors_of_block = (d, r)[index]
                selection.add(np.zeros_like(a) if errors_of_block is None else errors_of_block)
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
    if elements <= BLOCK:  # a sample would cost more
        return Selection(levels, elements, 0.0), Selection(levels, elements, 0.0)
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
    differ = copy.copy(differ)  # the buffers of the other one hold a block
    differ.buffers = np.empty((4, a.size))
    _, y, d = differ(a, b)
    r = differ.relative(d, y)
    d[np.isnan(d)], r[np.isnan(r)] = np.inf, np.inf
    if total.frontier is not None:
        total.frontier.aim(d, r)
    return Selection(levels, elements, 0.0, d), Selection(levels, elements, 0.0, r)


class Selection:
    """Collects the elements of a series near the ranks of some quantiles, and picks these quantiles."""

    def __init__(self, levels: Sequence[float], elements: int, least: float, sample: Array | None = None) -> None:
        """Find bounds in a sample of the series of ``elements`` elements; without a sample, all are kept.

        No element is smaller than ``least``.
        """
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
        values = {} if sample is None else _values_at(sample, ranks)
        self.groups = []
        for first, last, members in ends:
            low, high = values.get(first, least), values.get(last, math.inf)
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
        values = _values_at(inside, {offset for offset in offsets.values() if offset >= 0})
        return {rank: values.get(offset, self.low) for rank, offset in offsets.items()}


def _values_at(x: Array, ranks: Set[int]) -> dict[int, float]:
    """The elements that a sort would put at these ranks; reorders the array.

    NumPy has vector code only for a single rank: several calls take a quarter of the time of one.
    """
    values: dict[int, float] = {}
    start = 0
    for rank in sorted(ranks):
        rest = x[start:]
        if rank == start:
            least = int(rest.argmin())
            rest[[0, least]] = rest[[least, 0]]
        else:
            rest.partition(rank - start)
        values[rank] = float(x[rank])
        start = rank + 1
    return values
