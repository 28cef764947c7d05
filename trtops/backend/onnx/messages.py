"""ONNX's protobuf messages, without importing the rest of the ``onnx`` package."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, ModelProto, TensorProto

__all__ = ["AttributeProto", "GraphProto", "ModelProto", "TensorProto"]


def _load_messages() -> Any:
    """Return the generated module alone, or the whole package if it is loaded already or needed."""
    from google.protobuf.internal import api_implementation  # type: ignore[import-untyped]

    # Importing ``onnx`` takes 50 ms of processor time, as long as all the rest of a short command. The generated
    # messages take 10 ms and are the classes that the package itself uses, whichever is imported first.
    package = importlib.util.find_spec("onnx")
    # With protobuf 3's C++ implementation the module makes new classes each time it runs.
    if "onnx" in sys.modules or package is None or api_implementation.Type() == "cpp":
        return importlib.import_module("onnx")
    spec = importlib.machinery.PathFinder.find_spec("onnx.onnx_ml_pb2", package.submodule_search_locations)
    if spec is None or spec.loader is None:
        return importlib.import_module("onnx")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if not TYPE_CHECKING:
    _module = _load_messages()
    globals().update({name: getattr(_module, name) for name in __all__})
