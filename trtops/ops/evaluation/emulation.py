"""The model in 16 bit, rounded as a GPU rounds, for engines of ONNX Runtime that compute 16 bit in FP32.

An activation that overflows in FP16 does not overflow there. The model is run once more with each 16-bit result rounded
(:mod:`trtops.backend.onnx.emulate`), and the largest value of each tensor is read before it is rounded.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from trtops import errors
from trtops.comparator.report import ComparisonReport, Tolerances, compare_outputs
from trtops.comparator.results import RunResults
from trtops.record import Record
from trtops.system.processes import temporary_prefix
from trtops.verdict import Verdict

if TYPE_CHECKING:
    import onnx

    from trtops.backend.base import Feed
    from trtops.backend.onnx.model import Model

    Arrays = dict[str, np.ndarray]

LowPrecision: TypeAlias = Literal["fp16", "bf16"]

_SHOWN = 3
_LARGEST = float(np.finfo(np.float16).max)


@dataclass(frozen=True, kw_only=True)
class Overflow(Record):
    """A tensor with a value that 16 bit does not hold."""

    tensor: str
    peak: float


@dataclass(frozen=True, kw_only=True)
class Emulation(Record):
    """A model evaluated in 16 bit, rounded as a GPU rounds."""

    precision: LowPrecision
    report: ComparisonReport
    overflows: tuple[Overflow, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """``bad`` if an output does not meet the tolerances, or a tensor overflows."""
        return "bad" if self.overflows or not self.report else "good"

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is bad, one sentence each."""
        where = f"in {self.precision.upper()} as a GPU rounds it"
        found = [f"{where}: {o.tensor!r} overflows, {o.peak:,.0f} > {_LARGEST:,.0f}" for o in self.overflows[:_SHOWN]]
        if len(self.overflows) > _SHOWN:
            found.append(f"{where}: {len(self.overflows) - _SHOWN} more tensors overflow")
        return (*found, *(f"{where}: {reason}" for reason in self.report.reasons))

    def sentence(self) -> str:
        """The evaluation in a line."""
        measured = [o.statistics for o in self.report.outputs if o.statistics is not None]
        worst = max((s.nrmse or 0.0 for s in measured if s.agreement is None), default=0.0)
        count = len(self.overflows)
        overflows = "no tensor overflows" if not count else f"{count} tensor{'s' if count > 1 else ''} overflow"
        name = self.precision.upper()
        return f"{name} as a GPU rounds it, emulated: {self.verdict}; relative error {worst:.3g}, {overflows}."


def emulate(
    model: Model,
    precision: LowPrecision,
    feeds: Iterable[Feed],
    golden: RunResults,
    tolerances: Tolerances,
    keep: Sequence[str] = (),
) -> Emulation:
    """Evaluate a model in 16 bit, rounded as a GPU rounds.

    Args:
        model: The model, in FP32.
        precision: The precision to round to.
        feeds: Inputs.
        golden: The golden outputs for them.
        tolerances: When outputs are good enough.
        keep: Nodes that stay in FP32.

    Raises:
        BackendError: If the rewritten model does not run.
    """
    outputs, overflows = run_in_16_bit(model, precision, feeds, keep)
    return Emulation(precision=precision, report=compare_outputs(outputs, golden, tolerances), overflows=overflows)


def run_in_16_bit(
    model: Model, precision: LowPrecision, feeds: Iterable[Feed], keep: Sequence[str] = ()
) -> tuple[list[Arrays], tuple[Overflow, ...]]:
    """The outputs of a model in 16 bit for each feed, and the tensors that overflow, in order of execution.

    Raises:
        BackendError: If the rewritten model does not run.
    """
    from trtops.backend.onnx.emulate import LARGEST_FLOAT16, emulate_low_precision, watch_peaks
    from trtops.backend.onnx.precision import lower_precision

    with tempfile.TemporaryDirectory(prefix=temporary_prefix("emulated")) as folder:
        low = lower_precision(model.proto(lean=True), precision, exclude=keep, weights=Path(folder)).model
        emulate_low_precision(low)
        outputs = [value.name for value in low.graph.output]
        peaks = watch_peaks(low) if precision == "fp16" else {}
        feeds = list(feeds)
        try:
            found = run_unoptimized(low, feeds)
        except errors.BackendError:
            if not peaks:
                raise
            del low.graph.output[len(outputs) :]  # a tensor without elements has no largest value
            found, peaks = run_unoptimized(low, feeds), {}
    largest = {tensor: max(float(arrays[peak]) for arrays in found) for tensor, peak in peaks.items()}
    return (
        [{name: arrays[name] for name in outputs} for arrays in found],
        tuple(Overflow(tensor=t, peak=peak) for t, peak in largest.items() if peak >= LARGEST_FLOAT16 + 16),
    )


def run_unoptimized(model: onnx.ModelProto, feeds: Iterable[Feed]) -> list[Arrays]:
    """The outputs of a model for each feed, without graph optimization.

    Raises:
        BackendError: If ONNX Runtime cannot run it.
    """
    from trtops.backend.onnxrt.reference import SessionFromMemory
    from trtops.backend.onnxrt.runner import OnnxrtRunner

    # Optimizers could remove the rounding, and crash on some models in 16 bit.
    with OnnxrtRunner(SessionFromMemory(model, optimized=False), "emulated") as runner:
        return [{name: np.array(array) for name, array in runner.infer(feed).items()} for feed in feeds]
