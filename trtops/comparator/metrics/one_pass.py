"""The pass itself: pairs of arrays, block by block, into totals and exact quantiles.

Quantiles are found as Floyd and Rivest select ("Expected Time Bounds for Selection", Communications of the ACM 18, 1975):
a random sample of n^(2/3) elements says between which bounds a rank lies almost surely, and only what is between them is
kept and sorted.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from trtops.comparator.arrays import Array
from trtops.comparator.metrics.difference import BLOCK, Difference
from trtops.comparator.metrics.ranks import Bracket, between, descend, select
from trtops.comparator.metrics.totals import Totals

_SMALL = 1 << 17
"""Up to so many elements all errors are kept and sorted, which is faster than brackets around a few ranks."""

_SAMPLE_ELEMENTS = 1 << 19
_HELD_ELEMENTS = 4_200_000
"""What brackets may collect, all together: 34 MB of float64."""

Block: TypeAlias = tuple[Array, Array, Array, Array]
"""The output, the reference, the absolute and the relative error."""


class Stream:
    """Reads pairs of flat arrays block by block."""

    def __init__(self, pairs: Sequence[tuple[Any, Any, int]], differ: Difference) -> None:
        self.pairs = pairs
        self.differ = differ
        self.elements = sum(size for _, _, size in pairs)

    def blocks(self) -> Iterator[Block]:
        """Blocks of both arrays and both errors, each valid until the next."""
        for whole_a, whole_b, size in self.pairs:
            step = _SMALL if self.elements <= _SMALL else BLOCK
            for start in range(0, size, step):
                a, b, d = self.differ(whole_a[start : start + step], whole_b[start : start + step])
                yield a, b, d, self.differ.relative(d, b)

    def run(self, total: Totals, levels: Sequence[float]) -> list[tuple[float, float]]:
        """One pass: everything into ``total``; returns both errors at each quantile level."""
        if not self.elements:
            return [(0.0, 0.0) for _ in levels]
        if self.elements <= _SMALL:
            return self._run_small(total, levels)
        of_d, of_r = self._make_brackets(total, levels)
        for a, b, d, r in self.blocks():
            total.add(a, b, d, r)
            for bracket in of_d:
                bracket.add(d)
            for bracket in of_r:
                bracket.add(r)
            if sum(bracket.held for bracket in (*of_d, *of_r)) > _HELD_ELEMENTS:
                # The sample misled it, or too many elements are alike: its rank is counted out afterwards.
                max(of_d + of_r, key=lambda bracket: bracket.held).give_up()
        absolute = self._quantiles_of(of_d, levels, total.max_abs, lambda block: block[2])
        relative = self._quantiles_of(of_r, levels, total.max_rel, lambda block: block[3])
        return list(zip(absolute, relative))

    def _run_small(self, total: Totals, levels: Sequence[float]) -> list[tuple[float, float]]:
        kept_d, kept_r = [], []
        one_block = len(self.pairs) == 1  # whose buffers nothing overwrites any more
        for a, b, d, r in self.blocks():
            total.add(a, b, d, r)
            kept_d.append(d if one_block else d.copy())
            kept_r.append(r if one_block else r.copy())
        of_d = select(np.concatenate(kept_d) if len(kept_d) > 1 else kept_d[0], levels, total.max_abs)
        of_r = select(np.concatenate(kept_r) if len(kept_r) > 1 else kept_r[0], levels, total.max_rel)
        return list(zip(of_d, of_r))

    def _make_brackets(self, total: Totals, levels: Sequence[float]) -> tuple[list[Bracket], list[Bracket]]:
        """Brackets around the wanted ranks, and the frontier's pivot, from a random sample."""
        count = min(int(self.elements ** (2 / 3)), _SAMPLE_ELEMENTS)
        where = np.random.default_rng(0).integers(0, self.elements, count)
        parts, offset = [], 0
        for a, b, size in self.pairs:
            here = where[(where >= offset) & (where < offset + size)] - offset
            parts.append((a[here], b[here]))
            offset += size
        a, b = (np.concatenate(side) for side in zip(*parts))
        differ = copy.copy(self.differ)  # whose buffers, as large as the sample, are freed with it
        _, y, d = differ(a, b)
        r = differ.relative(d, y)
        d[np.isnan(d)], r[np.isnan(r)] = np.inf, np.inf
        total.frontier.aim(d, r)
        d.sort()
        r.sort()
        return [Bracket.around(level, self.elements, d) for level in levels], [
            Bracket.around(level, self.elements, r) for level in levels
        ]

    def _quantiles_of(
        self, brackets: Sequence[Bracket], levels: Sequence[float], largest: float, series: Callable[[Block], Array]
    ) -> list[float]:
        """What was collected, made into quantiles; ranks that a bracket missed take more passes over one series."""
        if math.isnan(largest):
            return [math.nan for _ in levels]
        last = self.elements - 1
        found = [bracket.pick(last) for bracket in brackets]
        missed = {r for b, f in zip(brackets, found) if f is None for r in (b.rank, min(b.rank + 1, last))}
        counted = self._elements_at_ranks(missed, series) if missed else {}
        values = []
        for bracket, level, picked in zip(brackets, levels, found):
            low, high = picked or (counted[bracket.rank], counted[min(bracket.rank + 1, last)])
            values.append(between(low, high, level * last - bracket.rank))
        return values

    def _elements_at_ranks(self, ranks: set[int], series: Callable[[Block], Array]) -> dict[int, float]:
        """The elements at some ranks, by counting bit patterns, 16 bits more with each of four passes.

        Floats that are not negative sort as their bit patterns do, so this is a radix search: exact, in 512 KB per rank,
        however the elements are distributed.
        """
        known = {rank: (0, rank) for rank in ranks}  # the bits known so far, and the rank among those that share them
        for shift in (48, 32, 16, 0):
            counts = {prefix: np.zeros(1 << 16, np.int64) for prefix, _ in known.values()}
            for block in self.blocks():
                bits = series(block).view(np.uint64)
                for prefix, count in counts.items():
                    alike = bits if shift == 48 else bits[bits >> np.uint64(shift + 16) == prefix]
                    digits = alike >> np.uint64(shift) & np.uint64(0xFFFF)
                    count += np.bincount(digits.astype(np.intp), minlength=1 << 16)
            known = {rank: descend(counts[prefix], prefix, left) for rank, (prefix, left) in known.items()}
        return {rank: float(np.array(bits, np.uint64).view(np.float64)) for rank, (bits, _) in known.items()}
