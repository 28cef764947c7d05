"""Reading a model file without its large weights, for tools to which their types and shapes are enough.

A model file is one message, its weights are messages among the fields of its graph, and each weight has its values in
one field, ``raw_data`` (``onnx.proto`` in the ONNX repository). Those that are large are skipped where they lie, and what
is left is parsed as any model is. With the first thing out of the ordinary the file is read whole, and is found good or
bad by what reads all others.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from trtops import errors
from trtops.backend.onnx import external, walk, wire
from trtops.backend.onnx.messages import GraphProto, ModelProto, TensorProto
from trtops.backend.onnx.parsing import parse_proto, read_proto

if TYPE_CHECKING:
    import onnx

SMALL_FILE = 8 << 20
"""Files with fewer bytes are read whole, which takes less time than finding one's way in them."""

LARGE = 16 << 10
"""Weights with more bytes than this are left out."""

WEIGHT_TYPES = frozenset(
    (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.INT8, TensorProto.UINT8)
)
"""Element types of weights that are left out; wider integers may be shapes or indices."""

_PLAIN_FIELDS = frozenset(("dims", "data_type", "name", "doc_string"))


@dataclass(frozen=True)
class Bare:
    """A model, and which of its weights are not there.

    Attributes:
        model: The model. Weights that were left out have name, type and shape, and claim to be in another file.
        left_out: Their names; all are initializers of the main graph, and no other initializer has such a name.
    """

    model: onnx.ModelProto
    left_out: frozenset[str] = frozenset()

    def tensors(self) -> Iterator[onnx.TensorProto]:
        """Every tensor in the model but those left out."""
        initializers = len(self.model.graph.initializer)
        for i, tensor in enumerate(walk.tensors(self.model)):  # which yields the initializers first
            if i >= initializers or tensor.name not in self.left_out:
                yield tensor


def read_bare(path: str | Path) -> Bare:
    """Read a model file without its large weights, each of which has as many bytes as its shape asks for.

    Raises:
        InvalidModelError: As :func:`~trtops.backend.onnx.parsing.read_proto` raises it.
    """
    try:
        if os.path.getsize(path) >= SMALL_FILE:
            with open(path, "rb") as file:
                return _read_large_file(file)
    except (OSError, UnicodeDecodeError, errors.FormatError, errors.InvalidModelError):
        pass  # whoever reads it whole says what is wrong with it, if anything is
    return Bare(read_proto(path))


def _read_large_file(file: BinaryIO) -> Bare:
    stop = os.fstat(file.fileno()).st_size
    graph_number = wire.number(ModelProto, "graph")
    left_out: list[str] = []
    pieces: list[bytes] = []
    for field in wire.fields(file, 0, stop):
        if field.number == graph_number and field.kind == wire.SIZED:
            graph = b"".join(_graph_pieces(file, field, left_out))
            pieces += [wire.sized(graph_number, len(graph)), graph]
        else:
            pieces.append(wire.read(file, field.start, field.stop))
    model = parse_proto(b"".join(pieces))
    names = Counter(tensor.name for tensor in model.graph.initializer)
    if any(names[name] != 1 for name in left_out):
        raise errors.InvalidModelError("Two weights have one name.")
    return Bare(model, frozenset(left_out))


def _graph_pieces(file: BinaryIO, graph: wire.Field, left_out: list[str]) -> Iterator[bytes]:
    """The bytes of a graph without the values of its large weights, whose names are added to ``left_out``."""
    number = wire.number(GraphProto, "initializer")
    begin = graph.content
    for field in wire.fields(file, graph.content, graph.stop):
        if field.number != number or field.kind != wire.SIZED or field.stop - field.content <= LARGE:
            continue
        tensor = _without_values(file, field)
        if tensor is not None:
            yield wire.read(file, begin, field.start)
            bare = tensor.SerializeToString()
            yield wire.sized(number, len(bare)) + bare
            left_out.append(tensor.name)
            begin = field.stop
    yield wire.read(file, begin, graph.stop)


def _without_values(file: BinaryIO, tensor: wire.Field) -> onnx.TensorProto | None:
    """A weight without its values; None for one that is to be kept as it is."""
    number = wire.number(TensorProto, "raw_data")
    found = list(wire.fields(file, tensor.content, tensor.stop))
    values = [field for field in found if field.number == number]
    if len(values) != 1 or values[0].kind != wire.SIZED:
        return None
    [raw] = values
    head = wire.read(file, tensor.content, raw.start) + wire.read(file, raw.stop, tensor.stop)
    try:
        bare: onnx.TensorProto = TensorProto.FromString(head)
    except DecodeError as exc:
        raise errors.FormatError(f"A weight cannot be parsed: {exc}.") from exc
    plain = {field.name for field, _ in bare.ListFields()} <= _PLAIN_FIELDS
    if not plain or not _can_be_left_out(bare) or external.expected_bytes(bare) != raw.stop - raw.content:
        return None
    external.mark_left_out(bare)
    return bare


def _can_be_left_out(tensor: onnx.TensorProto) -> bool:
    """Whether a tensor is a large weight; one with a dimension below 1 is not, nor is one without a name."""
    return (
        bool(tensor.name)
        and tensor.data_type in WEIGHT_TYPES
        and min(tensor.dims, default=0) > 0
        and (external.expected_bytes(tensor) or 0) > LARGE
    )


def load_external_data(bare: Bare, folder: Path) -> Bare:
    """Read what lies in other files into a model, but for its large weights, which are left out as well.

    Args:
        bare: A model whose file lies in ``folder``; changed in place.
        folder: Where its data files lie.

    Returns:
        The same model, and all that is left out of it now.

    Raises:
        ExternalDataError: If external data is missing, too short, cannot be read, or lies outside the folder.
    """
    initializers = bare.model.graph.initializer
    names = Counter(tensor.name for tensor in initializers)
    left_out = set(bare.left_out)
    for i, tensor in enumerate(walk.tensors(bare.model)):  # which yields the initializers first
        is_weight = i < len(initializers)
        if not external.is_external(tensor) or (is_weight and tensor.name in bare.left_out):
            continue
        if is_weight and names[tensor.name] == 1 and _can_be_left_out(tensor):
            next(external.locate(tensor, folder).blocks(at_most=1))
            external.mark_left_out(tensor)
            left_out.add(tensor.name)
        else:
            external.load(tensor, folder)
    return Bare(bare.model, frozenset(left_out))
