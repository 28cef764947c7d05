"""Whether values can be followed through a model, as shape inference does to learn the shapes that a model computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtops.backend.onnx import walk

if TYPE_CHECKING:
    import onnx

_MOST_JOINED = 1 << 16
_FOLLOWED = {"Add", "Cast", "Concat", "Gather", "Identity", "Mul", "Range", "Slice", "Sub", "Squeeze", "Unsqueeze"}
_USUAL_RANK = 8  # of tensors that nothing is declared of


def may_propagate(model: onnx.ModelProto) -> bool:
    """Whether values can be followed through a model.

    ONNX follows each element of a vector on its own, in a hundred bytes: vectors that are long, or are joined with themselves
    again and again, outgrow all. Lengths and ranks are bounds from above, found without inferring a shape.
    """
    lengths, ranks = _declared_sizes(model)
    for node in walk.nodes(model):
        length, rank = _largest_output(node, lengths, ranks)
        if length > _MOST_JOINED and node.op_type in _FOLLOWED:
            return False
        for name in node.output:
            lengths[name], ranks[name] = length, min(rank, _MOST_JOINED + 1)  # beyond that, it does not matter how far
    return True


def _largest_output(node: onnx.NodeProto, lengths: dict[str, int], ranks: dict[str, int]) -> tuple[int, int]:
    """Bounds of what a node makes: the length, should it be a vector, and the rank."""
    given = [lengths.get(name, 1) for name in node.input]
    length = max(given, default=1)
    rank = max((ranks.get(name, _USUAL_RANK) for name in node.input), default=_USUAL_RANK)
    if node.op_type == "Concat":
        return sum(given), rank
    if node.op_type == "Constant":
        return _constant_size(node)
    if node.op_type == "Shape":
        return rank, 1
    if node.op_type == "ConstantOfShape":
        return length, length
    if len(node.input) == 2:
        first, second = (ranks.get(name, _USUAL_RANK) for name in node.input)
        target = lengths.get(node.input[1], _USUAL_RANK)
        if node.op_type == "Gather":  # as many as are asked for, and not as many as there are
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


def _constant_size(node: onnx.NodeProto) -> tuple[int, int]:
    """Length and rank of what a Constant makes."""
    for attribute in node.attribute:
        if attribute.name == "value":
            dims = attribute.t.dims
            return (dims[0] if len(dims) == 1 else 1), len(dims)
        many = max(len(attribute.ints), len(attribute.floats), len(attribute.strings))
        if many:
            return many, 1
    return 1, 0


def _declared_sizes(model: onnx.ModelProto) -> tuple[dict[str, int], dict[str, int]]:
    """Lengths of the vectors that graphs declare, and the ranks of all that they declare."""
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
