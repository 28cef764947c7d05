"""16-bit models on CPUs without 16-bit kernels, rounded where a GPU would round.

Sums that a GPU computes in 16 bit inside one node are not emulated.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import onnx
from onnx import TensorProto, helper, numpy_helper

from trtops.backend.onnx import shapes, walk
from trtops.backend.onnx.copying import add_copy
from trtops.backend.onnx.external import expected_bytes
from trtops.backend.onnx.model import tensor_array
from trtops.backend.onnx.rewriting import replace_nodes

LARGEST_FLOAT16 = 65504.0

# Masks are filled with such values, which may be clamped in 16 bit.
_STANDS_FOR_INFINITY = 1e9
_LARGE_WEIGHT = 64 << 20  # bytes
_LOW = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})
_LEFT_ALONE = frozenset({"Cast", "CastLike", "Shape", "Size", "Constant"})


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
    types = {**outer_types, **shapes.element_types(graph)}
    # Large weights are widened where they are read: FP32 copies of all would take three times as much memory.
    low_weights = [
        tensor
        for tensor in graph.initializer
        if tensor.data_type in _LOW and (expected_bytes(tensor) or 0) <= _LARGE_WEIGHT
    ]
    widened = {**outer_weights, **{tensor.name: f"{tensor.name}/float32" for tensor in low_weights}}
    nodes: list[onnx.NodeProto] = []
    casts: dict[str, str] = {}
    for index in walk.execution_order(graph.node):
        node = graph.node[index]
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
    replace_nodes(graph, nodes)
    for tensor in low_weights:
        array = tensor_array(tensor).astype("float32")
        add_copy(graph.initializer, numpy_helper.from_array(array, widened[tensor.name]))


def watch_peaks(model: onnx.ModelProto) -> dict[str, str]:
    """Add an output for each tensor that is rounded to FP16: its largest magnitude before rounding.

    The model is one after :func:`emulate_low_precision`. Values that stand for infinity do not count, and bodies are
    not covered. Returns the names of the outputs, FP32 scalars, by the tensors' names in order of execution.
    """
    peaks: dict[str, str] = {}
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        if node.op_type != "Cast" or not node.input or not node.output:
            continue
        exact = node.input[0]
        if exact == f"{node.output[0]}/exact" and walk.int_attribute(node, "to", 0) == TensorProto.FLOAT16:
            tensor = node.output[0]
            size, finite, kept, peak = (f"{tensor}/{what}" for what in ("size", "finite", "kept", "peak"))
            nodes += [
                helper.make_node("Abs", [exact], [size]),
                helper.make_node("Less", [size, "emulate/infinity"], [finite]),
                helper.make_node("Where", [finite, size, "emulate/zero"], [kept]),
                helper.make_node("ReduceMax", [kept], [peak], keepdims=0),
            ]
            peaks[tensor] = peak
    model.graph.node.extend(nodes)
    for name, value in (("emulate/infinity", _STANDS_FOR_INFINITY), ("emulate/zero", 0.0)):
        model.graph.initializer.append(helper.make_tensor(name, TensorProto.FLOAT, [], [value]))
    for peak in peaks.values():
        model.graph.output.append(helper.make_tensor_value_info(peak, TensorProto.FLOAT, []))
    return peaks
