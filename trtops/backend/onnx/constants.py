"""Constant nodes: the tensors they make, whichever of the format's ways they are written in."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from trtops import errors
from trtops.backend.onnx import walk
from trtops.backend.onnx.copying import copy_of

_ELEMENTS: dict[str, Any] = {
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
    "value_string": object,
    "value_strings": object,
}
"""Element type by attribute (ONNX operator Constant, opset 12 and later)."""
_TYPES = {name: onnx.AttributeProto.AttributeType.Value(name.removeprefix("value_").upper()) for name in _ELEMENTS}


def numpy_dtype(element: int, of: str) -> np.dtype[Any]:
    """Numpy's data type for an ONNX element type.

    Args:
        element: The element type.
        of: The tensor that has it, for the message.

    Raises:
        InvalidModelError: If ONNX has no such type.
    """
    try:
        return helper.tensor_dtype_to_np_dtype(element)
    except KeyError:
        raise errors.InvalidModelError(f"{of!r} has the element type {element}, which ONNX does not know.") from None


def constant_tensor(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """The tensor that a Constant node makes, as a new message named like its output; None for sparse and faulty ones."""
    if not node.attribute or not node.output:
        return None
    attribute = node.attribute[0]
    if attribute.name == "value" and attribute.HasField("t"):
        tensor: onnx.TensorProto = copy_of(attribute.t)
        tensor.name = node.output[0]
        return tensor
    if attribute.name not in _TYPES or attribute.type != _TYPES[attribute.name]:
        return None
    value = np.array(helper.get_attribute_value(attribute), _ELEMENTS[attribute.name])
    return numpy_helper.from_array(value, node.output[0])


def constant_tensors(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """The dense constants of a graph by name: its initializers themselves, and what its Constant nodes make."""
    found = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if walk.is_onnx_op(node, "Constant") and (tensor := constant_tensor(node)) is not None:
            found[tensor.name] = tensor
    return found


def spell_out(model: onnx.ModelProto) -> bool:
    """Write the Constant nodes that hold bare numbers or strings as tensors, in place, sub-graphs and functions included.

    Args:
        model: The model. Its nodes keep their places and names.

    Returns:
        Whether there were any.
    """
    changed = False
    for node in walk.nodes(model):
        if walk.is_onnx_op(node, "Constant") and node.attribute:
            tensor = constant_tensor(node) if node.attribute[0].name in _TYPES else None
            if tensor is not None:
                node.attribute[0].CopyFrom(helper.make_attribute("value", tensor))
                changed = True
    return changed


def may_be_bare(data: Any) -> bool:
    """Whether a serialized model may have Constant nodes for :func:`spell_out`; never false when it has.

    Args:
        data: Bytes, or a mapped file.
    """
    return any(data.find(f"value_{kind}".encode()) >= 0 for kind in ("float", "int", "string"))
