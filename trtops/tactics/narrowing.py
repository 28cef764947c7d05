"""Bisections of many units that go on with a few of them, where more than two take part in what decides.

Of many units a :class:`~trtops.tactics.bisection.Bisection` thinks of singles and pairs alone. Any two of four fit none of
these, and no number of trials decides between them. So after some trials that did not, one takes only the most suspicious
units: so few that whatever several of them can do is thought of. If that is bad repeatedly, they are all that has to be told
apart, and the others stay as in the good build.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from trtops.tactics.bisection import Bisection, Culprits
from trtops.tactics.several import MAX_SEVERAL, Bools

_PATIENCE = 16
"""Trials of many units after which a few are tried alone."""
_MISFITS = 3
"""Verdicts against the most probable hypothesis that it takes: one that is right has a few, where some are wrong."""
_STANDS_OUT = 0.5
"""A probability with which a hypothesis is followed up in spite of them: the culprit may fail only sometimes."""
_FOLLOWED_UP = 48
"""Trials up to which it is."""
_AGAIN = 8
"""Trials until the next attempt, where a few were good alone."""
_REPEATED = 2
"""Bad trials of a few alone that it takes to go on with them, since one may be misclassified."""


class Narrowing:
    """A bisection of any number of units, with the methods of :class:`~trtops.tactics.bisection.Bisection`.

    Args:
        bisection: Of all units, before its first trial.
    """

    def __init__(self, bisection: Bisection) -> None:
        self._bisection = bisection
        self._places = np.arange(self._bisection.units)  # of the bisection's units among all
        self._made: list[tuple[Bools, bool]] = []
        self._due = _PATIENCE
        self._alone: Bools | None = None  # the few units that are being tried alone
        self.units = self._bisection.units

    @property
    def trials(self) -> int:
        """How many verdicts were taken in."""
        return len(self._made)

    @property
    def log_e_value(self) -> float:
        """Evidence against chance; natural logarithm."""
        return self._bisection.log_e_value

    @property
    def best(self) -> Culprits:
        """The most probable hypothesis."""
        best = self._bisection.best
        return replace(best, clauses=tuple(tuple(self._places[list(clause)].tolist()) for clause in best.clauses))

    def decided(
        self, confidence: float = 0.95, confidence_of_one: float | None = None
    ) -> Literal["convicted", "chance"] | None:
        """What the trials come to; None if more are needed.

        Args:
            confidence: See :meth:`Bisection.decided <trtops.tactics.bisection.Bisection.decided>`.
            confidence_of_one: See there.
        """
        return self._bisection.decided(confidence, confidence_of_one)

    def next(self, confidence: float = 0.95, confidence_of_one: float | None = None) -> tuple[Bools, Bools | None]:
        """The next trial, of shape ``(units,)``: units taken from the bad build. And its opposite, if a coin was thrown.

        Args:
            confidence: As :meth:`decided` is asked.
            confidence_of_one: As it is asked.
        """
        if self._alone is not None or self._is_to_narrow():
            if self._alone is None:
                self._alone = np.zeros(self.units, np.bool_)
                self._alone[np.argsort(-self._bisection.guilt, kind="stable")[:MAX_SEVERAL]] = True
            return self._alone.copy(), None
        taken, opposite = self._bisection.next(confidence, confidence_of_one)
        return self._among_all(taken), None if opposite is None else self._among_all(opposite)

    def add(self, taken: Bools, bad: bool, opposite: Bools | None = None) -> None:
        """Take in a verdict.

        Args:
            taken: Units that the build got from the bad one, of shape ``(units,)``.
            bad: Its verdict.
            opposite: The trial that a coin decided against, if one was thrown.
        """
        self._made.append((taken, bad))
        if np.delete(taken, self._places).any():
            return  # it strayed: units were to stay as in the good build that did not
        self._bisection.add(taken[self._places], bad, None if opposite is None else opposite[self._places])
        if self._alone is not None:
            self._narrow(self._alone)

    def shun(self, taken: Bools) -> None:
        """Ask for this mixture no more: it cannot be built as wanted."""
        if self._alone is not None and np.array_equal(taken, self._alone):
            self._widen()
        else:
            self._bisection.shun(taken[self._places])

    @property
    def _is_wide(self) -> bool:
        return self._bisection.units > MAX_SEVERAL

    def _is_to_narrow(self) -> bool:
        """Whether there are many units, and no hypothesis about them fits all verdicts or stands out."""
        if (
            not self._is_wide
            or self.trials < self._due
            or ((best := self.best).probability >= _STANDS_OUT and self.trials < _FOLLOWED_UP)
        ):
            return False
        clauses = [list(clause) for clause in best.clauses]
        misfits = sum(bad != any(taken[clause].all() for clause in clauses) for taken, bad in self._made)
        return misfits >= _MISFITS

    def _among_all(self, taken: Bools) -> Bools:
        whole = np.zeros(self.units, np.bool_)
        whole[self._places[taken]] = True
        return whole

    def _narrow(self, alone: Bools) -> None:
        """Go on with a few units if they are bad alone, which was tried just now; or with all of them if they are not."""
        verdicts = [bad for taken, bad in self._made if np.array_equal(taken, alone)]
        if not verdicts or not verdicts[-1]:
            self._widen()
        elif sum(verdicts) >= _REPEATED:
            self._places = np.flatnonzero(alone)
            # What was seen so far may have been made bad by units that are left out now: it counts against chance alone.
            self._bisection = self._bisection.begun_again(len(self._places))
            self._alone = None

    def _widen(self) -> None:
        self._alone, self._due = None, self.trials + _AGAIN
