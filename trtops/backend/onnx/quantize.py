"""INT8 written into a model: QuantizeLinear and DequantizeLinear nodes from the ranges of a calibration cache.

Two styles, since the back ends look for different patterns:

``tensorrt``: every activation that enters a quantized layer passes one symmetric Q/DQ pair (zero point 0), its weights one
pair per output channel; biases and outputs are left alone. This is explicit quantization as TensorRT takes it on every
release that has it (developer guide, "Explicit Quantization"): it moves the pairs itself and fuses what follows.

``onnxruntime``: activations are unsigned with a zero point, so that both ends of a tensor's range are used (ONNX Runtime
rewrites signed ones on x86, but not all alike, and then fuses less); biases are stored in INT32; the outputs of convolutions and
element-wise layers are quantized as well, after the activation function that follows, since ONNX Runtime has integer
kernels for them only in that pattern; layers that only move values keep the scale of what they move.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from trtops import errors
from trtops.backend.onnx import shapes, walk
from trtops.backend.onnx.constants import constant_tensors
from trtops.backend.onnx.model import tensor_array
from trtops.backend.onnx.rewriting import FreshNames, rename, replace_nodes
from trtops.calibration.cache import LEVELS, CalibrationCache, FitPolicy, TensorRange, fit
from trtops.limits import limited_memory
from trtops.record import Record

if TYPE_CHECKING:
    from numpy.typing import NDArray

Style: TypeAlias = Literal["tensorrt", "onnxruntime"]

DEFAULT_OP_TYPES: tuple[str, ...] = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Layers in which the time goes."""

OP_TYPES: tuple[str, ...] = (*DEFAULT_OP_TYPES, "Add", "Mul", "AveragePool", "GlobalAveragePool", "Concat")
"""Layers that both back ends can compute in INT8."""

_MIN_OPSET = 13  # the first in which Q/DQ know channels
_LARGEST_BIAS = 2.0**30  # in INT32: half of it is left to what is added
_SMALLEST = float(np.finfo(np.float32).tiny)  # scale: a subnormal one would divide by what some kernels flush to zero

# ONNX Runtime computes these from INT8 to FP32 directly, so their outputs need no rounding.
_FLOAT_OUTPUTS = frozenset({"Gemm", "MatMul"})
_ACTIVATIONS = frozenset({"Relu", "Clip"})  # which ONNX Runtime fuses into the integer kernel before them
_NOT_NEGATIVE = frozenset({"Relu", "Sigmoid", "Softmax", "HardSigmoid", "Abs"})
# What they make are values of their input, so the same scale holds for both, and integers pass through unchanged.
_MOVING = frozenset({"MaxPool", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze"})


@dataclass(frozen=True, kw_only=True)
class Quantization(Record):
    """What became of a model's layers.

    Attributes:
        layers: Layers that compute in INT8 now; named by their node, or by their first output where that has no name.
        kept: Layers of the same types that were to stay in higher precision.
        missing: Tensors that the cache lacks, in whose layers nothing was changed.
        in_bodies: Layers of the same types in bodies of If, Loop and Scan, which stay as they are: a calibration sees no values
            there.
    """

    layers: tuple[str, ...]
    kept: tuple[str, ...]
    missing: tuple[str, ...] = ()
    in_bodies: tuple[str, ...] = ()

    def require_layers(self) -> None:
        """Refuse to call a model INT8 that has no INT8 layer.

        Raises:
            CalibrationError: If nothing was quantized.
        """
        if not self.layers:
            why = f"all of them are kept ({', '.join(self.kept)})" if self.kept else "it has none that computes in FP32"
            if self.in_bodies and not self.kept:
                why = (
                    f"it has none but in bodies of If, Loop or Scan ({', '.join(self.in_bodies)}), where a calibration "
                    "sees no values"
                )
            raise errors.CalibrationError(
                f"INT8 was asked for, and no layer of the model is quantized: of {', '.join(DEFAULT_OP_TYPES)} {why}. "
                "Keep fewer, start from the model in FP32, or build another precision."
            )


@dataclass(frozen=True)
class _Layer:
    """A node to be quantized: which inputs are activations, which constants, and the constants' channel axes."""

    node: onnx.NodeProto
    activations: tuple[int, ...]
    weights: tuple[tuple[int, int | None], ...]


def is_quantized(model: onnx.ModelProto) -> bool:
    """Whether a model has Q/DQ nodes already."""
    return any(node.op_type in ("QuantizeLinear", "DequantizeLinear") for node in model.graph.node)


def widen_small_integers(model: onnx.ModelProto) -> tuple[str, ...]:
    """Store 4-bit weights that DequantizeLinear reads in 8 bits, in place: the same values, twice the bytes.

    Returns:
        Their names.
    """
    wider = {TensorProto.INT4: np.int8, TensorProto.UINT4: np.uint8}
    weights = {tensor.name: tensor for tensor in model.graph.initializer if tensor.data_type in wider}
    if not weights:
        return ()
    readers = [node for node in walk.nodes(model) if not weights.keys().isdisjoint(node.input)]
    if any(node.op_type != "DequantizeLinear" for node in readers):
        return ()
    for name, tensor in weights.items():
        array = tensor_array(tensor).astype(wider[tensor.data_type])
        tensor.CopyFrom(numpy_helper.from_array(array, name))
    return tuple(weights)


def quantizable_layers(
    model: onnx.ModelProto, *, keep: Iterable[str] = (), op_types: Sequence[str] = DEFAULT_OP_TYPES
) -> tuple[str, ...]:
    """Names of the layers that :func:`insert_qdq` would quantize, in the graph's order; arguments as there."""
    return tuple(walk.node_name(layer.node) for layer in _plan_layers(model, keep, op_types)[0])


def tensors_to_calibrate(
    model: onnx.ModelProto, *, keep: Iterable[str] = (), op_types: Sequence[str] = DEFAULT_OP_TYPES
) -> tuple[str, ...]:
    """Names of the tensors whose ranges :func:`insert_qdq` needs, each once, in the graph's order; arguments as there."""
    return _activation_names(_plan_layers(model, keep, op_types)[0])


def kept_names(model: onnx.ModelProto, keep: Iterable[str]) -> frozenset[str]:
    """Names and outputs of the nodes that patterns choose; see :func:`insert_qdq` for what a pattern is.

    Raises:
        ConfigError: If a pattern chooses nothing.
    """
    chosen: set[str] = set()
    for pattern in keep:
        found = [node for node in model.graph.node if pattern in (node.op_type, node.name, *node.output)]
        found = found or [
            node
            for node in model.graph.node
            if any(fnmatch.fnmatchcase(name, pattern) for name in (node.name, *node.output) if name)
        ]
        if not found:
            names = [walk.node_name(node) for node in model.graph.node]
            raise errors.ConfigError(
                f"keep={pattern!r} fits no layer of this model, by name, op type or output. {errors.near(pattern, names)}"
            )
        for node in found:
            chosen.update(filter(None, (node.name, *node.output)))
    return frozenset(chosen)


def insert_qdq(
    model: onnx.ModelProto,
    cache: CalibrationCache,
    *,
    style: Style = "tensorrt",
    keep: Iterable[str] = (),
    op_types: Sequence[str] = DEFAULT_OP_TYPES,
    per_channel: bool = True,
    policy: FitPolicy = "refuse",
) -> Quantization:
    """Quantize a model's layers to INT8, in place.

    Inputs, outputs and the names of all tensors stay. Only FP32 layers of the main graph are quantized; bodies of control
    flow and functions are left alone. A model of an operator set before 13 is brought to 13.

    Args:
        model: The model, with all its weights inside.
        cache: Ranges by tensor name.
        style: Whose patterns to write; see this module.
        keep: Layers to leave in FP32: names of nodes or of their outputs, shell patterns of such names (``block0/*``), or
            op types.
        op_types: Types of layers to quantize, out of :data:`OP_TYPES`.
        per_channel: Whether each output channel of a weight gets its own scale.
        policy: What to do about ranges that the cache lacks (:func:`trtops.calibration.fit`); under ``partial`` the layers
            that need them stay in FP32.

    Returns:
        What was quantized and what was not.

    Raises:
        ConfigError: If a pattern of ``keep`` chooses nothing, or an op type is not one that can be quantized.
        CalibrationError: If the cache does not fit.
        InvalidModelError: If types contradict each other, or the operator set cannot be raised.
        UnsupportedFeatureError: If the model has quantized layers already.
    """
    if is_quantized(model):
        raise errors.UnsupportedFeatureError(
            "The model has QuantizeLinear nodes already; build it as it is, or start from the model without them."
        )
    _raise_opset(model)
    keep = tuple(keep)
    layers, kept = _plan_layers(model, keep, op_types)
    cache = _with_moved(model.graph, cache)
    missing = frozenset(fit(cache, _activation_names(layers), policy))
    layers = [layer for layer in layers if not missing & set(_activation_names([layer]))]
    writer = _Writer(model, cache.by_name(), style, per_channel, frozenset(kept))
    writer.write(layers)
    return Quantization(
        layers=tuple(walk.node_name(layer.node) for layer in layers),
        kept=tuple(kept),
        missing=tuple(sorted(missing)),
        in_bodies=tuple(walk.node_name(node) for node in _body_nodes(model) if walk.is_onnx_op(node, *op_types)),
    )


def _body_nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """The nodes in bodies of control flow, of whatever depth."""
    _, *bodies = walk.graphs(model.graph)
    return [node for body in bodies for node in body.node]


def _with_moved(graph: onnx.GraphProto, cache: CalibrationCache) -> CalibrationCache:
    """The cache with ranges for tensors that hold another's values, moved around.

    Such nodes may have come into the model after it was calibrated, when it was rewritten.
    """
    known = cache.by_name()
    moved: dict[str, TensorRange] = {}
    for index in walk.execution_order(graph.node):
        node = graph.node[index]
        source = known.get(node.input[0]) if node.op_type in _MOVING and node.input and node.output else None
        if source is not None and node.output[0] not in known:
            moved[node.output[0]] = known[node.output[0]] = replace(source, name=node.output[0])
    return replace(cache, ranges=(*cache.ranges, *moved.values()))


def _raise_opset(model: onnx.ModelProto) -> None:
    found = walk.opset(model)
    if found >= _MIN_OPSET:
        return
    try:
        with limited_memory(own=8 * model.ByteSize()):
            model.CopyFrom(onnx.version_converter.convert_version(model, _MIN_OPSET))
    except Exception as exc:  # the converter raises RuntimeError and types of its own
        raise errors.InvalidModelError(
            f"The model is of operator set {found}; Q/DQ nodes per channel need {_MIN_OPSET}, to which ONNX cannot bring "
            f"it ({exc}). Export it with a newer operator set."
        ) from exc


def _plan_layers(
    model: onnx.ModelProto, keep: Iterable[str], op_types: Sequence[str]
) -> tuple[list[_Layer], dict[str, None]]:
    """The layers to quantize, in order, and the names of those of the same types that are kept."""
    for op in op_types:
        if op not in OP_TYPES:
            raise errors.ConfigError(f"Layers of type {op!r} cannot be quantized here. {errors.near(op, OP_TYPES)}")
    names = kept_names(model, keep)
    shapes.infer_shapes(model)
    types = shapes.element_types(model.graph)
    constants = constant_tensors(model.graph)
    layers: list[_Layer] = []
    kept: dict[str, None] = {}
    for node in model.graph.node:
        if node.op_type not in op_types or not walk.is_onnx_op(node):
            continue
        layer = _layer_to_quantize(node, types, constants)
        if layer is None:
            continue
        if names & {node.name, *node.output}:
            kept[walk.node_name(node)] = None
        else:
            layers.append(layer)
    return layers, kept


def _layer_to_quantize(
    node: onnx.NodeProto, types: Mapping[str, int], constants: Mapping[str, onnx.TensorProto]
) -> _Layer | None:
    """The node as a layer, or None if it has nothing to quantize: no FP32 activations, or arithmetic with a constant."""
    operands = range(min(len(node.input), 2)) if node.op_type != "Concat" else range(len(node.input))
    floating = [i for i in operands if types.get(node.input[i]) == TensorProto.FLOAT]
    if len(floating) != len(operands):
        return None
    activations = tuple(i for i in floating if node.input[i] not in constants)
    weights = tuple((i, _channel_axis(node, i, constants[node.input[i]])) for i in floating if i not in activations)
    if not activations or (weights and node.op_type not in DEFAULT_OP_TYPES):
        return None
    return _Layer(node, activations, weights)


def _channel_axis(node: onnx.NodeProto, index: int, weight: onnx.TensorProto) -> int | None:
    """The axis of a weight that its output channels lie along; None where they do not lie along one."""
    if index != 1:
        return None
    if node.op_type == "Conv":
        return 0
    if node.op_type == "ConvTranspose":
        return 1 if walk.int_attribute(node, "group", 1) == 1 else None
    if node.op_type == "Gemm":
        return 0 if walk.int_attribute(node, "transB", 0) else 1
    return 1 if len(weight.dims) == 2 else None


def _activation_names(layers: Iterable[_Layer]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(layer.node.input[i] for layer in layers for i in layer.activations))


@dataclass(frozen=True)
class _Params:
    """How one tensor is quantized."""

    scale: NDArray[np.float32]
    zero_point: NDArray[Any]
    axis: int | None = None


class _Writer:
    """Writes Q/DQ pairs into one model.

    The order of the steps matters: weights and biases are rewired while the layers' own inputs still have the names that
    the model gave them, and readers of quantized tensors last, by the readers noted at the beginning.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        ranges: Mapping[str, TensorRange],
        style: Style,
        per_channel: bool,
        kept: frozenset[str],
    ) -> None:
        self.graph = model.graph
        self.ranges = ranges
        self.symmetric = style == "tensorrt"
        self.per_channel = per_channel
        self.kept = kept
        self.maker = walk.makers(self.graph.node)
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in self.graph.node:
            for name in dict.fromkeys(walk.uses(node)):
                self.readers.setdefault(name, []).append(node)
        self.outputs = {value.name for value in self.graph.output}
        self.constants = constant_tensors(self.graph)
        self.fresh = FreshNames(self.graph)
        self.added: list[onnx.NodeProto] = []

    def write(self, layers: Sequence[_Layer]) -> None:
        """Write the pairs of these layers, and put the nodes into an order in which they can run."""
        tensors = self._scale_roots(layers)
        quantized = {tuple(layer.node.output) for layer in layers}
        params = {name: self._activation_params(name, tensors) for name in tensors}
        pairs = {name: self._add_pair(name, params[name]) for name in tensors}
        weights: dict[tuple[str, int | None], tuple[str, _Params]] = {}
        for layer in layers:
            if self.symmetric:
                _tell_kernel_shape(layer.node, self.constants)
            for index, axis in layer.weights:
                key = (layer.node.input[index], axis if self.per_channel else None)
                # ONNX Runtime rewrites the integers that a kernel reads, and refuses to do so twice: a weight that layers share
                # is stored for each.
                if key not in weights or not self.symmetric:
                    least = 0.0 if self.symmetric or index != 1 else self._least_scale(layer.node, params)
                    weights[key] = self._quantize_weight(*key, least)
                layer.node.input[index], weight_params = weights[key]
                if index == 1 and not self.symmetric:
                    self._quantize_bias(layer.node, params[layer.node.input[0]], weight_params)
        integer = self._integer_only(layers)
        for name in tensors:
            for node in self.readers.get(name, ()):
                # Nodes that nobody asked to quantize read the rounded values only where the FP32 ones must not exist, and
                # where values are only moved on to a tensor that has the same scale.
                if (
                    tuple(node.output) in quantized
                    or (name in integer and self._may_read_rounded(node))
                    or (node.op_type in _MOVING and tensors.get(node.output[0]) == tensors[name] != node.output[0])
                ):
                    rename(node.input, name, pairs[name])
        self._sort_nodes()

    def _integer_only(self, layers: Iterable[_Layer]) -> set[str]:
        """Tensors that must exist in integers alone: ONNX Runtime uses no integer kernel beside one that is in FP32 too."""
        if self.symmetric:
            return set()
        around = [layer.node for layer in layers if layer.node.op_type not in _FLOAT_OUTPUTS]
        return {name for node in around for name in (*node.input, self._after_activation(node.output[0]))}

    def _may_read_rounded(self, node: onnx.NodeProto) -> bool:
        return walk.node_name(node) not in self.kept and not any(walk.subgraphs(node))

    def _scale_roots(self, layers: Sequence[_Layer]) -> dict[str, str]:
        """Names of the tensors to quantize, each with the tensor whose scale it takes: itself, or what was moved."""
        names = dict.fromkeys(_activation_names(layers))
        if self.symmetric:
            return {name: name for name in names}
        for layer in layers:
            if layer.node.op_type not in _FLOAT_OUTPUTS:
                names.setdefault(self._after_activation(layer.node.output[0]))
        roots: dict[str, str] = {}
        # Back through the nodes that only move values: all tensors of such a chain take the scale of its beginning.
        for name in names:
            chain = [name]
            while (source := self._moved_from(chain[-1])) is not None:
                chain.append(source)
            roots.update(dict.fromkeys(chain, chain[-1]))
        needed = set(_activation_names(layers))
        return {n: root for n, root in roots.items() if n in needed or (n in self.ranges and n not in self.outputs)}

    def _after_activation(self, name: str) -> str:
        """What the activation function behind a tensor makes, if that alone reads the tensor; or else the tensor."""
        readers = self.readers.get(name, [])
        if len(readers) != 1 or readers[0].op_type not in _ACTIVATIONS or name in self.outputs:
            return name
        behind = str(readers[0].output[0])
        return behind if behind in self.ranges else name

    def _moved_from(self, name: str) -> str | None:
        """The calibrated tensor that this one's maker merely moves around; None if it does more."""
        node = self.maker.get(name)
        if node is None or node.op_type not in _MOVING or not node.input or node.input[0] not in self.ranges:
            return None
        return str(node.input[0])

    def _activation_params(self, name: str, roots: Mapping[str, str]) -> _Params:
        entry = self.ranges[roots[name]]
        if self.symmetric:
            return _Params(np.asarray(max(entry.scale, _SMALLEST), np.float32), np.zeros((), np.int8))
        low, high = entry.interval
        node = self.maker.get(roots[name])
        if entry.low is None and node is not None and node.op_type in _NOT_NEGATIVE:
            low = 0.0  # the cache has the largest magnitude alone, as TensorRT's caches do
        scale = max((high - low) / 255, _SMALLEST) if high > low else 1.0
        return _Params(np.asarray(scale, np.float32), np.asarray(round(-low / scale), np.uint8))

    def _add_pair(self, name: str, params: _Params) -> str:
        """Add Q and DQ behind a tensor, and return what comes out."""
        scale, zero_point = self._store_params(name, params)
        rounded, back = self.fresh(f"{name}_quantized"), self.fresh(f"{name}_dequantized")
        self.added += [
            helper.make_node(
                "QuantizeLinear", [name, scale, zero_point], [rounded], rounded, **_axis_attribute(params)
            ),
            helper.make_node("DequantizeLinear", [rounded, scale, zero_point], [back], back, **_axis_attribute(params)),
        ]
        return back

    def _quantize_bias(self, node: onnx.NodeProto, data: _Params, weight: _Params) -> None:
        """Store a layer's bias in INT32, scaled as its products are, as ONNX Runtime's integer kernels take it."""
        if len(node.input) < 3 or node.input[2] not in self.constants:
            return
        bias = tensor_array(self.constants[node.input[2]])
        scale = np.asarray(data.scale * weight.scale)
        if bias.ndim != 1 or scale.shape not in ((), bias.shape):
            return
        rounded = np.rint(bias.astype(np.float64) / scale)
        if np.abs(rounded).max(initial=0) > np.iinfo(np.int32).max:
            return
        params = _Params(scale, np.zeros(scale.shape, np.int32), 0 if scale.shape else None)
        node.input[2] = self._store_quantized(node.input[2], rounded.astype(np.int32), params)

    def _least_scale(self, node: onnx.NodeProto, params: Mapping[str, _Params]) -> Any:
        """The least scale of a layer's weights with which its bias fits into INT32, one for all channels or one of each.

        Where next to nothing flows in, a bias is billions of the layer's products. It may not stay in FP32 then: ONNX Runtime
        (seen in 1.31.1) quantizes it by itself, and makes zeros of what overflows.
        """
        if len(node.input) < 3 or node.input[2] not in self.constants:
            return 0.0
        bias = np.abs(tensor_array(self.constants[node.input[2]]).astype(np.float64))
        least = bias / (float(params[node.input[0]].scale) * _LARGEST_BIAS)
        return least if self.per_channel and bias.ndim == 1 else least.max(initial=0)

    def _quantize_weight(self, name: str, axis: int | None, least: Any = 0.0) -> tuple[str, _Params]:
        """Quantize a constant; return what comes out, of a Q/DQ pair or of DQ behind INT8, and how it was quantized.

        Args:
            name: The constant.
            axis: Of its channels, each of which has a scale of its own; None for one scale.
            least: What scales may not be below, one for all channels or one of each.
        """
        weight = tensor_array(self.constants[name]).astype(np.float32)
        others = tuple(i for i in range(weight.ndim) if i != axis)
        amax = np.abs(weight).max(axis=others if axis is not None else None, initial=0)
        scale = np.where(amax > 0, np.maximum(amax / LEVELS, _SMALLEST), 1)
        least = np.max(least, initial=0) if scale.ndim == 0 else least
        if np.shape(least) in ((), scale.shape):
            scale = np.maximum(scale, least)
        scale = scale.astype(np.float32)
        params = _Params(scale, np.zeros(scale.shape, np.int8), axis)
        if self.symmetric:
            return self._add_pair(name, params), params
        shape = [-1 if i == axis else 1 for i in range(weight.ndim)]
        rounded = np.clip(np.rint(weight / scale.reshape(shape if axis is not None else ())), -LEVELS, LEVELS)
        return self._store_quantized(name, rounded.astype(np.int8), params), params

    def _store_quantized(self, name: str, values: NDArray[Any], params: _Params) -> str:
        """Keep a constant in integers with DQ behind it, and return what comes out."""
        scale, zero_point = self._store_params(name, params)
        stored, back = self.fresh(f"{name}_quantized"), self.fresh(f"{name}_dequantized")
        self.graph.initializer.append(numpy_helper.from_array(values, stored))
        self.added.append(
            helper.make_node("DequantizeLinear", [stored, scale, zero_point], [back], back, **_axis_attribute(params))
        )
        return back

    def _store_params(self, name: str, params: _Params) -> tuple[str, str]:
        scale, zero_point = self.fresh(f"{name}_scale"), self.fresh(f"{name}_zero_point")
        self.graph.initializer.append(numpy_helper.from_array(params.scale, scale))
        self.graph.initializer.append(numpy_helper.from_array(params.zero_point, zero_point))
        return scale, zero_point

    def _sort_nodes(self) -> None:
        nodes = [*self.graph.node, *self.added]
        replace_nodes(self.graph, [nodes[i] for i in walk.execution_order(nodes)])
        used = {name for graph in walk.graphs(self.graph) for node in graph.node for name in node.input}
        used |= {value.name for graph in walk.graphs(self.graph) for value in (*graph.input, *graph.output)}
        unused = [tensor for tensor in self.graph.initializer if tensor.name not in used]
        for tensor in unused:
            self.graph.initializer.remove(tensor)


def _tell_kernel_shape(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> None:
    """Write a convolution's kernel shape as an attribute: TensorRT 8.6 cannot tell it from weights that a node makes."""
    known = any(attribute.name == "kernel_shape" for attribute in node.attribute)
    if known or node.op_type not in ("Conv", "ConvTranspose") or len(node.input) < 2:
        return
    if node.input[1] in constants:
        dims = constants[node.input[1]].dims
        node.attribute.append(helper.make_attribute("kernel_shape", list(dims[2:])))


def _axis_attribute(params: _Params) -> dict[str, Any]:
    return {} if params.axis is None else {"axis": params.axis}
