"""Whether values can be followed through a model, as shape inference does to learn the shapes that a model computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtops.backend.onnx import walk

if TYPE_CHECKING:
    import onnx

_MOST_JOINED = 1 << 16
_FOLLOWED = {"Add", "Cast", "Concat", "Gather", "Identity", "Mul", "Range", "Slice", "Sub", "Squeeze", "Unsqueeze"}


def may_propagate(model: onnx.ModelProto) -> bool:
    """Whether values can be followed through a model.

    ONNX follows each element of a vector on its own, in a hundred bytes: vectors that are long, or are joined with themselves
    again and again, outgrow all.
    """
    lengths = _declared_lengths(model)
    for node in walk.nodes(model):
        longest = max((lengths[name] for name in node.input if name in lengths), default=0)
        if node.op_type == "Concat":
            longest = sum(lengths.get(name, 1) for name in node.input)
        if longest > _MOST_JOINED and node.op_type in _FOLLOWED:
            return False
        if longest:
            lengths.update((name, longest) for name in node.output)
    return True


def _declared_lengths(model: onnx.ModelProto) -> dict[str, int]:
    """Lengths of the vectors that graphs declare."""
    lengths = {}
    for graph in walk.graphs(model.graph):
        for value in (*graph.input, *graph.value_info):
            dims = value.type.tensor_type.shape.dim
            if len(dims) == 1 and dims[0].dim_value > 0:
                lengths[value.name] = dims[0].dim_value
        lengths.update((tensor.name, tensor.dims[0]) for tensor in graph.initializer if len(tensor.dims) == 1)
    return lengths
