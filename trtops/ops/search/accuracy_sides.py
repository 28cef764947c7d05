"""The two sides of an accuracy search: what runs a model, with different tensors as outputs each time."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import onnx
from onnx import helper

from trtops import errors
from trtops.backend.base import BaseRunner, Build, Caches, Feed
from trtops.backend.engines import engine_backend
from trtops.backend.onnx import external, shapes
from trtops.backend.onnx.copying import copy_model, put_small
from trtops.backend.onnx.emulate import emulate_low_precision
from trtops.backend.onnx.model import Model
from trtops.backend.onnx.precision import LowPrecision, lower_precision
from trtops.backend.onnx.submodel import Cutter
from trtops.backend.onnxrt.reference import SessionFromMemory
from trtops.backend.onnxrt.runner import OnnxrtRunner
from trtops.backend.worker import built_safely
from trtops.comparator.report import ComparisonReport, Tolerances, compare_outputs
from trtops.ops.evaluation.submodel import onnxruntime_runner
from trtops.spec import BuildConfig, Precision
from trtops.tactics.record import TacticRecord

log = logging.getLogger(__name__)

MakeRunner: TypeAlias = Callable[[onnx.ModelProto], BaseRunner]
"""Makes a runner of a model with any tensors as outputs. The model is read at activation."""

_UNKNOWN_BYTES = 1 << 20


@dataclass(frozen=True)
class Emulated:
    """A side that computes in 16 bit, rounded on the CPU as a GPU rounds; see :mod:`trtops.backend.onnx.emulate`.

    Attributes:
        to: The precision.
        exclude: Nodes that stay in FP32.
    """

    to: LowPrecision
    exclude: Sequence[str] = ()

    def __call__(self, model: onnx.ModelProto) -> BaseRunner:
        """A runner of the model in that precision."""
        low = lower_precision(model, self.to, exclude=self.exclude).model
        emulate_low_precision(low)
        return onnxruntime_runner(low)


def reference(model: onnx.ModelProto) -> BaseRunner:
    """A side that computes the model as it is: ONNX Runtime without optimizations."""
    return OnnxrtRunner(SessionFromMemory(model, optimized=False), "reference")


Side: TypeAlias = Literal["onnxruntime", "tensorrt", "emulated"]
"""What can be under test: an engine of a back end, or 16 bit emulated on the CPU."""


def make_side(side: Side, precision: Precision) -> BuildConfig | Emulated:
    """A side by its name, with default options; ``emulated`` is FP16 unless the precision is BF16."""
    if side == "emulated":
        return Emulated("bf16" if precision == "bf16" else "fp16")
    return BuildConfig(precision=precision).on_backend(side)


def side_name(side: BuildConfig | MakeRunner) -> str:
    """The name of a side in the names of runs."""
    if isinstance(side, BuildConfig):
        return f"{side.backend} {side.precision}"
    if isinstance(side, Emulated):
        return f"emulated {side.to}"
    return str(getattr(side, "__qualname__", type(side).__qualname__))


class Built:
    """A side that builds engines.

    On ONNX Runtime later engines get the settings of the first, which observes no tensors: they have to compute as it
    does, and nothing is timed again.

    Attributes:
        layers: Layers of the first engine, by node and by tensor.
    """

    def __init__(self, config: BuildConfig) -> None:
        self.config = config
        self.layers: dict[str, str] = {}
        self._settings: TacticRecord | None = None

    def __call__(self, model: onnx.ModelProto) -> BaseRunner:
        """Build an engine, and make a runner of it."""
        build = self._build(Model.from_proto(model))
        for layer in () if self.layers else build.layers:
            text = f"{layer.name} [{layer.tactic}]" if layer.tactic else layer.name
            for name in (*layer.onnx_nodes, *layer.outputs):
                self.layers.setdefault(name, text)
        return engine_backend(self.config.backend).runner(build.engine, self.config.backend)

    def _build(self, model: Model) -> Build:
        if self._settings is not None:
            config = replace(self.config, options=replace(self.config.options, tactic_seed=None))
            try:
                return built_safely(model, config, Caches(replay=self._settings))
            except errors.BackendError as exc:  # the settings may not fit a model with more outputs
                log.info("Built with settings of its own: %s", exc)
        build = built_safely(model, self.config)
        if build.tactics.mechanism == "onnxruntime" and self._settings is None:
            self._settings = replace(build.tactics, choices=())
        return build


class Sides:
    """Both sides of a comparison.

    Attributes:
        makers: The node that makes each tensor that can be observed, by the tensor's name, in order of execution.
        passes: Number of comparisons so far.
    """

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
        self.outputs = [value.name for value in model.graph.output]
        self.makers = {name: index for index in self.cutter.order for name in self.cutter.visible(index)}
        self.passes = 0
        self._golden_outputs: list[dict[str, Any]] | None = None
        sizes = [{name: np.shape(array) for name, array in feed.items()} for feed in feeds]
        # A back end takes an output's declared shape for granted and folds computations on it into constants. So only
        # those dimensions are declared that all feeds have in common.
        common: dict[str, Sequence[int | None]] = {}
        for name in sizes[0]:
            shapes_of = [feed[name] for feed in sizes if name in feed]
            if len({len(shape) for shape in shapes_of}) == 1:
                common[name] = [dims[0] if len(set(dims)) == 1 else None for dims in zip(*shapes_of)]
        self._declared = _inferred_values(model, common)
        # Memory is estimated from the largest feed.
        alike = all(each == sizes[0] for each in sizes)
        largest = max(sizes, key=lambda each: sum(map(math.prod, each.values())))
        self._largest = self._declared if alike else _inferred_values(model, largest)

    def windows(self, limit: int) -> Iterator[list[str]]:
        """Runs of tensors whose arrays have at most ``limit`` bytes, as far as their sizes are known."""
        window: list[str] = []
        total = 0
        for name in self.makers:
            size = self._bytes(name) * len(self.feeds)
            if window and total + size > limit:
                yield window
                window, total = [], 0
            window.append(name)
            total += size
        if window:
            yield window

    def compare(self, observed: Sequence[str]) -> tuple[ComparisonReport, dict[str, Size]]:
        """Run both sides with these tensors as further outputs; also returns the sizes of the reference's tensors."""
        self.passes += 1
        names = list(dict.fromkeys([*self.outputs, *observed]))
        outputs = self.model.graph.output
        kept = [onnx.ValueInfoProto.FromString(value.SerializeToString()) for value in outputs]
        outputs.extend(self._declared.get(n) or onnx.ValueInfoProto(name=n) for n in names[len(self.outputs) :])
        try:
            golden = self._run(self.golden)
            actual = self._run(self.actual)
        finally:
            del outputs[:]
            outputs.extend(kept)
        self._golden_outputs = [{name: arrays[name] for name in self.outputs} for arrays in golden]
        sizes = {name: Size.of([arrays[name] for arrays in golden]) for name in golden[0]}
        return compare_outputs(actual, golden, self.tolerances), sizes

    def run_unobserved(self) -> list[dict[str, Any]]:
        """The model's own outputs on the side under test, without observed tensors."""
        return self._run(self.actual)

    def compare_unobserved(self, outputs: list[dict[str, Any]]) -> ComparisonReport:
        """Compare these with the reference, whose values do not depend on what is observed."""
        golden = self._run(self.golden) if self._golden_outputs is None else self._golden_outputs
        return compare_outputs(outputs, golden, self.tolerances)

    def _run(self, make: MakeRunner) -> list[dict[str, Any]]:
        with make(self.model) as runner:
            if len(self.feeds) == 1:
                return [dict(runner.infer(self.feeds[0]))]
            return [{name: np.array(array) for name, array in runner.infer(feed).items()} for feed in self.feeds]

    def _bytes(self, name: str) -> int:
        value = self._largest.get(name)
        if value is None or not value.type.tensor_type.HasField("shape"):
            return _UNKNOWN_BYTES
        dims = [dim.dim_value for dim in value.type.tensor_type.shape.dim if dim.HasField("dim_value")]
        if len(dims) < len(value.type.tensor_type.shape.dim):
            return _UNKNOWN_BYTES
        tensor = onnx.TensorProto(data_type=value.type.tensor_type.elem_type, dims=dims)
        return external.expected_bytes(tensor) or _UNKNOWN_BYTES


def _inferred_values(
    model: onnx.ModelProto, inputs: Mapping[str, Sequence[int | None]]
) -> dict[str, onnx.ValueInfoProto]:
    """Types and shapes of a model's tensors, inferred from shapes of its inputs; None leaves a dimension open."""
    bare = copy_model(model, put_small(4096))
    for value in bare.graph.input:
        if value.name in inputs and value.type.WhichOneof("value") == "tensor_type":
            element = value.type.tensor_type.elem_type
            value.CopyFrom(helper.make_tensor_value_info(value.name, element, inputs[value.name]))
    shapes.infer_shapes(bare)
    return shapes.values(bare.graph)


@dataclass(frozen=True)
class Size:
    """The size of a tensor's values in the reference, over all feeds.

    Attributes:
        magnitude: Largest finite absolute value; 0 for text and empty tensors.
        norm: Euclidean norm; NaN or infinite if a value is.
    """

    magnitude: float = 0.0
    norm: float = 0.0

    @classmethod
    def of(cls, arrays: Sequence[Any]) -> Size:
        """The size of one tensor in each feed."""
        return cls(max(map(_largest_finite, arrays)), math.sqrt(sum(map(_sum_of_squares, arrays))))


def _sum_of_squares(array: Any) -> float:
    flat = np.asarray(array).reshape(-1)
    if flat.dtype.kind not in "fiub":
        return 0.0
    return float(np.einsum("i,i->", flat, flat, dtype=np.float64, casting="unsafe"))


def _largest_finite(array: Any) -> float:
    array = np.asarray(array)
    if array.dtype.kind not in "fiu" or not array.size:
        return 0.0
    largest = max(float(array.max()), -float(array.min()))
    return largest if math.isfinite(largest) else float(np.abs(array[np.isfinite(array)]).max(initial=0))
