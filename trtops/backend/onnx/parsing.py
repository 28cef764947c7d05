"""Parsing of model files, with the checks that every reader needs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from trtops import errors
from trtops.backend.onnx import walk
from trtops.backend.onnx.hostile_models import check_inlined_size
from trtops.backend.onnx.messages import ModelProto

if TYPE_CHECKING:
    import onnx


def read_proto(path: str | Path) -> onnx.ModelProto:
    """Parse a model file; external data is not loaded."""
    path = Path(path)
    if path.is_dir():
        raise errors.InvalidModelError(f"{path} is a folder; expected an ONNX file.")
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise errors.InvalidModelError(f"{path} does not exist; expected an ONNX file.") from None
    except OSError as exc:
        raise errors.InvalidModelError(f"{path} cannot be read: {exc}.") from exc
    return parse_proto(data, f"{path}: ")


def parse_proto(data: bytes, where: str = "") -> onnx.ModelProto:
    """Parse a serialized model; error messages begin with ``where``, such as ``"model.onnx: "``."""
    if not data:
        raise errors.InvalidModelError(f"{where}empty; expected an ONNX model.")
    if data[4:8] == b"ORTM":
        raise errors.InvalidModelError(
            f"{where}an ONNX Runtime (ORT format) model; expected the ONNX model it was made from."
        )
    try:
        model: onnx.ModelProto = ModelProto.FromString(data)
    except DecodeError:
        raise errors.InvalidModelError(
            f"{where}not an ONNX model, or truncated ({len(data)} bytes, beginning with {data[:8]!r})."
        ) from None
    # Every reader of a file is protected here: all tools that follow may inline functions.
    check_inlined_size(model, where)
    if not model.HasField("graph") or not model.opset_import:
        missing = "operator set" if model.HasField("graph") else "graph"
        raise errors.InvalidModelError(f"{where}has no {missing}: not an ONNX model, or truncated ({len(data)} bytes).")
    try:
        "".join(opset.domain for opset in model.opset_import)
        for graph in walk.graphs(model.graph):
            # Joining all names of a graph fails if one is not text. Nothing else finds that out as fast.
            values = (*graph.input, *graph.output, *graph.value_info, *graph.initializer)
            "".join((graph.name, *[value.name for value in values]))
            for node in graph.node:
                "".join((node.name, node.op_type, node.domain, *node.input, *node.output))
                if node.attribute:
                    "".join([attribute.name for attribute in node.attribute])
    # Protobuf returns text that is not UTF-8 as bytes, or raises an error.
    except (TypeError, UnicodeDecodeError):
        raise errors.InvalidModelError(f"{where}has names that are not text: not an ONNX model, or damaged.") from None
    return model
