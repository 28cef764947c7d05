"""Accuracy: find the first differing tensor of two back ends or precisions.

Every tensor is compared, in order of execution, in windows that fit into memory.
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx

from trtops import errors
from trtops.backend.base import BaseRunner, Build, BuildRequest, Caches, Feed
from trtops.backend.engines import engine_backend
from trtops.backend.onnx import copying, shapes
from trtops.backend.onnx.emulation import emulate_low_precision
from trtops.backend.onnx.model import Model
from trtops.backend.onnx.precision import LowPrecision, lower_precision
from trtops.backend.onnx.submodel import Cutter
from trtops.backend.onnx.walk import node_name
from trtops.backend.onnxrt.runner import OnnxrtRunner, SessionFromMemory
from trtops.backend.worker import built_safely
from trtops.comparator.report import OutputComparison, Tolerances, compare_outputs
from trtops.comparator.results import RunResults
from trtops.next_step import NextStep, arguments_of
from trtops.ops.arguments import checked_arguments
from trtops.ops.evaluation.data import DataConfig, naming_assumed
from trtops.ops.evaluation.limits import tolerances_for
from trtops.ops.evaluation.right_model import RightModel
from trtops.ops.model.model_files import Source, open_model
from trtops.ops.result import OpResult, run_step
from trtops.ops.search.search_run import search_run
from trtops.ops.search.submodel import onnxruntime_runner
from trtops.record import Record
from trtops.reports.document import Chart, Point, Section, Table
from trtops.spec import BuildConfig, Precision
from trtops.tactics.record import TacticRecord
from trtops.tracking import schema
from trtops.tracking.base import Tracker
from trtops.verdict import Verdict

log = logging.getLogger(__name__)

_LONGEST_CHAIN = 12
_MAX_PRINTED_TENSORS = 3  # tensors on a screen
_UNKNOWN_BYTES = 1 << 20
# Of tensors observed at the same time. Both sides share a third of TRTOPS_MEMORY_LIMIT with the weights.
_WINDOW_BYTES = 128 << 20

MakeRunner: TypeAlias = Callable[[onnx.ModelProto], BaseRunner]
"""Makes a runner of a model with any tensors as outputs. The model is read at activation."""


@dataclass(frozen=True)
class Emulated:
    """A 16-bit side, rounded on the CPU as a GPU rounds; nodes in ``exclude`` stay in FP32."""

    to: LowPrecision
    exclude: Sequence[str] = ()

    def __call__(self, model: onnx.ModelProto) -> BaseRunner:
        """A runner of the model in the low precision."""
        low = lower_precision(model, self.to, exclude=self.exclude).model
        emulate_low_precision(low)
        return onnxruntime_runner(low)


def reference(model: onnx.ModelProto) -> BaseRunner:
    """The unchanged model as a side: ONNX Runtime without optimizations."""
    return OnnxrtRunner(SessionFromMemory(model, optimized=False), "reference")


class Built:
    """A side with built engines; on ONNX Runtime all with the settings of the first."""

    def __init__(self, config: BuildConfig, feed: Feed) -> None:
        self.config = config
        self.feed = feed  # to time tactics on
        self.layers: dict[str, str] = {}  # of the first engine, by node and by tensor
        self.calibration: bytes | None = None  # of the last engine
        self._settings: TacticRecord | None = None

    def __call__(self, model: onnx.ModelProto) -> BaseRunner:
        """Build an engine, and make a runner of it."""
        build = self._build(Model.from_proto(model))
        self.calibration = build.calibration_cache
        for layer in () if self.layers else build.layers:
            text = f"{layer.name} [{layer.tactic}]" if layer.tactic else layer.name
            for name in (*layer.onnx_nodes, *layer.outputs):
                if layer.name == name or name not in self.layers:  # layers of bodies may have equal names inside
                    self.layers[name] = text
        return engine_backend(self.config.backend).runner(build.engine, self.config.backend)

    def _build(self, model: Model) -> Build:
        # The first engine observes no tensors. Later ones have to compute as it does, and nothing is timed again.
        if self._settings is not None:
            # A seed would choose other tactics than the replayed ones.
            config = replace(self.config, options=replace(self.config.options, tactic_seed=None))
            try:
                return built_safely(BuildRequest(model, config, caches=Caches(replay=self._settings)))
            except errors.BackendError as exc:  # the settings may not fit a model with more outputs
                log.info("Built with settings of its own: %s", exc)
        build = built_safely(BuildRequest(model, self.config, timing_feed=self.feed))
        if build.tactics.mechanism == "onnxruntime" and self._settings is None:
            self._settings = replace(build.tactics, choices=())
        return build


@dataclass(frozen=True, kw_only=True)
class AccuracyConfig(DataConfig):
    """The data and tolerances of the comparison.

    Attributes:
        tolerances: What each tensor must meet; by default limits from what rounding does to it, and for emulated sides
            the fixed ones of the precision.
    """

    tolerances: Tolerances | None = None


@dataclass(frozen=True, kw_only=True)
class TensorError(Record):
    """The error of one tensor."""

    name: str
    node: str
    op: str
    verdict: Verdict
    # Euclidean norm of the difference over that of the reference; infinite if the difference has NaN or infinity, and 1
    # if the reference is 0. The growth is the error over the largest error of what the node reads.
    error: float
    growth: float | None = None
    max_abs: float = math.nan
    magnitude: float = 0.0  # largest finite absolute value in the reference
    nonfinite: int = 0  # NaNs and infinities beyond those of the reference
    reference_nans: int = 0
    layer: str = ""  # of the engine


_TENSOR_COLUMNS = ("tensor", "node", "op", "verdict", "error", "growth", "max abs", "magnitude", "NaN/Inf", "layer")


def _cells(t: TensorError) -> tuple[str | float | None, ...]:
    return t.name, t.node, t.op, t.verdict, t.error, t.growth, t.max_abs, t.magnitude, t.nonfinite, t.layer


@dataclass(frozen=True, kw_only=True)
class AccuracyResult(OpResult):
    """Where two sides differ. ``bad`` if an output of the model does, with or without observed tensors."""

    verdict: Verdict
    first: str | None  # tensor, in order of execution, that misses the tolerances
    origin: str | None  # the tensor whose error exceeds that of what its node read by the largest factor
    first_nonfinite: str | None  # tensor with NaN or infinity that the reference does not have
    reference_nan: str | None = None  # first tensor with NaN in the reference: the model itself is wrong there
    # From ``first_nonfinite`` (or else ``first``) upwards, always to the largest error that the node read.
    chain: tuple[str, ...] = ()
    disappears: bool = False  # the outputs differ only if no tensors are observed
    tensors: tuple[TensorError, ...] = field(default=(), repr=False)
    windows: int
    seconds: float = 0.0
    precision: Precision = "fp32"  # of the side under test
    options: Mapping[str, Any] = field(default_factory=dict)  # of build and config that are not the default

    def tensor(self, name: str) -> TensorError:
        """The entry of one tensor; StopIteration if it was not compared."""
        return next(entry for entry in self.tensors if entry.name == name)

    @property
    def next_step(self) -> NextStep | None:
        """If an output differs, search the nodes to keep in FP32 if a precision can be the cause, or else triage."""
        if self.verdict != "bad" or not self.subject:
            return super().next_step
        arguments = {"model": self.subject, "experiment": self.experiment if self.run_id else None}
        if self.precision in ("fp16", "bf16"):
            arguments |= {"precision": self.precision, "output": "mixed.onnx"}
            return NextStep.after(self.options, "debug precision", arguments)
        return NextStep.after(self.options, "triage", arguments)

    def sections(self) -> Iterator[Section]:
        """The findings, a chart of every tensor's error in order of execution, and the numbers."""
        points = tuple(
            Point(label=t.name, x=float(i), y=t.error, tone=t.verdict) for i, t in enumerate(self.tensors, start=1)
        )
        title, x = "Error of each tensor", "tensors in order of execution"
        chart = Chart(title=title, form="points", x=x, y="relative error", points=points)
        yield Section(text="\n\n".join(self.because), chart=chart if points else None)
        if self.tensors:
            rows = tuple(_cells(tensor) for tensor in self.tensors)
            yield Section(title="Tensors", table=Table(columns=_TENSOR_COLUMNS, rows=rows))

    @property
    def because(self) -> tuple[str, ...]:
        """What differs first, and where errors grow."""
        return tuple(self._findings())

    def overview(self) -> Table:
        """Return a row for each tensor around the first differing one, or else for the last."""
        at = next((i for i, tensor in enumerate(self.tensors) if tensor.name == self.first), len(self.tensors))
        start = max(min(at - 1, len(self.tensors) - _MAX_PRINTED_TENSORS), 0)
        rows = [_cells(tensor)[:6] for tensor in self.tensors[start : start + _MAX_PRINTED_TENSORS]]
        return Table(columns=_TENSOR_COLUMNS[:6], rows=tuple(rows))

    def _findings(self) -> Iterator[str]:
        if self.disappears:
            yield (
                "The error disappears when all tensors are observed: it comes from what the back end fuses. Find the "
                "nodes with `trtops debug reduce`, which observes nothing."
            )
        if self.first is None:
            yield "No observed tensor differs."
        else:
            entry = self.tensor(self.first)
            layer = f" in layer {entry.layer!r}" if entry.layer else ""
            where = f"{self.first!r}, made by {entry.op} {entry.node!r}{layer}"
            if self.verdict == "good":
                yield f"The model's outputs agree. The first tensor that differs inside: {where}."
            else:
                yield f"First tensor that differs: {where}."
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


@checked_arguments
def accuracy(
    model: Source,
    actual: BuildConfig | MakeRunner,
    config: AccuracyConfig = AccuracyConfig(),
    *,
    tracker: Tracker | None = None,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
    parent: str | None = None,
    file: str | Path | None = None,
) -> AccuracyResult:
    """Compare every tensor of a model between two sides, and find the first difference.

    ``actual`` is the side under test: how to build an engine, or what makes a runner (:class:`Emulated`). The model
    itself is taken to be right. ``file`` names a model in memory.

    >>> result = trtops.accuracy("model.onnx", trtops.Emulated("fp16"))
    >>> result.verdict, result.first_nonfinite
    ('good', None)
    """
    tested: Precision = "fp32"
    side = getattr(actual, "__qualname__", type(actual).__qualname__)
    options = arguments_of(config)
    if isinstance(actual, BuildConfig):
        options |= arguments_of(actual)
        actual = config.profiled(actual, open_model(model))
        tested, side = actual.precision, f"{actual.backend} {actual.precision}"
    elif isinstance(actual, Emulated):
        tested, side = actual.to, f"emulated {actual.to}"
    with search_run(
        "accuracy", model, file, side=side, tracker=tracker, experiment=experiment, tags=tags, parent=parent
    ) as search:
        profiles = actual.profiles if isinstance(actual, BuildConfig) else ()
        source = config.open_for(search.model, profiles=profiles)
        samples = [dict(feed) for feed in source]
        tolerances = tolerances_for(tested, config.tolerances, search.model)
        # Masks hold the smallest FP32 number, which a lower precision cannot represent and clamps.
        if tolerances.clamped_equal is None:
            tolerances = replace(tolerances, clamped_equal=True)
        timing_feed = {name: np.asarray(array) for name, array in samples[0].items()}
        make = Built(actual, timing_feed) if isinstance(actual, BuildConfig) else actual
        comparison = _Comparison(
            search.model.proto(lean=True), make, samples, tolerances, config.tolerances is not None
        )
        with naming_assumed(search.model, source):
            result = run_step("compare", comparison.run)
        result = replace(result, seconds=search.seconds, precision=tested, options=options)
        search.op.run.log_params({"model": search.model.name, **config.to_dict()})
        search.op.run.log_table(schema.Artifact.ACCURACY_TENSORS, _TENSOR_COLUMNS, map(_cells, result.tensors))
        numbers = {
            "tensors": len(result.tensors),
            "differing": sum(t.verdict == "bad" for t in result.tensors),
            "largest_error": max((t.error for t in result.tensors), default=0.0),
            "seconds": result.seconds,
        }
        return search.finish(result, schema.Metric.ACCURACY, numbers, schema.Artifact.ACCURACY_RESULT)


@dataclass
class _Comparison:
    """One comparison of two sides. Errors of tensors are collected in order of execution."""

    model: onnx.ModelProto
    actual: MakeRunner
    feeds: Sequence[Feed]
    tolerances: Tolerances
    has_user_tolerances: bool

    def __post_init__(self) -> None:
        self.cutter = Cutter(self.model)
        # The node that makes each tensor that can be observed.
        self.makers: dict[str, int] = {}
        for index in self.cutter.order:
            self.makers |= dict.fromkeys(self.cutter.visible(index), index)
        self.tensor_errors: dict[str, TensorError] = {}
        # Types and shapes, inferred from the shapes of the largest feed, since windows must fit it. Small weights are
        # kept, because shapes are computed from them.
        largest = max(self.feeds, key=lambda feed: sum(map(np.size, feed.values())))
        bare = copying.copy_model(self.model, copying.put_small(4096))
        for value in bare.graph.input:
            if value.name in largest and value.type.WhichOneof("value") == "tensor_type":
                element = value.type.tensor_type.elem_type
                shape = np.shape(largest[value.name])
                value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, element, shape))
        shapes.infer_shapes(bare)
        self.values = shapes.values(bare.graph)

    def run(self) -> AccuracyResult:
        """Compare all tensors, then the outputs without observed tensors, and explain the differences."""
        outputs = [value.name for value in self.model.graph.output]
        # Making a tensor an output can change what a back end fuses, and so remove the error. The model's own outputs
        # are therefore compared twice, without and with observed tensors.
        unobserved = self._run(self.actual)  # first, since the layers of this build are those to report
        observed_differs = False
        windows = self._windows() or [[]]
        for window in windows:
            actual, golden, right = self._run_observing([name for name in window if name not in outputs])
            tolerances = self.tolerances
            if right is not None:
                tolerances = replace(right.tolerances(None), clamped_equal=True)
                actual = right.aligned(actual)
            report = compare_outputs(actual, golden, tolerances, only_limited=True)
            compared = {output.name: output for output in report.outputs}
            observed_differs |= any(compared[name].verdict == "bad" for name in outputs)
            for name in window:
                self.tensor_errors[name] = self._tensor_error(compared[name])
            golden_outputs = [{name: arrays[name] for name in outputs} for arrays in golden]
            del actual, golden  # the next window is as large
        plain = unobserved if right is None else right.aligned(unobserved)
        differs = compare_outputs(plain, golden_outputs, tolerances, only_limited=True).verdict == "bad"
        tensors = tuple(self.tensor_errors.values())
        first = next((t.name for t in tensors if t.verdict == "bad"), None)
        nonfinite = next((t.name for t in tensors if t.nonfinite), None)
        # The origin is where the error exceeds that of what the node read by the largest factor.
        steps = {}
        for entry in tensors:
            before = self._error_before(entry.name)
            if entry.verdict == "bad" and entry.error and before < math.inf:
                # The bound keeps a node whose inputs are exact from having an infinite factor.
                steps[entry.name] = entry.error / max(before, 1e-9)
        chain: list[str] = []
        above = nonfinite or first
        while above is not None and len(chain) < _LONGEST_CHAIN and above not in chain:
            chain.append(above)
            reads = self._read_by_maker(above)
            above = max(reads, key=lambda t: (t.error, t.magnitude)).name if reads else None
        return AccuracyResult(
            verdict="bad" if differs or observed_differs else "good",
            first=first,
            origin=max(steps, key=lambda name: steps[name], default=None),
            first_nonfinite=nonfinite,
            reference_nan=next((t.name for t in tensors if t.reference_nans), None),
            chain=tuple(chain),
            disappears=differs and not observed_differs,
            tensors=tensors,
            windows=len(windows),
        )

    def _windows(self) -> list[list[str]]:
        """Runs of tensors with arrays of at most ``_WINDOW_BYTES``, as far as their sizes are known."""
        windows: list[list[str]] = []
        total = 0
        for name in self.makers:
            kind = self.values[name].type.tensor_type if name in self.values else None
            size = _UNKNOWN_BYTES
            if kind is not None and kind.HasField("shape"):
                dims = [dim.dim_value for dim in kind.shape.dim]  # an unknown dimension is 0
                tensor = onnx.TensorProto(data_type=kind.elem_type, dims=dims)
                size = copying.expected_bytes(tensor) or _UNKNOWN_BYTES
            size *= len(self.feeds)
            if not windows or total + size > _WINDOW_BYTES:
                windows.append([])
                total = 0
            windows[-1].append(name)
            total += size
        return windows

    def _run_observing(
        self, names: Sequence[str]
    ) -> tuple[Sequence[Mapping[str, Any]], list[dict[str, Any]], RightModel | None]:
        """Run both sides with these tensors as further outputs; return the right model of the limits too."""
        outputs = self.model.graph.output
        count = len(outputs)
        for name in names:
            value = onnx.ValueInfoProto(name=name)
            if name in self.values:
                # Without a shape: a back end would fold computations on it into constants, and feeds may differ.
                value.type.CopyFrom(self.values[name].type)
                value.type.tensor_type.ClearField("shape")
            outputs.append(value)
        try:
            golden = self._run(reference)
            return self._run(self.actual), golden, self._right_model(golden)
        finally:
            del outputs[count:]

    def _right_model(self, golden: list[dict[str, Any]]) -> RightModel | None:
        """The model with its present outputs, for engines whose tolerances are not given."""
        if self.has_user_tolerances or not isinstance(self.actual, Built):
            return None
        results = RunResults()
        results.add(golden)
        return RightModel(
            model=Model.from_proto(self.model),
            build=self.actual.config,
            feeds=self.feeds,
            golden=results,
            calibration=self.actual.calibration,
        )

    def _run(self, make: MakeRunner) -> list[dict[str, Any]]:
        with make(self.model) as runner:
            # A runner may write the next outputs into the same arrays, so they are copied if there is a next feed.
            if len(self.feeds) == 1:
                return [dict(runner.infer(self.feeds[0]))]
            return [{name: np.array(array) for name, array in runner.infer(feed).items()} for feed in self.feeds]

    def _tensor_error(self, compared: OutputComparison) -> TensorError:
        node = self.model.graph.node[self.makers[compared.name]]
        name = node_name(node)
        statistics = compared.statistics
        error, nonfinite, reference_nans = math.inf, 0, 0
        if statistics is not None:
            if statistics.l2 == 0:
                error = 0.0
            elif statistics.nrmse is not None:
                error = math.inf if math.isnan(statistics.nrmse) else statistics.nrmse
            elif math.isfinite(statistics.l2):  # the reference is 0
                error = 1.0
            reference_nans = statistics.reference_nan_count
            nonfinite = max(statistics.nan_count - statistics.reference_nan_count, 0)
            nonfinite += max(statistics.inf_count - statistics.reference_inf_count, 0)
        before = self._error_before(compared.name)
        layers = self.actual.layers if isinstance(self.actual, Built) else {}
        return TensorError(
            name=compared.name,
            node=name,
            op=node.op_type,
            verdict=compared.verdict,
            error=error,
            growth=error / before if 0 < before < math.inf else None,
            max_abs=math.nan if statistics is None else statistics.max_abs,
            magnitude=0.0 if statistics is None else statistics.scale or 0.0,
            nonfinite=nonfinite,
            reference_nans=reference_nans,
            layer=layers.get(compared.name) or layers.get(name, ""),
        )

    def _read_by_maker(self, tensor: str) -> list[TensorError]:
        """What a tensor's node reads, as far as it was compared."""
        names = self.cutter.reads(self.makers[tensor]) if tensor in self.makers else ()
        return [self.tensor_errors[name] for name in names if name in self.tensor_errors]

    def _error_before(self, tensor: str) -> float:
        return max((entry.error for entry in self._read_by_maker(tensor)), default=0.0)
