"""Copies of messages: whole ones of any size, and models with other tensors in place of theirs.

Importing this module does not import ``onnx``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from google.protobuf.message import EncodeError, Message  # type: ignore[import-untyped]

from trtops import errors
from trtops.backend.onnx.messages import AttributeProto, ModelProto, TensorProto

if TYPE_CHECKING:
    import onnx

M = TypeVar("M")

# Types with fewer than eight bits are packed (TensorProto.raw_data in onnx.proto).
_ELEMENT_BITS = {
    "BOOL": 8, "INT8": 8, "UINT8": 8, "INT16": 16, "UINT16": 16, "INT32": 32, "UINT32": 32, "INT64": 64, "UINT64": 64,
    "FLOAT16": 16, "BFLOAT16": 16, "FLOAT": 32, "DOUBLE": 64, "COMPLEX64": 64, "COMPLEX128": 128,
    "FLOAT8E4M3FN": 8, "FLOAT8E4M3FNUZ": 8, "FLOAT8E5M2": 8, "FLOAT8E5M2FNUZ": 8, "FLOAT8E8M0": 8,
    "FLOAT6E2M3": 6, "FLOAT6E3M2": 6, "FLOAT4E2M1": 4, "INT4": 4, "UINT4": 4, "INT2": 2, "UINT2": 2,
}  # fmt: skip

# Fills the second tensor, which is empty, with a replacement for the first, which must not be changed.
PutTensor: TypeAlias = Callable[[TensorProto, TensorProto], None]

# Fields of models, graphs, functions, nodes, attributes and sparse tensors that contain tensors at some depth.
_TENSOR_FIELDS = frozenset((
    "graph", "functions", "node", "initializer", "sparse_initializer", "attribute", "t", "tensors", "g", "graphs",
    "sparse_tensor", "sparse_tensors", "values", "indices",
))  # fmt: skip

_TENSOR_ATTRIBUTES = frozenset(
    AttributeProto.AttributeType.Value(name)
    for name in ("TENSOR", "TENSORS", "SPARSE_TENSOR", "SPARSE_TENSORS", "GRAPH", "GRAPHS", "UNDEFINED")
)


def copy_model(model: onnx.ModelProto, put: PutTensor) -> onnx.ModelProto:
    """Copy a model, replacing each tensor at any depth; InvalidModelError for text other than UTF-8."""
    copy = ModelProto()
    try:
        _copy(model, copy, put)
    except UnicodeDecodeError as exc:
        raise errors.InvalidModelError(f"The model has text that is not UTF-8: {exc}. It is damaged.") from None
    return copy


def _copy(source: Any, target: Any, put: PutTensor) -> None:
    """Copy a message's set fields; fields containing tensors are copied message by message."""
    for field, value in source.ListFields():
        name = field.name
        if field.message_type is None or name not in _TENSOR_FIELDS:
            _copy_field(target, name, value)
        elif isinstance(value, Message):
            _copy_part(value, getattr(target, name), put)
        else:
            parts = getattr(target, name)
            for part in value:
                _copy_part(part, parts.add(), put)


def split_at_field(source: Any, field: str) -> tuple[Any, Any, Any]:
    """Return a copy of the fields that are serialized before one of them, its value, and a copy of those after it."""
    before, middle, after = type(source)(), None, type(source)()
    number = source.DESCRIPTOR.fields_by_name[field].number
    for descriptor, value in source.ListFields():
        if descriptor.number == number:
            middle = value
        else:
            _copy_field(before if descriptor.number < number else after, descriptor.name, value)
    return before, middle, after


def _copy_field(target: Any, name: str, value: Any) -> None:
    if isinstance(value, (int, float, str, bytes)):
        setattr(target, name, value)
    elif isinstance(value, Message):
        getattr(target, name).CopyFrom(value)
    else:
        getattr(target, name).extend(value)


def _copy_part(part: Any, target: Any, put: PutTensor) -> None:
    kind = type(part).__name__
    if kind == "TensorProto":
        put(part, target)
    # Most nodes have no tensors, and are copied in one go, which is faster.
    elif kind == "NodeProto" and all(attribute.type not in _TENSOR_ATTRIBUTES for attribute in part.attribute):
        target.CopyFrom(part)
    else:
        target.SetInParent()
        _copy(part, target, put)


def expected_bytes(tensor: onnx.TensorProto) -> int | None:
    """Return the size of a tensor's raw data in bytes; None for strings and unknown types."""
    try:
        bits = _ELEMENT_BITS.get(TensorProto.DataType.Name(tensor.data_type))
    except ValueError:
        return None
    return None if bits is None else (math.prod(tensor.dims) * bits + 7) // 8


def mark_left_out(tensor: onnx.TensorProto) -> None:
    """Mark a tensor without values as external in a nonexistent file, to pass ONNX's checks."""
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    tensor.external_data.add(key="location", value="left-out")


def put_small(limit_bytes: int) -> PutTensor:
    """Keeps tensors of up to ``limit_bytes`` bytes; of others only name, type and shape, marked as external data."""

    def put(tensor: onnx.TensorProto, target: onnx.TensorProto) -> None:
        size = expected_bytes(tensor)
        if (message_bytes(tensor) if size is None else size) <= limit_bytes:
            target.CopyFrom(tensor)
        else:
            copy_header(tensor, target)
            mark_left_out(target)

    return put


def copy_of(message: M) -> M:
    """A copy of a message of any size."""
    # Not through bytes: protobuf serializes at most 2 GiB.
    copy: Any = type(message)()
    copy.CopyFrom(message)
    return cast(M, copy)


def add_copy(messages: Any, message: M) -> M:
    """Append a copy to a repeated field, and return it."""
    # The field's own ``append`` serializes, with protobuf's limit of 2 GiB.
    copy = messages.add()
    copy.CopyFrom(message)
    return cast(M, copy)


def message_bytes(message: Any) -> int:
    """Return the size of a serialized message; 2 GiB if protobuf cannot serialize it."""
    try:
        return int(message.ByteSize())
    # Some releases of protobuf return the size of what is too large, others raise this.
    except EncodeError:
        return 1 << 31


def copy_header(tensor: onnx.TensorProto, target: onnx.TensorProto) -> None:
    """Copy a tensor's name, element type and shape."""
    target.name = tensor.name
    target.data_type = tensor.data_type
    target.dims.extend(tensor.dims)
