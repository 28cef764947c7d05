"""The tensors of Constant nodes, in each of the ways that ONNX allows to write them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from trtops import errors
from trtops.backend.onnx import walk
from trtops.backend.onnx.copying import copy_of

# Element type by attribute (ONNX operator Constant, opset 12 and later).
_ELEMENTS: dict[str, Any] = {
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
    "value_string": object,
    "value_strings": object,
}
_TYPES = {name: onnx.AttributeProto.AttributeType.Value(name.removeprefix("value_").upper()) for name in _ELEMENTS}


def numpy_dtype(element: int, of: str) -> np.dtype[Any]:
    """Numpy's data type for the ONNX element type of a tensor, which is named in the message."""
    try:
        return helper.tensor_dtype_to_np_dtype(element)
    except KeyError:
        raise errors.InvalidModelError(f"{of!r} has the element type {element}, which ONNX does not define.") from None


def constant_tensor(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """A new tensor with the name and value of a Constant node's output; None for sparse ones and without a value."""
    # In a function, an attribute may refer to one of the function's, and has no value of its own.
    if not node.attribute or not node.output or node.attribute[0].ref_attr_name:
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
    """The dense constants of a graph by name: its initializers, and the tensors of its Constant nodes."""
    found = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if walk.is_onnx_op(node, "Constant") and (tensor := constant_tensor(node)) is not None:
            found[tensor.name] = tensor
    return found


def spell_out(model: onnx.ModelProto) -> bool:
    """Rewrite Constant nodes with plain numbers or strings to tensors, in place; True if there were any."""
    changed = False
    for node in walk.nodes(model):
        if walk.is_onnx_op(node, "Constant") and node.attribute and node.attribute[0].name in _TYPES:
            tensor = constant_tensor(node)
            if tensor is not None:
                node.attribute[0].CopyFrom(helper.make_attribute("value", tensor))
                changed = True
    return changed


def may_be_bare(data: Any) -> bool:
    """Whether serialized bytes or a mapped file may have Constant nodes for :func:`spell_out`; no false negatives."""
    return any(data.find(f"value_{kind}".encode()) >= 0 for kind in ("float", "int", "string"))
