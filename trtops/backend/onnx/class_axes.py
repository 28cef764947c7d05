"""The axes of class scores among a model's outputs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trtops.backend.onnx import operators, walk
from trtops.backend.onnx.model import tensor_spec

if TYPE_CHECKING:
    import onnx

_SAME_AXES = operators.KEEP_PLACES | {"Clip", "Dropout", "Log", "Neg"}
_SCORES = re.compile(
    r"(^|[^a-z])(logits?|log_?probs?|scores?|prob(s|abs?|abilit(y|ies))?|class(es)?|softmax)($|[^a-z])"
)


def class_axes(model: onnx.ModelProto) -> dict[str, int]:
    """The class axis of each floating-point output with class scores, by output name; weights are not read."""
    # Only what a model states counts: a softmax before the output, an ArgMax that reads it, or a name. A top-1
    # agreement of other outputs, such as hidden states or a key cache, has no meaning.
    makers = walk.makers(model.graph.node)
    chosen: dict[str, int] = {}
    for node in model.graph.node:
        if walk.is_onnx_op(node, "ArgMax") and node.input:
            chosen[node.input[0]] = walk.int_attribute(node, "axis", 0)
    axes = {}
    for output in model.graph.output:
        spec = tensor_spec(output)
        if spec.dtype is None or not spec.dtype.is_floating:
            continue
        axis, tensor = None, spec.name
        while axis is None:
            maker = makers.get(tensor)
            if tensor in chosen:
                axis = chosen[tensor]
            elif maker is None or not maker.input:
                break
            elif walk.is_onnx_op(maker, "Softmax", "LogSoftmax", "Hardmax"):
                axis = walk.int_attribute(maker, "axis", -1 if walk.opset(model) >= 13 else 1)
            elif maker.op_type not in _SAME_AXES:
                break
            else:
                tensor = maker.input[0]
        rank = len(spec.shape or ())
        if spec.shape is None:
            if axis:
                axes[spec.name] = axis
            continue
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", spec.name).lower()
        if axis is None and rank >= 2 and _SCORES.search(words):
            # The second axis of images, unless a square in the middle shows that channels are last; else the last.
            channels_last = rank == 4 and spec.shape[1] == spec.shape[2] != spec.shape[3] and type(spec.shape[3]) is int
            axis = rank - 1 if rank < 4 or channels_last else 1
        # Classes lie neither along the first axis, which is the batch, nor along a side of attention's square.
        if axis is None or not -rank <= axis < rank or axis % rank == 0:
            continue
        if rank < 4 or axis % rank != rank - 1 or spec.shape[-1] != spec.shape[-2]:
            axes[spec.name] = axis
    return axes
