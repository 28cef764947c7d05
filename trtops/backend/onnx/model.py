"""The model type of trtops: parsed, checked, described, and identified by its digest."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from trtops import errors
from trtops.backend.onnx import copying, external, walk
from trtops.backend.onnx.hostile import MAX_NODES, bad_divisors, check_inlined_size
from trtops.backend.onnx.messages import ModelProto, TensorProto
from trtops.metadata import DataType, Dim, TensorSpec
from trtops.record import sha256
from trtops.system.files import read_regular
from trtops.system.limits import time_limit, too_slow

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

    from trtops.spec import ModelInfo


_DIGEST_FORMAT = b"trtops model digest 1\n"
# Larger tensors are not part of a model's structure; shapes, axes and indices are.
_STRUCTURE_BYTES = 16 << 10
# A file system may give two changes the same time if less than this many seconds lie between them.
_CLOCK_SECONDS = 2.0


@dataclass(frozen=True)
class Model:
    """An ONNX model on disk or in memory, checked, with its digest. Created by :meth:`load` or :meth:`from_proto`.

    The weights of a model on disk are not kept in memory. They are read whenever :meth:`proto` is called, and compared
    with the digest if the status of a file has changed.
    """

    info: ModelInfo
    path: Path | None = None  # absolute; None for a model in memory
    _content: onnx.ModelProto | None = field(default=None, repr=False, compare=False)
    _data_files: tuple[Path, ...] = field(default=(), repr=False, compare=False)
    # Of each file; see is_unchanged().
    _status: tuple[tuple[int, ...], ...] = field(default=(), repr=False, compare=False)

    @classmethod
    def load(cls, path: str | Path | Model) -> Model:
        """Read, check and digest a model file and its data files, all in one folder; a loaded model is returned."""
        if isinstance(path, Model):
            return path
        begin, path = time.time(), Path(path).absolute()
        content = read_proto(path)
        info = _model_info(content, path.stem, path.parent, f"{path}: ")
        tensors = filter(external.is_external, walk.tensors(content))
        data = tuple(sorted({external.locate(tensor, path.parent).path for tensor in tensors}))
        structure = copying.copy_model(content, copying.put_small(_STRUCTURE_BYTES))
        return cls(info, path, structure, data, _status_before(begin, (path, *data)))

    @classmethod
    def from_proto(cls, proto: onnx.ModelProto, name: str = "model") -> Model:
        """Check, digest and copy a model in memory; all its weights must be inside."""
        content = copying.copy_of(proto)
        return cls(_model_info(content, name, None, ""), None, content)

    @property
    def name(self) -> str:
        """The model's name; by default the file's name without the extension."""
        return self.info.name

    @property
    def source(self) -> str:
        """What commands name: the model's file."""
        return str(self.path or "")

    def proto(self, *, lean: bool = False) -> onnx.ModelProto:
        """Return the model as a new message with all its weights inside; callers may change it.

        With ``lean``, external weights of a model near or above 2 GiB stay in their files
        (:func:`trtops.backend.onnx.external.anchor`): :func:`tensor_array` reads them one at a time, and only
        :mod:`trtops.backend.onnx.save` can serialize the message. InvalidModelError if the file has changed.
        """
        if self.path is None:
            assert self._content is not None
            return copying.copy_of(self._content)
        fresh = read_proto(self.path)
        if lean and is_large(fresh):
            external.anchor(fresh, self.path.parent)
        else:
            external.load_external_data(fresh, self.path.parent)
        if not self.is_unchanged() and (current_digest := model_digest(fresh)) != self.info.sha256:
            raise errors.InvalidModelError(
                f"{self.path} changed since it was loaded: its digest is {current_digest[:12]}, expected "
                f"{self.info.sha256[:12]}"
            )
        return fresh

    def is_unchanged(self) -> bool:
        """Whether no file was written since before :meth:`load`; False if only reading them could show it.

        Writes of another process through a memory map may show late, since the system sets the time of a file then.
        """
        return bool(self._status) and self._status == _status_before(time.time(), self.files())

    def structure(self) -> onnx.ModelProto:
        """The model as loaded, possibly without large weights: graphs, nodes, types and shapes. Must not be changed."""
        assert self._content is not None
        return self._content

    def files(self) -> tuple[Path, ...]:
        """The model file, then its data files sorted by name; empty for a model in memory."""
        return () if self.path is None else (self.path, *self._data_files)


def _status_before(begin: float, files: Sequence[Path]) -> tuple[tuple[int, ...], ...]:
    """Return the status of each file; empty if one was changed after or shortly before ``begin`` (``time.time()``)."""
    try:
        statuses = [file.stat() for file in files]
    except OSError:
        return ()
    if max(max(status.st_mtime, status.st_ctime) for status in statuses) > begin - _CLOCK_SECONDS:
        return ()
    return tuple((s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for s in statuses)


def model_digest(model: onnx.ModelProto, folder: Path | None = None) -> str:
    """Return the SHA-256 of a model's computation, as 64 hexadecimal digits.

    It covers every name, attribute, shape, operator set and weight, but no producers, comments and metadata properties.
    External data is read from ``folder``, one block at a time, within the time limit (InvalidModelError).
    """
    end = time.monotonic() + time_limit()

    def put_digest(tensor: onnx.TensorProto, target: onnx.TensorProto) -> None:
        # By their bytes, so that a weight counts the same whether it is inside, outside or in a typed field.
        copying.copy_header(tensor, target)
        target.raw_data = _tensor_digest(tensor, folder, end)

    bare = copying.copy_model(model, put_digest)
    _clear_comments(bare, "producer_name", "producer_version", "model_version", "domain", "training_info")
    bare.opset_import.sort(key=lambda o: (o.domain, o.version))
    for graph in walk.graphs(bare.graph):
        _clear_comments(graph)
        for value in (*graph.input, *graph.output, *graph.value_info):
            _clear_comments(value)
    for node in walk.nodes(bare):
        _clear_comments(node)
        for attribute in node.attribute:
            attribute.ClearField("doc_string")
        if len(node.attribute) > 1:
            node.attribute.sort(key=lambda a: a.name)
    for function in bare.functions:
        _clear_comments(function)
    return sha256(_DIGEST_FORMAT + bare.SerializeToString(deterministic=True))


def _clear_comments(message: Any, *others: str) -> None:
    for name in ("doc_string", "metadata_props", *others):
        message.ClearField(name)


def _tensor_digest(tensor: onnx.TensorProto, folder: Path | None, end: float) -> bytes:
    """Return the SHA-256 of a tensor's raw elements (32 bytes), read until ``end`` (``time.monotonic()``)."""
    import hashlib

    sha = hashlib.sha256()
    if external.is_external(tensor):
        for block in external.locate(tensor, folder).blocks():
            sha.update(block)
            if time.monotonic() > end:  # a sparse file of any size takes no room
                activity = f"Reading the external data of tensor {tensor.name!r}"
                raise errors.InvalidModelError(too_slow(activity, time_limit()))
    elif tensor.data_type == TensorProto.STRING:
        for text in tensor.string_data:
            sha.update(len(text).to_bytes(8, "little"))
            sha.update(text)
    else:
        sha.update(raw_bytes(tensor))
    return sha.digest()


PROTOBUF_BYTES = 1 << 31
# Protobuf's limit, less a margin for everything but weights.
_LARGE_BYTES = PROTOBUF_BYTES - (1 << 26)


def is_large(model: onnx.ModelProto, *, widened: bool = False) -> bool:
    """Whether a model's weights are near or above 2 GiB; ``widened`` counts 16-bit weights as if they were FP32."""
    # Computed from shapes: a message's own ``ByteSize`` serializes it, and raises above 2 GiB.
    low = (TensorProto.FLOAT16, TensorProto.BFLOAT16) if widened else ()
    total = 0
    for tensor in walk.tensors(model):
        total += (copying.expected_bytes(tensor) or 0) << (tensor.data_type in low)
    return total > _LARGE_BYTES


def is_lean(model: onnx.ModelProto) -> bool:
    """Whether weights of a model in memory are anchored to files; see :meth:`Model.proto`."""
    return any(map(external.is_anchored, walk.tensors(model)))


def tensor_array(tensor: onnx.TensorProto) -> NDArray[Any]:
    """A tensor's values, read-only, wherever they are stored; errors as in :func:`raw_bytes`."""
    from onnx import numpy_helper

    if external.is_external(tensor):
        dims, raw = tensor.dims, raw_bytes(tensor)
        tensor = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=dims, raw_data=raw)
    try:
        array: NDArray[Any] = numpy_helper.to_array(tensor)
    except (ValueError, TypeError, KeyError) as exc:
        raise errors.InvalidModelError(f"Tensor {tensor.name!r} of shape {tuple(tensor.dims)}: {exc}.") from None
    return array


def raw_bytes(tensor: onnx.TensorProto) -> bytes:
    """A tensor's raw elements: little-endian, in C order, small types packed.

    A weight that was removed has none. InvalidModelError if their number does not match the shape, or they are in a
    file elsewhere.
    """
    if external.is_external(tensor):
        return external.locate(tensor).read()
    if tensor.HasField("segment"):
        raise errors.InvalidModelError(f"Tensor {tensor.name!r} is a segment of a tensor, which no back end reads.")
    expected = 0 if external.is_stripped(tensor) else copying.expected_bytes(tensor)
    raw: bytes = tensor.raw_data
    if expected and not tensor.HasField("raw_data"):
        # Slow to import, and most weights have raw data.
        from onnx import numpy_helper

        raw = numpy_helper.from_array(tensor_array(tensor)).raw_data
    if expected is not None and len(raw) != expected:
        raise errors.InvalidModelError(
            f"Tensor {tensor.name!r} of shape {tuple(tensor.dims)} has {len(raw)} bytes; expected {expected}."
        )
    return raw


def _model_info(model: onnx.ModelProto, name: str, folder: Path | None, prefix: str) -> ModelInfo:
    """Check and describe a model; error messages begin with ``prefix``."""
    try:
        check_structure(model)
        digest = model_digest(model, folder)
    except errors.InvalidModelError as exc:
        raise type(exc)(f"{prefix}{exc}") from None
    # Slow to import, and not needed by commands that only parse a file.
    from trtops.spec import ModelInfo

    return ModelInfo(
        name=name,
        sha256=digest,
        inputs=tuple(input_specs(model.graph)),
        outputs=tuple(map(tensor_spec, model.graph.output)),
        opset=walk.opset(model),
        nodes=len(model.graph.node),
    )


def input_specs(graph: onnx.GraphProto) -> list[TensorSpec]:
    """Return the inputs of a graph to be fed: those without an initializer."""
    constants = walk.initializer_names(graph)
    return [tensor_spec(value) for value in graph.input if value.name not in constants]


def tensor_spec(value: onnx.ValueInfoProto) -> TensorSpec:
    """Return name, dtype and shape of an ONNX value or optional tensor; undeclared parts are None."""
    kind = value.type.optional_type.elem_type if value.type.HasField("optional_type") else value.type
    if not kind.HasField("tensor_type"):
        return TensorSpec(value.name)
    tensor_type = kind.tensor_type
    shape: tuple[Dim, ...] | None = None
    if tensor_type.HasField("shape"):
        shape = tuple(
            (dim.dim_value if dim.dim_value >= 0 else None) if dim.HasField("dim_value") else dim.dim_param or None
            for dim in tensor_type.shape.dim
        )
    return TensorSpec(value.name, data_type(tensor_type.elem_type), shape)


_DATATYPE_NAMES = {"FLOAT": "FLOAT32", "DOUBLE": "FLOAT64", "FLOAT4E2M1": "FLOAT4"}


def data_type(element: int) -> DataType | None:
    """The data type of an ONNX element type; None if it is undefined or not supported by any back end."""
    try:
        name = TensorProto.DataType.Name(element)
    except ValueError:
        return None
    return DataType.__members__.get(_DATATYPE_NAMES.get(name, name))


def check_structure(model: onnx.ModelProto) -> None:
    """Check the requirements of every back end: names defined once and before use, weights of the right size.

    Nodes may be in any order that can be sorted. InvalidModelError names the first problem.
    """
    if not model.graph.output:
        raise errors.InvalidModelError("The model has no outputs.")
    _check_graph(model.graph, frozenset())
    for tensor in walk.tensors(model):
        if not external.is_external(tensor):
            raw_bytes(tensor)
    for _, message in bad_divisors(walk.nodes(model)):
        raise errors.InvalidModelError(message)


def _check_graph(graph: onnx.GraphProto, outer: frozenset[str]) -> None:
    defined = walk.names_of(graph.input) | walk.initializer_names(graph)
    for kind, entries in (("input", graph.input), ("initializer", graph.initializer)):
        if len(entries) > len(walk.by_name(entries)):
            [(name, _)] = Counter(map(attrgetter("name"), entries)).most_common(1)
            raise errors.InvalidModelError(f"The graph has two {kind}s named {name!r}.")
    for node in graph.node:
        if not node.op_type:
            raise errors.InvalidModelError(f"{walk.label(node)}: a node without an operator type.")
        for name in filter(None, node.output):
            if name in defined:
                raise errors.InvalidModelError(f"{walk.label(node)} produces {name!r}, which is defined twice.")
            defined.add(name)
    visible = outer | defined
    for node in graph.node:
        for name in filter(None, node.input):
            if name not in visible:
                raise errors.InvalidModelError(f"{walk.label(node)} reads {name!r}, which no node produces.")
        for body in walk.subgraphs(node):
            _check_graph(body, visible)
    for value in graph.output:
        if value.name not in visible:
            raise errors.InvalidModelError(f"No node produces output {value.name!r}.")
    walk.execution_order(graph.node)


def read_proto(path: str | Path, *, need_opset: bool = True) -> onnx.ModelProto:
    """Parse a model file; external data is not loaded."""
    path = Path(path)
    if path.is_dir():
        raise errors.InvalidModelError(f"{path} is a folder; expected an ONNX file.")
    try:
        data = read_regular(path, PROTOBUF_BYTES)
    except FileNotFoundError:
        raise errors.InvalidModelError(f"{path} does not exist; expected an ONNX file.") from None
    except OSError as exc:
        raise errors.InvalidModelError(f"{path} cannot be read: {exc.strerror}.") from exc
    return parse_proto(data, f"{path}: ", need_opset)


def parse_proto(data: bytes, prefix: str = "", need_opset: bool = True) -> onnx.ModelProto:
    """Parse a serialized model; error messages begin with ``prefix``, such as ``"model.onnx: "``."""
    if not data:
        raise errors.InvalidModelError(f"{prefix}empty; expected an ONNX model.")
    if data[4:8] == b"ORTM":
        raise errors.InvalidModelError(
            f"{prefix}an ONNX Runtime (ORT format) model; expected the ONNX model it was made from."
        )
    try:
        model: onnx.ModelProto = ModelProto.FromString(data)
    except DecodeError:
        raise errors.InvalidModelError(
            f"{prefix}not an ONNX model, or truncated ({len(data)} bytes, beginning with {data[:8]!r})."
        ) from None
    # Every reader of a file is protected here: all tools that follow may inline functions.
    check_inlined_size(model, prefix)
    if not model.HasField("graph") or (need_opset and not model.opset_import):
        missing = "operator set" if model.HasField("graph") else "graph"
        raise errors.InvalidModelError(
            f"{prefix}has no {missing}: not an ONNX model, or truncated ({len(data)} bytes)."
        )
    try:
        "".join(map(attrgetter("domain"), model.opset_import))
        nodes = 0
        for graph in walk.graphs(model.graph):
            # Tools visit each node several times, in Python: two bytes in a file would take milliseconds.
            nodes += len(graph.node)
            if nodes > MAX_NODES:
                raise errors.InvalidModelError(f"{prefix}has {nodes:,} nodes; expected at most {MAX_NODES:,}.")
            # Joining all names of a graph fails if one is not text. Nothing else finds that out as fast.
            values = (*graph.input, *graph.output, *graph.value_info, *graph.initializer)
            "".join((graph.name, *map(attrgetter("name"), values)))
            for node in graph.node:
                "".join((node.name, node.op_type, node.domain, *node.input, *node.output))
                if node.attribute:
                    "".join(map(attrgetter("name"), node.attribute))
    # Protobuf returns text that is not UTF-8 as bytes, or raises an error.
    except (TypeError, UnicodeDecodeError):
        raise errors.InvalidModelError(f"{prefix}has names that are not text: not an ONNX model, or damaged.") from None
    return model
