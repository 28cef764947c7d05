"""ONNX models: loaded, checked, described, changed and saved. Nothing here needs more than onnx to be imported.

The names below are found when they are asked for: many tools need one module of this package and not the rest.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trtops.backend.onnx.loader import (
        BytesFromOnnx,
        ConvertToFp16,
        ExtractSubgraph,
        FoldConstants,
        GsFromOnnx,
        InferShapes,
        ModifyOutputs,
        OnnxFromBytes,
        OnnxFromPath,
        OnnxFromTfGraph,
        SaveOnnx,
        SetUpperBound,
        bytes_from_onnx,
        convert_to_fp16,
        extract_subgraph,
        fold_constants,
        gs_from_onnx,
        infer_shapes,
        modify_outputs,
        onnx_from_bytes,
        onnx_from_path,
        onnx_from_tf_graph,
        save_onnx,
        set_upper_bound,
    )
    from trtops.backend.onnx.model import Model

__all__ = [
    "BytesFromOnnx",
    "ConvertToFp16",
    "ExtractSubgraph",
    "FoldConstants",
    "GsFromOnnx",
    "InferShapes",
    "Model",
    "ModifyOutputs",
    "OnnxFromBytes",
    "OnnxFromPath",
    "OnnxFromTfGraph",
    "SaveOnnx",
    "SetUpperBound",
    "bytes_from_onnx",
    "convert_to_fp16",
    "extract_subgraph",
    "fold_constants",
    "gs_from_onnx",
    "infer_shapes",
    "modify_outputs",
    "onnx_from_bytes",
    "onnx_from_path",
    "onnx_from_tf_graph",
    "save_onnx",
    "set_upper_bound",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "model" if name == "Model" else "loader"
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
