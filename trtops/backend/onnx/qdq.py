"""QuantizeLinear and DequantizeLinear (Q/DQ) nodes around the layers of a model, in the patterns of the back ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from trtops.backend.environment import processor
from trtops.backend.onnx import operators, walk
from trtops.backend.onnx.model import tensor_array
from trtops.calibration.cache import LEVELS, TensorRange
from trtops.calibration.quantization import OP_TYPES
from trtops.spec import BuildConfig, OnnxRuntimeOptions

if TYPE_CHECKING:
    from numpy.typing import NDArray

# The back ends recognize different patterns. ``tensorrt``: activations that enter a quantized layer pass a symmetric
# Q/DQ pair (zero point 0), its weights one pair per output channel; biases have none. Rules place the pairs. This is
# TensorRT's explicit quantization on every release that supports it (developer guide, "Explicit Quantization").
# ``onnxruntime``: activations are unsigned with a zero point, so that both ends of a tensor's range are used (ONNX
# Runtime rewrites signed ones on x86, but not all alike, and then fuses less); biases are stored in INT32; the outputs
# of convolutions, element-wise layers and pooling are quantized as well, after the activation function that follows,
# since ONNX Runtime has integer kernels only for that pattern; layers that only move values keep the scale of their
# input.

_LARGEST_FP8 = 448.0  # E4M3 (onnx.ai, "Float stored in 8 bits")
# In INT32: half of the range is left for the sum.
_LARGEST_BIAS = 2.0**30
# ONNX Runtime's kernels on x86 without VNNI add pairs of products in 16 bits, which must hold 255 times the sum of two
# weights. Unsigned weights, the alternative, took 1.1 to 1.9 times as long in four networks.
MAX_PAIR = 128
# A scale for each column costs ONNX Runtime's Gemm 6 ns per column (1.31.1), whatever the number of rows: 1.7 times the
# time for one row of 512. Columns of similar size have one scale if the steps become at most this factor larger.
_MIN_COLUMNS, _MAX_COARSER = 64, 1.5
# The smallest scale: some kernels flush subnormal ones to zero, and divide by them.
_SMALLEST = float(np.finfo(np.float32).tiny)
# Moves a level of 10 or more by about a step on average, and makes the steps 5 % larger.
MOST_JITTER = 1.1

# ONNX Runtime computes these from INT8 to FP32 directly, so their outputs need no rounding.
_FLOAT_OUTPUTS = frozenset({"Gemm", "MatMul"})
_ACTIVATIONS = frozenset({"Relu", "Clip"})  # which ONNX Runtime fuses into the integer kernel before them
_NOT_NEGATIVE = frozenset({"Relu", "Sigmoid", "Softmax", "HardSigmoid", "Abs"})
# Input and output have the same scale, and integers pass unchanged. The largest values pass a MaxPool too.
VALUE_MOVING_OPS = operators.KEEP_RANGE | {"MaxPool"}


@dataclass(frozen=True)
class QuantizedLayer:
    """A node to quantize: the indices of its activations and of its weights among the inputs."""

    node: onnx.NodeProto
    activations: tuple[int, ...]
    weights: tuple[int, ...] = ()

    @property
    def is_product(self) -> bool:
        """Whether it is a product, and not a layer that follows one."""
        return self.node.op_type in OP_TYPES


def channel_axis(node: onnx.NodeProto, index: int, rank: int) -> int | None:
    """Return the axis of a weight's output channels, for a scale per channel; None for one scale."""
    if index != 1:
        return None
    if node.op_type == "Conv":
        return 0
    if node.op_type == "ConvTranspose":
        return 1 if walk.int_attribute(node, "group", 1) == 1 else None
    if node.op_type == "Gemm":
        return 0 if walk.int_attribute(node, "transB", 0) else 1
    return 1 if rank == 2 else None


def largest_pairs(node: onnx.NodeProto, index: int, weight: NDArray[Any]) -> NDArray[Any]:
    """Return the largest sum of neighbours of one sign, in magnitude, for each output channel of a product's weights.

    Neighbours are in the order of ONNX Runtime's kernels: channels last in convolutions.
    """
    rows = weight.astype(np.int32 if weight.dtype.kind == "i" else np.float32)
    if node.op_type == "Conv":
        rows = np.moveaxis(rows, 1, -1).reshape(len(rows), -1)
    elif index == 1 and rows.ndim > 1 and not walk.int_attribute(node, "transB", 0):
        rows = np.swapaxes(rows, -2, -1)
    rows = rows.reshape(-1, max(rows.shape[-1], 1))
    pairs = np.pad(rows, ((0, 0), (0, rows.shape[1] % 2))).reshape(len(rows), -1, 2)
    largest: NDArray[Any] = np.maximum(np.maximum(pairs, 0).sum(2), np.maximum(-pairs, 0).sum(2)).max(1, initial=0)
    return largest


def activation_names(layers: Iterable[QuantizedLayer]) -> tuple[str, ...]:
    """Return the names of the layers' activations, each once."""
    return tuple(dict.fromkeys(layer.node.input[i] for layer in layers for i in layer.activations))


@dataclass(frozen=True)
class _Params:
    """The quantization of one tensor."""

    scale: NDArray[np.float32]
    axis: int | None = None
    zero_point: NDArray[Any] | None = None  # None is 0 in INT8 or FP8


class QdqWriter:
    """Writes Q/DQ pairs into one model."""

    def __init__(
        self,
        model: onnx.ModelProto,
        ranges: Mapping[str, TensorRange],
        config: BuildConfig,
        kept_layers: frozenset[str],
        jitter: np.random.Generator | None = None,
    ) -> None:
        self.graph = model.graph
        self.jitter = jitter
        self.ranges = ranges
        self.symmetric = config.backend == "tensorrt" or config.precision == "fp8"
        self.on_cpu = isinstance(config.options, OnnxRuntimeOptions) and not config.options.on_gpu
        self.saturates = self.on_cpu and processor().saturates
        self.levels = _LARGEST_FP8 if config.precision == "fp8" else LEVELS
        self.zero = TensorProto.FLOAT8E4M3FN if config.precision == "fp8" else TensorProto.INT8
        self.kept_layers = kept_layers
        self.maker = walk.makers(self.graph.node)
        self.readers = walk.readers(self.graph.node)
        self.outputs = walk.names_of(self.graph.output)
        self.constants = walk.constant_tensors(self.graph)
        self.fresh = walk.FreshNames(self.graph)
        self.added: list[onnx.NodeProto] = []

    def write(self, layers: Sequence[QuantizedLayer]) -> None:
        """Write the pairs of these layers, and sort the nodes."""
        # The order of the steps matters: weights and biases are rewired while the layers' own inputs still have their
        # original names, and readers of quantized tensors last, by the readers recorded at the beginning.
        tensors = self._scale_roots(layers)
        quantized = {tuple(layer.node.output) for layer in layers}
        params: dict[str, _Params] = {}
        pairs: dict[str, str] = {}
        for name, root in tensors.items():
            params[name] = self._activation_params(root)
            pairs[name] = self._add_pair(name, params[name])
        weights: dict[tuple[str, int | None], tuple[str, _Params]] = {}
        for layer in layers:
            # TensorRT 8.6 cannot infer a kernel's shape from computed weights.
            is_convolution = layer.node.op_type in ("Conv", "ConvTranspose") and layer.weights == (1,)
            if self.symmetric and is_convolution and walk.ints_attribute(layer.node, "kernel_shape") is None:
                kernel = list(self.constants[layer.node.input[1]].dims[2:])
                layer.node.attribute.append(helper.make_attribute("kernel_shape", kernel))
            for index in layer.weights:
                name = layer.node.input[index]
                key = (name, self._scale_axis(layer.node, index))
                # ONNX Runtime rewrites the integers that a kernel reads, and refuses to do so twice: a shared weight is
                # stored for each layer.
                if key not in weights or not self.symmetric:
                    min_scale = 0.0 if self.symmetric else self._least_scale(layer.node, index, params)
                    weights[key] = self._quantize_weight(*key, min_scale)
                layer.node.input[index], weight_params = weights[key]
                if index == 1 and not self.symmetric:
                    self._quantize_bias(layer.node, params[layer.node.input[0]], weight_params)
        # ONNX Runtime uses its integer kernels only where these tensors exist in integers alone.
        integer: set[str] = set()
        for layer in layers:
            if self.symmetric:
                for index in layer.activations:
                    layer.node.input[index] = pairs[layer.node.input[index]]
            elif layer.node.op_type not in _FLOAT_OUTPUTS:
                integer.update((*layer.node.input, self._after_activation(layer.node.output[0])))
        for name in () if self.symmetric else tensors:
            for node in self.readers.get(name, ()):
                # Other nodes read the rounded values only where the FP32 values must not exist, and where they only
                # move values to a tensor with the same scale.
                reads_rounded = tuple(node.output) in quantized
                if name in integer:
                    reads_rounded |= walk.node_name(node) not in self.kept_layers and not any(walk.subgraphs(node))
                if node.op_type in VALUE_MOVING_OPS:
                    reads_rounded |= tensors.get(node.output[0]) == tensors[name] != node.output[0]
                if reads_rounded:
                    walk.rename(node.input, name, pairs[name])
        nodes = [*self.graph.node, *self.added]
        walk.replace_nodes(self.graph, walk.in_order(nodes))
        used = walk.names_of((*self.graph.input, *self.graph.output)).union(walk.read(self.graph.node))
        walk.keep_only(self.graph.initializer, lambda tensor: tensor.name in used)

    def _scale_roots(self, layers: Sequence[QuantizedLayer]) -> dict[str, str]:
        """Names of the tensors to quantize, each with the tensor of its scale: itself, or its source."""
        names = dict.fromkeys(activation_names(layers))
        if self.symmetric:
            return dict(zip(names, names))
        for layer in layers:
            if layer.node.op_type not in _FLOAT_OUTPUTS:
                names.setdefault(self._after_activation(layer.node.output[0]))
        roots: dict[str, str] = {}
        # All tensors of a chain of nodes that only move values have the scale of its first.
        for name in names:
            chain = [name]
            while (node := self.maker.get(chain[-1])) is not None and node.op_type in VALUE_MOVING_OPS:
                if not node.input or node.input[0] not in self.ranges:
                    break
                chain.append(str(node.input[0]))
            roots.update(dict.fromkeys(chain, chain[-1]))
        needed = set(activation_names(layers))
        return {n: root for n, root in roots.items() if n in needed or (n in self.ranges and n not in self.outputs)}

    def _after_activation(self, name: str) -> str:
        """The output of a tensor's only reader if that is an activation function, or the tensor itself."""
        readers = self.readers.get(name, [])
        if len(readers) != 1 or readers[0].op_type not in _ACTIVATIONS or name in self.outputs:
            return name
        behind = str(readers[0].output[0])
        return behind if behind in self.ranges else name

    def _activation_params(self, name: str) -> _Params:
        entry = self.ranges[name]
        if self.symmetric:
            return _Params(np.asarray(max(entry.scale * (LEVELS / self.levels), _SMALLEST), np.float32))
        low, high = entry.interval
        node = self.maker.get(name)
        if entry.low is None and node is not None and node.op_type in _NOT_NEGATIVE:
            # The cache has only the largest magnitude, as TensorRT's caches do.
            low = 0.0
        scale = max((high - low) / 255, _SMALLEST) if high > low else 1.0
        return _Params(np.asarray(scale, np.float32), zero_point=np.asarray(round(-low / scale), np.uint8))

    def _add_pair(self, name: str, params: _Params) -> str:
        """Add Q and DQ after a tensor, and return the output's name."""
        scale, zero_point = self._store_params(name, params)
        rounded = self._add_node("QuantizeLinear", [name, scale, zero_point], f"{name}_quantized", params)
        return self._add_node("DequantizeLinear", [rounded, scale, zero_point], f"{name}_dequantized", params)

    def _add_node(self, op: str, inputs: list[str], output: str, params: _Params) -> str:
        """Add a node with an output of this or a similar name, and return the name."""
        unique_name = self.fresh(output)
        axis: dict[str, Any] = {} if params.axis is None else {"axis": params.axis}
        self.added.append(helper.make_node(op, inputs, [unique_name], unique_name, **axis))
        return unique_name

    def _quantize_bias(self, node: onnx.NodeProto, data: _Params, weight: _Params) -> None:
        """Store a layer's bias in INT32 with the scale of its products, as ONNX Runtime's integer kernels expect."""
        if len(node.input) < 3 or node.input[2] not in self.constants:
            return
        bias = tensor_array(self.constants[node.input[2]])
        scale = np.asarray(data.scale * weight.scale)
        if bias.ndim != 1 or scale.shape not in ((), bias.shape):
            return
        rounded = np.rint(bias.astype(np.float64) / scale)
        if np.abs(rounded).max(initial=0) > np.iinfo(np.int32).max:
            return
        params = _Params(scale, 0 if scale.shape else None, np.zeros(scale.shape, np.int32))
        node.input[2] = self._store_quantized(node.input[2], rounded.astype(np.int32), params)

    def _scale_axis(self, node: onnx.NodeProto, index: int) -> int | None:
        """The axis of a weight with a scale per channel; None for one scale."""
        tensor = self.constants[node.input[index]]
        axis = channel_axis(node, index, len(tensor.dims))
        if not self.on_cpu or axis is None or node.op_type != "Gemm" or tensor.dims[axis] < _MIN_COLUMNS:
            return axis
        amax = np.abs(tensor_array(tensor).astype(np.float64)).max(axis=1 - axis, initial=0)
        return None if amax.max(initial=0) <= _MAX_COARSER * np.sqrt(np.square(amax).mean()) else axis

    def _least_scale(self, node: onnx.NodeProto, index: int, params: Mapping[str, _Params]) -> Any:
        """The smallest scales of a layer's weights, one or per channel."""
        min_scales: Any = 0.0
        if self.saturates:
            min_scales = largest_pairs(node, index, tensor_array(self.constants[node.input[index]])) / (MAX_PAIR - 1)
        # If activations are tiny, a bias in INT32 is billions of products. It may not stay in FP32: ONNX Runtime (seen
        # in 1.31.1) quantizes it by itself, and overflows become zeros.
        if index == 1 and len(node.input) > 2 and node.input[2] in self.constants:
            bias = np.abs(tensor_array(self.constants[node.input[2]]).astype(np.float64))
            bias_scales = bias / (float(params[node.input[0]].scale) * _LARGEST_BIAS)
            min_scales = np.maximum(min_scales, bias_scales if bias.ndim == 1 else bias_scales.max(initial=0))
        return min_scales

    def _quantize_weight(self, name: str, axis: int | None, min_scale: Any = 0.0) -> tuple[str, _Params]:
        """Quantize a constant with a Q/DQ pair, or to INT8 with DQ; returns the output's name, and the quantization.

        With a channel axis each channel has its own scale. ``min_scale`` are the smallest allowed scales.
        """
        weight = tensor_array(self.constants[name]).astype(np.float32)
        others = tuple(i for i in range(weight.ndim) if i != axis)
        amax = np.abs(weight).max(axis=others if axis is not None else None, initial=0)
        scale = np.where(amax > 0, np.maximum(amax / self.levels, _SMALLEST), 1)
        min_scale = np.max(min_scale, initial=0) if scale.ndim == 0 else min_scale
        if np.shape(min_scale) in ((), scale.shape):
            scale = np.maximum(scale, min_scale)
        if self.jitter is not None:
            scale = scale * self.jitter.uniform(1, MOST_JITTER, scale.shape)
        scale = scale.astype(np.float32)
        params = _Params(scale, axis)
        if self.symmetric:
            return self._add_pair(name, params), params
        shape = [-1 if i == axis else 1 for i in range(weight.ndim)]
        rounded = np.clip(np.rint(weight / scale.reshape(shape if axis is not None else ())), -LEVELS, LEVELS)
        return self._store_quantized(name, rounded.astype(np.int8), params), params

    def _store_quantized(self, name: str, values: NDArray[Any], params: _Params) -> str:
        """Store a constant in integers, with DQ, and return the output's name."""
        scale, zero_point = self._store_params(name, params)
        stored = self.fresh(f"{name}_quantized")
        self.graph.initializer.append(numpy_helper.from_array(values, stored))
        return self._add_node("DequantizeLinear", [stored, scale, zero_point], f"{name}_dequantized", params)

    def _store_params(self, name: str, params: _Params) -> tuple[str, str]:
        scale, zero_point = self.fresh(f"{name}_scale"), self.fresh(f"{name}_zero_point")
        self.graph.initializer.append(numpy_helper.from_array(params.scale, scale))
        if params.zero_point is not None:
            self.graph.initializer.append(numpy_helper.from_array(params.zero_point, zero_point))
        else:
            zeros = bytes(params.scale.size)
            self.graph.initializer.add(name=zero_point, data_type=self.zero, dims=params.scale.shape, raw_data=zeros)
        return scale, zero_point
