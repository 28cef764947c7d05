"""How much of an engine's error comes from its precision, how much from noise, and how much from the builder.

Three errors are measured on the same data, each as a root mean square relative to the golden outputs:

- the engine's;
- the precision's own: that of the model with each result rounded to the requested precision, without an engine;
- noise: the difference of the engine's outputs from run to run, and the effect of rounding the model to FP32.

They are independent, so their squares add up. What remains of the engine's error is the builder's: kernels that
accumulate in too few bits, fusions, wrong tactics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from trtops import errors
from trtops.comparator.report import compare_outputs
from trtops.ops.evaluation.data import UNITS, all_numbers, collect, root_mean_square
from trtops.ops.evaluation.limits import MULTIPLES, STANDS_FOR_INFINITY
from trtops.record import Record
from trtops.spec import Rounding
from trtops.tables import listed
from trtops.verdict import PASSED, Verdict

if TYPE_CHECKING:
    from trtops.backend.base import BaseRunner
    from trtops.comparator.report import Tolerances
    from trtops.comparator.results import RunResults
    from trtops.ops.evaluation.limits import RightModel
    from trtops.ops.evaluation.precision_check import PrecisionCheck

# How many times precision and noise together a sound engine's error may be: it rounds in other places and orders.
# FP32 has a multiple of its own, because its sums are not emulated.
TIMES = 3.0
# Error in rounding units of the output's size that every engine may have.
UNITS_ALLOWED = 4.0

Numbers: TypeAlias = npt.NDArray[np.float64]

Statement: TypeAlias = Literal["within limits", "builder", "precision", "noise", "not in its precision", "unknown"]
_SENTENCES: dict[Statement, str] = {
    "within limits": "The error is within the limits for {}",
    "builder": "The cause is the builder: the engine is worse than {} explains",
    "precision": "The cause is the precision: {} does not suffice for this model",
    "noise": "The cause is noise: the error is that of rounding to FP32 and of repeated runs, and {} adds less",
    "not in its precision": "The engine is not in its precision, {}: it computes in another",
    "unknown": "No output has numbers to attribute an error of {} to",
}


@dataclass(frozen=True, kw_only=True)
class OutputErrors(Record):
    """One output's errors, each relative to the root mean square of the golden output."""

    name: str
    engine: float
    precision: float
    noise: float = 0.0  # of a model that cannot be changed in memory: the difference from run to run alone

    @property
    def builder(self) -> float:
        """The rest of the engine's error; 0 if precision and noise explain all of it."""
        explained = math.hypot(self.precision, self.noise)
        return 0.0 if not self.engine > explained else math.sqrt(self.engine**2 - explained**2)

    def excess(self, unit: float) -> float:
        """The engine's error as a multiple of the largest error expected of a sound engine; 1 if both are infinite.

        ``unit`` is the rounding unit of the engine's precision.
        """
        times = MULTIPLES["fp32"] if unit == UNITS["fp32"] else TIMES
        allowed = max(times * math.hypot(self.precision, self.noise), UNITS_ALLOWED * unit)
        return self.engine / allowed if math.isfinite(allowed) else 1.0 if math.isinf(self.engine) else 0.0


@dataclass(frozen=True, kw_only=True)
class Attribution(Record):
    """The parts of an engine's error."""

    precision: Rounding
    unit: float  # the rounding unit of the requested precision
    outputs: tuple[OutputErrors, ...] = ()
    engine: Verdict  # on the engine
    emulated: Verdict = "good"  # on the emulated model, overflows included
    computed: bool = True  # whether the engine computes in the precision
    overflows: tuple[str, ...] = ()  # tensors of the emulated model
    why_not: str = ""  # why nothing could be measured

    @property
    def worst(self) -> OutputErrors | None:
        """The output that exceeds its allowed error the most; None if no output holds numbers."""
        return max(self.outputs, key=lambda output: output.excess(self.unit), default=None)

    @property
    def statement(self) -> Statement:
        """The cause of the error. A bad engine within its allowed error gets the largest of the three parts."""
        if not self.computed:
            return "not in its precision"
        worst = self.worst
        if worst is None or self.why_not:
            return "unknown"
        if self.engine in PASSED:
            return "within limits"
        if worst.excess(self.unit) > 1:
            return "builder"
        if self.emulated != "good" or worst.precision >= max(worst.noise, worst.builder):
            return "precision"
        return "noise" if worst.noise >= worst.builder else "builder"

    def sentence(self) -> str:
        """The statement with its numbers."""
        if self.why_not:
            return f"The cause of the error could not be measured: {self.why_not}."
        name, worst = self.precision.upper(), self.worst
        text = _SENTENCES[self.statement].format(name)
        if worst is not None:
            text += (
                f"; of the relative error {worst.engine:.3g} of `{worst.name}`, {worst.precision:.3g} is {name}'s own, "
                f"{worst.noise:.3g} noise and {worst.builder:.3g} the builder's"
            )
            if (excess := worst.excess(self.unit)) > 1:
                text += f" ({excess:.3g} times the allowed error)"
        if self.overflows:
            text += f"; overflows in {name}: {listed((f'`{tensor}`' for tensor in self.overflows), 3)}"
        return f"{text}."


def attribute(
    right: RightModel,
    runner: BaseRunner,
    outputs: RunResults,
    tolerances: Tolerances | None,
    *,
    engine: Verdict,
    computed: PrecisionCheck,
) -> Attribution:
    """Measure the parts of an engine's error on the inputs that its outputs and the golden ones are for.

    The runner is active. ``engine`` is the verdict on the engine; ``tolerances`` are those given, if any.
    """
    precision, golden, plain = right.precision, right.golden, right.plain
    found = Attribution(precision=precision, unit=UNITS[precision], engine=engine, computed=computed.lowered)
    try:
        (emulated, overflowing), moved = right.rounded, right.moved
    except errors.TrtopsError as exc:
        return replace(found, why_not=f"the model does not run in {precision.upper()} ({exc})"[:600])
    overflows = tuple(tensor for tensor, _ in overflowing)
    again = collect(runner, right.feeds)
    measured = []
    runs = {"golden": golden, "engine": outputs, "emulated": emulated, "again": again, "plain": plain}
    for name in golden[0][1][0]:
        columns = {run: numbers for run in runs if (numbers := all_numbers(runs[run], name)) is not None}
        if len(columns) == len(runs) and len({numbers.shape for numbers in columns.values()}) == 1:
            nudged = None if moved is None else all_numbers(moved, name)
            measured.append(_output_errors(name, nudged, columns))
    useful = right.useful if tolerances is None else right.tolerances(tolerances)
    enough = bool(compare_outputs(emulated, golden, useful)) and not overflows
    return replace(
        found,
        outputs=tuple(measured),
        emulated="good" if enough else "bad",
        # If ONNX Runtime stands in for a GPU, a precision that does not suffice is the answer.
        computed=computed.lowered or (computed.emulation_counts and not enough),
        overflows=overflows,
    )


def _output_errors(name: str, nudged: Numbers | None, numbers: Mapping[str, Numbers]) -> OutputErrors:
    """One output's errors, from the numbers of each run."""
    golden, engine = numbers["golden"], numbers["engine"]
    counted = np.isfinite(golden) & (np.abs(golden) < STANDS_FOR_INFINITY)
    size = root_mean_square(golden[counted])

    def distance(one: Numbers, other: Numbers) -> float:
        with np.errstate(invalid="ignore"):  # infinite less infinite
            difference = one[counted] - other[counted]
        return root_mean_square(difference) / size if size > 0 else math.inf if np.any(difference) else 0.0

    # The difference of two runs has twice the variance of one.
    run_to_run = distance(numbers["again"], engine) / math.sqrt(2)
    rounding = 0.0 if nudged is None or nudged.shape != golden.shape else distance(nudged, numbers["plain"])
    return OutputErrors(
        name=name,
        engine=distance(engine, golden),
        precision=distance(numbers["emulated"], golden),
        # NaN in the outputs is the engine's error, not noise.
        noise=math.hypot(run_to_run if math.isfinite(run_to_run) else 0.0, rounding),
    )
