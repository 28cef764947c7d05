"""Noise widths of outputs: how much correct engines of one model differ.

Kernels round in different orders and precisions, so correct engines differ. The effect of rounding is measured: the
reference runs again with every weight and input moved at random by up to one rounding unit of the precision. Added to
it are the error of the accepted engine against the reference, and its difference from run to run. The three are
independent, so their squares add up. A width is at least one rounding unit of the output.

A distance in widths is the root mean square of a difference of outputs, divided by the noise width.
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
    """Noise of one output, and the distance of the candidate; root mean squares in the unit of the output.

    Attributes:
        rounding: The part due to rounding; 0 if the model cannot be moved.
        accepted_error: Error of the accepted engine against the reference.
        run_to_run: Difference between two runs of the accepted engine.
        unit: One rounding unit of the output, the minimum width.
        candidate_error: Error of the candidate against the reference.
        distance: Difference between candidate and accepted engine; infinite if either has NaN or infinite values.
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
        """Distance from the accepted outputs, in widths."""
        return _in_widths(self.distance, self.width)

    @property
    def growth_widths(self) -> float:
        """Growth of the error against the reference compared with the accepted engine, in widths."""
        growth = self.candidate_error - self.accepted_error
        return math.inf if math.isnan(growth) else _in_widths(growth, self.width)


def measure_widths(
    candidate: RunResults,
    accepted: RunResults,
    again: RunResults,
    golden: RunResults,
    accepted_golden: RunResults | None,
    plain: RunResults,
    moved: RunResults | None,
    precision: Precision,
) -> tuple[OutputWidth, ...]:
    """Noise widths of all numeric outputs that have the same shape in all results.

    Args:
        candidate: Outputs of the candidate.
        accepted: Outputs of the accepted engine.
        again: Outputs of the accepted engine in a second run.
        golden: Expected outputs of the candidate.
        accepted_golden: Expected outputs of the accepted engine, which differ if it was built from another model. None
            if unknown; it then counts as accurate as the candidate.
        plain: Outputs of the candidate's reference.
        moved: Outputs of the reference with moved weights and inputs; None if the model cannot be moved.
        precision: Precision of the candidate.
    """
    found = []
    for name in outputs_by_iteration(candidate)[0]:
        columns = [all_numbers(run, name) for run in (candidate, accepted, again, golden, plain)]
        if any(column is None or column.shape != columns[0].shape for column in columns):  # type: ignore[union-attr]
            continue
        mine, theirs, repeated, expected, reference = (np.asarray(column) for column in columns)
        shifted = None if moved is None else all_numbers(moved, name)
        own = None if accepted_golden is None else all_numbers(accepted_golden, name)
        rounding = 0.0
        if shifted is not None and shifted.shape == reference.shape:
            rounding = root_mean_square(shifted - reference)
        candidate_error = accepted_error = root_mean_square(mine - expected)
        if own is not None and own.shape == theirs.shape:
            accepted_error = root_mean_square(theirs - own)
        noise = root_mean_square(repeated - theirs) / math.sqrt(2)
        unit = UNITS[precision] * root_mean_square(expected)
        found.append(
            OutputWidth(
                name=name,
                width=max(math.sqrt(rounding**2 + accepted_error**2 + noise**2), unit),
                rounding=rounding,
                accepted_error=accepted_error,
                run_to_run=noise,
                unit=unit,
                candidate_error=candidate_error,
                distance=root_mean_square(mine - theirs),
            )
        )
    return tuple(found)


def _in_widths(value: float, width: float) -> float:
    if width > 0:
        return value / width if math.isfinite(width) else (0.0 if math.isfinite(value) else math.inf)
    return 0.0 if value <= 0 else math.inf
