"""Inference of types and shapes, without copying weights."""

import logging

import onnx

from trtops import errors
from trtops.backend.onnx import external, walk, with_onnxruntime
from trtops.backend.onnx.model import can_propagate_values, check_inlined_size
from trtops.backend.worker import try_in_child
from trtops.system.activity import Activity
from trtops.system.limits import limited_memory, too_much

log = logging.getLogger(__name__)

INFERRING = "inferring shapes"
_SUSPECT_BYTES = 1 << 31  # a weight whose shape needs more must have the bytes
_MAX_BYTES = 1 << 42  # 4 TiB, more than any model has
_put_small = walk.put_small(4096)  # small tensors may be target shapes or axes, whose values are needed


def infer_shapes(model: onnx.ModelProto, *, symbolic: bool = False, strict: bool = False) -> None:
    """Write inferred types and shapes into a model of any size; its ``value_info`` and outputs change, nothing else.

    With ``symbolic``, ONNX Runtime's slow and thorough inference follows if ONNX's own left a tensor without a rank; it
    needs sympy. With ``strict``, contradicting types and shapes are an error.
    """
    check_inlined_size(model)
    bare = walk.copy_model(model, _put_plausible)
    for graph in walk.graphs(bare.graph):
        # ONNX takes sparse weights for scalars, so dense ones without values replace them.
        for sparse in graph.sparse_initializer:
            dense = graph.initializer.add(name=sparse.values.name, data_type=sparse.values.data_type, dims=sparse.dims)
            external.mark_left_out(dense)
        del graph.sparse_initializer[:]
    try_in_child(infer_shapes, bare)
    try:
        with limited_memory(), Activity(INFERRING):
            propagate = can_propagate_values(bare)
            inferred = onnx.shape_inference.infer_shapes(bare, data_prop=propagate, strict_mode=strict)
    except MemoryError:
        raise errors.InvalidModelError(too_much("Shape inference")) from None
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, ValueError) as exc:
        raise errors.InvalidModelError(f"Shape inference failed: {exc}") from exc  # ValueError: C++ exceptions
    declared = (*inferred.graph.value_info, *inferred.graph.output)
    ranked = {value.name for value in declared if value.type.tensor_type.HasField("shape")}
    lacks_ranks = any(name and name not in ranked for node in inferred.graph.node for name in node.output)
    if symbolic and propagate and lacks_ranks and with_onnxruntime.can_infer_symbolic_shapes():
        try:
            inferred = with_onnxruntime.infer_symbolic_shapes(inferred)
        except errors.InferenceError as exc:
            log.info("%s. The shapes that ONNX itself infers are used.", exc)
    for source, target in zip(walk.graphs(inferred.graph), walk.graphs(model.graph)):
        del target.value_info[:]
        target.value_info.extend(source.value_info)
        known = {value.name: value for value in source.output}
        for value in target.output:
            if value.name in known:
                value.type.CopyFrom(known[value.name].type)


def _put_plausible(tensor: onnx.TensorProto, target: onnx.TensorProto) -> None:
    """Keep small tensors; refuse shapes far larger than the data, since ONNX would loop over their elements."""
    size = external.expected_bytes(tensor)
    if size is not None and size > _SUSPECT_BYTES and not external.is_external(tensor) and size != len(tensor.raw_data):
        raise errors.InvalidModelError(
            f"Tensor {tensor.name!r} of shape {tuple(tensor.dims)} has {len(tensor.raw_data)} bytes; expected {size}."
        )
    if size is not None and size > _MAX_BYTES:
        raise errors.InvalidModelError(
            f"Tensor {tensor.name!r} of shape {tuple(tensor.dims)} is too large for any file."
        )
    _put_small(tensor, target)


def values(graph: onnx.GraphProto) -> dict[str, onnx.ValueInfoProto]:
    """The declarations of a graph's tensors by name: inputs, outputs, intermediate ones, and weights."""
    declared = {
        tensor.name: onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        for tensor in graph.initializer
    }
    for value in (*graph.value_info, *graph.input, *graph.output):
        declared[value.name] = value
    return declared


def element_types(graph: onnx.GraphProto) -> dict[str, int]:
    """ONNX element types of a graph's declared tensors; sequences and unknown types are omitted."""
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    types.update((sparse.values.name, sparse.values.data_type) for sparse in graph.sparse_initializer)
    for value in (*graph.value_info, *graph.input, *graph.output):
        if value.type.tensor_type.elem_type:
            types[value.name] = value.type.tensor_type.elem_type
    return types
