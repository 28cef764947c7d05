"""What accuracy finds, for programs, for people and for the memory."""

from __future__ import annotations

import io
import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

from trtops import errors
from trtops.ops.result import OpResult
from trtops.record import Record
from trtops.reports.document import Chart, Point, Section, Table
from trtops.tables import table
from trtops.verdict import Verdict


@dataclass(frozen=True, kw_only=True)
class TensorError(Record):
    """How far one tensor is from its reference.

    Attributes:
        name: The tensor.
        node: The node that makes it.
        op: The node's type.
        verdict: Whether it meets the tolerances.
        error: Euclidean norm of the difference over that of the reference; infinite if there is NaN or infinity in the
            difference, and 1 if the reference is 0.
        growth: ``error`` over the largest ``error`` of what its node reads; None if those have none, or are not known.
        max_abs: Largest absolute error.
        max_rel: Largest relative error.
        magnitude: Largest absolute value in the reference that is finite.
        nonfinite: NaNs and infinities beyond those of the reference.
        reference_nans: NaNs in the reference itself.
        layer: The engine's layer that computes it, where that is known.
        reason: Why it does not meet the tolerances, in words.
    """

    name: str
    node: str
    op: str
    verdict: Verdict
    error: float
    growth: float | None = None
    max_abs: float = math.nan
    max_rel: float = math.nan
    magnitude: float = 0.0
    nonfinite: int = 0
    reference_nans: int = 0
    layer: str = ""
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Probe(Record):
    """One tensor observed by itself.

    Attributes:
        name: The tensor.
        differs: Whether it did not meet the tolerances.
        output_differs: Whether the model's outputs still did not, while it was observed. Where they did, observing the
            tensor takes the error away: it lies inside what the back end fuses wrongly.
    """

    name: str
    differs: bool
    output_differs: bool


@dataclass(frozen=True, kw_only=True)
class AccuracyResult(OpResult):
    """Where two sides differ.

    Attributes:
        verdict: ``bad`` if an output of the model does not meet the tolerances, observed or not.
        first: The first tensor, in order of execution, that does not meet them; None if none does not.
        origin: The tensor that differs most beyond what its node read: where error comes in, or is blown up.
        first_nonfinite: The first tensor with NaN or infinity that the reference does not have.
        reference_nan: The first tensor with NaN in the reference itself: there the model is at fault, and what follows from
            it can be right on neither side.
        chain: From that tensor (or else from ``first``) upwards: each time what the node read with the largest error.
        disappears: Whether the outputs differ only as long as nothing is observed.
        probes: Tensors observed one at a time.
        outputs_unobserved: Verdict of each output with nothing observed.
        tensors: Every tensor compared, in order of execution.
        windows: Passes over the model.
        seconds: Wall time.
    """

    verdict: Verdict
    first: str | None
    origin: str | None
    first_nonfinite: str | None
    reference_nan: str | None = None
    chain: tuple[str, ...] = ()
    disappears: bool = False
    probes: tuple[Probe, ...] = ()
    outputs_unobserved: tuple[tuple[str, Verdict], ...] = ()
    tensors: tuple[TensorError, ...] = field(default=(), repr=False)
    windows: int
    seconds: float

    def tensor(self, name: str) -> TensorError:
        """The entry of one tensor.

        Raises:
            ConfigError: If it was not compared.
        """
        for entry in self.tensors:
            if entry.name == name:
                return entry
        raise errors.ConfigError(
            f"Tensor {name!r} was not compared. {errors.near(name, (t.name for t in self.tensors))}"
        )

    @property
    def next_step(self) -> str:
        """Where an output differs, find the nodes that must stay in FP32."""
        if self.run_id and self.verdict == "bad" and self.subject:
            return f"trtops debug precision {shlex.quote(self.subject)} -o mixed.onnx"
        return super().next_step

    def body(self) -> Iterator[str]:
        """The findings, as they are in a terminal."""
        yield from ("```", self.text(), "```")

    def sections(self) -> Iterator[Section]:
        """The findings, every tensor's error in order of execution as a chart, and the numbers."""
        points = tuple(
            Point(label=t.name, x=float(i), y=t.error, tone=t.verdict) for i, t in enumerate(self.tensors, start=1)
        )
        chart = Chart(
            title="Error of each tensor",
            form="points",
            x="tensors in order of execution",
            y="relative error",
            points=points,
        )
        yield Section(text="\n\n".join(self._findings()), chart=chart if points else None)
        columns = ("tensor", "node", "op", "verdict", "error", "growth", "max abs", "magnitude", "NaN/Inf", "layer")
        rows = tuple(
            (t.name, t.node, t.op, t.verdict, t.error, t.growth, t.max_abs, t.magnitude, float(t.nonfinite), t.layer)
            for t in self.tensors
        )
        if rows:
            yield Section(title="Tensors", table=Table(columns=columns, rows=rows))

    def text(self, limit: int = 40) -> str:
        """The findings for people: what they are, and a table of the tensors around them."""
        return "\n".join([*self._findings(), "", self._table(limit)])

    def _findings(self) -> Iterator[str]:
        if self.disappears:
            yield "The error disappears when all tensors are observed: it comes from what the back end fuses."
        if self.first is None:
            yield "No observed tensor differs." if self.tensors else "Nothing was observed."
        else:
            entry = next((t for t in self.tensors if t.name == self.first), None)
            where = f", made by {entry.op} {entry.node!r}" if entry else ""
            layer = f" in layer {entry.layer!r}" if entry and entry.layer else ""
            if self.verdict == "good":
                yield f"The model's outputs agree. The first tensor inside that differs is {self.first!r}{where}{layer}."
            else:
                yield f"First tensor that differs: {self.first!r}{where}{layer}."
        if self.origin is not None and self.origin != self.first:
            yield f"The error grows most at {self.origin!r}, made by {self.tensor(self.origin).op}."
        if self.first_nonfinite is not None:
            yield f"First NaN or infinity: {self.first_nonfinite!r}. Above it: {' <- '.join(self.chain)}."
        if self.reference_nan is not None:
            maker = self.tensor(self.reference_nan)
            yield f"The reference itself has NaN, first in {maker.name!r}, made by {maker.op} {maker.node!r}. Mend the model, or its data."
        inside = [probe.name for probe in self.probes if not probe.output_differs]
        if inside:
            yield f"Observing any of these takes the error away: {', '.join(inside)}."

    def _table(self, limit: int) -> str:
        """The tensors around the first that differs, or the worst."""
        shown = list(self.tensors)
        if len(shown) > limit:
            names = [t.name for t in shown]
            middle = names.index(self.first) if self.first in names else len(shown) - limit // 2
            start = min(max(middle - limit // 3, 0), len(shown) - limit)
            shown = shown[start : start + limit]
        header = ("tensor", "op", "verdict", "error", "growth", "max abs", "magnitude", "NaN/Inf", "layer")
        return table(
            header,
            (
                (
                    t.name,
                    t.op,
                    t.verdict,
                    f"{t.error:.3g}",
                    f"{t.growth:.3g}" if t.growth is not None else "-",
                    f"{t.max_abs:.3g}",
                    f"{t.magnitude:.3g}",
                    str(t.nonfinite or "-"),
                    t.layer or "-",
                )
                for t in shown
            ),
        )

    def picture(self) -> bytes:
        """Draw every tensor's error in order of execution, with what differs and where it begins.

        Returns:
            A PNG file's bytes.
        """
        from matplotlib.figure import Figure  # takes half a second, and most results are not drawn

        figure = Figure(figsize=(10, 4.5), layout="constrained")
        axes = figure.add_subplot()
        finite = [t.error for t in self.tensors if 0 < t.error < math.inf]
        top, bottom = max(finite, default=1.0) * 10, min(finite, default=1e-9) / 3
        places = {t.name: i for i, t in enumerate(self.tensors)}
        for verdict, colour in (("good", "#4477aa"), ("bad", "#cc3311")):
            chosen = [t for t in self.tensors if t.verdict == verdict]
            heights = [min(max(t.error, bottom), top) for t in chosen]
            axes.scatter([places[t.name] for t in chosen], heights, s=8, c=colour, label=verdict)
        for name, text in ((self.first, "first that differs"), (self.first_nonfinite, "first NaN or infinity")):
            if name in places:
                axes.axvline(places[name], color="#cc3311", linewidth=0.8, linestyle=":")
                axes.annotate(
                    f"{text}: {name}"[:70],
                    (places[name], top if name == self.first else top / 4),
                    fontsize=7,
                    parse_math=False,
                    ha="left" if places[name] < len(places) / 2 else "right",
                )
        axes.set_yscale("log")
        axes.set_xlabel("tensors in order of execution")
        axes.set_ylabel("relative error (norm of the difference over the norm)")
        axes.legend(loc="lower right", fontsize=8)
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=90)
        return file.getvalue()
