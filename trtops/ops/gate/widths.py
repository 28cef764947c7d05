"""How wide an output's noise is: by how much sound engines of one model may differ.

An engine rounds: each kernel in its own order, each precision to its own unit. So two sound engines differ, and by how much
follows from the model. It is measured: the reference runs once more with every weight and every input moved at random by
up to one rounding unit of the precision, and the outputs' change, as a root mean square, is what rounding does here. To it
comes what the accepted engine is away from the reference, which the team has accepted, and what its outputs differ by from
run to run. The three are independent, so their squares add up; and no width is below one unit of the output's own size.

A *distance in widths* is a root mean square of a difference of outputs, divided by that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from trtops.comparator.results import RunResults
from trtops.ops.evaluation.rounding import UNITS, all_numbers, outputs_by_iteration, root_mean_square
from trtops.record import Record
from trtops.spec import Precision


@dataclass(frozen=True, kw_only=True)
class OutputWidth(Record):
    """One output's noise, and how far the candidate is; all as root mean squares in the output's own unit.

    Attributes:
        name: The output.
        width: Its noise width.
        rounding: The part that rounding adds; 0 where the model cannot be moved.
        accepted_error: The part that the accepted engine is away from the reference.
        run_to_run: The part that differs from run to run of the accepted engine.
        unit: One rounding unit of the output's size, below which no width is.
        candidate_error: What the candidate is away from the reference.
        distance: What the candidate is away from the accepted engine; NaN and infinite values count as infinitely far.
    """

    name: str
    width: float
    rounding: float
    accepted_error: float
    run_to_run: float
    unit: float
    candidate_error: float
    distance: float

    @property
    def distance_widths(self) -> float:
        """The distance from the accepted outputs, in widths."""
        return _in_widths(self.distance, self.width)

    @property
    def growth_widths(self) -> float:
        """How much further from the reference than the accepted engine it is, in widths; negative if it is nearer."""
        growth = self.candidate_error - self.accepted_error
        return _in_widths(growth, self.width) if not math.isnan(growth) else math.inf


@dataclass(frozen=True)
class Seen:
    """The outputs that widths are made of; each has as many iterations as there are feeds.

    Attributes:
        candidate: Of the candidate.
        accepted: Of the accepted engine.
        again: Of the accepted engine, run once more.
        golden: What the candidate should say.
        accepted_golden: What the accepted engine should say: other numbers, if it was built from another model. None if that
            cannot be known; it then counts as being as exact as the candidate.
        plain: Of the candidate's reference.
        moved: Of the same with weights and inputs moved; None if that cannot be done.
    """

    candidate: RunResults
    accepted: RunResults
    again: RunResults
    golden: RunResults
    accepted_golden: RunResults | None
    plain: RunResults
    moved: RunResults | None


def measure_widths(seen: Seen, precision: Precision) -> tuple[OutputWidth, ...]:
    """The widths of all outputs of numbers that all of the results have, in the same shapes."""
    runs = (seen.candidate, seen.accepted, seen.again, seen.golden, seen.plain)
    found = []
    for name in outputs_by_iteration(seen.candidate)[0]:
        columns = [all_numbers(run, name) for run in runs]
        if any(column is None or column.shape != columns[0].shape for column in columns):  # type: ignore[union-attr]
            continue
        mine, theirs, repeated, right, plain = (np.asarray(column) for column in columns)
        moved = None if seen.moved is None else all_numbers(seen.moved, name)
        rounding = 0.0 if moved is None or moved.shape != plain.shape else root_mean_square(moved - plain)
        own = None if seen.accepted_golden is None else all_numbers(seen.accepted_golden, name)
        candidate_error, noise = root_mean_square(mine - right), root_mean_square(repeated - theirs) / math.sqrt(2)
        accepted_error = candidate_error if own is None or own.shape != theirs.shape else root_mean_square(theirs - own)
        least = UNITS[precision] * root_mean_square(right)
        width = OutputWidth(
            name=name,
            width=max(math.sqrt(rounding**2 + accepted_error**2 + noise**2), least),
            rounding=rounding,
            accepted_error=accepted_error,
            run_to_run=noise,
            unit=least,
            candidate_error=candidate_error,
            distance=root_mean_square(mine - theirs),
        )
        found.append(width)
    return tuple(found)


def _in_widths(value: float, width: float) -> float:
    if width > 0:
        return value / width if math.isfinite(width) else (0.0 if math.isfinite(value) else math.inf)
    return 0.0 if value <= 0 else math.inf
