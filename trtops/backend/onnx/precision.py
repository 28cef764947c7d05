"""Models rewritten to compute in 16-bit floating point.

Every node is either *lowered*, so that it reads and produces 16-bit tensors, or kept. Casts connect the two. Nodes
without a schema (custom operators), If, Loop and Scan are kept, and the bodies of the latter are rewritten.
"""

import logging
from collections import ChainMap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import onnx
import onnx.inliner
from onnx import TensorProto, helper

from trtops import errors
from trtops.backend.onnx import copying, external, shapes, walk
from trtops.backend.onnx.hostile import check_inlined_size
from trtops.backend.onnx.index_arithmetic import ScopedName, index_tensors
from trtops.backend.onnx.model import check_structure, is_lean, tensor_array
from trtops.backend.onnx.opset import raise_opset
from trtops.calibration.cache import CalibrationCache
from trtops.metadata import STANDS_FOR_INFINITY, DataType

log = logging.getLogger(__name__)

LowPrecision: TypeAlias = Literal["fp16", "bf16"]

_OPSET_OF_BF16 = 13
# Kept in FP32: counts soon become inexact.
_KEPT_TYPES = frozenset({"DynamicQuantizeLinear", "Range", "CumSum"})
# FP16 rounds smaller scales by more than 1/256, half a step of INT8 for the largest value.
_LEAST_SCALE = {"fp16": 2.0**-17, "bf16": 2.0**-118}
# Largest finite value and smallest above zero, subnormal ones included.
_RANGE = {"fp16": (65504.0, 2.0**-24), "bf16": (float.fromhex("0x1.fep127"), 2.0**-133)}

_BLOCK_ELEMENTS = 1 << 18  # temporary arrays of this size stay in the CPU's cache

# Their output has their input's type unless an attribute sets another, which is not part of the schema.
_TYPED_BY_INPUT = frozenset({"RandomNormalLike", "RandomUniformLike", "Bernoulli", "EyeLike"})


@dataclass(kw_only=True)
class Rewritten:
    """A model in lower precision. Nodes are named as by :func:`trtops.backend.onnx.walk.node_name`."""

    model: onnx.ModelProto = field(repr=False)
    lowered: list[str] = field(default_factory=list)  # nodes that compute in 16 bit
    fp32_nodes: list[str] = field(default_factory=list)  # with floating-point inputs or outputs, that stay in FP32
    indices: list[str] = field(default_factory=list)  # kept because they compute indices, lengths or positions
    too_large: list[str] = field(default_factory=list)  # kept because a weight exceeds the 16-bit range
    # Number of values per weight that are too small for 16 bit and became zero.
    flushed: dict[str, int] = field(default_factory=dict)


def convert_to_fp16(
    proto: onnx.ModelProto, *, keep_io: bool = True, exclude: Iterable[str] = (), weights: Path | None = None
) -> onnx.ModelProto:
    """Return a model computing in FP16 if possible; :func:`lower_precision` also returns a report."""
    check_structure(proto)
    rewritten = lower_precision(proto, "fp16", keep_io=keep_io, exclude=exclude, weights=weights)
    if rewritten.indices:
        log.info("Kept in FP32, since they compute indices or lengths: %s", ", ".join(rewritten.indices))
    if rewritten.too_large:
        log.warning("Kept in FP32, since their weights exceed the 16-bit range: %s", ", ".join(rewritten.too_large))
    return rewritten.model


def lower_precision(
    proto: onnx.ModelProto,
    to: LowPrecision,
    *,
    keep_io: bool = True,
    exclude: Iterable[str] = (),
    weights: Path | None = None,
) -> Rewritten:
    """Rewrite a model's FP32 nodes to compute in 16 bit. FP64 stays FP64.

    Args:
        proto: The model, with all weights inside; it passes :func:`trtops.backend.onnx.model.check_structure`, and is
            not changed.
        to: The type to compute in. For BF16 a model of an older operator set than 13 is converted to it.
        keep_io: Whether FP32 inputs and outputs of the model keep their type, with Casts.
        exclude: Nodes to keep in FP32 (:func:`trtops.backend.onnx.walk.select_nodes`). The model's functions are
            inlined before (:func:`without_functions`).
        weights: A folder for the 16-bit weights of a lean model (:meth:`trtops.backend.onnx.model.Model.proto`), which
            must exist as long as the result is used; without one they are inside.
    """
    model = without_functions(copying.copy_of(proto))
    if to == "bf16":
        raise_opset(model, _OPSET_OF_BF16, "tensors in BF16")
    shapes.infer_shapes(model)
    excluded = frozenset(map(walk.node_name, walk.select_nodes(model, exclude)))
    rewrite = _Rewrite(model, to, excluded, index_tensors(model))
    if weights is not None and is_lean(model):
        rewrite.weights_file = weights / f"{to}.data"
    return rewrite.run(keep_io=keep_io)


def beyond_range(model: onnx.ModelProto, cache: CalibrationCache, to: LowPrecision) -> dict[str, tuple[str, float]]:
    """Return the main graph's nodes with tensors of measured values beyond 16 bit.

    Returns the tensor and its largest magnitude for each node: above the type's largest value, or below its smallest,
    so that all values become zero. In models with constants of 1e9 or more, which stand for infinity in masks, so do
    such values. The model is one after :func:`without_functions`.
    """
    largest, smallest = _RANGE[to]
    constants = walk.constant_tensors(model.graph)
    outside: dict[str, float] = {}
    for measured in cache.ranges:
        if measured.name not in constants and (measured.largest > largest or 0 < measured.largest < smallest):
            outside[measured.name] = measured.largest
    if max(outside.values(), default=0.0) >= STANDS_FOR_INFINITY:
        weights = [tensor for tensor in constants.values() if tensor.data_type == TensorProto.FLOAT]
        if any(_Tensor(tensor.name, None, tensor).magnitudes[1] for tensor in weights):
            outside = {name: amax for name, amax in outside.items() if amax < STANDS_FOR_INFINITY}
    nodes: dict[str, tuple[str, float]] = {}
    for node in model.graph.node:
        for name in (*node.output, *node.input):
            if name in outside:
                nodes.setdefault(walk.node_name(node), (name, outside[name]))
    return nodes


def without_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its functions inlined, under unique names; the same if it has none."""
    if not model.functions:
        return model
    check_inlined_size(model)
    try:
        return onnx.inliner.inline_local_functions(model)
    except (RuntimeError, ValueError, onnx.checker.ValidationError) as exc:  # C++ exceptions
        raise errors.InvalidModelError(f"The model's functions cannot be inlined: {exc}") from exc


@dataclass
class _Tensor:
    """A floating-point tensor, and the names of its FP32 and 16-bit versions, or None."""

    full: str | None
    low: str | None
    weight: TensorProto | None = None
    full_used: bool = False  # weights only

    @property
    def is_low(self) -> bool:
        """True if the tensor is produced in 16 bit, or is a weight, available in both precisions."""
        return self.weight is not None or self.low is not None

    @cached_property
    def magnitudes(self) -> tuple[float, bool]:
        """A weight's largest value not standing for infinity, and True if larger finite ones exist."""
        assert self.weight is not None
        largest, any_infinite = 0.0, False
        flat = tensor_array(self.weight).reshape(-1)
        for start in range(0, flat.size, _BLOCK_ELEMENTS):
            size = np.abs(flat[start : start + _BLOCK_ELEMENTS])
            block_largest = float(size.max())
            if not block_largest < STANDS_FOR_INFINITY:  # or NaN is among them
                finite = size[np.isfinite(size)]
                usual = finite[finite < STANDS_FOR_INFINITY]
                any_infinite |= usual.size < finite.size
                block_largest = float(usual.max(initial=0))
            largest = max(largest, block_largest)
        return largest, any_infinite


_Scope: TypeAlias = ChainMap[str, _Tensor]
_Types: TypeAlias = dict[str, int]


class _LowPrecisionPorts(NamedTuple):
    """Positions of a node's 16-bit inputs and outputs."""

    inputs: frozenset[int] = frozenset()
    outputs: frozenset[int] = frozenset()


_KEPT = _LowPrecisionPorts()


@dataclass
class _Frame:
    """One graph while it is rewritten."""

    name: str  # as :func:`walk.body_scope` calls it
    scope: _Scope  # its floating-point tensors, then those of the graphs around it
    types: _Types  # element types of all tensors, likewise
    outputs: frozenset[str]  # names of its FP32 outputs
    keep_io: bool
    nodes: list[onnx.NodeProto] = field(default_factory=list)  # those written so far


class _Rewrite:
    """One rewrite of one model: graph by graph, each node in order of execution."""

    def __init__(
        self, model: onnx.ModelProto, to: LowPrecision, excluded: frozenset[str], index_tensors: frozenset[ScopedName]
    ) -> None:
        self.opsets = walk.opsets(model)
        self.dtype = DataType.FLOAT16 if to == "fp16" else DataType.BFLOAT16
        self.element = TensorProto.FLOAT16 if to == "fp16" else TensorProto.BFLOAT16
        self.largest, self.smallest = _RANGE[to]
        self.least_scale = _LEAST_SCALE[to]
        self.excluded = excluded
        self.index_tensors = index_tensors
        self.fresh = walk.FreshNames(model.graph)
        self.renamed: dict[str, str] = {}
        self.result = Rewritten(model=model)
        self.weights_file: Path | None = None

    def run(self, *, keep_io: bool) -> Rewritten:
        """Rewrite the model in place."""
        model = self.result.model
        self._rewrite_graph(model.graph, "", ChainMap(), {}, keep_io=keep_io)
        for node in walk.nodes(model):
            for i, name in enumerate(node.input):
                if name in self.renamed:
                    node.input[i] = self.renamed[name]
        # Before version 4 every weight had to be an input as well. Since then that lets callers replace it, and ONNX
        # Runtime 1.23 crashes on such a weight in FP16.
        model.ir_version = max(model.ir_version, 4)
        weights = walk.initializer_names(model.graph)
        walk.keep_only(model.graph.input, lambda value: value.name not in weights)
        return self.result

    def _rewrite_graph(
        self, graph: onnx.GraphProto, name: str, outer: _Scope, outer_types: _Types, *, keep_io: bool
    ) -> None:
        """Rewrite one graph in place, given its scope's name and the tensors of the graphs around it."""
        scope: _Scope = ChainMap({}, walk.visible(outer, graph, {}))
        types = walk.visible(outer_types, graph, shapes.element_types(graph))
        for read in walk.captured(graph):
            if read in outer and outer[read].weight is None:
                scope[read] = replace(outer[read])  # a Cast inside is not available outside
        nodes = walk.in_order(graph.node)
        weights = [tensor for tensor in graph.initializer if tensor.data_type == TensorProto.FLOAT]
        walk.keep_only(graph.initializer, lambda tensor: tensor.data_type != TensorProto.FLOAT)
        remaining = []
        for node in nodes:
            constant = walk.constant_tensor(node) if walk.is_onnx_op(node, "Constant") else None
            if constant is not None and constant.data_type == TensorProto.FLOAT:
                weights.append(constant)
            else:
                remaining.append(node)
        weight_tensors = [_Tensor(full=tensor.name, low=None, weight=tensor) for tensor in weights]
        scope.update(zip(map(attrgetter("name"), weights), weight_tensors))
        for value in graph.input:
            if value.type.tensor_type.elem_type == TensorProto.FLOAT and value.name not in scope.maps[0]:
                scope[value.name] = _Tensor(value.name, None) if keep_io else _Tensor(None, value.name)
        outputs = frozenset(v.name for v in graph.output if types.get(v.name) == TensorProto.FLOAT)
        frame = _Frame(name, scope, types, outputs, keep_io)
        for node in remaining:
            self._rewrite_node(node, frame)
        for value in graph.output:  # weights, and tensors from outside, that no node of this graph produces
            tensor = scope.get(value.name)
            if tensor is not None and (keep_io or tensor.weight is not None):
                value.name = self._name_in(tensor, False, frame)
        walk.replace_nodes(graph, frame.nodes)
        self._write_weights(graph, weight_tensors)
        low = {self.renamed.get(t.low, t.low) for t in scope.maps[0].values() if t.low is not None}
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.name in low and value.type.tensor_type.elem_type == TensorProto.FLOAT:
                value.type.tensor_type.elem_type = self.element

    def _rewrite_node(self, node: onnx.NodeProto, frame: _Frame) -> None:
        """Write one node and its Casts."""
        scope, types = frame.scope, frame.types
        ports = self._low_ports(node, scope, types)
        read = [scope[node.input[i]] for i in ports.inputs]
        if any(tensor.weight is not None and tensor.magnitudes[0] > self.largest for tensor in read):
            self.result.too_large.append(walk.node_name(node))
            ports = _KEPT
        if ports.outputs and any((frame.name, output) in self.index_tensors for output in node.output):
            self.result.indices.append(walk.node_name(node))
            ports = _KEPT
        reads = [i for i, name in enumerate(node.input) if name in scope]
        makes: list[int] = []
        for i, name in enumerate(node.output):
            if name and (i in ports.outputs or types.get(name) == TensorProto.FLOAT):
                makes.append(i)
        if reads or makes:
            (self.result.lowered if ports.outputs else self.result.fp32_nodes).append(walk.node_name(node))
        for attribute, body in walk.named_bodies(node):
            inner = walk.body_scope(frame.name, node.name, node.output, attribute)
            self._rewrite_graph(body, inner, scope, types, keep_io=True)  # its inputs and outputs are those of its node
        for i in reads:
            node.input[i] = self._name_in(scope[node.input[i]], i in ports.inputs, frame)
        frame.nodes.append(node)
        for i in makes:
            name = node.output[i]
            low = i in ports.outputs
            if name in frame.outputs and low is frame.keep_io:
                # The graph's output needs the other type under this name.
                node.output[i] = self.fresh(f"{name}_{self.dtype.value if low else 'float32'}")
                frame.nodes.append(self._cast_node(node.output[i], name, TensorProto.FLOAT if low else self.element))
                scope[name] = _Tensor(name, node.output[i]) if low else _Tensor(node.output[i], name)
            else:
                scope[name] = _Tensor(None, name) if low else _Tensor(name, None)

    def _low_ports(self, node: onnx.NodeProto, scope: _Scope, types: _Types) -> _LowPrecisionPorts:
        """Return the possible 16-bit inputs and outputs of a node; none for a node to keep."""
        domain = walk.domain(node)
        version = self.opsets.get(domain, 0)
        if (
            (node.op_type in _KEPT_TYPES or node.op_type in _TYPED_BY_INPUT or walk.node_name(node) in self.excluded)
            or (not onnx.defs.has(node.op_type, version, domain) or any(walk.subgraphs(node)))
            or (node.op_type in ("QuantizeLinear", "DequantizeLinear") and self._has_small_scale(node, scope))
            # From version 23 on, an attribute may set the output's type.
            or (node.op_type == "DequantizeLinear" and walk.int_attribute(node, "output_dtype", 0))
        ):
            return _KEPT
        if node.op_type == "Cast":
            # Reading a 16-bit tensor directly saves a Cast; a weight stays exact, since this would round it.
            source = scope.get(node.input[0]) if node.input else None
            reads_low = source is not None and source.weight is None and source.is_low
            return _LowPrecisionPorts(frozenset([0])) if reads_low else _KEPT
        # ONNX's schema of an operator gives each input and output a type variable, and lists the allowed types of each
        # variable; so inputs that must be FP32 (such as Resize's scales) stay so. Everything with one variable has one
        # type, so the decision is per variable, not per input and output.
        schema = onnx.defs.get_schema(node.op_type, version, domain)
        inputs = _type_variables(schema.inputs, len(node.input))
        outputs = _type_variables(schema.outputs, len(node.output))
        if node.op_type == "DequantizeLinear" and outputs[0] not in inputs:
            outputs[0] = inputs[1]
        bound: dict[str, int] = {}
        for name, variable in zip(node.input, inputs):
            if name in scope:
                bound[variable] = TensorProto.FLOAT
            elif name in types:
                bound.setdefault(variable, types[name])
        typed = [variable for name, variable in zip(node.input, inputs) if name]
        typed += [variable for name, variable in zip(node.output, outputs) if name and name not in types]
        if not bound.keys() >= set(typed):  # the result of a custom operator, or a sequence
            return _KEPT
        low: set[str] = set()
        for constraint in schema.type_constraints:
            if f"tensor({self.dtype.value})" in constraint.allowed_type_strs:
                low.add(constraint.type_param_str)
        low.intersection_update(variable for variable, element in bound.items() if element == TensorProto.FLOAT)
        for name, variable in zip(node.input, inputs):
            if name and variable in low and name not in scope:
                if types.get(name):
                    return _KEPT  # a sparse weight
                scope[name] = _Tensor(name, None)  # of undeclared type, but with a typed input of the same variable
        ports = _LowPrecisionPorts(
            frozenset(i for i, variable in enumerate(inputs) if variable in low and node.input[i]),
            frozenset(i for i, variable in enumerate(outputs) if variable in low and node.output[i]),
        )
        if not ports.outputs and not all(scope[node.input[i]].is_low for i in ports.inputs):
            return _KEPT  # without floating-point outputs, rounding its inputs gains nothing
        return ports

    def _has_small_scale(self, node: onnx.NodeProto, scope: _Scope) -> bool:
        """Whether the scale of a Q or DQ node is too small for 16 bit, or unknown."""
        scale = scope.get(node.input[1])
        return scale is None or scale.weight is None or tensor_array(scale.weight).min(initial=1) < self.least_scale

    def _name_in(self, tensor: _Tensor, low: bool, frame: _Frame) -> str:
        """The name of a tensor in the requested precision; writes a Cast if needed."""
        tensor.full_used |= not low
        if low and tensor.low is None:
            tensor.low = self.fresh(f"{tensor.full}_{self.dtype.value}")
            if tensor.weight is None:
                frame.nodes.append(self._cast_node(str(tensor.full), tensor.low, self.element))
        elif not low and tensor.full is None:
            tensor.full = self.fresh(f"{tensor.low}_float32")
            frame.nodes.append(self._cast_node(str(tensor.low), tensor.full, TensorProto.FLOAT))
        return str(tensor.low if low else tensor.full)

    def _write_weights(self, graph: onnx.GraphProto, weights: list[_Tensor]) -> None:
        """Write each weight in the precisions in use; a single version keeps the weight's name."""
        for tensor in weights:
            assert tensor.weight is not None
            if tensor.full_used or tensor.low is None:
                copying.add_copy(graph.initializer, tensor.weight)
            if tensor.low is not None:
                name = tensor.low if tensor.full_used else tensor.weight.name
                if name != tensor.low:
                    self.renamed[tensor.low] = name
                copying.add_copy(graph.initializer, self._lower_weight(tensor, name))

    def _lower_weight(self, tensor: _Tensor, name: str) -> TensorProto:
        assert tensor.weight is not None
        flat = tensor_array(tensor.weight).reshape(-1)
        lower = np.empty(flat.size, self.dtype.numpy())
        tiny = 0
        with np.errstate(over="ignore", under="ignore"):
            for start in range(0, flat.size, _BLOCK_ELEMENTS):
                block = flat[start : start + _BLOCK_ELEMENTS]
                if tensor.magnitudes[1]:  # infinities stay infinite
                    block = np.where(np.isfinite(block), np.clip(block, -self.largest, self.largest), block)
                tiny += int(np.count_nonzero((block != 0) & (np.abs(block) <= self.smallest / 2)))
                lower[start : start + block.size] = block.astype(lower.dtype)
        if tiny and flat.size == 1:  # an epsilon, which must not become zero
            lower[0] = np.copysign(np.float32(self.smallest), flat[0])
        elif tiny:
            self.result.flushed[name] = tiny
        raw = lower.tobytes()
        lowered = TensorProto(name=name, data_type=self.element, dims=tensor.weight.dims)
        if self.weights_file is not None and external.is_anchored(tensor.weight):
            external.write_anchored(lowered, raw, self.weights_file)
        else:
            lowered.raw_data = raw
        return lowered

    def _cast_node(self, source: str, target: str, element: int) -> onnx.NodeProto:
        return helper.make_node("Cast", [source], [target], name=self.fresh(f"{target}_cast"), to=element)


def _type_variables(parameters: Sequence[Any], count: int) -> list[str]:
    """Return the type variables of ``count`` arguments; the last formal parameter may be variadic."""
    names = [parameter.type_str for parameter in parameters] or [""]
    return [*names[:count], *names[-1:] * (count - len(names))]
