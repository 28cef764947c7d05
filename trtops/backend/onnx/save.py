"""Models written to files or bytes: completely or not at all, with weights inside the file or next to it."""

import contextlib
import io
import itertools
from pathlib import Path
from typing import IO, Any

import onnx
from google.protobuf.message import EncodeError  # type: ignore[import-untyped]

from trtops import errors
from trtops.backend.onnx import copying, external, walk
from trtops.backend.onnx.external import ExternalData
from trtops.backend.onnx.messages import GraphProto, ModelProto, TensorProto
from trtops.backend.onnx.model import is_lean, raw_bytes
from trtops.system.files import open_atomically, replaced_together

# Bytes of a message that protobuf still serializes, with a margin.
PROTOBUF_LIMIT = (1 << 31) - (1 << 20)
_SHAPE_BYTES = 1024
_MANY_BYTES = 8 << 20  # of a message that takes less time to write in parts than in one go


def serialize(model: onnx.ModelProto) -> bytes:
    """The bytes of a model; one above 2 GiB raises InvalidModelError."""
    size = model_bytes(model)
    if size >= PROTOBUF_LIMIT:
        raise errors.InvalidModelError(
            f"The model has {size / 2**30:.2f} GiB; a serialized model holds at most 2 GiB. Save it with external data."
        )
    buffer = io.BytesIO()
    _write(model, size, buffer)
    return buffer.getvalue()


def serialize_lean(model: onnx.ModelProto) -> bytes:
    """Return the bytes of a lean model (:meth:`trtops.backend.onnx.model.Model.proto`), without weights in files.

    The file names are relative to the root folder ``/``, which readers must take as the model's folder.
    """

    def put(tensor: onnx.TensorProto, target: onnx.TensorProto) -> None:
        if not external.is_anchored(tensor):
            target.CopyFrom(tensor)
            return
        location = external.locate(tensor)
        copying.copy_header(tensor, target)
        external.put_place(target, location.path.as_posix().lstrip("/"), location.offset, location.length)

    return _checked_bytes(copying.copy_model(model, put))


def _checked_bytes(model: onnx.ModelProto) -> bytes:
    """Return the bytes of a model; InvalidModelError if they exceed the limit."""
    data = None
    # Some releases of protobuf fail above 2 GiB, others return the bytes.
    with contextlib.suppress(EncodeError):
        data = model.SerializeToString()
    if data is None or len(data) >= PROTOBUF_LIMIT:
        raise errors.InvalidModelError(
            "The model has more than 2 GiB without its external weights, which is protobuf's limit for a model file."
        )
    return bytes(data)


def with_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model with all weights inside: the same, or a loaded copy of a lean one."""
    if not is_lean(model):
        return model

    def put(tensor: onnx.TensorProto, target: onnx.TensorProto) -> None:
        target.CopyFrom(tensor)
        if external.is_anchored(tensor):
            external.load(target)

    return copying.copy_model(model, put)


def save_model(
    model: onnx.ModelProto,
    path: str | Path,
    *,
    external_data_path: str | None = None,
    size_threshold: int = 1024,
    all_tensors_to_one_file: bool = True,
) -> None:
    """Write a model file, and data files next to it if requested or needed. The model is not changed.

    Args:
        model: The model, with all weights loaded or anchored.
        path: Where to write; missing folders are created.
        external_data_path: A path inside the model's folder for the weights (InvalidModelError otherwise); ``""`` takes
            the model file's name with ``.data`` appended. With one file per tensor it is the folder of these files.
            None keeps the weights in the model file unless they are too large for protobuf.
        size_threshold: Tensors with fewer bytes stay in the model file; so do integer vectors of up to 1 KiB, which may
            be shapes.
        all_tensors_to_one_file: Whether all tensors share one data file.
    """
    path = Path(path)
    if external_data_path is None:
        size = model_bytes(model)
        if size < PROTOBUF_LIMIT:
            with open_atomically(path) as file:
                _write(model, size, file)
            return
        external_data_path = ""
    folder_or_file = f"{path.name}.data" if all_tensors_to_one_file else "."
    location = Path(external_data_path or folder_or_file)
    if not (path.parent / location).resolve().is_relative_to(path.parent.resolve()):
        raise errors.InvalidModelError(
            f"External data path {external_data_path!r} leads out of the model's folder; give one relative to "
            f"{path.parent}."
        )
    numbers = itertools.count()

    def put(tensor: onnx.TensorProto, target: onnx.TensorProto) -> None:
        # Shape inference needs small integer vectors, and neither ONNX's nor ONNX Runtime's reads other files.
        may_be_shape = tensor.data_type in (onnx.TensorProto.INT64, onnx.TensorProto.INT32) and len(tensor.dims) <= 1
        size = copying.expected_bytes(tensor)
        if size is None or size < max(size_threshold, 1) or (may_be_shape and size <= _SHAPE_BYTES):
            target.CopyFrom(tensor)
            if external.is_external(target):
                external.load(target)
            return
        copying.copy_header(tensor, target)
        target.doc_string = tensor.doc_string
        # A number: a tensor's name may not be a file name.
        data_path = location if all_tensors_to_one_file else location / f"tensor_{next(numbers):06}.bin"
        with contextlib.ExitStack() as opened:
            data_file = shared or opened.enter_context(open_part(path.parent / data_path))
            external.append(data_file, raw_bytes(tensor), target, data_path.as_posix())

    with replaced_together(path) as open_part:
        with contextlib.ExitStack() as opened:
            shared = opened.enter_context(open_part(path.parent / location)) if all_tensors_to_one_file else None
            written = copying.copy_model(model, put)
        with open_part(path) as file:
            file.write(_checked_bytes(written))


def _write(model: onnx.ModelProto, size: int, file: IO[bytes]) -> None:
    """Write a model of about this size, in bytes, into one file."""
    if size <= _MANY_BYTES and not is_lean(model):
        file.write(model.SerializeToString())
        return
    # The weights one at a time: protobuf would hold all of them twice more. Its format is a field's number, the number
    # of bytes, and the bytes.
    before, weights, after = copying.split_at_field(model.graph, "initializer")
    graph_head = with_weights(ModelProto(graph=before)).graph.SerializeToString()
    graph_tail = with_weights(ModelProto(graph=after)).graph.SerializeToString()
    size = len(graph_head) + len(graph_tail)
    parts: list[tuple[bytes, ExternalData | onnx.TensorProto | None, bytes]] = []
    for tensor in weights or ():
        source, head, length, tail = None, tensor, 0, TensorProto()
        if external.is_anchored(tensor):
            source = external.locate(tensor)
            head, length, tail.doc_string = TensorProto(), source.length, tensor.doc_string
            copying.copy_header(tensor, head)
        elif tensor.HasField("raw_data") and (copying.expected_bytes(tensor) or 0) > _SHAPE_BYTES:
            head, values, tail = copying.split_at_field(tensor, "raw_data")
            source, length = tensor, len(values)
        head_bytes, tail_bytes = head.SerializeToString(), tail.SerializeToString()
        if source is not None:
            head_bytes += _field_head(TensorProto, "raw_data", length)
        tensor_size = len(head_bytes) + length + len(tail_bytes)
        parts.append((_field_head(GraphProto, "initializer", tensor_size) + head_bytes, source, tail_bytes))
        size += len(parts[-1][0]) + length + len(tail_bytes)
    before, _, after = copying.split_at_field(model, "graph")
    file.write(before.SerializeToString() + _field_head(ModelProto, "graph", size) + graph_head)
    for head_bytes, source, tail_bytes in parts:
        file.write(head_bytes)
        if isinstance(source, TensorProto):
            file.write(source.raw_data)
        for block in source.blocks() if isinstance(source, ExternalData) else ():
            file.write(block)
        file.write(tail_bytes)
    file.write(graph_tail + after.SerializeToString())


def _field_head(message: Any, name: str, size: int) -> bytes:
    """Return what protobuf writes before the bytes of a field: its number and type, and its size."""
    head = bytearray()
    for number in (message.DESCRIPTOR.fields_by_name[name].number << 3 | 2, size):
        while number > 0x7F:
            head.append(number & 0x7F | 0x80)
            number >>= 7
        head.append(number)
    return bytes(head)


def model_bytes(model: onnx.ModelProto) -> int:
    """The approximate size of a model once serialized, computed from the shapes of its weights."""
    tensors = [*walk.tensors(model)]
    sizes = [copying.expected_bytes(tensor) or 0 for tensor in tensors]
    if sum(sizes) <= _MANY_BYTES and not any(map(external.is_anchored, tensors)):
        return copying.message_bytes(model)
    bare = copying.copy_model(model, copying.put_small(_SHAPE_BYTES))
    total = copying.message_bytes(bare)
    for tensor, size in zip(tensors, sizes):
        if size > _SHAPE_BYTES and (not external.is_external(tensor) or external.is_anchored(tensor)):
            total += size if tensor.HasField("raw_data") or tensor.external_data else copying.message_bytes(tensor)
    return total
