"""Measuring whose fault an engine's error is (:mod:`trtops.ops.evaluation.attribution`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import onnx

from trtops import errors
from trtops.backend.base import BaseRunner, Build, Feed
from trtops.backend.engines import reference_runner
from trtops.backend.onnx.model import Model
from trtops.backend.onnx.quantize import DEFAULT_OP_TYPES, insert_qdq, is_quantized
from trtops.calibration.cache import read_cache
from trtops.comparator.report import Tolerances, compare_outputs
from trtops.comparator.results import IterationResult, RunResults
from trtops.ops.evaluation.attribution import Attribution, OutputErrors
from trtops.ops.evaluation.check import Evaluation, collect
from trtops.ops.evaluation.emulated import run_in_16_bit, run_unoptimized
from trtops.ops.evaluation.rounding import UNITS, all_numbers, moved_reference, outputs_by_iteration, root_mean_square

_STANDS_FOR_INFINITY = 1e9  # what is left of such numbers in 16 bit says nothing of an engine


@dataclass(frozen=True)
class Seen:
    """What was run already when an engine was evaluated.

    Attributes:
        runner: The engine's runner; active.
        outputs: The engine's outputs.
        golden: The golden outputs.
        golden_given: Whether these were given, and are not the model's own.
    """

    runner: BaseRunner
    outputs: RunResults
    golden: RunResults
    golden_given: bool


@dataclass(frozen=True)
class _Emulation:
    """A model's outputs in a precision, without an engine, and the tensors that overflow in it."""

    outputs: RunResults
    overflows: tuple[str, ...] = ()


def attribute(
    model: Model, build: Build, evaluation: Evaluation, seen: Seen, feeds: Sequence[Feed], tolerances: Tolerances
) -> Attribution:
    """Say how much of an engine's error is its precision's own, how much noise, and how much the builder's.

    Args:
        model: The model that the engine was built from.
        build: The engine, and how it was built.
        evaluation: How it was evaluated, with what its kernels compute in.
        seen: Its outputs and the golden ones.
        feeds: The inputs that these are for.
        tolerances: When outputs are good enough.
    """
    precision = build.spec.config.precision
    found = evaluation.computed
    computed = found is None or found.lowered
    facts = Attribution(precision=precision, unit=UNITS[precision], engine=evaluation.verdict, computed=computed)
    try:
        plain = _reference_outputs(model, feeds) if seen.golden_given else seen.golden
        emulation = _emulated(model, build, feeds, plain)
        moved = moved_reference(model, feeds, "fp32")
    except errors.TrtopsError as exc:
        return replace(facts, why_not=f"the model does not run in {precision.upper()} ({exc})"[:600])
    again = collect(seen.runner, feeds)
    report = compare_outputs(emulation.outputs, seen.golden, tolerances)
    outputs = [
        _output_errors(name, seen, emulation.outputs, again, plain, moved)
        for name in outputs_by_iteration(seen.golden)[0]
    ]
    enough = bool(report) and not emulation.overflows
    return replace(
        facts,
        outputs=tuple(each for each in outputs if each is not None),
        emulated="good" if enough else "bad",
        # Where ONNX Runtime stands in for a GPU, what the precision does is what is asked about.
        computed=computed or (found is not None and found.emulation_counts and not enough),
        overflows=emulation.overflows,
    )


def _reference_outputs(model: Model, feeds: Sequence[Feed]) -> RunResults:
    with reference_runner(model) as runner:
        return collect(runner, feeds)


def _emulated(model: Model, build: Build, feeds: Sequence[Feed], plain: RunResults) -> _Emulation:
    """The model in the precision asked for, with every result rounded and nothing fused.

    Raises:
        UnsupportedFeatureError: If the precision cannot be emulated.
        CalibrationError: If an INT8 build left no ranges.
    """
    config = build.spec.config
    precision = config.precision
    if precision == "fp32" or is_quantized(model.structure()):
        return _Emulation(plain)  # whose own rounding the golden outputs have
    if precision == "fp8":
        raise errors.UnsupportedFeatureError("FP8 cannot be emulated")
    if precision == "int8":
        return _Emulation(_of_names(run_unoptimized(_in_int8(model, build), feeds), plain))
    low = run_in_16_bit(model, precision, feeds, config.keep)
    return _Emulation(_of_names(low.outputs, plain), tuple(overflow.tensor for overflow in low.overflows))


def _in_int8(model: Model, build: Build) -> onnx.ModelProto:
    """The model with the Q/DQ nodes that the build's ranges come to."""
    config = build.spec.config
    if build.calibration_cache is None:
        raise errors.CalibrationError("the INT8 build left no calibration cache")
    op_types: Sequence[str] = DEFAULT_OP_TYPES
    if config.backend == "onnxruntime":
        from trtops.backend.onnxrt.calibration import INT8_OP_TYPES

        op_types = INT8_OP_TYPES
    proto = model.proto(lean=True)
    ranges = read_cache(build.calibration_cache)
    insert_qdq(proto, ranges, style=config.backend, keep=config.keep, op_types=op_types, policy="partial")
    return proto


def _of_names(found: Sequence[Feed], like: RunResults) -> RunResults:
    names = list(outputs_by_iteration(like)[0])
    iterations = [IterationResult({name: arrays[name] for name in names}) for arrays in found]
    return RunResults([("emulated", iterations)])


def _output_errors(
    name: str, seen: Seen, emulated: RunResults, again: RunResults, plain: RunResults, moved: RunResults | None
) -> OutputErrors | None:
    """One output's errors; None if it does not hold numbers, or not as many everywhere."""
    right = all_numbers(seen.golden, name)
    columns = [all_numbers(run, name) for run in (seen.outputs, emulated, again, plain)]
    if right is None or any(column is None or column.shape != right.shape for column in columns):
        return None
    counted = np.isfinite(right) & (np.abs(right) < _STANDS_FOR_INFINITY)
    mine, low, repeated, own = (np.asarray(column)[counted] for column in columns)
    right = right[counted]
    nudged = None if moved is None else all_numbers(moved, name)
    size = root_mean_square(right)

    def relative(difference: npt.NDArray[np.float64]) -> float:
        return root_mean_square(difference) / size if size > 0 else math.inf if np.any(difference) else 0.0

    with np.errstate(invalid="ignore"):  # infinite less infinite
        # What fails from run to run, such as NaN, is the engine's error and no noise.
        run_to_run = relative(repeated - mine) / math.sqrt(2)
        return OutputErrors(
            name=name,
            engine=relative(mine - right),
            precision=relative(low - right),
            run_to_run=run_to_run if math.isfinite(run_to_run) else 0.0,
            rounding=0.0 if nudged is None or nudged.shape != counted.shape else relative(nudged[counted] - own),
        )
