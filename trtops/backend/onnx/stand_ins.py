"""Zeros in place of large weights, where whether a model runs cannot depend on their values.

A convolution fails for its shapes, never for its numbers; an index that is too large, or a size that a node computes,
does fail a model. So what depends on a weight is followed through the graph, and may only be read where no value of it
can make a node fail or change a shape.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from trtops.backend.onnx import walk
from trtops.backend.onnx.messages import TensorProto

if TYPE_CHECKING:
    import numpy as np
    import onnx

# ONNX's own operators, by the inputs whose values only decide what numbers they make.
_ANY_INPUT = frozenset(
    (
        "Abs", "Acos", "Acosh", "Add", "Asin", "Asinh", "Atan", "Atanh", "AveragePool", "BatchNormalization", "Ceil",
        "Celu", "Clip", "Concat", "Conv", "ConvTranspose", "Cos", "Cosh", "DepthToSpace", "Div", "Einsum", "Elu", "Erf",
        "Exp", "Flatten", "Floor", "Gelu", "Gemm", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool",
        "GroupNormalization", "HardSigmoid", "HardSwish", "Identity", "InstanceNormalization", "LRN",
        "LayerNormalization", "LeakyRelu", "Log", "LogSoftmax", "LpNormalization", "LpPool", "MatMul", "Max",
        "MaxPool", "Mean", "MeanVarianceNormalization", "Min", "Mish", "Mul", "Neg", "PRelu", "Pow", "RMSNormalization",
        "Reciprocal", "Relu", "Round", "Selu", "Shape", "Sigmoid", "Sign", "Sin", "Sinh", "Size", "Softmax", "Softplus",
        "Softsign", "SpaceToDepth", "Sqrt", "Sub", "Sum", "Tan", "Tanh", "ThresholdedRelu", "Transpose",
    )
)  # fmt: skip
_FIRST_INPUT = frozenset(
    (
        "CumSum", "DequantizeLinear", "Dropout", "Expand", "Gather", "GatherElements", "GatherND", "QuantizeLinear",
        "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
        "ReduceSum", "ReduceSumSquare", "Reshape", "Resize", "Slice", "Split", "Squeeze", "Tile", "Trilu", "Unsqueeze",
        "Upsample",
    )
)  # fmt: skip
_SOME_INPUTS = {
    "GRU": frozenset((0, 1, 2, 3, 5)),
    "LSTM": frozenset((0, 1, 2, 3, 5, 6, 7)),
    "Pad": frozenset((0, 2)),
    "RNN": frozenset((0, 1, 2, 3, 5)),
    "ScatterElements": frozenset((0, 2)),
    "ScatterND": frozenset((0, 2)),
    "Where": frozenset((1, 2)),
}
_NOT_OF_INTEGERS = frozenset(("Div", "Pow"))  # which may divide by zero
ONLY_OF_SHAPES = frozenset(("Shape", "Size"))
"""ONNX's own operators that no value matters to."""

_FLOATS = frozenset((TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16))


def suffice(model: onnx.ModelProto, weights: Collection[str]) -> bool:
    """Whether a model runs, or fails, in the same way whatever the values of some of its weights.

    Args:
        model: The model.
        weights: Names of initializers of its main graph.

    Raises:
        InvalidModelError: If nodes wait for each other in a circle.
    """
    graph = model.graph
    if not own_operators_are_known(model):
        return False
    tensors = {tensor.name: tensor for tensor in graph.initializer if tensor.name in weights}
    for value in graph.input:
        if value.name in tensors and not _is_declared_alike(value, tensors[value.name]):
            return False
    dependent = set(weights)
    integers = {name for name, tensor in tensors.items() if tensor.data_type not in _FLOATS}
    for i in walk.execution_order(graph.node):
        node = graph.node[i]
        if dependent.isdisjoint(walk.uses(node)):
            continue
        if not cannot_fail(node, dependent, integers):
            return False
        if node.op_type not in ONLY_OF_SHAPES:
            dependent.update(filter(None, node.output))
        of_integers = not integers.isdisjoint(node.input)
        if node.op_type == "QuantizeLinear" or (of_integers and node.op_type not in ("Cast", "DequantizeLinear")):
            integers.update(filter(None, node.output))
    return True


def cannot_fail(node: onnx.NodeProto, dependent: Collection[str], integers: Collection[str]) -> bool:
    """Whether no values of what a node reads can make it fail, nor change the shapes of what it makes.

    Args:
        node: The node; its model defines no operator of ONNX's own itself.
        dependent: Names of the tensors whose values are open, among others.
        integers: Names of those that are no floating-point numbers, among others.
    """
    of_integers = not set(integers).isdisjoint(node.input)
    return _only_computes(node, dependent) and not (of_integers and node.op_type in _NOT_OF_INTEGERS)


def own_operators_are_known(model: onnx.ModelProto) -> bool:
    """Whether operators of ONNX's own are what their names say: a model may define them itself."""
    return all(function.domain not in ("", "ai.onnx") for function in model.functions)


def _is_declared_alike(declared: onnx.ValueInfoProto, tensor: onnx.TensorProto) -> bool:
    """Whether an input that is a weight as well has the weight's type and shape."""
    declared_type = declared.type.tensor_type
    dims = [dim.dim_value for dim in declared_type.shape.dim]
    return declared_type.elem_type == tensor.data_type and dims == list(tensor.dims)


def _only_computes(node: onnx.NodeProto, dependent: Collection[str]) -> bool:
    """Whether a node reads these only where values decide numbers, and not shapes or whether it fails."""
    if not walk.is_onnx_op(node) or any(True for _ in walk.subgraphs(node)):
        return False
    read = {i for i, name in enumerate(node.input) if name in dependent}
    if node.op_type == "MaxPool" and len(node.output) > 1:
        return False  # it makes indices, too
    if node.op_type == "Cast":
        return all(attribute.i in _FLOATS for attribute in node.attribute if attribute.name == "to")
    if node.op_type in _FIRST_INPUT:
        return read == {0}
    return node.op_type in _ANY_INPUT or read <= _SOME_INPUTS.get(node.op_type, frozenset())


def zeros(tensors: Collection[onnx.TensorProto]) -> Mapping[str, np.ndarray[Any, Any]]:
    """Zeros in the types and shapes of some weights, by name. They share memory: not to be changed."""
    import numpy as np

    from trtops.backend.onnx.model import data_type

    shapes = {tensor.name: tuple(tensor.dims) for tensor in tensors}
    types = {tensor.name: data_type(tensor.data_type) for tensor in tensors}
    most = {kind: max(math.prod(shapes[name]) for name in types if types[name] is kind) for kind in set(types.values())}
    shared = {kind: np.zeros(count, kind.numpy()) for kind, count in most.items() if kind is not None}
    return {
        name: shared[kind][: math.prod(shapes[name])].reshape(shapes[name])
        for name, kind in types.items()
        if kind is not None
    }
