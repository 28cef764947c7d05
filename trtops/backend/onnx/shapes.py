"""Types and shapes of a model's intermediate tensors, inferred without moving its weights."""

from __future__ import annotations

import logging

import onnx

from trtops import errors
from trtops.backend.onnx import copying, external, walk, with_onnxruntime
from trtops.backend.onnx.expansion import check_expansion
from trtops.backend.onnx.following import may_propagate
from trtops.limits import limited_memory, too_much

log = logging.getLogger(__name__)

_SUSPECT_BYTES = 1 << 31  # a weight whose shape asks for more must have the bytes to show for it
_MOST_BYTES = 1 << 42  # 4 TiB, more than any model has
_VALUES_BYTES = 4096  # tensors up to this size count as values (target shapes, axes), larger ones only as shapes


def infer_shapes(model: onnx.ModelProto, *, symbolic: bool = False, strict: bool = False) -> None:
    """Write inferred types and shapes into a model, in place.

    Weights larger than 4 KiB are left out of what is passed on, so that models of any size are cheap to infer.

    Args:
        model: The model; its ``value_info`` and outputs change, nothing else.
        symbolic: Whether ONNX Runtime's symbolic inference, slow and thorough, goes over the model afterwards if
            ONNX's own left a tensor without a rank. It is skipped where sympy is not installed.
        strict: Whether types and shapes that contradict each other are an error.

    Raises:
        InvalidModelError: If ONNX finds such a contradiction, or would need too much memory for what the nodes make.
    """
    check_expansion(model)
    bare = copying.copy_model(model, _put_plausible)
    _put_dense_for_sparse(bare)
    try:
        with limited_memory():
            inferred = onnx.shape_inference.infer_shapes(bare, data_prop=may_propagate(bare), strict_mode=strict)
    except MemoryError:
        raise errors.InvalidModelError(too_much("Shape inference")) from None
    except (
        onnx.shape_inference.InferenceError,
        onnx.checker.ValidationError,
        ValueError,
    ) as exc:  # C++ exceptions come as ValueError
        raise errors.InvalidModelError(f"Shape inference failed: {exc}") from exc
    if symbolic and _lacks_ranks(inferred) and with_onnxruntime.can_infer_symbolic_shapes():
        try:
            inferred = with_onnxruntime.infer_symbolic_shapes(inferred)
        except errors.InferenceError as exc:
            log.info("%s. Going on with the shapes that ONNX itself infers.", exc)
    _take_shapes(inferred, model)


def _put_dense_for_sparse(model: onnx.ModelProto) -> None:
    """Replace sparse weights, which ONNX takes for scalars, by dense ones of the same types and shapes without values."""
    for graph in walk.graphs(model.graph):
        for sparse in graph.sparse_initializer:
            dense = graph.initializer.add(name=sparse.values.name, data_type=sparse.values.data_type, dims=sparse.dims)
            external.mark_left_out(dense)
        del graph.sparse_initializer[:]


_put_small = copying.put_small(_VALUES_BYTES)


def _put_plausible(tensor: onnx.TensorProto, target: onnx.TensorProto) -> None:
    """Keep what is small; refuse shapes far larger than their data, since ONNX would loop over some of them."""
    size = external.expected_bytes(tensor)
    if size is not None and size > _SUSPECT_BYTES and not external.is_external(tensor) and size != len(tensor.raw_data):
        raise errors.InvalidModelError(
            f"Tensor {tensor.name!r} of shape {tuple(tensor.dims)} has {len(tensor.raw_data)} bytes; expected {size}."
        )
    if size is not None and size > _MOST_BYTES:
        raise errors.InvalidModelError(f"Tensor {tensor.name!r} of shape {tuple(tensor.dims)} cannot be in any file.")
    _put_small(tensor, target)


def _take_shapes(inferred: onnx.ModelProto, model: onnx.ModelProto) -> None:
    """Copy types and shapes from one model to another with the same graphs."""
    for source, target in zip(walk.graphs(inferred.graph), walk.graphs(model.graph)):
        del target.value_info[:]
        target.value_info.extend(source.value_info)
        known = {value.name: value for value in source.output}
        for value in target.output:
            if value.name in known:
                value.type.CopyFrom(known[value.name].type)


def _lacks_ranks(model: onnx.ModelProto) -> bool:
    """Whether a tensor that a node makes has no known rank."""
    graph = model.graph
    ranked = {
        value.name
        for value in (*graph.value_info, *graph.output)
        if value.type.HasField("tensor_type") and value.type.tensor_type.HasField("shape")
    }
    return any(name and name not in ranked for node in graph.node for name in node.output)


def values(graph: onnx.GraphProto) -> dict[str, onnx.ValueInfoProto]:
    """What a graph declares about tensors by name: inputs, outputs, intermediate ones, and its weights."""
    declared = {
        tensor.name: onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        for tensor in graph.initializer
    }
    for value in (*graph.value_info, *graph.input, *graph.output):
        declared[value.name] = value
    return declared


def element_types(graph: onnx.GraphProto) -> dict[str, int]:
    """ONNX element types of the tensors that a graph declares; sequences and unknown types are left out."""
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    types.update((sparse.values.name, sparse.values.data_type) for sparse in graph.sparse_initializer)
    for value in (*graph.value_info, *graph.input, *graph.output):
        if value.type.tensor_type.elem_type:
            types[value.name] = value.type.tensor_type.elem_type
    return types
