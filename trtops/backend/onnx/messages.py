"""The messages of the ONNX format, without the rest of the ``onnx`` package.

``import onnx`` takes longer than reading most models: it brings numpy, the checker, the parser and more. Its messages
are in one generated module that needs protobuf alone, and tools that only look into a model load no more than that.
These are the classes that ``onnx`` itself has, whichever is imported first.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnx import (
        AttributeProto,
        FunctionProto,
        GraphProto,
        ModelProto,
        NodeProto,
        SparseTensorProto,
        TensorProto,
        TensorShapeProto,
        ValueInfoProto,
    )

__all__ = [
    "AttributeProto",
    "FunctionProto",
    "GraphProto",
    "ModelProto",
    "NodeProto",
    "SparseTensorProto",
    "TensorProto",
    "TensorShapeProto",
    "ValueInfoProto",
]


def _load_generated() -> Any:
    """The generated module without its package; or the ``onnx`` package, if it is loaded already or has to be."""
    from google.protobuf.internal import api_implementation  # type: ignore[import-untyped]

    package = importlib.util.find_spec("onnx")  # finds it without importing it
    # The C++ messages of protobuf 3 are other classes each time the module runs, all others the same.
    if "onnx" in sys.modules or package is None or api_implementation.Type() == "cpp":
        return importlib.import_module("onnx")
    found = importlib.machinery.PathFinder.find_spec("onnx.onnx_ml_pb2", package.submodule_search_locations)
    if found is None or found.loader is None:
        return importlib.import_module("onnx")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


if not TYPE_CHECKING:
    _module = _load_generated()
    globals().update({name: getattr(_module, name) for name in __all__})
