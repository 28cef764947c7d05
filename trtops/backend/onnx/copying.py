"""Copying a model tensor by tensor, so that weights can be left out, hashed or written elsewhere on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from google.protobuf.message import EncodeError, Message  # type: ignore[import-untyped]

from trtops import errors
from trtops.backend.onnx import external
from trtops.backend.onnx.messages import AttributeProto, ModelProto, TensorProto

if TYPE_CHECKING:
    import onnx

M = TypeVar("M")

PutTensor: TypeAlias = Callable[[TensorProto, TensorProto], None]
"""Fills the second tensor, which is empty, with what shall stand for the first, which must not be changed."""


def copy_model(model: onnx.ModelProto, put: PutTensor) -> onnx.ModelProto:
    """Copy a model with each tensor in it, at any depth, replaced by what ``put`` makes of it.

    Args:
        model: The model; not changed.
        put: Called once for every tensor: initializers, sparse ones, attributes, also in sub-graphs and functions.

    Returns:
        The copy; besides tensors it equals the model.
    """
    copy = ModelProto()
    copy_fields(model, copy, without=("graph", "functions"))
    if model.HasField("graph"):
        _copy_graph(model.graph, copy.graph, put)
    for function in model.functions:
        target = copy.functions.add()
        copy_fields(function, target, without=("node",))
        _copy_nodes(function.node, target.node, put)
    return copy


def put_small(limit_bytes: int) -> PutTensor:
    """Keeps tensors of up to ``limit_bytes`` bytes; of others only name, type and shape, marked as external data."""

    def put(tensor: onnx.TensorProto, target: onnx.TensorProto) -> None:
        size = external.expected_bytes(tensor)
        if (message_bytes(tensor) if size is None else size) <= limit_bytes:
            target.CopyFrom(tensor)
        else:
            copy_header(tensor, target)
            external.mark_left_out(target)

    return put


def copy_of(message: M) -> M:
    """A copy of a message, of any size: it takes no way through bytes, of which protobuf writes no more than 2 GiB."""
    copy: Any = type(message)()
    copy.CopyFrom(message)
    return cast(M, copy)


def add_copy(messages: Any, message: M) -> M:
    """Append a copy to a repeated field, and return it.

    The field's own ``append`` copies by way of bytes, of which protobuf writes no more than 2 GiB.
    """
    copy = messages.add()
    copy.CopyFrom(message)
    return cast(M, copy)


def message_bytes(message: Any) -> int:
    """The bytes of a message once serialized, which protobuf does to tell; 2 GiB for one that it cannot serialize."""
    try:
        return int(message.ByteSize())
    except EncodeError:  # some releases tell the size of what is too large, others raise
        return 1 << 31


def copy_header(tensor: onnx.TensorProto, target: onnx.TensorProto) -> None:
    """Copy a tensor's name, element type and shape."""
    target.name = tensor.name
    target.data_type = tensor.data_type
    target.dims.extend(tensor.dims)


def copy_fields(source: Any, target: Any, without: tuple[str, ...]) -> None:
    """Copy what is set of a message, but for some fields.

    Raises:
        InvalidModelError: If there is text in it that is not UTF-8.
    """
    try:
        for field, value in source.ListFields():
            if field.name in without:
                continue
            if isinstance(value, (int, float, str, bytes)):
                setattr(target, field.name, value)
            elif isinstance(value, Message):
                getattr(target, field.name).CopyFrom(value)
            else:
                getattr(target, field.name).extend(value)
    except UnicodeDecodeError as exc:
        raise errors.InvalidModelError(f"The model holds text that is not UTF-8: {exc}. It is damaged.") from None


def _copy_graph(graph: onnx.GraphProto, target: onnx.GraphProto, put: PutTensor) -> None:
    copy_fields(graph, target, without=("node", "initializer", "sparse_initializer"))
    for tensor in graph.initializer:
        put(tensor, target.initializer.add())
    for sparse in graph.sparse_initializer:
        _copy_sparse(sparse, target.sparse_initializer.add(), put)
    _copy_nodes(graph.node, target.node, put)


_HOLDS_TENSORS = frozenset(
    AttributeProto.AttributeType.Value(name)
    for name in ("TENSOR", "TENSORS", "SPARSE_TENSOR", "SPARSE_TENSORS", "GRAPH", "GRAPHS", "UNDEFINED")
)


def _copy_nodes(nodes: Any, target: Any, put: PutTensor) -> None:
    for node in nodes:
        if any(attribute.type in _HOLDS_TENSORS for attribute in node.attribute):
            copy = target.add()
            copy_fields(node, copy, without=("attribute",))
            for attribute in node.attribute:
                _copy_attribute(attribute, copy.attribute.add(), put)
        else:
            target.add().CopyFrom(node)


def _copy_attribute(attribute: onnx.AttributeProto, target: onnx.AttributeProto, put: PutTensor) -> None:
    copy_fields(attribute, target, without=("t", "tensors", "g", "graphs", "sparse_tensor", "sparse_tensors"))
    if attribute.HasField("t"):
        put(attribute.t, target.t)
    for tensor in attribute.tensors:
        put(tensor, target.tensors.add())
    if attribute.HasField("sparse_tensor"):
        _copy_sparse(attribute.sparse_tensor, target.sparse_tensor, put)
    for sparse in attribute.sparse_tensors:
        _copy_sparse(sparse, target.sparse_tensors.add(), put)
    if attribute.HasField("g"):
        _copy_graph(attribute.g, target.g, put)
    for graph in attribute.graphs:
        _copy_graph(graph, target.graphs.add(), put)


def _copy_sparse(sparse: onnx.SparseTensorProto, target: onnx.SparseTensorProto, put: PutTensor) -> None:
    target.dims.extend(sparse.dims)
    put(sparse.values, target.values)
    put(sparse.indices, target.indices)
