"""The outputs of a model that are class scores, and the axis of their classes.

Only what a model states counts: a softmax before the output, an ArgMax that reads it, or a name. A top-1 agreement of
other outputs, such as hidden states or a key cache, has no meaning.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import onnx

from trtops.backend.onnx import walk
from trtops.backend.onnx.model import tensor_spec
from trtops.metadata import Dim

_SAME_AXES = ("Cast", "Identity", "QuantizeLinear", "DequantizeLinear", "Neg", "Log", "Dropout", "Clip")
_SCORES = re.compile(
    r"(^|[^a-z])(logits?|log_?probs?|scores?|prob(s|abs?|abilit(y|ies))?|class(es)?|softmax)($|[^a-z])"
)


def class_axes(model: onnx.ModelProto) -> dict[str, int]:
    """The class axis of each floating-point output with class scores, by output name; weights are not read."""
    makers = walk.makers(model.graph.node)
    chosen = {
        node.input[0]: walk.int_attribute(node, "axis", 0)
        for node in model.graph.node
        if walk.is_onnx_op(node, "ArgMax") and node.input
    }
    found = {}
    for output in model.graph.output:
        spec = tensor_spec(output)
        if spec.dtype is None or not spec.dtype.is_floating:
            continue
        axis = _axis_in_graph(spec.name, makers, chosen, walk.opset(model))
        if axis is None:
            axis = _axis_by_name(spec.name, spec.shape)
        if axis is not None and _may_be_class_axis(axis, spec.shape):
            found[spec.name] = axis
    return found


def _axis_in_graph(name: str, makers: dict[str, onnx.NodeProto], chosen: dict[str, int], opset: int) -> int | None:
    """The axis of the softmax that produces a tensor, or of the ArgMax that reads it."""
    while True:
        if name in chosen:
            return chosen[name]
        node = makers.get(name)
        if node is None:
            return None
        if walk.is_onnx_op(node, "Softmax", "LogSoftmax", "Hardmax"):
            return walk.int_attribute(node, "axis", -1 if opset >= 13 else 1)
        if node.op_type not in _SAME_AXES or not node.input:
            return None
        name = node.input[0]


def _axis_by_name(name: str, shape: Sequence[Dim] | None) -> int | None:
    """The class axis of an output whose name indicates scores: the second of images, otherwise the last."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    if shape is None or len(shape) < 2 or not _SCORES.search(words):
        return None
    # Images with channels last have a square in the middle.
    channels_last = len(shape) == 4 and shape[1] == shape[2] != shape[3] and isinstance(shape[3], int)
    return len(shape) - 1 if len(shape) < 4 or channels_last else 1


def _may_be_class_axis(axis: int, shape: Sequence[Dim] | None) -> bool:
    """Whether classes may lie along an axis: not along the first, nor along a side of attention's square."""
    if shape is None:
        return axis != 0
    rank = len(shape)
    if not -rank <= axis < rank or axis % rank == 0:
        return False
    return rank < 4 or axis % rank != rank - 1 or shape[-1] != shape[-2]
