"""Accuracy: find the first tensor at which two back ends or precisions differ.

Every tensor is compared, in order of execution, in windows that fit into memory. Making a tensor an output can change
what a back end fuses, and so remove the error. The model's own outputs are therefore compared twice, with and without
observed tensors.
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from trtops import errors
from trtops.backend.base import Feed
from trtops.backend.onnx.walk import node_name
from trtops.comparator.report import OutputComparison, Tolerances
from trtops.ops.evaluation.check import tolerances_for
from trtops.ops.evaluation.feeds import DataConfig
from trtops.ops.model.model_files import Source, Subject, open_model
from trtops.ops.result import OpResult, finish_with, op_run
from trtops.ops.search.accuracy_sides import Built, Emulated, MakeRunner, Sides, Size, reference, side_name
from trtops.record import Record
from trtops.reports.document import Chart, Point, Section, Table
from trtops.spec import BuildConfig, Precision
from trtops.tables import table
from trtops.tracking import schema
from trtops.tracking.base import NO_RUN, Run, Tracker
from trtops.tracking.tables import log_table
from trtops.verdict import Verdict

_LONGEST_CHAIN = 12


@dataclass(frozen=True, kw_only=True)
class AccuracyConfig(DataConfig):
    """How to compare, and on what data.

    Attributes:
        tolerances: What each tensor must meet; by default what is expected of the precision under test.
        window_bytes: Maximum size of the tensors that are observed at the same time; smaller windows need more runs.
    """

    tolerances: Tolerances | None = None
    window_bytes: int = 192 << 20

    def __post_init__(self) -> None:
        for name in ("iterations", "window_bytes"):
            if getattr(self, name) < 1:
                raise errors.ConfigError(f"{name} is {getattr(self, name)}; expected 1 or more.")


@dataclass(frozen=True, kw_only=True)
class TensorError(Record):
    """The error of one tensor.

    Attributes:
        error: Euclidean norm of the difference over that of the reference; infinite if the difference has NaN or
            infinity, and 1 if the reference is 0.
        growth: ``error`` over the largest ``error`` of what its node reads; None if that is 0 or unknown.
        magnitude: Largest finite absolute value in the reference.
        nonfinite: Number of NaNs and infinities beyond those of the reference.
        reference_nans: Number of NaNs in the reference.
        layer: The engine's layer that computes it; empty if unknown.
    """

    name: str
    node: str
    op: str
    verdict: Verdict
    error: float
    growth: float | None = None
    max_abs: float = math.nan
    magnitude: float = 0.0
    nonfinite: int = 0
    reference_nans: int = 0
    layer: str = ""


_COLUMNS = ("tensor", "node", "op", "verdict", "error", "growth", "max abs", "magnitude", "NaN/Inf", "layer")


def _cells(t: TensorError) -> tuple[str | float | None, ...]:
    return t.name, t.node, t.op, t.verdict, t.error, t.growth, t.max_abs, t.magnitude, t.nonfinite, t.layer


@dataclass(frozen=True, kw_only=True)
class AccuracyResult(OpResult):
    """Where two sides differ.

    Attributes:
        verdict: ``bad`` if an output of the model misses the tolerances, with or without observed tensors.
        first: The first tensor, in order of execution, that misses them; None if all meet them.
        origin: The tensor whose error exceeds that of what its node read by the largest factor.
        first_nonfinite: The first tensor with NaN or infinity that the reference does not have.
        reference_nan: The first tensor with NaN in the reference: the model itself is wrong there.
        chain: From ``first_nonfinite`` (or else ``first``) upwards, each time what the node read with the largest
            error.
        disappears: Whether the outputs differ only if no tensors are observed.
    """

    verdict: Verdict
    first: str | None
    origin: str | None
    first_nonfinite: str | None
    reference_nan: str | None = None
    chain: tuple[str, ...] = ()
    disappears: bool = False
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
        """Find the nodes that must stay in FP32, if an output differs."""
        if self.run_id and self.verdict == "bad" and self.subject:
            return f"trtops debug precision {shlex.quote(self.subject)} -o mixed.onnx"
        return super().next_step

    def body(self) -> Iterator[str]:
        """The findings, as in a terminal."""
        yield from ("```", self.text(), "```")

    def sections(self) -> Iterator[Section]:
        """The findings, a chart of every tensor's error in order of execution, and the numbers."""
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
        if self.tensors:
            rows = tuple(_cells(tensor) for tensor in self.tensors)
            yield Section(title="Tensors", table=Table(columns=_COLUMNS, rows=rows))

    def text(self, limit: int = 40) -> str:
        """The findings, with a table of the tensors around the first that differs, or else of the last."""
        shown = self.tensors
        if len(shown) > limit:
            names = [t.name for t in shown]
            middle = names.index(self.first) if self.first in names else len(shown) - limit // 2
            start = min(max(middle - limit // 3, 0), len(shown) - limit)
            shown = shown[start : start + limit]
        rows = [
            ["-" if c in (None, "") else f"{c:.3g}" if isinstance(c, float) else str(c) for c in _cells(tensor)]
            for tensor in shown
        ]
        return "\n".join([*self._findings(), "", table(_COLUMNS, rows)])

    def _findings(self) -> Iterator[str]:
        if self.disappears:
            yield (
                "The error disappears when all tensors are observed: it comes from what the back end fuses. Find the "
                "nodes with `trtops debug reduce`, which observes nothing."
            )
        if self.first is None:
            yield "No observed tensor differs."
        else:
            entry = next((t for t in self.tensors if t.name == self.first), None)
            where = f", made by {entry.op} {entry.node!r}" if entry else ""
            layer = f" in layer {entry.layer!r}" if entry and entry.layer else ""
            if self.verdict == "good":
                yield f"The model's outputs agree. The first tensor that differs inside: {self.first!r}{where}{layer}."
            else:
                yield f"First tensor that differs: {self.first!r}{where}{layer}."
        if self.origin is not None and self.origin != self.first:
            yield f"The error grows most at {self.origin!r}, made by {self.tensor(self.origin).op}."
        if self.first_nonfinite is not None:
            yield f"First NaN or infinity: {self.first_nonfinite!r}. Above it: {' <- '.join(self.chain)}."
        if self.reference_nan is not None:
            maker = self.tensor(self.reference_nan)
            yield (
                f"The reference itself has NaN, first in {maker.name!r}, made by {maker.op} {maker.node!r}. Correct "
                "the model or its data."
            )


def accuracy(
    model: Source,
    actual: BuildConfig | MakeRunner,
    config: AccuracyConfig | None = None,
    *,
    golden: MakeRunner = reference,
    feeds: Iterable[Feed] | None = None,
    tracker: Tracker | None = None,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
    parent: str | None = None,
    file: str | Path | None = None,
) -> AccuracyResult:
    """Compare every tensor of a model between two sides, and find where they begin to differ.

    Args:
        model: The model, or its path; not changed.
        actual: The side under test: how to build an engine, or what makes a runner (:class:`Emulated`).
        config: How to compare.
        golden: The side that is taken to be right.
        feeds: Inputs, instead of ``config.data``.
        tracker: The tracking store for the run; None keeps nothing.
        experiment: Experiment to log to; the model's name by default.
        tags: Further tags of the run.
        parent: Id of a parent run.
        file: The file that a model in memory was loaded from; the run is named after it.

    Raises:
        ModelError: If the model cannot be used.
        InputError: If the data does not fit it.
        BackendError: If a side cannot be built or run.
    """
    started = time.perf_counter()
    config = AccuracyConfig() if config is None else config
    subject = Subject.of(model, file)
    experiment = experiment or subject.name
    name = f"{subject.name} accuracy {side_name(actual)}"
    with op_run(tracker, experiment, name, kind="accuracy", model=subject.file, tags=tags, parent=parent) as run:
        opened = open_model(model)
        given = [dict(feed) for feed in config.open_for(opened, feeds)]
        built = Built(actual) if isinstance(actual, BuildConfig) else None
        make: MakeRunner = built or actual  # type: ignore[assignment]
        tested: Precision = "fp32"
        if isinstance(actual, BuildConfig):
            tested = actual.precision
        elif isinstance(actual, Emulated):
            tested = actual.to
        tolerances = tolerances_for(tested, config.tolerances, opened)
        if tolerances.clamped_equal is None:
            tolerances = replace(tolerances, clamped_equal=True)
        found = _compare_sides(Sides(opened.proto(lean=True), make, golden, given, tolerances), config, built, started)
        result = replace(found, title=f"accuracy {subject}", subject=str(subject.file or "")).kept_in(run, experiment)
        if run is not NO_RUN:
            run.log_params({"model": opened.name, **config.to_dict()})
            _log_result(run, result)
        finish_with(run, result, tracker)
        return result


def _compare_sides(sides: Sides, config: AccuracyConfig, built: Built | None, started: float) -> AccuracyResult:
    outputs = sides.run_unobserved()  # first, since the layers of this build are those to report
    found: dict[str, TensorError] = {}
    observed_differs = False
    for window in sides.windows(config.window_bytes):
        report, sizes = sides.compare(window)
        compared = {output.name: output for output in report.outputs}
        observed_differs |= any(compared[name].verdict == "bad" for name in sides.outputs)
        for name in window:
            found[name] = _tensor_error(sides, compared[name], sizes[name], found, built)
    tensors = tuple(found.values())
    unobserved = sides.compare_unobserved(outputs)
    differs = unobserved.verdict == "bad"
    first = next((t.name for t in tensors if t.verdict == "bad"), None)
    nonfinite = next((t.name for t in tensors if t.nonfinite), None)
    # The origin is where the error exceeds that of what the node read by the largest factor.
    steps = {}
    for entry in tensors:
        before = _error_of_inputs(sides, entry.name, found)
        if entry.verdict == "bad" and entry.error and before < math.inf:
            steps[entry.name] = entry.error / max(before, 1e-9)
    return AccuracyResult(
        verdict="bad" if differs or observed_differs else "good",
        first=first,
        origin=max(steps, key=lambda name: steps[name], default=None),
        first_nonfinite=nonfinite,
        reference_nan=next((t.name for t in tensors if t.reference_nans), None),
        chain=_chain_above(sides, found, nonfinite or first),
        disappears=differs and not observed_differs,
        outputs_unobserved=tuple((output.name, output.verdict) for output in unobserved.outputs),
        tensors=tensors,
        windows=sides.passes,
        seconds=time.perf_counter() - started,
    )


def _tensor_error(
    sides: Sides, compared: OutputComparison, size: Size, known: Mapping[str, TensorError], built: Built | None
) -> TensorError:
    node = sides.model.graph.node[sides.makers[compared.name]]
    name = node_name(node)
    statistics = compared.statistics
    error, nonfinite, reference_nans = math.inf, 0, 0
    if statistics is not None:
        if statistics.clamped and statistics.nrmse is not None:
            error = statistics.nrmse  # the norm of a mask filled with the smallest FP32 hides every other value
        elif statistics.l2 == 0:
            error = 0.0
        elif math.isfinite(statistics.l2) and math.isfinite(size.norm):
            error = statistics.l2 / size.norm if size.norm else 1.0
        reference_nans = statistics.reference_nan_count
        nonfinite = max(statistics.nan_count - statistics.reference_nan_count, 0)
        nonfinite += max(statistics.inf_count - statistics.reference_inf_count, 0)
    before = _error_of_inputs(sides, compared.name, known)
    return TensorError(
        name=compared.name,
        node=name,
        op=node.op_type,
        verdict=compared.verdict,
        error=error,
        growth=error / before if 0 < before < math.inf else None,
        max_abs=math.nan if statistics is None else statistics.max_abs,
        magnitude=size.magnitude,
        nonfinite=nonfinite,
        reference_nans=reference_nans,
        layer="" if built is None else built.layers.get(compared.name) or built.layers.get(name, ""),
    )


def _error_of_inputs(sides: Sides, tensor: str, known: Mapping[str, TensorError]) -> float:
    """The largest error of what a tensor's node reads; 0 if none of that was compared."""
    return max((known[name].error for name in sides.cutter.reads(sides.makers[tensor]) if name in known), default=0.0)


def _chain_above(sides: Sides, known: Mapping[str, TensorError], start: str | None) -> tuple[str, ...]:
    """From a tensor upwards, each time to what the node read with the largest error, or else magnitude."""
    chain: list[str] = []
    while start is not None and len(chain) < _LONGEST_CHAIN and start not in chain:
        chain.append(start)
        names = sides.cutter.reads(sides.makers[start]) if start in sides.makers else ()
        reads = [known[name] for name in names if name in known]
        start = max(reads, key=lambda t: (t.error, t.magnitude)).name if reads else None
    return tuple(chain)


def _log_result(run: Run, result: AccuracyResult) -> None:
    run.log_metrics(
        {
            (schema.Metric.ACCURACY, "tensors"): len(result.tensors),
            (schema.Metric.ACCURACY, "differing"): sum(t.verdict == "bad" for t in result.tensors),
            (schema.Metric.ACCURACY, "largest_error"): max((t.error for t in result.tensors), default=0.0),
            (schema.Metric.ACCURACY, "seconds"): result.seconds,
        }
    )
    log_table(run, schema.Artifact.ACCURACY_TENSORS, _COLUMNS, map(_cells, result.tensors))
    run.log_json(result, schema.Artifact.ACCURACY_RESULT)
    run.log_text(result.text(), schema.Artifact.ACCURACY_FINDINGS)
