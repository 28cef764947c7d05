"""Writing models: whole or not at all, with weights inside the file or beside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

import onnx

from trtops import errors
from trtops.backend.common import open_atomically
from trtops.backend.onnx import copying, external, walk, wire
from trtops.backend.onnx.model import is_lean, raw_bytes
from trtops.files import FilesTogether, replaced_together

PROTOBUF_LIMIT = (1 << 31) - (1 << 20)
"""Bytes of a message that protobuf still serializes, with a little to spare."""

_SHAPE_BYTES = 1024


def serialize(model: onnx.ModelProto) -> bytes:
    """The bytes of a model.

    Raises:
        InvalidModelError: If it is too large for one protobuf message.
    """
    size = model_bytes(model)
    if size >= PROTOBUF_LIMIT:
        raise errors.InvalidModelError(
            f"The model has {size / 2**30:.2f} GiB; a serialized model holds at most 2 GiB. Save it with external data."
        )
    data: bytes = with_weights(model).SerializeToString()
    return data


def serialize_lean(model: onnx.ModelProto) -> bytes:
    """The bytes of a lean model (:meth:`trtops.backend.onnx.model.Model.proto`), whose weights stay in their files.

    The files are named as seen from the root folder, ``/``: that is what a reader must take for the model's own.

    Raises:
        InvalidModelError: If what is inside it is more than a message holds.
        ExternalDataError: If a file of weights is gone.
    """

    def put(tensor: onnx.TensorProto, target: onnx.TensorProto) -> None:
        if not external.is_anchored(tensor):
            target.CopyFrom(tensor)
            return
        found = external.locate(tensor)
        copying.copy_header(tensor, target)
        external.put_place(target, found.path.as_posix().lstrip("/"), found.offset, found.length)

    bare = copying.copy_model(model, put)
    if copying.message_bytes(bare) >= PROTOBUF_LIMIT:
        raise errors.InvalidModelError(
            "The model holds more than 2 GiB beside the weights that lie in files. Save it and load it again."
        )
    data: bytes = bare.SerializeToString()
    return data


def with_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model with all weights inside: itself, or a copy of a lean one (:meth:`trtops.backend.onnx.model.Model.proto`)."""
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
    """Write a model file, and data files beside it where asked for or needed. The model is not changed.

    Args:
        model: The model, with all weights inside.
        path: Where to write; the folder is made if there is none, and files that are there already are replaced.
        external_data_path: A path inside the model's folder for the weights; ``""`` takes the model file's name with
            ``.data`` behind it. With a file for each tensor it is the folder of these files. None keeps the weights
            in the model file, as long as protobuf can hold them.
        size_threshold: Tensors with fewer bytes than this stay in the model file; so do integer vectors of up to
            1 KiB, which may be shapes.
        all_tensors_to_one_file: Whether all tensors share one data file.

    Raises:
        ExternalDataError: If ``external_data_path`` leads out of the model's folder.
        OSError: If a file cannot be written.
    """
    path = Path(path)
    if external_data_path is None:
        if model_bytes(model) < PROTOBUF_LIMIT:
            with open_atomically(path) as file:
                _write_model(with_weights(model), file)
            return
        external_data_path = ""
    location = external_data_path or (f"{path.name}.data" if all_tensors_to_one_file else ".")
    if not (path.parent / location).resolve().is_relative_to(path.parent.resolve()):
        raise errors.ExternalDataError(
            f"External data path {external_data_path!r} leads out of the model's folder; give one relative to {path.parent}."
        )
    with replaced_together(path) as files:
        if all_tensors_to_one_file:
            with files.open(path.parent / location) as file:
                bare = copying.copy_model(model, _put_outside(_OneFile(file, Path(location)), size_threshold))
        else:
            numbered = _NumberedFiles(files, path.parent, Path(location))
            bare = copying.copy_model(model, _put_outside(numbered, size_threshold))
        with files.open(path) as file:
            _write_model(bare, file)


def _write_model(model: onnx.ModelProto, file: IO[bytes]) -> None:
    for piece in _model_pieces(model):
        file.write(piece)


def _model_pieces(model: onnx.ModelProto) -> Iterator[bytes]:
    """The bytes of a model, weight by weight, since serializing it at once would hold all weights twice."""
    rest, graph = onnx.ModelProto(), onnx.GraphProto()
    copying.copy_fields(model, rest, without=("graph",))
    copying.copy_fields(model.graph, graph, without=("initializer",))
    heads = [_tensor_head(tensor) for tensor in model.graph.initializer]
    graph_bytes = graph.SerializeToString()
    lengths = [len(head) + len(tensor.raw_data) for head, tensor in zip(heads, model.graph.initializer)]
    number = wire.number(onnx.GraphProto, "initializer")
    total = len(graph_bytes) + sum(len(wire.sized(number, length)) + length for length in lengths)
    if total >= PROTOBUF_LIMIT:
        raise errors.InvalidModelError(
            f"The model has {total / 2**30:.2f} GiB without what can be external; a model file holds at most 2 GiB."
        )
    yield rest.SerializeToString() + wire.sized(wire.number(onnx.ModelProto, "graph"), total)
    yield graph_bytes
    for head, length, tensor in zip(heads, lengths, model.graph.initializer):
        yield wire.sized(number, length) + head
        if tensor.HasField("raw_data"):
            yield tensor.raw_data


def model_bytes(model: onnx.ModelProto) -> int:
    """About the bytes of a model once serialized, told by the shapes of its weights."""
    bare = copying.copy_model(model, copying.put_small(_SHAPE_BYTES))
    return copying.message_bytes(bare) + sum(map(_large_bytes, walk.tensors(model)))


def _large_bytes(tensor: onnx.TensorProto) -> int:
    """The bytes of a tensor's values, if it is among those that :func:`copying.put_small` leaves out; or else 0."""
    size = external.expected_bytes(tensor)
    if size is None or size <= _SHAPE_BYTES:
        return 0
    if external.is_external(tensor):
        return size if external.is_anchored(tensor) else 0
    return size if tensor.HasField("raw_data") else copying.message_bytes(tensor)


def _tensor_head(tensor: onnx.TensorProto) -> bytes:
    """The bytes of a tensor as far as its raw data, which comes last."""
    if not tensor.HasField("raw_data"):
        whole: bytes = tensor.SerializeToString()
        return whole
    head = onnx.TensorProto()
    copying.copy_fields(tensor, head, without=("raw_data",))
    raw_data = wire.sized(wire.number(onnx.TensorProto, "raw_data"), len(tensor.raw_data))
    return bytes(head.SerializeToString() + raw_data)


class _DataFiles(Protocol):
    """Where weights are written outside the model file."""

    def write(self, data: bytes) -> tuple[Path, int]:
        """Write one weight; returns its file, relative to the model's folder, and its place in it."""
        ...


@dataclass
class _OneFile:
    """One file that holds all weights, one behind the other."""

    file: IO[bytes]
    location: Path

    def write(self, data: bytes) -> tuple[Path, int]:
        self.file.write(bytes(-self.file.tell() % external.ALIGNMENT))
        offset = self.file.tell()
        self.file.write(data)
        return self.location, offset


@dataclass
class _NumberedFiles:
    """A file for each weight, named by a number, since tensor names need not be file names."""

    files: FilesTogether
    folder: Path
    location: Path
    count: int = 0

    def write(self, data: bytes) -> tuple[Path, int]:
        location = self.location / f"tensor_{self.count:06}.bin"
        self.count += 1
        with self.files.open(self.folder / location) as file:
            file.write(data)
        return location, 0


def _put_outside(files: _DataFiles, threshold: int) -> copying.PutTensor:
    """Writes the bytes of large tensors to data files, and refers to them; keeps the others."""

    def put(tensor: onnx.TensorProto, target: onnx.TensorProto) -> None:
        data = _external_bytes(tensor, threshold)
        if data is None:
            target.CopyFrom(tensor)
            if external.is_external(target):
                external.load(target)
            return
        location, offset = files.write(data)
        copying.copy_header(tensor, target)
        target.doc_string = tensor.doc_string
        external.put_place(target, location.as_posix(), offset, len(data))

    return put


def _external_bytes(tensor: onnx.TensorProto, threshold: int) -> bytes | None:
    """The bytes to write outside the model file, or None for a tensor that stays."""
    if external.is_external(tensor) and not external.is_anchored(tensor):
        raise errors.ExternalDataError(
            f"Tensor {tensor.name!r} has its data in another file; load it before saving the model elsewhere."
        )
    # Shape inference may want small integer vectors, and neither ONNX's nor ONNX Runtime's reads other files.
    may_be_shape = tensor.data_type in (onnx.TensorProto.INT64, onnx.TensorProto.INT32) and len(tensor.dims) <= 1
    size = external.expected_bytes(tensor)
    if size is None or size < max(threshold, 1) or (may_be_shape and size <= _SHAPE_BYTES):
        return None
    return raw_bytes(tensor)
