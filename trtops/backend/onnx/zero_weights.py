"""Zeros instead of large weights, where their values cannot affect whether a model runs."""

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import onnx

from trtops.backend.onnx import walk
from trtops.backend.onnx.model import data_type

# ONNX operators by the inputs whose values affect only the values that they compute.
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
        "CumSum", "DequantizeLinear", "Dropout", "Expand", "Gather", "GatherElements", "GatherND",
        "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
        "ReduceSum", "ReduceSumSquare", "Reshape", "Resize", "Slice", "Split", "Squeeze", "Tile", "Trilu", "Unsqueeze",
        "Upsample",
    )
)  # fmt: skip
_SOME_INPUTS = {"LSTM": {0, 1, 2, 3, 5, 6, 7}, "Pad": {0, 2}, "ScatterND": {0, 2}, "Where": {1, 2}}


def can_run_on_zero_weights(model: onnx.ModelProto, weights: Collection[str]) -> bool:
    """Whether a model runs, or fails, in the same way whatever the values of these initializers of its main graph."""
    graph = model.graph
    if any(function.domain in ("", "ai.onnx") for function in model.functions):
        return False  # the model redefines operators of ONNX
    # A convolution fails because of shapes, never because of its weights' values; an index that is too large, or a
    # computed size, can fail. So everything that depends on a weight is followed through the graph, and may only be
    # read where no value can make a node fail or change a shape.
    dependent = set(weights)
    if not dependent.isdisjoint(value.name for value in graph.input):
        return False  # the model may declare another type or shape
    for i in walk.execution_order(graph.node):
        node = graph.node[i]
        if dependent.isdisjoint(walk.uses(node)):
            continue
        if not _only_computes(node, dependent):
            return False
        if node.op_type not in ("Shape", "Size"):
            dependent.update(filter(None, node.output))
    return True


def _only_computes(node: onnx.NodeProto, dependent: Collection[str]) -> bool:
    """Whether a node reads these tensors only where values affect neither shapes nor whether it fails."""
    if not walk.is_onnx_op(node) or any(True for _ in walk.subgraphs(node)):
        return False
    read = {i for i, name in enumerate(node.input) if name in dependent}
    if node.op_type == "MaxPool" and len(node.output) > 1:
        return False  # it also returns indices
    if node.op_type == "Cast":
        return all(attribute.i in walk.FLOATING for attribute in node.attribute if attribute.name == "to")
    if node.op_type in _FIRST_INPUT:
        return read == {0}
    return node.op_type in _ANY_INPUT or read <= _SOME_INPUTS.get(node.op_type, set())


def zeros(tensors: Collection[onnx.TensorProto]) -> Mapping[str, np.ndarray[Any, Any]]:
    """Zeros in the types and shapes of some weights, by name. They share memory and must not be changed."""
    shapes = {tensor.name: tuple(tensor.dims) for tensor in tensors}
    types = {tensor.name: data_type(tensor.data_type) for tensor in tensors}
    most = {kind: max(math.prod(shapes[name]) for name in types if types[name] is kind) for kind in set(types.values())}
    shared = {kind: np.zeros(count, kind.numpy()) for kind, count in most.items() if kind is not None}
    return {
        name: shared[kind][: math.prod(shapes[name])].reshape(shapes[name])
        for name, kind in types.items()
        if kind is not None
    }
