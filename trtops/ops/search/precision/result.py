"""What a precision search found, and the sets it tried on the way."""

from __future__ import annotations

import io
import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import onnx

from trtops import errors
from trtops.backend.onnx.save import with_weights
from trtops.ops.result import OpResult
from trtops.record import Record
from trtops.tables import table
from trtops.verdict import Verdict

Outcome: TypeAlias = Literal["good", "mixed", "bad"]


@dataclass(frozen=True, kw_only=True)
class PrecisionStep(Record):
    """One set of nodes tried.

    Attributes:
        kept: How many nodes stayed in FP32.
        group: What they have in common, if they were tried for that.
        good: Whether the tolerances were met.
        excess: Largest error as a multiple of the tolerances: above 1 is too much.
        seconds: Wall time of the check.
    """

    kept: int
    group: str = ""
    good: bool
    excess: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class TradeOff(Record):
    """One model of the picture: accuracy against latency.

    Attributes:
        label: What it is.
        kept: How many nodes stay in FP32.
        excess: As in :class:`PrecisionStep`.
        good: Whether the tolerances are met.
        latency_ms: Median of one inference; None if not measured.
    """

    label: str
    kept: int
    excess: float
    good: bool
    latency_ms: float | None = None


@dataclass(frozen=True, kw_only=True)
class PrecisionResult(OpResult):
    """What came out.

    Attributes:
        outcome: ``good`` if all nodes may be lowered; ``mixed`` if some must be kept; ``bad`` if even keeping all that can
            be lowered does not meet the tolerances.
        to: The lower precision.
        evaluated: Whether a command or a function evaluated candidates, so that no errors are known.
        keep: Names of the nodes to keep in FP32, in the model's order; of the nodes in functions, as they are called in
            :attr:`model`, where functions are written out.
        exclude: The same, shorter: a type or pattern where that means the same nodes. What
            :func:`trtops.backend.onnx.precision.lower_precision` takes.
        minimal: Whether no single node of ``keep`` can be lowered, as was checked.
        nodes: Nodes that can be lowered.
        checks: Sets tried.
        seconds: Wall time.
        steps: Every set tried, in order.
        points: Accuracy and latency of the models worth looking at.
        path: Where the model in mixed precision is, if it was written.
    """

    outcome: Outcome
    to: Literal["fp16", "bf16"] = "fp16"
    evaluated: bool = False
    keep: tuple[str, ...]
    exclude: tuple[str, ...]
    minimal: bool
    nodes: int
    checks: int
    seconds: float = 0.0
    steps: tuple[PrecisionStep, ...]
    points: tuple[TradeOff, ...]
    path: str | None = None
    _candidate: Any = field(default=None, repr=False, compare=False)

    @property
    def verdict(self) -> Verdict:
        """``bad`` if no set of nodes to keep is enough."""
        return "bad" if self.outcome == "bad" else "good"

    @property
    def headline(self) -> str:
        """The outcome."""
        return self.outcome

    @property
    def model(self) -> onnx.ModelProto:
        """The model in mixed precision, with Casts where the precisions meet.

        Raises:
            ConfigError: If this was read from JSON, which does not hold it.
        """
        return with_weights(self.lean_model)

    @property
    def lean_model(self) -> onnx.ModelProto:
        """The same, with the large weights of a model beyond 2 GiB in files that go with this result."""
        if self._candidate is None:
            raise errors.ConfigError(
                f"This result was read from a file, without its model; its path was {self.path!r}."
            )
        proto: onnx.ModelProto = self._candidate.rewritten.model
        return proto

    @property
    def next_step(self) -> str:
        """Build the model in mixed precision, where it was written."""
        built = self.run_id and self.path and self.verdict == "good"
        return f"trtops convert {shlex.quote(str(self.path))} --convert-to ort" if built else super().next_step

    def body(self) -> Iterator[str]:
        """The nodes to keep."""
        yield from (f"{len(self.keep)} of {self.nodes} nodes stay in FP32:", "")
        yield from (f"- `{name}`" for name in self.keep)

    def text(self) -> str:
        """The result for a terminal: what to keep, and a table of what was tried."""
        lines = []
        if self.outcome == "good":
            lines.append(f"All {self.nodes} nodes may be lowered.")
        elif self.outcome == "mixed":
            lines.append(f"{len(self.keep)} of {self.nodes} nodes must stay in FP32: {', '.join(self.exclude)}")
        else:
            failure = (
                "the check fails: it is broken, or asks for more" if self.evaluated else "the tolerances are not met"
            )
            lines.append(f"Even with every node in FP32 {failure}.")
        if not self.evaluated:
            rows = (
                (
                    point.label,
                    str(point.kept),
                    f"{point.excess:.3g}",
                    "yes" if point.good else "no",
                    "-" if point.latency_ms is None else f"{point.latency_ms:.3f} ms",
                )
                for point in self.points
            )
            lines.append(table(("model", "kept", "error / allowed", "good", "p50"), rows))
        if self.path is not None:
            lines.append(f"Wrote {self.path}")
        return "\n".join(lines)

    def picture(self) -> bytes:
        """Draw accuracy against latency, or against the nodes kept where no latency was measured.

        Returns:
            A PNG file's bytes.
        """
        from matplotlib.figure import Figure  # takes half a second, and most results are not drawn

        figure = Figure(figsize=(7, 4.5), layout="constrained")
        axes = figure.add_subplot()
        timed = all(point.latency_ms is not None for point in self.points)
        finite = [point.excess for point in self.points if 0 < point.excess < math.inf]
        top, bottom = max(finite, default=1.0) * 10, min([*finite, 1.0]) / 3
        for point in self.points:
            x = point.latency_ms if timed and point.latency_ms is not None else point.kept
            y = min(max(point.excess, bottom), top)
            axes.scatter(x, y, c="#2ca02c" if point.good else "#d62728", s=40, zorder=3)
            text = f"{point.label}: {point.kept} kept" + ("" if point.excess < math.inf else ", NaN or infinite")
            axes.annotate(text, (x, y), xytext=(5, 4), textcoords="offset points", fontsize=8, parse_math=False)
        axes.axhline(1.0, color="#555555", linewidth=1, linestyle="--")
        axes.set_yscale("log")
        axes.set_ylabel("largest error, as a multiple of the tolerances")
        axes.set_xlabel("median latency in ms" if timed else "nodes kept in FP32")
        axes.set_title(f"Nodes kept in FP32 in a {self.to.upper()} model", loc="left", fontsize=10)
        axes.margins(x=0.25)
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=90)
        return file.getvalue()
