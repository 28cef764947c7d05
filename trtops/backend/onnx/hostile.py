"""Checks for models that crash native code, or take all memory there."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator, MutableMapping
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from trtops import errors
from trtops.backend.onnx import walk

if TYPE_CHECKING:
    import onnx

# Integer attributes by which kernels and shape inference divide, or index, without a check.
_DIVISORS = frozenset(("group", "blocksize", "num_groups", "q_num_heads", "kv_num_heads", "num_heads"))


def bad_divisors(nodes: Iterable[onnx.NodeProto]) -> Iterator[tuple[onnx.AttributeProto, str]]:
    """Yield attributes of ONNX's and Microsoft's operators with crashing values, each with a message."""
    for node in nodes:
        for attribute in node.attribute:
            # RotaryEmbedding takes 0 heads as unknown.
            minimum = 1 if attribute.name in _DIVISORS and node.op_type != "RotaryEmbedding" else 0
            checked = minimum or (attribute.name == "batch_dims" and node.op_type == "GatherND")
            if checked and attribute.i < minimum and node.domain in ("", "ai.onnx", "com.microsoft"):
                problem = f"attribute {attribute.name!r} is {attribute.i}; expected at least {minimum}."
                yield attribute, f"{walk.label(node)}: {problem}"


MAX_NODES = 1_000_000  # also after inlining, which a machine can still handle in minutes
# Small files with more nodes after inlining are bombs: exporters call each function a few times.
_MAX_SMALL_NODES, _MAX_GROWTH = 10_000, 200
# Of nested calls: more than any exporter writes, and less than overflows the stack of what inlines.
_MAX_DEPTH = 200
_MAX_LENGTH = 1 << 16
_PROPAGATING = {"Add", "Cast", "Concat", "Gather", "Identity", "Mul", "Range", "Slice", "Sub", "Squeeze", "Unsqueeze"}
_Bounds: TypeAlias = MutableMapping[str, int]  # vectors' lengths or ranks, by name, of a graph and those around it
_ASSUMED_RANK = 8  # of tensors without a declaration
# Their results are never sizes. Without these, networks that join feature maps often would count as bombs.
_DATA = {
    "AveragePool", "Conv", "ConvTranspose", "Erf", "Gemm", "LayerNormalization", "MatMul", "MaxPool", "Relu", "Softmax",
}  # fmt: skip


def check_inlined_size(model: onnx.ModelProto, prefix: str = "") -> None:
    """Compute the node count after inlining functions, without inlining; errors begin with ``prefix``.

    InvalidModelError if functions are recursive, or there are more than a million nodes, or more than 10,000 and 200
    times as many as before.
    """
    # Shape inference, ONNX's checker, ONNX Runtime and TensorRT all inline a model's functions. Thirty functions that
    # each call the previous one twice take two kilobytes, and a thousand million nodes.
    if not model.functions:
        return
    functions = {(function.domain, function.name): function.node for function in model.functions}
    sizes: dict[tuple[str, str], int] = {}
    open_calls: list[tuple[str, str]] = []

    def size_of(nodes: Iterable[onnx.NodeProto]) -> int:
        inner = list(chain.from_iterable(map(walk.nodes_within, nodes)))
        return len(inner) + sum(map(inlined_size, inner))

    def inlined_size(node: onnx.NodeProto) -> int:
        key = (node.domain, node.op_type)
        if key not in functions:
            return 0
        if key not in sizes:
            if key in open_calls or len(open_calls) >= _MAX_DEPTH:
                problem = "calls itself" if key in open_calls else f"is called through more than {_MAX_DEPTH} others"
                raise errors.InvalidModelError(f"{prefix}function {node.op_type!r} of the model {problem}.")
            open_calls.append(key)
            sizes[key] = size_of(functions[key])
            open_calls.pop()
        return sizes[key]

    total = size_of(model.graph.node)
    written = len(model.graph.node) + sum(map(len, functions.values()))
    max_nodes = min(MAX_NODES, max(_MAX_SMALL_NODES, _MAX_GROWTH * written))
    if total > max_nodes:
        raise errors.InvalidModelError(
            f"{prefix}the model has {total:,} nodes after its {len(model.functions)} functions are inlined; expected "
            f"at most {max_nodes:,}."
        )


def can_propagate_values(model: onnx.ModelProto) -> bool:
    """Whether data propagation is affordable: no vector gets long, nor is joined with itself repeatedly."""
    # Data propagation follows values to infer computed shapes, and stores each element of a vector in about 100 bytes.
    # What functions do with a vector is not followed.
    propagating = _PROPAGATING | walk.names_of(model.functions)

    def stays_short(nodes: Iterable[onnx.NodeProto], lengths: _Bounds, ranks: _Bounds) -> bool:
        for node in nodes:
            length, rank = _largest_output(node, lengths, ranks)
            if length > _MAX_LENGTH and node.op_type in propagating:
                return False
            for name in node.output:
                lengths[name], ranks[name] = length, min(rank, _MAX_LENGTH + 1)  # bounded, since ranks may double
        bodies = chain.from_iterable(map(walk.subgraphs, nodes))
        return all(graph_stays_short(body, ChainMap({}, lengths), ChainMap({}, ranks)) for body in bodies)

    def graph_stays_short(graph: onnx.GraphProto, lengths: _Bounds, ranks: _Bounds) -> bool:
        for value in (*graph.input, *graph.value_info):
            if value.type.tensor_type.HasField("shape"):
                dims = value.type.tensor_type.shape.dim
                ranks[value.name] = len(dims)
                lengths[value.name] = dims[0].dim_value if len(dims) == 1 and dims[0].dim_value > 0 else 1
        for tensor in graph.initializer:
            ranks[tensor.name] = len(tensor.dims)
            lengths[tensor.name] = tensor.dims[0] if len(tensor.dims) == 1 else 1
        return stays_short(graph.node, lengths, ranks)

    functions = all(stays_short(function.node, {}, {}) for function in model.functions)
    return functions and graph_stays_short(model.graph, {}, {})


def _largest_output(node: onnx.NodeProto, lengths: _Bounds, ranks: _Bounds) -> tuple[int, int]:
    """Upper bounds of a node's outputs: the length (of vectors), and the rank."""
    if node.op_type == "Constant":
        for attribute in node.attribute:
            if attribute.name == "value":
                dims = attribute.t.dims
                return (dims[0] if len(dims) == 1 else 1), len(dims)
            if count := max(len(attribute.ints), len(attribute.floats), len(attribute.strings)):
                return count, 1
        return 1, 0
    input_lengths = [lengths.get(name, 1) for name in node.input]
    length = max(input_lengths, default=1)
    input_ranks = [ranks.get(name, _ASSUMED_RANK) for name in node.input]
    rank = max(input_ranks, default=_ASSUMED_RANK)
    if node.op_type in _DATA:
        return 1, rank
    if node.op_type == "Concat":
        return sum(input_lengths), rank
    if node.op_type == "Shape":
        return rank, 1
    if node.op_type == "ConstantOfShape":
        return length, length
    if len(node.input) == 2:
        first, second = input_ranks
        target = lengths.get(node.input[1], _ASSUMED_RANK)
        if node.op_type == "Gather":  # its length is the number of indices, not of elements to choose from
            return input_lengths[1], max(0, first + second - 1)
        if node.op_type == "Reshape":
            return length, target
        if node.op_type == "Expand":
            return length, max(first, target)
        if node.op_type == "Unsqueeze":
            return length, first + target
    if node.op_type == "Unsqueeze":  # before opset 13
        return length, rank + sum(len(attr.ints) for attr in node.attribute)
    return length, rank
