"""ONNX models: loading, checks, descriptions, changes and saving. Importing needs only ``onnx``.

The names below are imported on first use, since many tools need only one module of this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtops.lazy import exports

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
        save_onnx,
        set_upper_bound,
    )
    from trtops.backend.onnx.model import Model

__getattr__, __dir__ = exports(__name__)
