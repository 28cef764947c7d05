"""Models without the values of their large weights, for tools that need only types and shapes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from trtops import errors
from trtops.backend.onnx import external, walk
from trtops.backend.onnx.messages import GraphProto, ModelProto, TensorProto
from trtops.backend.onnx.model import PROTOBUF_BYTES, parse_proto, read_proto

if TYPE_CHECKING:
    import onnx

# Files with fewer bytes are parsed as a whole, which is faster.
SMALL_FILE = 8 << 20
# Weights with more bytes than this are left out.
LARGE = 16 << 10
# Integers may be shapes or indices, and divisions by zero fail.
_WEIGHT_TYPES = frozenset((TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE))
_PLAIN_FIELDS = frozenset(("dims", "data_type", "name", "doc_string", "raw_data", "external_data", "data_location"))
_GRAPH = ModelProto.DESCRIPTOR.fields_by_name["graph"].number
_INITIALIZER = GraphProto.DESCRIPTOR.fields_by_name["initializer"].number
_RAW_DATA = TensorProto.DESCRIPTOR.fields_by_name["raw_data"].number


@dataclass(frozen=True)
class ModelWithoutWeights:
    """A model, and the names of the weights that were left out: initializers of its main graph with unique names.

    In the model they have name, type and shape, and are marked as external.
    """

    model: onnx.ModelProto
    left_out: frozenset[str] = frozenset()

    def tensors(self) -> Iterator[onnx.TensorProto]:
        """Every tensor in the model except those left out."""
        initializers = len(self.model.graph.initializer)
        # Tensors come with the initializers first.
        for i, tensor in enumerate(walk.tensors(self.model)):
            if i >= initializers or tensor.name not in self.left_out:
                yield tensor


def load_without_weights(path: str | Path) -> ModelWithoutWeights:
    """Read a model file and its external data, without the values of large weights; all of it is checked to exist."""
    folder = Path(path).absolute().parent
    # If that fails, the usual way of reading reports what is wrong.
    try:
        model, skipped = _parse_without_values(path)
    except (OSError, ValueError, DecodeError, errors.InvalidModelError):
        model, skipped = read_proto(path), set()
    initializers = model.graph.initializer
    names = Counter(tensor.name for tensor in initializers)
    if any(not initializers[i].name or names[initializers[i].name] > 1 for i in skipped):
        model, skipped = read_proto(path), set()
        initializers = model.graph.initializer
    left_out: set[str] = set()
    # Tensors come with the initializers first, so an index below their number is an initializer's.
    for i, tensor in enumerate(walk.tensors(model)):
        is_initializer = i < len(initializers) and tensor.name and names[tensor.name] == 1
        if i in skipped or (is_initializer and _is_large_weight(tensor, len(tensor.raw_data))):
            if external.is_external(tensor):
                next(external.locate(tensor, folder).blocks(at_most=1))  # the file exists and can be read
            tensor.ClearField("raw_data")
            external.mark_left_out(tensor)
            left_out.add(tensor.name)
        elif external.is_external(tensor):
            external.load(tensor, folder)
    return ModelWithoutWeights(model, frozenset(left_out))


def _is_large_weight(tensor: onnx.TensorProto, raw_bytes: int) -> bool:
    """Whether a tensor is a valid large weight, given the number of its raw bytes."""
    size = external.expected_bytes(tensor) or 0
    return (
        tensor.data_type in _WEIGHT_TYPES
        and min(tensor.dims, default=0) > 0
        and size > LARGE
        and {field.name for field, _ in tensor.ListFields()} <= _PLAIN_FIELDS
        and (external.is_external(tensor) or raw_bytes == size)
    )


def _parse_without_values(path: str | Path) -> tuple[onnx.ModelProto, set[int]]:
    """A model without the raw data of large weights, and the indices of the initializers concerned."""
    # Skipping the values in a large file is fifty times as fast as parsing them.
    model, skipped = ModelProto(), set()
    if not os.path.isfile(path):  # opening a pipe waits for its writer
        return read_proto(path), set()
    with open(path, "rb") as file:
        descriptor = file.fileno()
        size = os.fstat(descriptor).st_size
        if size < SMALL_FILE or size >= PROTOBUF_BYTES:
            return read_proto(path), set()

        def read(start: int, stop: int) -> bytes:
            return os.pread(descriptor, stop - start, start)

        for number, start, content, stop in _fields(descriptor, 0, size):
            if number != _GRAPH:
                model.MergeFromString(read(start, stop))
                continue
            rest = content  # the fields since the last initializer
            for number_in_graph, start_in_graph, tensor_start, tensor_stop in _fields(descriptor, content, stop):
                if number_in_graph != _INITIALIZER:
                    continue
                model.graph.MergeFromString(read(rest, start_in_graph))
                rest = tensor_stop
                tensor = model.graph.initializer.add()
                raw_bytes = 0
                if tensor_stop - tensor_start > LARGE:
                    for field, field_start, value_start, value_stop in _fields(descriptor, tensor_start, tensor_stop):
                        if field == _RAW_DATA:
                            raw_bytes += value_stop - value_start
                        else:
                            tensor.MergeFromString(read(field_start, value_stop))
                if raw_bytes and not external.is_external(tensor) and _is_large_weight(tensor, raw_bytes):
                    skipped.add(len(model.graph.initializer) - 1)
                else:
                    tensor.ParseFromString(read(tensor_start, tensor_stop))
            model.graph.MergeFromString(read(rest, stop))
    return parse_proto(model.SerializeToString()), skipped


def _fields(descriptor: int, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Number (0 for scalars), start, content and stop of each field of the protobuf message in this range of a file."""
    # A field begins with a varint of its number and kind (https://protobuf.dev/programming-guides/encoding).
    while start < stop:
        head = os.pread(descriptor, min(20, stop - start), start)
        tag, at = _varint(head, 0)
        kind, length = tag & 7, 0
        if kind == 2:  # bytes, text or a message, after their length
            length, at = _varint(head, at)
        elif kind == 0:
            _, at = _varint(head, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError(f"a field of kind {kind}")
        content, end = start + at, start + at + length
        if not tag >> 3:
            raise ValueError("a field without a number")
        if end > stop:
            raise ValueError("a field that ends after its message")
        yield tag >> 3 if kind == 2 else 0, start, content, end
        start = end


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A variable-length integer in some bytes, and its end."""
    value = 0
    for i, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return value, at + i + 1
    raise ValueError("a number that does not end")
