"""Outputs of engines, of the model itself, and of the model in another precision."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from trtops import errors
from trtops.backend.engines import reference_runner
from trtops.comparator.report import ComparisonReport, Tolerances, compare_outputs
from trtops.comparator.results import RunResults
from trtops.record import Record
from trtops.spec import Precision
from trtops.system.processes import temporary_prefix
from trtops.verdict import Verdict

if TYPE_CHECKING:
    from trtops.backend.base import BaseRunner, Feed
    from trtops.backend.onnx.model import Model

# Rounding errors: relative to the number, for INT8 relative to the largest of its tensor. They are half a step; for
# FP32 a whole one, because FP32 weights cannot be moved by less.
UNITS: dict[Precision, float] = {"fp32": 2.0**-23, "fp16": 2.0**-11, "bf16": 2.0**-8, "fp8": 2.0**-4, "int8": 1 / 254}

_SHOWN = 3  # overflowing tensors in messages


def collect(runner: BaseRunner, feeds: Iterable[Feed]) -> RunResults:
    """The outputs of an active runner for each feed, copied. All are kept in memory."""
    results = RunResults()
    # Copied, because the arrays belong to the runner, which may overwrite them.
    copies = [{name: np.array(array) for name, array in runner.infer(feed).items()} for feed in feeds]
    results.add(copies, runner_name=runner.name)
    return results


def golden_outputs(model: Model, feeds: Iterable[Feed], golden: str | None) -> RunResults:
    """The golden outputs: those of a file, or the model's own from ONNX Runtime."""
    if golden is not None:
        return RunResults.load(golden)
    # Closed at once, because each session of a large model takes as much memory as it has weights.
    with reference_runner(model) as reference:
        return collect(reference, feeds)


def moved_reference(model: Model, feeds: Sequence[Feed], precision: Precision, *, seed: int = 1) -> RunResults | None:
    """The reference's outputs with weights and inputs moved at random by up to one rounding unit of a precision.

    None for models that are too large to be changed in memory.
    """
    import onnx

    from trtops.backend.onnx.model import Model, is_large

    def moved(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if array.dtype.kind != "f" or not array.size:
            return array
        step = UNITS[precision] * (np.abs(array).max() if precision == "int8" else np.abs(array))
        with np.errstate(over="ignore"):  # masks are filled with the lowest number, which may move beyond it
            return np.asarray(array + random.uniform(-1, 1, array.shape) * step, array.dtype)

    if is_large(model.structure()):
        return None
    proto, random = model.proto(), np.random.default_rng(seed)
    for tensor in proto.graph.initializer:
        if tensor.data_type in (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE):
            array = moved(onnx.numpy_helper.to_array(tensor))
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    inputs = [{name: moved(np.asarray(array)) for name, array in feed.items()} for feed in feeds]
    with reference_runner(Model.from_proto(proto, model.name)) as runner:
        return collect(runner, inputs)


Overflows: TypeAlias = tuple[tuple[str, float], ...]
"""Tensors with values that 16 bit does not hold, and the largest of each."""


# Engines of ONNX Runtime compute 16 bit in FP32, where an activation that overflows in FP16 does not overflow. For them
# the model is run once more with each 16-bit result rounded as a GPU rounds (trtops.backend.onnx.emulate), and the
# largest value of each tensor is read before it is rounded.
@dataclass(frozen=True, kw_only=True)
class Emulation(Record):
    """A model evaluated in 16 bit, rounded as a GPU rounds."""

    precision: Literal["fp16", "bf16"]
    report: ComparisonReport
    overflows: Overflows = ()

    @property
    def verdict(self) -> Verdict:
        """``bad`` if an output does not meet the tolerances, or a tensor overflows."""
        return "bad" if self.overflows or not self.report else "good"

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is bad, one sentence each."""
        found = [f"{tensor!r} overflows, {peak:,.0f} > 65,504" for tensor, peak in self.overflows[:_SHOWN]]
        if len(self.overflows) > _SHOWN:
            found.append(f"{len(self.overflows) - _SHOWN} more tensors overflow")
        return tuple(
            f"in {self.precision.upper()} as a GPU rounds it: {reason}" for reason in (*found, *self.report.reasons)
        )

    def sentence(self) -> str:
        """The evaluation in a line."""
        measured = [o.statistics for o in self.report.outputs if o.statistics is not None]
        worst = max((s.nrmse or 0.0 for s in measured if s.agreement is None), default=0.0)
        return (
            f"{self.precision.upper()} as a GPU rounds it, emulated: {self.verdict}; relative error {worst:.3g}, "
            f"overflowing tensors: {len(self.overflows)}."
        )


def emulate(
    model: Model,
    precision: Literal["fp16", "bf16"],
    feeds: Iterable[Feed],
    golden: RunResults,
    tolerances: Tolerances,
    keep: Sequence[str] = (),
) -> Emulation:
    """Evaluate an FP32 model in 16 bit; nodes of ``keep`` stay in FP32. Errors as for :func:`run_in_16_bit`."""
    outputs, overflows = run_in_16_bit(model, precision, feeds, keep)
    return Emulation(precision=precision, report=compare_outputs(outputs, golden, tolerances), overflows=overflows)


def run_in_16_bit(
    model: Model, precision: Literal["fp16", "bf16"], feeds: Iterable[Feed], keep: Sequence[str] = ()
) -> tuple[list[dict[str, Any]], Overflows]:
    """The outputs of a model in 16 bit for each feed, and the tensors that overflow, in order of execution.

    Raises BackendError if the rewritten model does not run.
    """
    from trtops.backend.onnx.emulate import LARGEST_FLOAT16, emulate_low_precision, watch_peaks
    from trtops.backend.onnx.precision import lower_precision
    from trtops.backend.onnxrt.reference import reference_outputs

    with tempfile.TemporaryDirectory(prefix=temporary_prefix("emulated")) as folder:
        low = lower_precision(model.proto(lean=True), precision, exclude=keep, weights=Path(folder)).model
        emulate_low_precision(low)
        outputs = [value.name for value in low.graph.output]
        peaks = watch_peaks(low) if precision == "fp16" else {}
        feeds = list(feeds)
        # Without optimizations, which could remove the rounding, and crash on some models in 16 bit.
        try:
            found = reference_outputs(low, feeds)
        except errors.BackendError:
            if not peaks:
                raise
            # A tensor without elements has no largest value.
            del low.graph.output[len(outputs) :]
            found, peaks = reference_outputs(low, feeds), {}
    largest = {tensor: max(float(arrays[peak]) for arrays in found) for tensor, peak in peaks.items()}
    return (
        [{name: arrays[name] for name in outputs} for arrays in found],
        # A value rounds to infinity from half a step (16) above the largest float16.
        tuple((tensor, peak) for tensor, peak in largest.items() if peak >= LARGEST_FLOAT16 + 16),
    )


def all_numbers(results: RunResults, name: str) -> npt.NDArray[np.float64] | None:
    """All numbers of an output; None if an iteration lacks it, or it does not hold numbers."""
    run = results[0][1]
    if any(name not in iteration for iteration in run):
        return None
    arrays = [np.asarray(iteration[name]) for iteration in run]
    if any(array.dtype.kind not in "fiub" and array.dtype.name != "bfloat16" for array in arrays):
        return None
    return np.concatenate([array.astype(np.float64).ravel() for array in arrays])


def root_mean_square(difference: npt.NDArray[np.float64]) -> float:
    """Root mean square; infinite if an element is NaN or infinite, 0 without elements."""
    if not difference.size:
        return 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        value = float(np.sqrt(np.mean(np.square(difference))))
    return value if math.isfinite(value) else math.inf
