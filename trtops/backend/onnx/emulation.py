"""16-bit and TF32 arithmetic emulated in FP32, with results rounded as on a GPU."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from trtops.backend.onnx import copying, shapes, walk
from trtops.backend.onnx.model import tensor_array
from trtops.backend.onnx.precision import without_functions
from trtops.metadata import STANDS_FOR_INFINITY

LARGEST_FLOAT16 = 65504.0

_OPSET_OF_WHERE = 9
_LARGE_WEIGHT = 64 << 20  # bytes
_LOW = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})
_LEFT_ALONE = frozenset({"Cast", "CastLike", "Shape", "Size", "Constant"})
# Numbers of inputs that a GPU may round to TF32, by operator; biases follow them.
_TF32_INPUTS = {"Conv": 2, "ConvTranspose": 2, "Gemm": 2, "MatMul": 2, "Einsum": 2, "LSTM": 3, "GRU": 3, "RNN": 3}


def emulate_low_precision(model: onnx.ModelProto) -> None:
    """Make a model with 16-bit tensors compute in FP32 and round to 16 bit after each node, in place.

    The model is one from :func:`trtops.backend.onnx.precision.lower_precision`. Types of inputs and outputs stay. Nodes
    with bodies stay, and their bodies are changed.
    """
    # On most CPUs ONNX Runtime computes 16-bit nodes in FP32 and does not round between two of them: what overflows in
    # FP16 does not overflow there, and a GPU's errors do not show. Here every 16-bit node becomes an FP32 node between
    # Cast nodes of its own, which ONNX Runtime keeps, so that each result is rounded once.
    shapes.infer_shapes(model)
    _emulate_graph(model.graph, {}, {}, itertools.count())


def _emulate_graph(
    graph: onnx.GraphProto, outer_types: dict[str, int], outer_weights: dict[str, str], numbers: Iterator[int]
) -> None:
    types = walk.visible(outer_types, graph, shapes.element_types(graph))
    # Large weights are widened where they are read: FP32 copies of all would take three times as much memory.
    low_weights: list[onnx.TensorProto] = []
    for tensor in graph.initializer:
        if tensor.data_type in _LOW and (copying.expected_bytes(tensor) or 0) <= _LARGE_WEIGHT:
            low_weights.append(tensor)
    widened = walk.visible(outer_weights, graph, {tensor.name: f"{tensor.name}/float32" for tensor in low_weights})
    nodes: list[onnx.NodeProto] = []
    casts: dict[str, str] = {}
    for node in walk.in_order(graph.node):
        bodies = list(walk.subgraphs(node))
        for body in bodies:
            _emulate_graph(body, types, widened, numbers)
        if bodies or node.op_type in _LEFT_ALONE:
            nodes.append(node)
            continue
        for i, name in enumerate(node.input):
            if types.get(name) not in _LOW:
                continue
            if name in widened:
                node.input[i] = widened[name]
                continue
            if name not in casts:
                # Numbered, since a body may have its own.
                casts[name] = f"{name}/float32/{next(numbers)}"
                nodes.append(helper.make_node("Cast", [name], [casts[name]], to=TensorProto.FLOAT))
            node.input[i] = casts[name]
        nodes.append(node)
        for i, name in enumerate(node.output):
            if name and types.get(name) in _LOW:
                node.output[i] = f"{name}/exact"
                nodes.append(helper.make_node("Cast", [node.output[i]], [name], to=types[name]))
    walk.replace_nodes(graph, nodes)
    for tensor in low_weights:
        array = tensor_array(tensor).astype("float32")
        copying.add_copy(graph.initializer, numpy_helper.from_array(array, widened[tensor.name]))


def round_to_tf32(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy with the FP32 inputs of products rounded to TF32 (10 bits of mantissa), bodies included.

    By Veltkamp's splitting: with c = (2**13 + 1) * x in FP32, x rounded to 11 significant bits is c - (c - x).
    """
    model = without_functions(copying.copy_of(model))
    shapes.infer_shapes(model)
    numbers, factor = itertools.count(), "tf32/factor"

    def rewrite(graph: onnx.GraphProto, outer_types: dict[str, int]) -> None:
        types, nodes = walk.visible(outer_types, graph, shapes.element_types(graph)), []
        for node in graph.node:
            for body in walk.subgraphs(node):
                rewrite(body, types)
            for i, name in enumerate(node.input[: _TF32_INPUTS.get(node.op_type, 0)]):
                if types.get(name) == TensorProto.FLOAT:
                    large, rest, node.input[i] = (f"{name}/tf32/{suffix}{next(numbers)}" for suffix in ("c", "d", ""))
                    nodes += [
                        helper.make_node("Mul", [name, factor], [large]),
                        helper.make_node("Sub", [large, name], [rest]),
                        helper.make_node("Sub", [large, rest], [node.input[i]]),
                    ]
            nodes.append(node)
        walk.replace_nodes(graph, nodes)

    rewrite(model.graph, {})
    model.graph.initializer.append(numpy_helper.from_array(np.float32(2**13 + 1), factor))
    return model


def watch_peaks(model: onnx.ModelProto) -> dict[str, str]:
    """Add an output for each tensor rounded to FP16: its largest magnitude before rounding.

    The model is one after :func:`emulate_low_precision`. Values that stand for infinity do not count, and bodies are
    not covered. Returns the names of the outputs, FP32 scalars of at least 0, by the tensors' names in order of
    execution; a peak below 1 may be reported as 1.
    """
    types = shapes.element_types(model.graph)
    peaks: dict[str, str] = {}
    nodes: list[onnx.NodeProto] = []

    def add(op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    for node in model.graph.node:
        if node.op_type != "Cast" or walk.int_attribute(node, "to", 0) != TensorProto.FLOAT16:
            continue
        exact, rounded = node.input[0], node.output[0]
        # Other Casts round what nodes in FP32 and the feeds give to nodes in 16 bit.
        tensor = rounded if exact == f"{rounded}/exact" else exact
        if tensor in peaks or (tensor == exact and types.get(exact) != TensorProto.FLOAT):
            continue
        size = add("Abs", [exact], f"{tensor}/size")
        is_finite = add("Less", [size, "emulate/infinity"], f"{tensor}/is_finite")
        if walk.opset(model) >= _OPSET_OF_WHERE:
            counted = add("Where", [is_finite, size, "emulate/zero"], f"{tensor}/counted")
        else:  # the power 0 of any number, infinity and NaN included, is 1
            exponent = add("Cast", [is_finite], f"{tensor}/exponent", to=TensorProto.FLOAT)
            counted = add("Pow", [size, exponent], f"{tensor}/counted")
        flat = add("Reshape", [counted, "emulate/flat"], f"{tensor}/flat")
        # A tensor without elements has no maximum.
        padded = add("Concat", [flat, "emulate/zero"], f"{tensor}/padded", axis=0)
        peaks[tensor] = add("ReduceMax", [padded], f"{tensor}/peak", keepdims=0)
        model.graph.output.append(helper.make_tensor_value_info(peaks[tensor], TensorProto.FLOAT, []))
    model.graph.node.extend(nodes)
    for name, kind, value in (
        ("infinity", TensorProto.FLOAT, STANDS_FOR_INFINITY),
        ("zero", TensorProto.FLOAT, 0.0),
        ("flat", TensorProto.INT64, -1),
    ):
        model.graph.initializer.append(helper.make_tensor(f"emulate/{name}", kind, [1], [value]))
    return peaks
