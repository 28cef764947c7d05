"""An upper bound on the cost of ONNX's data propagation, which follows values to infer computed shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtops.backend.onnx import walk

if TYPE_CHECKING:
    import onnx

_MAX_LENGTH = 1 << 16
_PROPAGATING = {"Add", "Cast", "Concat", "Gather", "Identity", "Mul", "Range", "Slice", "Sub", "Squeeze", "Unsqueeze"}
_ASSUMED_RANK = 8  # of tensors without a declaration


def can_propagate_values(model: onnx.ModelProto) -> bool:
    """Whether data propagation is affordable for a model.

    ONNX stores each element of a propagated vector separately, in about a hundred bytes. Long vectors, and vectors that
    are concatenated with themselves repeatedly, would exhaust memory. Lengths and ranks are upper bounds.
    """
    lengths, ranks = _declared_sizes(model)
    for node in walk.nodes(model):
        length, rank = _largest_output(node, lengths, ranks)
        if length > _MAX_LENGTH and node.op_type in _PROPAGATING:
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


def _declared_sizes(model: onnx.ModelProto) -> tuple[dict[str, int], dict[str, int]]:
    """Lengths of declared vectors, and ranks of all declared tensors."""
    lengths, ranks = {}, {}
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
    return lengths, ranks
