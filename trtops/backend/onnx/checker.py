"""ONNX's own checker, without the rest of the ``onnx`` package, which takes ten times as long to import."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

from trtops.backend.onnx.messages import ModelProto, TensorProto

if TYPE_CHECKING:
    from collections.abc import Iterable

    import onnx

_NODES_OWN = "Bad node spec for node"
_EXTENSION = "onnx.onnx_cpp2py_export"


def _load_checker() -> Any:
    """The checker's compiled module; by way of the package where it cannot be loaded without it."""
    if "onnx" not in sys.modules and _EXTENSION not in sys.modules:
        package = importlib.util.find_spec("onnx")
        folders = None if package is None else package.submodule_search_locations
        spec = importlib.machinery.PathFinder.find_spec(_EXTENSION, folders)
        if spec is not None and spec.loader is not None:
            module = importlib.util.module_from_spec(spec)
            sys.modules[_EXTENSION] = module  # where the package finds it, if it is imported later
            try:
                spec.loader.exec_module(module)
            except ImportError:
                del sys.modules[_EXTENSION]
    if _EXTENSION not in sys.modules:
        importlib.import_module("onnx.checker")
    return sys.modules[_EXTENSION].checker


def complaint(model: onnx.ModelProto, left_out: Iterable[str] = ()) -> str:
    """What ONNX's checker says of a model as a whole; nothing if it is content, or complains of a node.

    Args:
        model: The model, below 2 GiB; not changed.
        left_out: Initializers whose values are not there; they count as inputs.
    """
    missing = set(left_out)
    bare = ModelProto()
    bare.CopyFrom(model)
    del bare.graph.initializer[:]
    bare.graph.initializer.extend(t for t in model.graph.initializer if t.name not in missing)
    if bare.ir_version:
        bare.ir_version = max(bare.ir_version, 4)  # before, weights had to be inputs too, which nobody minds any more
    declared = {value.name for value in model.graph.input}
    for tensor in model.graph.initializer:
        if tensor.name in missing and tensor.name not in declared:
            kind = bare.graph.input.add(name=tensor.name).type.tensor_type
            kind.elem_type = tensor.data_type
            kind.shape.SetInParent()
            for size in tensor.dims:
                kind.shape.dim.add(dim_value=size)
    for value in bare.graph.output:
        _complete_type(value)
    checker = _load_checker()
    try:
        checker.check_model(bare.SerializeToString(), False, False, False)
    except checker.ValidationError as exc:
        text = str(exc).strip()
        return "" if _NODES_OWN in text else text
    return ""


def _complete_type(value: onnx.ValueInfoProto) -> None:
    """Fill in what may be left out of an output's declaration, though the checker asks for it."""
    if not value.type.WhichOneof("value"):
        value.type.tensor_type.elem_type = TensorProto.FLOAT
    if value.type.HasField("tensor_type") and not value.type.tensor_type.HasField("shape"):
        value.type.tensor_type.shape.dim.add()
