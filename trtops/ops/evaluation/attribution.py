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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from trtops import errors
from trtops.comparator.report import Tolerances, compare_outputs
from trtops.comparator.results import RunResults
from trtops.ops.evaluation.data import (
    UNITS,
    all_numbers,
    collect,
    golden_outputs,
    moved_reference,
    root_mean_square,
    run_in_16_bit,
)
from trtops.record import Record
from trtops.spec import Precision
from trtops.verdict import PASSED, Verdict

if TYPE_CHECKING:
    from trtops.backend.base import BaseRunner, Build, Feed
    from trtops.backend.onnx.model import Model
    from trtops.ops.evaluation.precision_check import PrecisionCheck

# How many times precision and noise together a sound engine's error may be: it rounds in other places and orders.
TIMES = 3.0
# Error in rounding units of the output's size that every engine may have.
UNITS_ALLOWED = 4.0
# Larger values stand for infinity. 16 bit clamps them, so they are left out.
_STANDS_FOR_INFINITY = 1e9

Numbers: TypeAlias = "npt.NDArray[np.float64]"

Statement: TypeAlias = Literal[
    "good for its precision", "worse than its precision", "precision is the problem", "not in its precision", "unknown"
]
_SENTENCES: dict[Statement, str] = {
    "good for its precision": "The engine is good for its precision, {}",
    "worse than its precision": "The engine is worse than its precision, {}: the builder is the cause",
    "precision is the problem": "The precision is the problem: {} does not suffice for this model",
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
        allowed = max(TIMES * math.hypot(self.precision, self.noise), UNITS_ALLOWED * unit)
        return self.engine / allowed if math.isfinite(allowed) else 1.0 if math.isinf(self.engine) else 0.0


@dataclass(frozen=True, kw_only=True)
class Attribution(Record):
    """The parts of an engine's error."""

    precision: Precision
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
        """The cause of the error. A bad engine within its allowed error gets the larger of the two parts."""
        if not self.computed:
            return "not in its precision"
        worst = self.worst
        if worst is None or self.why_not:
            return "unknown"
        if worst.excess(self.unit) > 1:
            return "worse than its precision"
        if self.engine in PASSED:
            return "good for its precision"
        if self.emulated != "good" or math.hypot(worst.precision, worst.noise) >= worst.builder:
            return "precision is the problem"
        return "worse than its precision"

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
            more = f" and {len(self.overflows) - 3} more" if len(self.overflows) > 3 else ""
            text += f"; overflows in {name}: {', '.join(f'`{tensor}`' for tensor in self.overflows[:3])}{more}"
        return f"{text}."


def attribute(
    model: Model,
    build: Build,
    runner: BaseRunner,
    outputs: RunResults,
    golden: RunResults,
    feeds: Sequence[Feed],
    tolerances: Tolerances,
    *,
    engine: Verdict,
    computed: PrecisionCheck,
    golden_given: bool,
) -> Attribution:
    """Measure the parts of an engine's error on the inputs that its outputs and the golden ones are for.

    The runner is active. ``engine`` is the verdict on the engine, and ``golden_given`` says that the golden outputs are
    not the model's own.
    """
    precision = build.spec.config.precision
    found = Attribution(precision=precision, unit=UNITS[precision], engine=engine, computed=computed.lowered)
    try:
        plain = golden_outputs(model, feeds, None) if golden_given else golden
        emulated, overflows = _emulated(model, build, feeds, plain)
        moved = moved_reference(model, feeds, "fp32")
    except errors.TrtopsError as exc:
        return replace(found, why_not=f"the model does not run in {precision.upper()} ({exc})"[:600])
    again = collect(runner, feeds)
    measured = []
    runs = {"golden": golden, "engine": outputs, "emulated": emulated, "again": again, "plain": plain}
    for name in golden[0][1][0]:
        columns = {run: numbers for run in runs if (numbers := all_numbers(runs[run], name)) is not None}
        if len(columns) == len(runs) and len({numbers.shape for numbers in columns.values()}) == 1:
            nudged = None if moved is None else all_numbers(moved, name)
            measured.append(_output_errors(name, nudged, columns))
    enough = bool(compare_outputs(emulated, golden, tolerances)) and not overflows
    return replace(
        found,
        outputs=tuple(measured),
        emulated="good" if enough else "bad",
        # If ONNX Runtime stands in for a GPU, a precision that does not suffice is the answer.
        computed=computed.lowered or (computed.emulation_counts and not enough),
        overflows=overflows,
    )


def _emulated(
    model: Model, build: Build, feeds: Sequence[Feed], plain: RunResults
) -> tuple[RunResults, tuple[str, ...]]:
    """The model's outputs in the requested precision, every result rounded and nothing fused, and what overflows.

    Raises UnsupportedFeatureError if the precision cannot be emulated.
    """
    from trtops.backend.onnx.quantize import OP_TYPES, insert_qdq, is_quantized
    from trtops.backend.onnxrt.runner import reference_outputs
    from trtops.calibration.cache import read_cache

    config = build.spec.config
    if config.precision == "fp32" or is_quantized(model.structure()):
        return plain, ()
    if config.precision == "fp8":
        raise errors.UnsupportedFeatureError("FP8 cannot be emulated")
    overflows: tuple[str, ...] = ()
    if config.precision == "int8":
        if build.calibration_cache is None:
            raise errors.CalibrationError("the INT8 build left no calibration cache")
        op_types: Sequence[str] = OP_TYPES
        if config.backend == "onnxruntime":
            from trtops.backend.onnxrt.calibration import INT8_OP_TYPES

            op_types = INT8_OP_TYPES
        proto = model.proto(lean=True)
        ranges = read_cache(build.calibration_cache)
        insert_qdq(proto, ranges, style=config.backend, keep=config.keep, op_types=op_types, policy="partial")
        found = reference_outputs(proto, feeds)
    else:
        found, overflowing = run_in_16_bit(model, config.precision, feeds, config.keep)
        overflows = tuple(tensor for tensor, _ in overflowing)
    results = RunResults()
    results.add([{name: arrays[name] for name in plain[0][1][0]} for arrays in found])
    return results, overflows


def _output_errors(name: str, nudged: Numbers | None, numbers: Mapping[str, Numbers]) -> OutputErrors:
    """One output's errors, from the numbers of each run."""
    golden, engine = numbers["golden"], numbers["engine"]
    counted = np.isfinite(golden) & (np.abs(golden) < _STANDS_FOR_INFINITY)
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
