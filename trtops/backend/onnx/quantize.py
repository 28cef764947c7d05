"""INT8 and FP8 in a model: QuantizeLinear and DequantizeLinear (Q/DQ) nodes from the ranges of a calibration cache."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from trtops import errors
from trtops.backend.onnx import copying, operators, placement, shapes, walk
from trtops.backend.onnx.model import tensor_array
from trtops.backend.onnx.opset import raise_opset
from trtops.backend.onnx.precision import without_functions
from trtops.calibration.cache import LEVELS, CalibrationCache, FitPolicy, TensorRange, fit
from trtops.calibration.quantization import OP_TYPES, Quantization
from trtops.spec import BuildConfig, TensorRTOptions

if TYPE_CHECKING:
    from numpy.typing import NDArray

# The back ends recognize different patterns. ``tensorrt``: activations that enter a quantized layer pass a symmetric
# Q/DQ pair (zero point 0), its weights one pair per output channel; biases have none. Rules place the pairs. This is
# TensorRT's explicit quantization on every release that supports it (developer guide, "Explicit Quantization").
# ``onnxruntime``: activations are unsigned with a zero point, so that both ends of a tensor's range are used (ONNX
# Runtime rewrites signed ones on x86, but not all alike, and then fuses less); biases are stored in INT32; the outputs
# of convolutions and element-wise layers are quantized as well, after the activation function that follows, since ONNX
# Runtime has integer kernels only for that pattern; layers that only move values keep the scale of their input.

# The first operator set in which Q/DQ nodes have channels.
_MIN_OPSET = 13
# The first one in which they take FP8, and scales in FP16.
OPSET_OF_FP16_SCALES = 19
_LARGEST_FP8 = 448.0  # E4M3 (onnx.ai, "Float stored in 8 bits")
# Beginnings of types of operators that compute in 8 bits, those of ONNX Runtime included.
_INTEGER_OPS = ("QuantizeLinear", "DynamicQuantize", "QLinear", "QGemm", "QAttention", "ConvInteger", "MatMulInteger")
# In INT32: half of the range is left for the sum.
_LARGEST_BIAS = 2.0**30
# The smallest scale: some kernels flush subnormal ones to zero, and divide by them.
_SMALLEST = float(np.finfo(np.float32).tiny)
# Moves a level of 10 or more by about a step on average, and makes the steps 5 % larger.
_MOST_JITTER = 1.1

# ONNX Runtime computes these from INT8 to FP32 directly, so their outputs need no rounding.
_FLOAT_OUTPUTS = frozenset({"Gemm", "MatMul"})
_ACTIVATIONS = frozenset({"Relu", "Clip"})  # which ONNX Runtime fuses into the integer kernel before them
_NOT_NEGATIVE = frozenset({"Relu", "Sigmoid", "Softmax", "HardSigmoid", "Abs"})
# Input and output have the same scale, and integers pass unchanged. The largest values pass a MaxPool too.
_VALUE_MOVING_OPS = operators.KEEP_RANGE | {"MaxPool"}


@dataclass(frozen=True)
class _Layer:
    """A node to quantize: the indices of its activations and of its weights among the inputs."""

    node: onnx.NodeProto
    activations: tuple[int, ...]
    weights: tuple[int, ...] = ()

    @property
    def is_product(self) -> bool:
        return self.node.op_type in OP_TYPES


def is_quantized(model: onnx.ModelProto) -> bool:
    """True for a model with Q/DQ nodes, or operators with 8-bit results."""
    return any(node.op_type == "DequantizeLinear" for node in walk.nodes(model)) or rounds_to_steps(model)


def rounds_to_steps(model: onnx.ModelProto) -> bool:
    """True for a model with tensors rounded to 8 bits or fewer: small changes move values by a step."""
    return any(node.op_type.startswith(_INTEGER_OPS) for node in walk.nodes(model))


def widen_small_integers(model: onnx.ModelProto) -> tuple[str, ...]:
    """Store 4-bit weights of DequantizeLinear in 8 bits, in place, and return their names."""
    wider = {TensorProto.INT4: np.int8, TensorProto.UINT4: np.uint8}
    weights = walk.by_name(tensor for tensor in model.graph.initializer if tensor.data_type in wider)
    for node in walk.nodes(model) if weights else ():
        if node.op_type != "DequantizeLinear" and not weights.keys().isdisjoint(node.input):
            return ()
    for name, tensor in weights.items():
        array = tensor_array(tensor).astype(wider[tensor.data_type])
        tensor.CopyFrom(numpy_helper.from_array(array, name))
    return tuple(weights)


def quantizable_layers(model: onnx.ModelProto, config: BuildConfig) -> tuple[str, ...]:
    """Names of the products quantized by :func:`insert_qdq`; readers of their results follow them."""
    return tuple(walk.node_name(layer.node) for layer in _plan_layers(model, config)[0] if layer.is_product)


def tensors_to_calibrate(model: onnx.ModelProto) -> tuple[str, ...]:
    """Names of the inputs of products; a calibrator needs their ranges."""
    everything = BuildConfig(qdq_rules=(), options=TensorRTOptions())
    return _activation_names(_plan_layers(model, everything)[0])


def kept_names(model: onnx.ModelProto, keep: Iterable[str]) -> frozenset[str]:
    """Names and outputs of the nodes selected by patterns; each pattern must select something."""
    chosen = walk.select_nodes(model, keep)
    return frozenset(name for node in chosen for name in (node.name, *node.output) if name)


def insert_qdq(
    model: onnx.ModelProto,
    cache: CalibrationCache,
    config: BuildConfig,
    policy: FitPolicy | None = None,
    *,
    jitter: np.random.Generator | None = None,
) -> Quantization:
    """Quantize a model's layers to INT8 or FP8 (E4M3), in place.

    Inputs, outputs and all tensor names stay, and functions are inlined. Only FP32 layers of the main graph are
    quantized, not those of bodies. A model of an older operator set than Q/DQ nodes need is converted to theirs.

    Args:
        model: The model, with its weights inside or lean.
        cache: Ranges by tensor name.
        config: The back end whose patterns are written, the layers to keep, and the placement.
        policy: With ``partial``, layers stay in FP32 if the cache lacks their ranges (:func:`trtops.calibration.fit`);
            by default the config's.
        jitter: Multiplies each scale by a random factor from 1 to 1.1: other rounding errors of the same size.

    Raises ConfigError if a pattern of ``keep`` selects nothing, or an op type or rule is unknown; CalibrationError if
    the cache does not fit; UnsupportedFeatureError if the model has quantized layers already.
    """
    if model.functions:
        model.CopyFrom(without_functions(model))
    if is_quantized(model):
        raise errors.UnsupportedFeatureError(
            "The model already has QuantizeLinear nodes; build it as it is, or start from the model without them."
        )
    raise_opset(model, OPSET_OF_FP16_SCALES if config.precision == "fp8" else _MIN_OPSET, "Q/DQ nodes")
    planned, kept_layers, placed = _plan_layers(model, config)
    # Rewriting after the calibration may have added nodes that only move values. Ranges move along.
    ranges = cache.by_name()
    for node in walk.in_order(model.graph.node):
        source = ranges.get(node.input[0]) if node.op_type in _VALUE_MOVING_OPS and node.input and node.output else None
        if source is not None and node.output[0] not in ranges:
            ranges[node.output[0]] = replace(source, name=node.output[0])
    cache = replace(cache, ranges=tuple(ranges.values()))
    missing = fit(
        cache, _activation_names(layer for layer in planned if layer.is_product), policy or config.calibration_fit
    )
    layers = [layer for layer in planned if ranges.keys() >= set(_activation_names([layer]))]
    for group in placed.one_scale:
        joined = group.intersection(_activation_names(layers))
        ranges.update({n: replace(ranges[n], amax=max(ranges[tensor].amax for tensor in joined)) for n in joined})
    if jitter is not None:
        ranges = {name: ranges[name].scaled(jitter.uniform(1, _MOST_JITTER)) for name in sorted(ranges)}
    _Writer(model, ranges, config, frozenset(kept_layers), jitter).write(layers)
    op_types = _op_types(config)
    by_default = config.precision == "int8" and not config.qdq_op_types
    left_out = set(OP_TYPES).difference(op_types) if by_default else ()
    in_bodies, by_type = [], []
    for graph in walk.graphs(model.graph):
        for node in filter(walk.is_onnx_op, graph.node):
            if graph is not model.graph and node.op_type in op_types:
                in_bodies.append(walk.node_name(node))
            elif graph is model.graph and node.op_type in left_out:
                by_type.append(walk.node_name(node))
    return Quantization(
        layers=tuple(walk.node_name(layer.node) for layer in layers),
        kept_layers=tuple(kept_layers),
        excluded=tuple((rule, tuple(names)) for rule, names in placed.excluded.items()),
        missing=tuple(sorted(missing)),
        in_bodies=tuple(in_bodies),
        by_type=tuple(by_type),
    )


def _op_types(config: BuildConfig) -> tuple[str, ...]:
    """Types of products to quantize."""
    no_transposed = tuple(filter("ConvTranspose".__ne__, OP_TYPES))
    supported = no_transposed if config.precision == "fp8" else OP_TYPES
    for op in config.qdq_op_types:
        if op not in supported:
            raise errors.ConfigError(f"Layers of type {op!r} cannot be quantized here. {errors.near(op, supported)}")
    return config.qdq_op_types or (no_transposed if config.backend == "onnxruntime" else supported)


def _plan_layers(
    model: onnx.ModelProto, config: BuildConfig
) -> tuple[list[_Layer], dict[str, None], placement.Placement]:
    """Return the layers to quantize.

    Returns:
        The layers, in order of execution.
        The names of the layers kept in higher precision.
        The placement of the rules.
    """
    op_types = _op_types(config)
    names = kept_names(model, config.keep)
    shapes.infer_shapes(model)
    types = shapes.element_types(model.graph)
    constants = walk.constant_tensors(model.graph)
    products: dict[str, tuple[int, ...]] = {}
    kept_layers: dict[str, None] = {}
    for node in model.graph.node:
        if node.op_type not in op_types or not walk.is_onnx_op(node):
            continue
        operands = range(min(len(node.input), 2))
        activations = tuple(i for i in operands if node.input[i] not in constants)
        if not activations or any(types.get(node.input[i]) != TensorProto.FLOAT for i in operands):
            continue
        if names & {node.name, *node.output}:
            kept_layers[walk.node_name(node)] = None
        else:
            products[node.output[0]] = activations
    rules = tuple(placement.RULES) if config.qdq_rules is None else config.qdq_rules
    for rule in rules:
        errors.check_known(rule, placement.RULES, "Unknown placement rule")
    if config.backend == "onnxruntime":
        rules = ()
    placed = placement.Placement(
        model.graph,
        products,
        _sizes(model, config),
        constants,
        rules,
        "fp8" if config.precision == "fp8" else "int8",
        names,
    )
    layers = []
    for index, activations in placed.activations.items():
        node = placed.nodes[index]
        if all(types.get(node.input[i]) == TensorProto.FLOAT for i in activations):
            weights = range(2) if node.op_type in OP_TYPES else ()
            layers.append(_Layer(node, activations, tuple(i for i in weights if i not in activations)))
    return layers, kept_layers, placed


def _sizes(model: onnx.ModelProto, config: BuildConfig) -> dict[str, list[int]]:
    """Shapes of a model's tensors in its first profile; 0 is an unknown dimension."""
    sized = copying.copy_model(model, copying.put_small(4096))
    del sized.graph.value_info[:]
    profile_shapes = walk.by_name(config.profiles[0].shapes if config.profiles else ())
    for value in sized.graph.input:
        tensor = value.type.tensor_type
        if value.name in profile_shapes:
            walk.set_shape(tensor, profile_shapes[value.name].opt)
        elif config.backend == "tensorrt" and tensor.HasField("shape"):  # which builds for 1 without a profile
            walk.set_shape(tensor, [dim.dim_value or 1 for dim in tensor.shape.dim])
    try:
        shapes.infer_shapes(sized)
    except errors.InvalidModelError:  # of shapes that do not fit, which the builder reports
        sized = model
    sizes: dict[str, list[int]] = {}
    for name, value in shapes.values(sized.graph).items():
        if value.type.tensor_type.HasField("shape"):
            sizes[name] = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    sizes.update((name, list(tensor.dims)) for name, tensor in walk.constant_tensors(sized.graph).items())
    return sizes


def _channel_axis(node: onnx.NodeProto, index: int, weight: onnx.TensorProto) -> int | None:
    """The axis of a weight's output channels, for a scale per channel; None for one scale."""
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
    """The quantization of one tensor."""

    scale: NDArray[np.float32]
    axis: int | None = None
    zero_point: NDArray[Any] | None = None  # None is 0 in INT8 or FP8


class _Writer:
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
        self.levels = _LARGEST_FP8 if config.precision == "fp8" else LEVELS
        self.zero = TensorProto.FLOAT8E4M3FN if config.precision == "fp8" else TensorProto.INT8
        self.kept_layers = kept_layers
        self.maker = walk.makers(self.graph.node)
        self.readers = walk.readers(self.graph.node)
        self.outputs = walk.names_of(self.graph.output)
        self.constants = walk.constant_tensors(self.graph)
        self.fresh = walk.FreshNames(self.graph)
        self.added: list[onnx.NodeProto] = []

    def write(self, layers: Sequence[_Layer]) -> None:
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
                key = (name, _channel_axis(layer.node, index, self.constants[name]))
                # ONNX Runtime rewrites the integers that a kernel reads, and refuses to do so twice: a shared weight is
                # stored for each layer.
                if key not in weights or not self.symmetric:
                    min_scale = 0.0 if self.symmetric or index != 1 else self._least_scale(layer.node, params)
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
                if node.op_type in _VALUE_MOVING_OPS:
                    reads_rounded |= tensors.get(node.output[0]) == tensors[name] != node.output[0]
                if reads_rounded:
                    walk.rename(node.input, name, pairs[name])
        nodes = [*self.graph.node, *self.added]
        walk.replace_nodes(self.graph, walk.in_order(nodes))
        used = walk.names_of((*self.graph.input, *self.graph.output)).union(walk.read(self.graph.node))
        walk.keep_only(self.graph.initializer, lambda tensor: tensor.name in used)

    def _scale_roots(self, layers: Sequence[_Layer]) -> dict[str, str]:
        """Names of the tensors to quantize, each with the tensor of its scale: itself, or its source."""
        names = dict.fromkeys(_activation_names(layers))
        if self.symmetric:
            return dict(zip(names, names))
        for layer in layers:
            if layer.node.op_type not in _FLOAT_OUTPUTS:
                names.setdefault(self._after_activation(layer.node.output[0]))
        roots: dict[str, str] = {}
        # All tensors of a chain of nodes that only move values have the scale of its first.
        for name in names:
            chain = [name]
            while (node := self.maker.get(chain[-1])) is not None and node.op_type in _VALUE_MOVING_OPS:
                if not node.input or node.input[0] not in self.ranges:
                    break
                chain.append(str(node.input[0]))
            roots.update(dict.fromkeys(chain, chain[-1]))
        needed = set(_activation_names(layers))
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

    def _least_scale(self, node: onnx.NodeProto, params: Mapping[str, _Params]) -> Any:
        """The smallest scales of a layer's weights, one or per channel, for a bias in INT32."""
        # If activations are tiny, a bias is billions of products. It may not stay in FP32: ONNX Runtime (seen in
        # 1.31.1) quantizes it by itself, and overflows become zeros.
        if len(node.input) < 3 or node.input[2] not in self.constants:
            return 0.0
        bias = np.abs(tensor_array(self.constants[node.input[2]]).astype(np.float64))
        min_scales = bias / (float(params[node.input[0]].scale) * _LARGEST_BIAS)
        return min_scales if bias.ndim == 1 else min_scales.max(initial=0)

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
            scale = scale * self.jitter.uniform(1, _MOST_JITTER, scale.shape)
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
