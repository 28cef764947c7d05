"""Checks that small files do not cost more than the machine has: nested functions, and vectors that keep growing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from trtops import errors
from trtops.backend.onnx import walk
from trtops.system.limits import NODES, node_limit

if TYPE_CHECKING:
    import onnx

# Of nested calls: more than any exporter writes, and less than overflows the stack of what inlines.
_MAX_DEPTH = 200
_MAX_LENGTH = 1 << 16
_PROPAGATING = {"Add", "Cast", "Concat", "Gather", "Identity", "Mul", "Range", "Slice", "Sub", "Squeeze", "Unsqueeze"}
_ASSUMED_RANK = 8  # of tensors without a declaration


def check_inlined_size(model: onnx.ModelProto, where: str = "") -> None:
    """Compute the node count after inlining functions, without inlining; error messages begin with ``where``.

    InvalidModelError if functions are recursive, or the count is above ``TRTOPS_NODE_LIMIT``.
    """
    # Shape inference, ONNX's checker, ONNX Runtime and TensorRT all inline a model's functions. Thirty functions that
    # each call the previous one twice take two kilobytes, and a thousand million nodes.
    if not model.functions:
        return
    functions = {(function.domain, function.name): function.node for function in model.functions}
    sizes: dict[tuple[str, str], int] = {}
    open_calls: list[tuple[str, str]] = []

    def size_of(nodes: Iterable[onnx.NodeProto]) -> int:
        total = 0
        for node in nodes:
            total += 1 + inlined_size(node)
            for body in walk.subgraphs(node):
                for graph in walk.graphs(body):
                    for inner in graph.node:
                        total += 1 + inlined_size(inner)
        return total

    def inlined_size(node: onnx.NodeProto) -> int:
        key = (node.domain, node.op_type)
        if key not in functions:
            return 0
        if key not in sizes:
            if key in open_calls or len(open_calls) >= _MAX_DEPTH:
                what = "calls itself" if key in open_calls else f"is called through more than {_MAX_DEPTH} others"
                raise errors.InvalidModelError(f"{where}function {node.op_type!r} of the model {what}.")
            open_calls.append(key)
            sizes[key] = size_of(functions[key])
            open_calls.pop()
        return sizes[key]

    total, limit = size_of(model.graph.node), node_limit()
    if total > limit:
        raise errors.InvalidModelError(
            f"{where}the model has {total:,} nodes after its {len(model.functions)} functions are inlined; expected at "
            f"most {limit:,}. Set {NODES} to allow more."
        )


def can_propagate_values(model: onnx.ModelProto) -> bool:
    """Whether data propagation is affordable: no vector gets long, nor is joined with itself repeatedly."""
    # Data propagation follows values to infer computed shapes, and stores each element of a vector in about 100 bytes.
    lengths: dict[str, int] = {}  # of vectors; these and the ranks are upper bounds
    ranks: dict[str, int] = {}
    for graph in walk.graphs(model.graph):
        for value in (*graph.input, *graph.value_info):
            if value.type.tensor_type.HasField("shape"):
                dims = value.type.tensor_type.shape.dim
                ranks[value.name] = len(dims)
                if len(dims) == 1 and dims[0].dim_value > 0:
                    lengths[value.name] = dims[0].dim_value
        for tensor in graph.initializer:
            ranks[tensor.name] = len(tensor.dims)
            if len(tensor.dims) == 1:
                lengths[tensor.name] = tensor.dims[0]
    # What functions do with a vector is not followed.
    propagating = _PROPAGATING | {function.name for function in model.functions}
    for node in walk.nodes(model):
        length, rank = _largest_output(node, lengths, ranks)
        if length > _MAX_LENGTH and node.op_type in propagating:
            return False
        for name in node.output:
            lengths[name], ranks[name] = length, min(rank, _MAX_LENGTH + 1)  # bounded, since ranks may double
    return True


def _largest_output(node: onnx.NodeProto, lengths: dict[str, int], ranks: dict[str, int]) -> tuple[int, int]:
    """Upper bounds of a node's outputs: the length (of vectors), and the rank."""
    given = [lengths.get(name, 1) for name in node.input]
    length = max(given, default=1)
    rank = max((ranks.get(name, _ASSUMED_RANK) for name in node.input), default=_ASSUMED_RANK)
    if node.op_type == "Concat":
        return sum(given), rank
    if node.op_type == "Constant":
        for attribute in node.attribute:
            if attribute.name == "value":
                dims = attribute.t.dims
                return (dims[0] if len(dims) == 1 else 1), len(dims)
            if count := max(len(attribute.ints), len(attribute.floats), len(attribute.strings)):
                return count, 1
        return 1, 0
    if node.op_type == "Shape":
        return rank, 1
    if node.op_type == "ConstantOfShape":
        return length, length
    if len(node.input) == 2:
        first, second = (ranks.get(name, _ASSUMED_RANK) for name in node.input)
        target = lengths.get(node.input[1], _ASSUMED_RANK)
        if node.op_type == "Gather":  # its length is the number of indices, not of elements to choose from
            return given[1], max(0, first + second - 1)
        if node.op_type == "Reshape":
            return length, target
        if node.op_type == "Expand":
            return length, max(first, target)
        if node.op_type == "Unsqueeze":
            return length, first + target
    if node.op_type == "Unsqueeze":  # before opset 13
        return length, rank + sum(len(each.ints) for each in node.attribute)
    return length, rank
