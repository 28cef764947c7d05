"""A model as the rest of trtops passes it around: checked, described, and known by the digest of its content."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtops import errors
from trtops.backend.onnx import copying, external, walk
from trtops.backend.onnx.bare import read_bare
from trtops.backend.onnx.messages import TensorProto
from trtops.backend.onnx.parsing import read_proto
from trtops.metadata import DataType, Dim, TensorSpec

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

    from trtops.spec import ModelInfo

_DIGEST_FORMAT = b"trtops model digest 1\n"


@dataclass(frozen=True)
class Model:
    """An ONNX model on disk or in memory, checked, with its digest.

    Make one with :meth:`load` or :meth:`from_proto`. A model from disk keeps no weights in memory; they are read, and
    checked against the digest, whenever :meth:`proto` is called.

    Attributes:
        info: Name, digest, inputs, outputs, opset and number of nodes.
        path: The model file, absolute; None for a model in memory.
    """

    info: ModelInfo
    path: Path | None = None
    _content: onnx.ModelProto | None = field(default=None, repr=False, compare=False)

    @classmethod
    def load(cls, path: str | Path) -> Model:
        """Read, check and digest a model file, and the data files that it names.

        Args:
            path: An ONNX file; external data is looked for in its folder. At most one tensor of external data is
                read at a time, in blocks.

        Raises:
            InvalidModelError: If there is no such file, or it is no ONNX model, cut short, or contradicts itself.
            ExternalDataError: If external data is missing, too short, or outside the model's folder.
        """
        path = Path(path).absolute()
        content = read_proto(path)
        return cls(_model_info(content, path.stem, path.parent, f"{path}: "), path)

    @classmethod
    def from_proto(cls, proto: onnx.ModelProto, name: str = "model") -> Model:
        """Check and digest a model in memory.

        Args:
            proto: The model, with all its weights inside. It is copied, and stays the caller's.
            name: What to call it.

        Raises:
            InvalidModelError: If it contradicts itself.
            ExternalDataError: If it names data files; there is no folder to look for them in.
        """
        content = copying.copy_of(proto)
        return cls(_model_info(content, name, None, ""), None, content)

    @property
    def name(self) -> str:
        """What the model is called: its file's name without the ending."""
        return self.info.name

    def proto(self, *, lean: bool = False) -> onnx.ModelProto:
        """The model as a new message with all its weights inside; the caller's to change.

        Args:
            lean: Whether a model near 2 GiB and beyond keeps the weights that lie beside it in their files
                (:func:`trtops.backend.onnx.external.anchor`). They are read by :func:`raw_bytes` and
                :func:`tensor_array` one at a time, and the message can be serialized by
                :mod:`trtops.backend.onnx.save` alone.

        Raises:
            InvalidModelError: If the file no longer has the content that was loaded.
            ExternalDataError: If external data has gone, shrunk or moved out of the folder.
        """
        if self.path is None:
            assert self._content is not None
            return copying.copy_of(self._content)
        fresh = read_proto(self.path)
        if lean and is_large(fresh):
            external.anchor(fresh, self.path.parent)
        else:
            external.load_external_data(fresh, self.path.parent)
        found = model_digest(fresh)
        if found != self.info.sha256:
            raise errors.InvalidModelError(
                f"{self.path} changed since it was loaded: its content has digest {found[:12]}, expected "
                f"{self.info.sha256[:12]}. Load it again to use what is there now."
            )
        return fresh

    def structure(self) -> onnx.ModelProto:
        """The model without its large weights, which cannot be run: graphs, nodes, types and shapes. Not to be changed.

        Raises:
            InvalidModelError: If the model file cannot be read any more.
        """
        if self.path is None:
            assert self._content is not None
            return self._content
        return read_bare(self.path).model

    def files(self) -> tuple[Path, ...]:
        """The model file, then its data files sorted by name; empty for a model in memory.

        Raises:
            InvalidModelError: If the model file cannot be read any more.
            ExternalDataError: If a data file cannot be found any more.
        """
        if self.path is None:
            return ()
        folder = self.path.parent
        outside = (t for t in walk.tensors(read_proto(self.path)) if external.is_external(t))
        return (self.path, *sorted({external.locate(tensor, folder).path for tensor in outside}))


def model_digest(model: onnx.ModelProto, folder: Path | None = None) -> str:
    """SHA-256 of what a model computes, as 64 hexadecimal digits.

    Covers every name, attribute, shape, operator set and weight. Weights count by their bytes, wherever and however
    they are stored. Who made the model, documentation strings and metadata properties do not count. Each tensor is
    hashed by itself, so no more than one is held beside the model.

    Args:
        model: The model; not changed.
        folder: Where external data lies.

    Raises:
        InvalidModelError: If a tensor has not the bytes that its shape asks for.
        ExternalDataError: If external data is missing, short or outside the folder, or there is no folder.
    """
    import hashlib

    def put_digest(tensor: onnx.TensorProto, target: onnx.TensorProto) -> None:
        copying.copy_header(tensor, target)
        target.raw_data = tensor_digest(tensor, folder)

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
    return hashlib.sha256(_DIGEST_FORMAT + bare.SerializeToString(deterministic=True)).hexdigest()


def _clear_comments(message: Any, *fields: str) -> None:
    """Clear comments, and the fields named."""
    for name in ("doc_string", "metadata_props", *fields):
        message.ClearField(name)


def tensor_digest(tensor: onnx.TensorProto, folder: Path | None = None) -> bytes:
    """SHA-256 of a tensor's elements as ONNX stores them raw (32 bytes); arguments and errors as :func:`model_digest`."""
    import hashlib

    sha = hashlib.sha256()
    if external.is_external(tensor):
        for block in external.locate(tensor, folder).blocks():
            sha.update(block)
    elif tensor.data_type == TensorProto.STRING:
        for text in tensor.string_data:
            sha.update(len(text).to_bytes(8, "little"))
            sha.update(text)
    else:
        sha.update(raw_bytes(tensor))
    return sha.digest()


_LARGE_BYTES = (1 << 31) - (1 << 26)  # what protobuf can hold, less room for everything but weights


def is_large(model: onnx.ModelProto, *, widened: bool = False) -> bool:
    """Whether a model's weights take it near what one protobuf message can hold, 2 GiB.

    Counts by shapes: a message's own ``ByteSize`` writes all of it out to measure it, and raises beyond 2 GiB.

    Args:
        model: The model.
        widened: Whether 16-bit weights count as much as they take in FP32.
    """
    low = (TensorProto.FLOAT16, TensorProto.BFLOAT16) if widened else ()
    sizes = ((external.expected_bytes(tensor) or 0, tensor.data_type in low) for tensor in walk.tensors(model))
    return sum(size << doubled for size, doubled in sizes) > _LARGE_BYTES


def is_lean(model: onnx.ModelProto) -> bool:
    """Whether weights of a model in memory lie in files; see :meth:`Model.proto`."""
    return any(map(external.is_anchored, walk.tensors(model)))


def tensor_array(tensor: onnx.TensorProto) -> NDArray[Any]:
    """A tensor's values, wherever they are; to be read, not changed.

    Raises:
        InvalidModelError: If their number does not fit the shape.
        ExternalDataError: If they lie in a file, and the tensor is not anchored or the file is gone.
    """
    from onnx import numpy_helper

    if not external.is_external(tensor):
        array: NDArray[Any] = numpy_helper.to_array(tensor)
        return array
    inside = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, raw_data=raw_bytes(tensor))
    array = numpy_helper.to_array(inside)
    return array


def raw_bytes(tensor: onnx.TensorProto) -> bytes:
    """A tensor's elements as ONNX stores them raw (little-endian, in C order, small types packed).

    Raises:
        InvalidModelError: If their number does not fit the shape.
        ExternalDataError: If they lie in a file, and the tensor is not anchored or the file is gone.
    """
    if external.is_external(tensor):
        return external.locate(tensor).read()
    expected = external.expected_bytes(tensor)
    raw: bytes = tensor.raw_data
    if not tensor.HasField("raw_data"):
        from onnx import numpy_helper  # takes a while to import, and most weights are stored raw

        try:
            raw = numpy_helper.from_array(numpy_helper.to_array(tensor)).raw_data
        except (ValueError, TypeError, KeyError) as exc:
            raise errors.InvalidModelError(f"Tensor {tensor.name!r} of shape {tuple(tensor.dims)}: {exc}.") from None
    if expected is not None and len(raw) != expected:
        raise errors.InvalidModelError(
            f"Tensor {tensor.name!r} of shape {tuple(tensor.dims)} has {len(raw)} bytes; expected {expected}."
        )
    return raw


def _model_info(model: onnx.ModelProto, name: str, folder: Path | None, where: str) -> ModelInfo:
    """Check a model and sum it up; messages begin with ``where``."""
    try:
        check_structure(model)
        sha256 = model_digest(model, folder)
    except errors.ModelError as exc:
        raise type(exc)(f"{where}{exc}") from None
    from trtops.spec import ModelInfo  # whoever only reads a file needs none

    constants = walk.initializer_names(model.graph)
    return ModelInfo(
        name=name,
        sha256=sha256,
        inputs=tuple(tensor_spec(value) for value in model.graph.input if value.name not in constants),
        outputs=tuple(tensor_spec(value) for value in model.graph.output),
        opset=walk.opset(model),
        nodes=len(model.graph.node),
    )


def tensor_spec(value: onnx.ValueInfoProto) -> TensorSpec:
    """Name, dtype and shape of an ONNX value, of an optional tensor's too; what is not declared, or is no tensor, stays None."""
    kind = value.type.optional_type.elem_type if value.type.HasField("optional_type") else value.type
    if not kind.HasField("tensor_type"):
        return TensorSpec(value.name)
    tensor_type = kind.tensor_type
    shape = tuple(map(_declared_dim, tensor_type.shape.dim)) if tensor_type.HasField("shape") else None
    return TensorSpec(value.name, data_type(tensor_type.elem_type), shape)


def _declared_dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    if dim.HasField("dim_value"):
        return dim.dim_value if dim.dim_value >= 0 else None
    return dim.dim_param or None


_RENAMED = {"FLOAT": "FLOAT32", "DOUBLE": "FLOAT64", "FLOAT4E2M1": "FLOAT4"}


def data_type(element: int) -> DataType | None:
    """The data type of an ONNX element type; None if undefined, or one that no back end of ours has."""
    try:
        name = TensorProto.DataType.Name(element)
    except ValueError:
        return None
    return DataType.__members__.get(_RENAMED.get(name, name))


def check_structure(model: onnx.ModelProto) -> None:
    """Check what every back end takes for granted: names defined once and before use, weights of the right size.

    Nodes may stand in any order that can be sorted. Whether an operator exists is for the back end to say.

    Raises:
        InvalidModelError: At the first contradiction, naming node and tensor.
    """
    if not model.graph.output:
        raise errors.InvalidModelError("The model has no outputs.")
    _check_graph(model.graph, frozenset())
    for tensor in walk.tensors(model):
        if not external.is_external(tensor):
            raw_bytes(tensor)


def _check_graph(graph: onnx.GraphProto, outer: frozenset[str]) -> None:
    defined = {value.name for value in graph.input} | walk.initializer_names(graph)
    _check_unique("input", [value.name for value in graph.input])
    _check_unique("initializer", [tensor.name for tensor in graph.initializer])
    for node in graph.node:
        if not node.op_type:
            raise errors.InvalidModelError(f"{walk.label(node)}: a node without an operator type.")
        for name in filter(None, node.output):
            if name in defined:
                raise errors.InvalidModelError(f"{walk.label(node)} makes {name!r}, which is defined twice.")
            defined.add(name)
    known = outer | defined
    for node in graph.node:
        for name in filter(None, node.input):
            if name not in known:
                raise errors.InvalidModelError(f"{walk.label(node)} reads {name!r}, which nothing makes.")
        for body in walk.subgraphs(node):
            _check_graph(body, known)
    for value in graph.output:
        if value.name not in known:
            raise errors.InvalidModelError(f"Output {value.name!r} is made by nothing.")
    walk.execution_order(graph.node)


def _check_unique(kind: str, names: Sequence[str]) -> None:
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise errors.InvalidModelError(f"The graph has two {kind}s named {twice!r}.")
