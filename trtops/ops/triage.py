"""Triage: where in a model two back ends or precisions begin to differ.

Every tensor is compared, in order of execution, in windows that fit into memory. Making a tensor an output can change what
a back end fuses, and so the very error that is looked for. The model's own outputs are therefore compared twice, with and
without all that observing; where the error disappears when observed, tensors are observed one at a time.
"""

from __future__ import annotations

import io
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import onnx
from onnx import helper

from trtops import errors
from trtops.backend.base import BaseRunner, Build, Feed
from trtops.backend.onnx import external, shapes
from trtops.backend.onnx.copying import copy_model, put_small
from trtops.backend.onnx.model import Model
from trtops.backend.onnx.precision import LowPrecision, lower_precision, node_name
from trtops.backend.onnx.submodel import Cutter
from trtops.comparator.report import ComparisonReport, OutputComparison, Tolerances, Verdict, compare_outputs
from trtops.metadata import TensorMetadata
from trtops.ops.check import default_tolerances
from trtops.ops.feeds import open_feeds
from trtops.ops.report import table
from trtops.record import Record
from trtops.spec import BuildConfig
from trtops.tracking.base import NO_RUN, Run
from trtops.tracking.tables import log_table

log = logging.getLogger(__name__)

MakeRunner: TypeAlias = Callable[[onnx.ModelProto], BaseRunner]
"""Makes a runner of a model, whose outputs may be any tensors of the whole one. The model is to be read at activation."""

_UNKNOWN_BYTES = 1 << 20
_CHAIN = 12


@dataclass(frozen=True, kw_only=True)
class TriageConfig(Record):
    """How to look.

    Attributes:
        tolerances: What each tensor must meet; by default what is expected of the precision under test, or of FP32.
        data: Where inputs come from (:func:`trtops.ops.feeds.open_feeds`); random unless given.
        iterations: How many random feeds.
        seed: Seed of random data.
        window_bytes: How many bytes of tensors of one side are held at a time; smaller windows mean more passes over the
            model.
        observe: ``all`` makes all tensors of a window outputs at a time. ``one`` observes one tensor at a time, and finds
            the first that differs by bisection: slower, and fusions stay as they are. ``auto`` is ``all``, and then ``one``
            if the error disappears when observed.
        max_probes: Most tensors to observe one at a time.
    """

    tolerances: Tolerances | None = None
    data: str | None = None
    iterations: int = 1
    seed: int = 1
    window_bytes: int = 192 << 20
    observe: Literal["auto", "all", "one"] = "auto"
    max_probes: int = 64

    def __post_init__(self) -> None:
        for name in ("iterations", "window_bytes", "max_probes"):
            if getattr(self, name) < 1:
                raise errors.ConfigError(f"{name} is {getattr(self, name)}; expected 1 or more.")


@dataclass(frozen=True, kw_only=True)
class TensorError(Record):
    """How far one tensor is from its reference.

    Attributes:
        name: The tensor.
        node: The node that makes it.
        op: The node's type.
        verdict: Whether it meets the tolerances.
        error: Euclidean norm of the difference over that of the tensor; infinite if there is NaN in the difference.
        growth: ``error`` over the largest ``error`` of what its node reads; None if those have none, or are not known.
        max_abs: Largest absolute error.
        max_rel: Largest relative error.
        magnitude: Largest absolute value in the reference that is finite.
        nonfinite: NaNs and infinities beyond those of the reference.
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
class TriageResult(Record):
    """Where two sides differ.

    Attributes:
        verdict: ``bad`` if an output of the model does not meet the tolerances, observed or not.
        first: The first tensor, in order of execution, that does not meet them; None if none does not.
        origin: The tensor that differs most beyond what its node read: where error comes in, or is blown up.
        first_nonfinite: The first tensor with NaN or infinity that the reference does not have.
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

    def text(self, limit: int = 40) -> str:
        """The findings for people: what they are, and a table of the tensors around them."""
        return "\n".join([*self._findings(), "", _table(self, limit)])

    def _findings(self) -> Iterator[str]:
        if self.disappears:
            yield "The error disappears when all tensors are observed: it comes from what the back end fuses."
        if self.first is None:
            yield "No observed tensor differs." if self.tensors else "Nothing was observed."
        else:
            entry = next((t for t in self.tensors if t.name == self.first), None)
            where = f", made by {entry.op} {entry.node!r}" if entry else ""
            layer = f" in layer {entry.layer!r}" if entry and entry.layer else ""
            yield f"First tensor that differs: {self.first!r}{where}{layer}."
        if self.origin is not None and self.origin != self.first:
            yield f"The error grows most at {self.origin!r}, made by {self.tensor(self.origin).op}."
        if self.first_nonfinite is not None:
            yield f"First NaN or infinity: {self.first_nonfinite!r}. Above it: {' <- '.join(self.chain)}."
        inside = [probe.name for probe in self.probes if not probe.output_differs]
        if inside:
            yield f"Observing any of these takes the error away: {', '.join(inside)}."


def emulated(to: LowPrecision, exclude: Sequence[str] = ()) -> MakeRunner:
    """A side that computes in 16 bit, rounded on the CPU as a GPU rounds; see :mod:`trtops.backend.onnx.emulate`.

    Args:
        to: The precision.
        exclude: Nodes that stay in FP32.
    """

    def make(model: onnx.ModelProto) -> BaseRunner:
        from trtops.backend.onnx.emulate import emulate_low_precision
        from trtops.ops.check_submodel import onnxruntime_runner

        low = lower_precision(model, to, exclude=exclude).model
        emulate_low_precision(low)
        return onnxruntime_runner(low)

    return make


def reference(model: onnx.ModelProto) -> BaseRunner:
    """A side that computes the model as it is: ONNX Runtime without optimizations."""
    from trtops.backend.onnxrt.observe import SessionFromMemory
    from trtops.backend.onnxrt.runner import OnnxrtRunner

    return OnnxrtRunner(SessionFromMemory(model, optimized=False), "reference")


def triage(
    model: str | Path | Model | onnx.ModelProto,
    actual: BuildConfig | MakeRunner,
    config: TriageConfig | None = None,
    *,
    golden: MakeRunner = reference,
    feeds: Iterable[Feed] | None = None,
    run: Run = NO_RUN,
) -> TriageResult:
    """Compare every tensor of a model between two sides, and tell where they part.

    Args:
        model: The model, or its path; not changed.
        actual: The side under test: how to build an engine, or what makes a runner (:func:`emulated`).
        config: How to look.
        golden: The side that is taken for right.
        feeds: Inputs, in place of the config's source.
        run: Gets the table, the picture and the numbers; it is not ended.

    Raises:
        ModelError: If the model cannot be used.
        InputError: If the data does not fit it.
        BackendError: If a side cannot be built or run.
    """
    started = time.perf_counter()
    config = TriageConfig() if config is None else config
    opened = model if isinstance(model, Model) else _opened(model)
    inputs = TensorMetadata.of(opened.info.inputs)
    source = config.data if feeds is None else feeds
    given = [dict(feed) for feed in open_feeds(source, inputs, iterations=config.iterations, seed=config.seed)]
    side = _Built(actual) if isinstance(actual, BuildConfig) else None
    tolerances = config.tolerances or default_tolerances(
        actual.precision if isinstance(actual, BuildConfig) else "fp32"
    )
    sides = _Sides(opened.proto(), side or actual, golden, given, tolerances)  # type: ignore[arg-type]
    result = _look(sides, config, side, started)
    _log(run, opened, config, result)
    return result


def _opened(model: str | Path | onnx.ModelProto) -> Model:
    return Model.from_proto(model) if isinstance(model, onnx.ModelProto) else Model.load(model)


class _Built:
    """A side that builds engines; knows the layers of the first, which observes nothing, by node and by tensor."""

    def __init__(self, config: BuildConfig) -> None:
        self.config = config
        self.layers: dict[str, str] = {}

    def __call__(self, model: onnx.ModelProto) -> BaseRunner:
        from trtops.backend.engines import engine_backend

        backend = engine_backend(self.config.backend)
        build: Build = backend.build(Model.from_proto(model), self.config)
        for layer in () if self.layers else build.layers:
            text = f"{layer.name} [{layer.tactic}]" if layer.tactic else layer.name
            for name in (*layer.onnx_nodes, *layer.outputs):
                self.layers.setdefault(name, text)
        return backend.runner(build.engine, self.config.backend)

    def layer_of(self, tensor: str, node: str) -> str:
        """The layer that makes a tensor or holds a node; empty if it is not told."""
        return self.layers.get(tensor) or self.layers.get(node, "")


class _Sides:
    """Both sides of a comparison, with tensors observed as asked."""

    def __init__(
        self,
        model: onnx.ModelProto,
        actual: MakeRunner,
        golden: MakeRunner,
        feeds: Sequence[Feed],
        tolerances: Tolerances,
    ) -> None:
        self.model = model
        self.actual = actual
        self.golden = golden
        self.feeds = feeds
        self.tolerances = tolerances
        self.cutter = Cutter(model)
        self.own = [value.name for value in model.graph.output]
        self.declared = _declared(model, feeds[0])
        self.makers = {name: index for index in self.cutter.order for name in self.cutter.visible(index)}
        self.right: list[dict[str, Any]] | None = None
        self.passes = 0

    @property
    def tensors(self) -> list[str]:
        """All tensors that can be observed, in order of execution."""
        return list(self.makers)

    def windows(self, limit: int) -> Iterator[list[str]]:
        """The tensors in runs whose arrays are within a limit, as far as their sizes are known."""
        window: list[str] = []
        total = 0
        for name in self.tensors:
            size = self._bytes(name) * len(self.feeds)
            if window and total + size > limit:
                yield window
                window, total = [], 0
            window.append(name)
            total += size
        if window:
            yield window

    def compare(self, observed: Sequence[str]) -> tuple[ComparisonReport, dict[str, float]]:
        """Run both sides with these tensors as outputs beside the model's own; also the reference's magnitudes."""
        self.passes += 1
        names = list(dict.fromkeys([*self.own, *observed]))
        outputs = self.model.graph.output
        kept = [onnx.ValueInfoProto.FromString(value.SerializeToString()) for value in outputs]
        outputs.extend(self.declared.get(n) or onnx.ValueInfoProto(name=n) for n in names[len(self.own) :])
        try:
            golden = self._run(self.golden)
            actual = self._run(self.actual)
        finally:
            del outputs[:]
            outputs.extend(kept)
        self.right = [{name: arrays[name] for name in self.own} for arrays in golden]
        magnitudes = {name: max(_magnitude(arrays[name]) for arrays in golden) for name in golden[0]}
        return compare_outputs(actual, golden, self.tolerances), magnitudes

    def run_unobserved(self) -> list[dict[str, Any]]:
        """The model's own outputs of the side under test, with nothing observed."""
        return self._run(self.actual)

    def judge_unobserved(self, outputs: list[dict[str, Any]]) -> ComparisonReport:
        """Compare these with the side that is right; what that gives does not depend on what is observed."""
        golden = self._run(self.golden) if self.right is None else self.right
        return compare_outputs(outputs, golden, self.tolerances)

    def _run(self, make: MakeRunner) -> list[dict[str, Any]]:
        with make(self.model) as runner:
            if len(self.feeds) == 1:
                return [dict(runner.infer(self.feeds[0]))]
            return [{name: np.array(array) for name, array in runner.infer(feed).items()} for feed in self.feeds]

    def _bytes(self, name: str) -> int:
        value = self.declared.get(name)
        if value is None or not value.type.tensor_type.HasField("shape"):
            return _UNKNOWN_BYTES
        dims = [dim.dim_value for dim in value.type.tensor_type.shape.dim if dim.HasField("dim_value")]
        if len(dims) < len(value.type.tensor_type.shape.dim):
            return _UNKNOWN_BYTES
        tensor = onnx.TensorProto(data_type=value.type.tensor_type.elem_type, dims=dims)
        return external.expected_bytes(tensor) or _UNKNOWN_BYTES


def _declared(model: onnx.ModelProto, feed: Feed) -> dict[str, onnx.ValueInfoProto]:
    """Types and shapes of a model's tensors for a feed, as far as they can be inferred."""
    bare = copy_model(model, put_small(4096))
    for value in bare.graph.input:
        if value.name in feed and value.type.WhichOneof("value") == "tensor_type":
            element = value.type.tensor_type.elem_type
            value.CopyFrom(helper.make_tensor_value_info(value.name, element, np.asarray(feed[value.name]).shape))
    shapes.infer_shapes(bare)
    return shapes.values(bare.graph)


def _magnitude(array: Any) -> float:
    """The largest finite magnitude in an array; 0 for text and for none."""
    array = np.asarray(array)
    if array.dtype.kind not in "fiu" or not array.size:
        return 0.0
    largest = max(float(array.max()), -float(array.min()))
    if math.isfinite(largest):
        return largest
    finite = array[np.isfinite(array)]
    return float(np.abs(finite).max(initial=0))


def _look(sides: _Sides, config: TriageConfig, built: _Built | None, started: float) -> TriageResult:
    outputs = sides.run_unobserved()  # first, since the layers of this build are those that matter
    tensors: list[TensorError] = []
    observed_differs = False
    if config.observe != "one":
        tensors, observed_differs = _observe(sides, config, built)
    unobserved = sides.judge_unobserved(outputs)
    differs = unobserved.verdict == "bad"
    probes: list[Probe] = []
    disappears = differs and not observed_differs and config.observe != "one"
    first = next((t.name for t in tensors if t.verdict == "bad"), None)
    if config.observe == "one" or (disappears and config.observe == "auto"):
        first = _probe(sides, config.max_probes, probes) if differs else None
    nonfinite = next((t.name for t in tensors if t.nonfinite), None)
    return TriageResult(
        verdict="bad" if differs or observed_differs else "good",
        first=first,
        origin=_origin(tensors),
        first_nonfinite=nonfinite,
        chain=_chain(sides, tensors, nonfinite or first),
        disappears=disappears,
        probes=tuple(probes),
        outputs_unobserved=tuple((output.name, output.verdict) for output in unobserved.outputs),
        tensors=tuple(tensors),
        windows=sides.passes,
        seconds=time.perf_counter() - started,
    )


def _observe(sides: _Sides, config: TriageConfig, built: _Built | None) -> tuple[list[TensorError], bool]:
    """Every tensor's error, window by window, and whether the model's outputs differed while observed."""
    found: dict[str, TensorError] = {}
    differs = False
    for window in sides.windows(config.window_bytes):
        report, magnitudes = sides.compare(window)
        compared = {output.name: output for output in report.outputs}
        differs |= any(compared[name].verdict == "bad" for name in sides.own)
        for name in window:
            found[name] = _tensor_error(sides, compared[name], magnitudes.get(name, 0.0), found, built)
    return list(found.values()), differs


def _tensor_error(
    sides: _Sides, compared: OutputComparison, magnitude: float, known: Mapping[str, TensorError], built: _Built | None
) -> TensorError:
    name = compared.name
    index = sides.makers[name]
    node = sides.model.graph.node[index]
    statistics = compared.statistics
    error, nonfinite = math.inf, 0
    if statistics is not None:
        error = _relative(statistics.snr, statistics.l2, statistics.nan_errors)
        nonfinite = max(statistics.nan_count - statistics.reference_nan_count, 0)
        nonfinite += max(statistics.inf_count - statistics.reference_inf_count, 0)
    before = [known[read].error for read in sides.cutter.reads(index) if read in known]
    return TensorError(
        name=name,
        node=node_name(node),
        op=node.op_type,
        verdict=compared.verdict,
        error=error,
        growth=error / max(before) if before and 0 < max(before) < math.inf else None,
        max_abs=math.nan if statistics is None else statistics.max_abs,
        max_rel=math.nan if statistics is None else statistics.max_rel,
        magnitude=magnitude,
        nonfinite=nonfinite,
        layer="" if built is None else built.layer_of(name, node_name(node)),
        reason="; ".join(compared.reasons[:2]),
    )


def _relative(snr: float | None, l2: float, nan_errors: int) -> float:
    """Norm of the difference over that of the tensor, from the signal-to-noise ratio in dB."""
    if l2 == 0:
        return 0.0
    if nan_errors or snr is None or math.isnan(snr) or math.isnan(l2):
        return math.inf
    return 10 ** (-snr / 20) if snr > -6000 else math.inf


def _origin(tensors: Sequence[TensorError]) -> str | None:
    """Where most of the error comes in: what differs, and exceeds what its node read by the largest step."""
    steps = {}
    for entry in tensors:
        if entry.verdict != "bad":
            continue
        before = entry.error / entry.growth if entry.growth else 0.0
        steps[entry.name] = math.log(max(entry.error, 1e-30)) - math.log(max(before, 1e-9)) if entry.error else 0.0
    finite = {name: step for name, step in steps.items() if step == step}
    return max(finite, key=lambda name: finite[name], default=None)


def _chain(sides: _Sides, tensors: Sequence[TensorError], start: str | None) -> tuple[str, ...]:
    """From a tensor upwards, each time to what the node read with the largest error or else magnitude."""
    known = {entry.name: entry for entry in tensors}
    chain: list[str] = []
    while start is not None and len(chain) < _CHAIN and start not in chain:
        chain.append(start)
        index = sides.makers.get(start)
        reads = [known[name] for name in sides.cutter.reads(index) if name in known] if index is not None else []
        start = max(reads, key=lambda t: (t.error, t.magnitude)).name if reads else None
    return tuple(chain)


def _probe(sides: _Sides, limit: int, probes: list[Probe]) -> str | None:
    """The first tensor that differs when it alone is observed, by bisection; None if none of those tried does.

    A probe under which the model's outputs are right says nothing of where the error is, and counts as not differing.
    """
    names = sides.tensors
    low, high = -1, len(names)
    while high - low > 1 and len(probes) < limit:
        middle = (low + high) // 2
        report, _ = sides.compare([names[middle]])
        compared = {output.name: output.verdict == "bad" for output in report.outputs}
        probe = Probe(
            name=names[middle], differs=compared[names[middle]], output_differs=any(compared[n] for n in sides.own)
        )
        probes.append(probe)
        if probe.differs:
            high = middle
        else:
            low = middle
    return names[high] if high < len(names) else None


def _table(result: TriageResult, limit: int) -> str:
    """The tensors around the first that differs, or the worst."""
    shown = list(result.tensors)
    if len(shown) > limit:
        names = [t.name for t in shown]
        middle = names.index(result.first) if result.first in names else len(shown) - limit // 2
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


def draw(result: TriageResult) -> bytes:
    """Draw every tensor's error in order of execution, with what differs and where it begins.

    Returns:
        A PNG file's bytes.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.5), layout="constrained")
    axes = figure.add_subplot()
    finite = [t.error for t in result.tensors if 0 < t.error < math.inf]
    top, bottom = max(finite, default=1.0) * 10, min(finite, default=1e-9) / 3
    places = {t.name: i for i, t in enumerate(result.tensors)}
    for verdict, colour in (("good", "#4477aa"), ("bad", "#cc3311")):
        chosen = [t for t in result.tensors if t.verdict == verdict]
        heights = [min(max(t.error, bottom), top) for t in chosen]
        axes.scatter([places[t.name] for t in chosen], heights, s=8, c=colour, label=verdict)
    for name, text in ((result.first, "first that differs"), (result.first_nonfinite, "first NaN or infinity")):
        if name in places:
            axes.axvline(places[name], color="#cc3311", linewidth=0.8, linestyle=":")
            axes.annotate(
                f"{text}: {name}"[:70],
                (places[name], top if name == result.first else top / 4),
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


def _log(run: Run, model: Model, config: TriageConfig, result: TriageResult) -> None:
    if run is NO_RUN:
        return
    run.log_params({"model": model.name, **config.to_dict()})
    run.log_metrics(
        {
            ("triage", "tensors"): len(result.tensors),
            ("triage", "differing"): sum(t.verdict == "bad" for t in result.tensors),
            ("triage", "largest_error"): max((t.error for t in result.tensors), default=0.0),
            ("triage", "seconds"): result.seconds,
        }
    )
    columns = ("tensor", "node", "op", "verdict", "error", "growth", "max_abs", "max_rel", "nonfinite", "layer")
    rows = (
        (t.name, t.node, t.op, t.verdict, t.error, t.growth, t.max_abs, t.max_rel, t.nonfinite, t.layer)
        for t in result.tensors
    )
    log_table(run, "triage/tensors.json", columns, rows)
    run.log_json(result, "triage/result.json")
    run.log_text(result.text(), "triage/findings.txt")
    run.log_bytes(draw(result), "triage/errors.png")
