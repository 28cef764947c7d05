"""ONNX models: loading, checks, descriptions, changes and saving. Importing needs only ``onnx``.

The names below are imported on first use, since many tools need only one module of this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtops.lazy import exports

if TYPE_CHECKING:
    from trtops.backend.onnx.loader import BytesFromOnnx as BytesFromOnnx
    from trtops.backend.onnx.loader import ConvertToFp16 as ConvertToFp16
    from trtops.backend.onnx.loader import ExtractSubgraph as ExtractSubgraph
    from trtops.backend.onnx.loader import FoldConstants as FoldConstants
    from trtops.backend.onnx.loader import GsFromOnnx as GsFromOnnx
    from trtops.backend.onnx.loader import InferShapes as InferShapes
    from trtops.backend.onnx.loader import ModifyOutputs as ModifyOutputs
    from trtops.backend.onnx.loader import OnnxFromBytes as OnnxFromBytes
    from trtops.backend.onnx.loader import OnnxFromPath as OnnxFromPath
    from trtops.backend.onnx.loader import OnnxFromTfGraph as OnnxFromTfGraph
    from trtops.backend.onnx.loader import SaveOnnx as SaveOnnx
    from trtops.backend.onnx.loader import SetUpperBound as SetUpperBound
    from trtops.backend.onnx.loader import bytes_from_onnx as bytes_from_onnx
    from trtops.backend.onnx.loader import convert_to_fp16 as convert_to_fp16
    from trtops.backend.onnx.loader import extract_subgraph as extract_subgraph
    from trtops.backend.onnx.loader import fold_constants as fold_constants
    from trtops.backend.onnx.loader import gs_from_onnx as gs_from_onnx
    from trtops.backend.onnx.loader import infer_shapes as infer_shapes
    from trtops.backend.onnx.loader import modify_outputs as modify_outputs
    from trtops.backend.onnx.loader import onnx_from_bytes as onnx_from_bytes
    from trtops.backend.onnx.loader import onnx_from_path as onnx_from_path
    from trtops.backend.onnx.loader import onnx_from_tf_graph as onnx_from_tf_graph
    from trtops.backend.onnx.loader import save_onnx as save_onnx
    from trtops.backend.onnx.loader import set_upper_bound as set_upper_bound
    from trtops.backend.onnx.model import Model as Model

__getattr__, __dir__ = exports(__name__)
