"""What an engine really computes in, and what a model gives in 16 bit: as values, which need neither model nor back end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from trtops.comparator.report import ComparisonReport
from trtops.record import Record
from trtops.spec import BackendName, Precision
from trtops.verdict import Verdict

_NARROWER: dict[Precision, tuple[Precision, ...]] = {"fp16": ("bf16", "int8", "fp8"), "bf16": ("fp16", "int8", "fp8")}
_SHOWN = 3
_LARGEST = float(np.finfo(np.float16).max)


@dataclass(frozen=True, kw_only=True)
class Overflow(Record):
    """A tensor with a value that 16 bit does not hold.

    Attributes:
        tensor: Its name.
        peak: Its largest magnitude, of those that do not stand for infinity.
    """

    tensor: str
    peak: float


@dataclass(frozen=True, kw_only=True)
class Emulated(Record):
    """A model evaluated in 16 bit as a GPU rounds it.

    Attributes:
        precision: ``fp16`` or ``bf16``.
        report: The comparison with the golden outputs.
        overflows: Tensors that overflow, in order of execution.
    """

    precision: Literal["fp16", "bf16"]
    report: ComparisonReport
    overflows: tuple[Overflow, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """``bad`` if an output does not meet the tolerances, or a value overflows on the way."""
        return "bad" if self.overflows or not self.report else "good"

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is bad, in words, one sentence each."""
        where = f"in {self.precision.upper()} as a GPU rounds it"
        shown = self.overflows[:_SHOWN]
        found = [f"{where}: {o.tensor!r} overflows, {o.peak:,.0f} > {_LARGEST:,.0f}" for o in shown]
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


@dataclass(frozen=True, kw_only=True)
class Computed(Record):
    """The precisions that an engine's kernels compute in.

    Attributes:
        asked: The precision that was asked for.
        kernels: Kernels by the precision they compute in. Where there are some that multiply matrices, convolve or recur,
            these alone are counted: what the others compute in is of little use.
        unknown: Kernels whose precision the back end does not say.
        plan_bytes: Size of the engine.
        weight_bytes: Size of the model's floating-point weights in FP32.
        limit: The share of kernels that have to compute in the precision asked for; 0 asks for one of them.
        backend: The back end.
    """

    asked: Precision
    kernels: tuple[tuple[str, int], ...]
    unknown: int = 0
    plan_bytes: int = 0
    weight_bytes: int = 0
    limit: float = 0.0
    backend: BackendName = "onnxruntime"

    @property
    def share(self) -> float | None:
        """The share of kernels in the precision that was asked for, or a narrower one; None if that is not known."""
        total = sum(count for _, count in self.kernels)
        wanted = {self.asked, *_NARROWER.get(self.asked, ())}
        return None if not total else sum(count for name, count in self.kernels if name in wanted) / total

    @property
    def lowered(self) -> bool:
        """Whether the engine may be called one of the precision: as many kernels as have to compute in it, or nothing is known."""
        if self.asked == "fp32" or self.share is None:
            return True
        return self.share >= self.limit and (self.share > 0 or self.unknown > 0)

    @property
    def emulation_counts(self) -> bool:
        """Whether the model emulated in the precision makes up for kernels that do not compute in it.

        ONNX Runtime computes 16 bit in FP32 on most processors, which whoever asks for it knows; unless a limit says otherwise.
        """
        return self.backend == "onnxruntime" and self.asked in ("fp16", "bf16") and not self.limit

    @property
    def name(self) -> str:
        """What the engine is to be called: the precision asked for, or what it computes in instead."""
        if self.lowered:
            return self.asked.upper()
        if self.share:
            return f"{self.asked.upper()} in {self.share:.0%}"
        return f"{self.kernels[0][0].upper()} (not {self.asked.upper()})"

    def reason(self) -> str:
        """Why the engine is none of the precision asked for."""
        return f"No {self.asked.upper()} engine: {self.sentence()}"

    def sentence(self) -> str:
        """What the kernels compute in, and whether the engine is smaller for it."""
        total = sum(count for _, count in self.kernels)
        if not total:
            return "The back end does not say what its kernels compute in."
        each = ", ".join(f"{count} in {name.upper()}" for name, count in self.kernels)
        said = f"Of {total} kernels {each}."
        if self.asked == "fp32":
            return said
        share = self.share or 0.0
        said += f" {share:.0%} compute in {self.asked.upper()}, which was asked for"
        if not share and self.weight_bytes and self.plan_bytes >= 0.9 * self.weight_bytes:
            said += (
                f"; nor is the engine smaller: it has {self.plan_bytes / self.weight_bytes:.0%} of the weights' bytes"
            )
        if share < self.limit:
            said += f"; at least {self.limit:.0%} have to"
        return f"{said}."
