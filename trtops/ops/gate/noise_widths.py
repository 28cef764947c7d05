"""Noise widths of outputs: how much correct engines of one model differ, as root mean squares.

A width has three parts: the effect of rounding to the precision (:mod:`trtops.ops.evaluation.limits`), the error of
the accepted engine, and its difference from run to run.
"""

import math
from dataclasses import dataclass

import numpy as np

from trtops.comparator.results import RunResults
from trtops.ops.evaluation.data import UNITS, all_numbers, root_mean_square
from trtops.ops.evaluation.limits import NoiseLimits
from trtops.record import Record


@dataclass(frozen=True, kw_only=True)
class OutputWidth(Record):
    """Noise of one output, and the distance of the candidate; root mean squares in the unit of the output."""

    name: str
    width: float
    error: float  # between candidate and golden outputs
    distance: float  # between candidate and accepted engine; infinite if either has NaN or infinite values

    @property
    def distance_widths(self) -> float:
        """Distance from the accepted outputs, in widths."""
        if self.width > 0 and math.isfinite(self.width):
            return self.distance / self.width
        return 0.0 if self.distance <= 0 or (self.width > 0 and math.isfinite(self.distance)) else math.inf


def measure_widths(
    candidate: RunResults,
    accepted: tuple[RunResults, RunResults],
    golden: RunResults,
    noise: NoiseLimits,
    *,
    same_model: bool,
) -> tuple[OutputWidth, ...]:
    """Noise widths of all numeric outputs with one shape in all results.

    ``accepted`` has the outputs of two runs, and ``noise`` what rounding does to the candidate's model.
    """
    rounding = {output.name: output.whole.rms for output in noise.outputs if output.whole is not None}
    widths = []
    for name in candidate[0][1][0]:
        columns = [all_numbers(run, name) for run in (candidate, *accepted, golden)]
        if any(column is None or column.shape != columns[0].shape for column in columns):  # type: ignore[union-attr]
            continue
        mine, theirs, repeated, expected = (np.asarray(column) for column in columns)
        error = root_mean_square(mine - expected)
        # The error of an engine from another model is unknown; it counts as accurate as the candidate.
        accepted_error = root_mean_square(theirs - expected) if same_model else error
        # The difference of two runs has the noise of both.
        run_to_run = root_mean_square(repeated - theirs) / math.sqrt(2)
        # The three are independent, so their squares add up.
        width = math.sqrt(rounding.get(name, 0.0) ** 2 + accepted_error**2 + run_to_run**2)
        # Not less than one rounding unit: an engine may happen to repeat the reference exactly.
        width = max(width, UNITS[noise.precision] * root_mean_square(expected))
        widths.append(OutputWidth(name=name, width=width, error=error, distance=root_mean_square(mine - theirs)))
    return tuple(widths)
