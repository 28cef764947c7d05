"""INT8 and FP8 in a model: QuantizeLinear and DequantizeLinear (Q/DQ) nodes from the ranges of a calibration cache."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from trtops import errors
from trtops.backend.onnx import copying, placement, shapes, walk
from trtops.backend.onnx.model import tensor_array
from trtops.backend.onnx.opset import raise_opset
from trtops.backend.onnx.precision import without_functions
from trtops.backend.onnx.qdq import (
    MAX_PAIR,
    MOST_JITTER,
    VALUE_MOVING_OPS,
    QdqWriter,
    QuantizedLayer,
    activation_names,
    largest_pairs,
)
from trtops.calibration.cache import CalibrationCache, FitPolicy, fit
from trtops.calibration.quantization import OP_TYPES, Quantization
from trtops.spec import BuildConfig, OnnxRuntimeOptions, TensorRTOptions

# The first operator set in which Q/DQ nodes have channels.
_MIN_OPSET = 13
# The first one in which they take FP8, and scales in FP16.
OPSET_OF_FP16_SCALES = 19
# Beginnings of types of operators that compute in 8 bits, those of ONNX Runtime included.
_INTEGER_OPS = ("QuantizeLinear", "DynamicQuantize", "QLinear", "QGemm", "QAttention", "ConvInteger", "MatMulInteger")


def is_quantized(model: onnx.ModelProto) -> bool:
    """True for a model with Q/DQ nodes, or operators with 8-bit results."""
    return any(node.op_type == "DequantizeLinear" for node in walk.nodes(model)) or rounds_to_steps(model)


def rounds_to_steps(model: onnx.ModelProto) -> bool:
    """True for a model with tensors rounded to 8 bits or fewer: small changes move values by a step."""
    return any(node.op_type.startswith(_INTEGER_OPS) for node in walk.nodes(model))


def saturates(model: onnx.ModelProto) -> bool:
    """True if sums of two products of a model's signed weights may saturate at 16 bits."""
    for graph in walk.graphs(model.graph):
        constants, makers = walk.constant_tensors(graph), walk.makers(graph.node)
        for node in graph.node:
            weight = makers.get(node.input[1]) if node.op_type in OP_TYPES else None
            if weight is None or weight.op_type != "DequantizeLinear":
                if node.op_type.startswith(_INTEGER_OPS[1:]):
                    return True
            elif weight.input[0] in constants:
                values = tensor_array(constants[weight.input[0]])
                if values.dtype == np.int8 and largest_pairs(node, 1, values).max(initial=0) > MAX_PAIR:
                    return True
    return False


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
    layers, _, _ = _plan_layers(model, config)
    return tuple(walk.node_name(layer.node) for layer in layers if layer.is_product)


def tensors_to_calibrate(model: onnx.ModelProto) -> tuple[str, ...]:
    """Names of the inputs of products; a calibrator needs their ranges."""
    everything = BuildConfig(qdq_rules=(), options=TensorRTOptions())
    return activation_names(_plan_layers(model, everything)[0])


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
        source = ranges.get(node.input[0]) if node.op_type in VALUE_MOVING_OPS and node.input and node.output else None
        if source is not None and node.output[0] not in ranges:
            ranges[node.output[0]] = replace(source, name=node.output[0])
    cache = replace(cache, ranges=tuple(ranges.values()))
    missing = fit(
        cache, activation_names(layer for layer in planned if layer.is_product), policy or config.calibration_fit
    )
    layers = [layer for layer in planned if ranges.keys() >= set(activation_names([layer]))]
    for group in placed.one_scale:
        joined = group.intersection(activation_names(layers))
        ranges.update({n: replace(ranges[n], amax=max(ranges[tensor].amax for tensor in joined)) for n in joined})
    if jitter is not None:
        ranges = {name: ranges[name].scaled(jitter.uniform(1, MOST_JITTER)) for name in sorted(ranges)}
    QdqWriter(model, ranges, config, frozenset(kept_layers), jitter).write(layers)
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
) -> tuple[list[QuantizedLayer], dict[str, None], placement.Placement]:
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
    if isinstance(config.options, OnnxRuntimeOptions):
        # On a CPU it computes all other nodes between quantized ones in 8 bits by itself. The sum before a last pooling
        # would stay in FP32, with conversions of two large tensors. Its CUDA provider has no integer pooling.
        rules = () if config.options.on_gpu else ("pool",)
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
            layers.append(QuantizedLayer(node, activations, tuple(i for i in weights if i not in activations)))
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
