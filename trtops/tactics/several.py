"""Whatever a few units can do together that more than two of them take part in: all hypotheses of that kind."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Bools: TypeAlias = npt.NDArray[np.bool_]
Clauses: TypeAlias = tuple[tuple[int, ...], ...]
"""Units that make a build bad: any of the clauses, of each of which all units must be there."""

MAX_SEVERAL = 7
"""Units up to which sets of more than two are thought of: there are some 900 then."""


@dataclass(frozen=True)
class Several:
    """Hypotheses about more than two of a few units: one unit, if any is named, and at least so many of a set.

    Attributes:
        needed: The unit without which nothing is bad, of shape ``(hypotheses, units)``, at most one in a row.
        among: The sets, of the same shape.
        least: How many of its set must be taken, of shape ``(hypotheses,)``.
    """

    needed: Bools
    among: Bools
    least: npt.NDArray[np.int64]

    @classmethod
    @cache
    def of(cls, units: int) -> Several:
        """All hypotheses of this kind about so many units."""
        rows: list[tuple[int | None, tuple[int, ...], int]] = []
        if units <= MAX_SEVERAL:
            for size in range(3, units + 1):
                for members in itertools.combinations(range(units), size):
                    rows += [(None, members, least) for least in range(1, size + 1)]
            for size in range(2, units):
                for needed in range(units):
                    others = [unit for unit in range(units) if unit != needed]
                    rows += [(needed, members, 1) for members in itertools.combinations(others, size)]
        needed_by, among = np.zeros((2, len(rows), units), np.bool_)
        for row, (unit, members, _) in enumerate(rows):
            among[row, list(members)] = True
            if unit is not None:
                needed_by[row, unit] = True
        return cls(needed_by, among, np.array([least for *_, least in rows], np.int64))

    def expected_bad(self, taken: Bools) -> Bools:
        """Whether each hypothesis expects a trial to be bad."""
        expected: Bools = ((self.among & taken).sum(axis=1) >= self.least) & ~(self.needed & ~taken).any(axis=1)
        return expected

    def clauses(self, row: int) -> Clauses:
        """A hypothesis as clauses."""
        needed, members = np.flatnonzero(self.needed[row]), np.flatnonzero(self.among[row])
        sets = itertools.combinations(members.tolist(), int(self.least[row]))
        return tuple(tuple(sorted((*needed.tolist(), *chosen))) for chosen in sets)

    @cached_property
    def expected_of_all(self) -> npt.NDArray[np.int64]:
        """What each expects of every mixture of the units, as 0 and 1, of shape ``(2 ** units, hypotheses)``.

        Unit ``i`` is in a mixture if bit ``i`` of its position is set.
        """
        units = self.among.shape[1]
        mixtures = (np.arange(1 << units)[:, None] >> np.arange(units)) & 1
        return np.array([self.expected_bad(taken.astype(np.bool_)) for taken in mixtures], np.int64)


def clauses_text(clauses: Clauses, describe: Callable[[int], str], separator: str) -> str:
    """Clauses in words; any so many of a set, as two of four, are not listed one by one.

    Args:
        clauses: At least one.
        describe: Says what a unit is.
        separator: Stands before the "or" between clauses.
    """
    units = tuple(dict.fromkeys(unit for clause in clauses for unit in clause))
    least = len(clauses[0])
    every = {frozenset(of) for of in itertools.combinations(units, least)} if 1 < least < len(units) else None
    if {frozenset(clause) for clause in clauses} == every:
        return f"any {least} together of {', or '.join(map(describe, units))}"
    return f"{separator} or ".join(" together with ".join(map(describe, clause)) for clause in clauses)
