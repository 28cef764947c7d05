"""Conversion of models to newer operator sets."""

from __future__ import annotations

import onnx
from onnx import helper

from trtops import errors
from trtops.backend.onnx import copying, walk
from trtops.backend.onnx.model import tensor_array
from trtops.system.limits import limited_memory

# ONNX's converter (seen in 1.23) replaces these operators by others, whose outputs and nodes get other names.
_RENAMED_OPS = {"Upsample": "Resize", "Scatter": "ScatterElements"}
# Before this version, Resize and Upsample multiplied positions by the scale alone, and took the nearest position at or
# before the result, or at or after it where ONNX Runtime shrinks an axis. The converter leaves the new defaults.
_OPSET_OF_POSITIONS = 11
# Until version 12, functions of this kind flattened their input to two dimensions. The converter writes that for the
# others, but forgets Hardmax.
_OPSET_OF_ONE_AXIS = 13


def raise_opset(model: onnx.ModelProto, min_version: int, needed_by: str) -> None:
    """Convert a model of an older operator set, in place; names of nodes and tensors stay.

    The model has its weights inside or is lean. ``needed_by`` is for the error: InvalidModelError if ONNX cannot.
    """
    version = walk.opset(model)
    if version >= min_version:
        return
    # Large weights stay outside of the converter, which would copy those inside, and lose those of a lean model.
    weights = {tensor.name: copying.copy_of(tensor) for tensor in model.graph.initializer}
    put_small = copying.put_small(4096)
    bare = copying.copy_model(model, lambda t, to: put_small(t, to) if t.name in weights else to.CopyFrom(t))
    disguise = version < _OPSET_OF_ONE_AXIS <= min_version
    for node in bare.graph.node if disguise else ():
        if walk.is_onnx_op(node, "Hardmax"):
            node.op_type = "Softmax"
    try:
        with limited_memory(allowance=8 * bare.ByteSize()):
            converted = onnx.version_converter.convert_version(bare, min_version)
    # The converter raises RuntimeError and types of its own.
    except Exception as exc:
        raise errors.InvalidModelError(
            f"The model has operator set {version}; {needed_by} need {min_version}, to which ONNX cannot convert it "
            f"({exc}). Export it with a newer operator set."
        ) from exc
    for old, new in (*_RENAMED_OPS.items(), *((("Hardmax", "Softmax"),) if disguise else ())):
        _restore(model.graph, converted.graph, old, new, version)
    model.CopyFrom(converted)
    for tensor in model.graph.initializer:
        if tensor.name in weights:
            tensor.CopyFrom(weights[tensor.name])


def _restore(before: onnx.GraphProto, after: onnx.GraphProto, old: str, new: str, version: int) -> None:
    """Correct the nodes of type ``old`` or ``new`` in a converted graph: names, and the meaning of attributes."""
    sources = [node for node in before.node if walk.is_onnx_op(node, old, new)]
    targets = [node for node in after.node if walk.is_onnx_op(node, new)]
    constants = walk.constant_tensors(before)
    for source, target in zip(sources, targets, strict=True):
        if old == "Hardmax":
            target.op_type = source.op_type
            continue
        target.name = source.name
        renamed, name = target.output[0], source.output[0]
        for node in after.node if renamed != name else ():
            walk.rename(node.output, renamed, name)
            walk.rename(node.input, renamed, name)
        if new == "Resize" and version < _OPSET_OF_POSITIONS:
            scales = constants.get(source.input[1]) if len(source.input) > 1 else None
            shrinks = scales is not None and bool(tensor_array(scales).max() <= 1)
            target.attribute.append(helper.make_attribute("coordinate_transformation_mode", "asymmetric"))
            target.attribute.append(helper.make_attribute("nearest_mode", "ceil" if shrinks else "floor"))
