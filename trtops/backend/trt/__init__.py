"""The TensorRT back end, under the names of the field's tool. TensorRT itself is imported when something is made.

Where TensorRT is missing, importing this package works; what needs it raises ``BackendUnavailableError``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trtops.backend.trt.builder import TensorRTBackend
    from trtops.backend.trt.calibrator import Calibrator
    from trtops.backend.trt.config import (
        CreateConfig,
        CreateConfigRTX,
        PostprocessConfig,
        create_config,
        create_config_rtx,
        postprocess_config,
    )
    from trtops.backend.trt.device import Gpu, current_gpu
    from trtops.backend.trt.engine import (
        BufferFromEngine,
        BytesFromEngine,
        EngineBytesFromNetwork,
        EngineFromBytes,
        EngineFromNetwork,
        EngineFromPath,
        LoadPlugins,
        LoadRuntime,
        OnnxLikeFromNetwork,
        SaveEngine,
        buffer_from_engine,
        bytes_from_engine,
        engine_bytes_from_network,
        engine_from_bytes,
        engine_from_network,
        engine_from_path,
        load_plugins,
        load_runtime,
        onnx_like_from_network,
        refit_engine,
        save_engine,
    )
    from trtops.backend.trt.formats import FormattedArray
    from trtops.backend.trt.inspector import audit_precision, describe_engine, describe_network
    from trtops.backend.trt.library import get_trt_logger
    from trtops.backend.trt.network import (
        CreateNetwork,
        MarkDebug,
        ModifyNetworkOutputs,
        NetworkFromOnnxBytes,
        NetworkFromOnnxPath,
        PostprocessNetwork,
        SetDecomposableAttentions,
        SetLayerPrecisions,
        SetTensorDatatypes,
        SetTensorFormats,
        create_network,
        mark_debug,
        modify_network_outputs,
        network_from_onnx_bytes,
        network_from_onnx_path,
        postprocess_network,
        set_decomposable_attentions,
        set_layer_precisions,
        set_tensor_datatypes,
        set_tensor_formats,
    )
    from trtops.backend.trt.profile import Profile, ShapeTuple
    from trtops.backend.trt.runner import TrtRunner
    from trtops.backend.trt.support import support_table
    from trtops.backend.trt.tactics import Algorithm, TacticRecorder, TacticReplayData, TacticReplayer, TensorInfo

_MODULES = {
    "builder": ("TensorRTBackend",),
    "calibrator": ("Calibrator",),
    "config": (
        "CreateConfig", "CreateConfigRTX", "PostprocessConfig", "create_config", "create_config_rtx", "postprocess_config",
    ),
    "device": ("Gpu", "current_gpu"),
    "engine": (
        "BufferFromEngine", "BytesFromEngine", "EngineBytesFromNetwork", "EngineFromBytes", "EngineFromNetwork",
        "EngineFromPath", "LoadPlugins", "LoadRuntime", "OnnxLikeFromNetwork", "SaveEngine", "buffer_from_engine",
        "bytes_from_engine", "engine_bytes_from_network", "engine_from_bytes", "engine_from_network", "engine_from_path",
        "load_plugins", "load_runtime", "onnx_like_from_network", "refit_engine", "save_engine",
    ),
    "formats": ("FormattedArray",),
    "inspector": ("audit_precision", "describe_engine", "describe_network"),
    "library": ("get_trt_logger",),
    "network": (
        "CreateNetwork", "MarkDebug", "ModifyNetworkOutputs", "NetworkFromOnnxBytes", "NetworkFromOnnxPath",
        "PostprocessNetwork", "SetDecomposableAttentions", "SetLayerPrecisions", "SetTensorDatatypes", "SetTensorFormats",
        "create_network", "mark_debug", "modify_network_outputs", "network_from_onnx_bytes", "network_from_onnx_path",
        "postprocess_network", "set_decomposable_attentions", "set_layer_precisions", "set_tensor_datatypes",
        "set_tensor_formats",
    ),
    "profile": ("Profile", "ShapeTuple"),
    "runner": ("TrtRunner",),
    "support": ("support_table",),
    "tactics": ("Algorithm", "TacticRecorder", "TacticReplayData", "TacticReplayer", "TensorInfo"),
}  # fmt: skip
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Algorithm",
    "BufferFromEngine",
    "BytesFromEngine",
    "Calibrator",
    "CreateConfig",
    "CreateConfigRTX",
    "CreateNetwork",
    "EngineBytesFromNetwork",
    "EngineFromBytes",
    "EngineFromNetwork",
    "EngineFromPath",
    "FormattedArray",
    "Gpu",
    "LoadPlugins",
    "LoadRuntime",
    "MarkDebug",
    "ModifyNetworkOutputs",
    "NetworkFromOnnxBytes",
    "NetworkFromOnnxPath",
    "OnnxLikeFromNetwork",
    "PostprocessConfig",
    "PostprocessNetwork",
    "Profile",
    "SaveEngine",
    "SetDecomposableAttentions",
    "SetLayerPrecisions",
    "SetTensorDatatypes",
    "SetTensorFormats",
    "ShapeTuple",
    "TacticRecorder",
    "TacticReplayData",
    "TacticReplayer",
    "TensorInfo",
    "TensorRTBackend",
    "TrtRunner",
    "audit_precision",
    "buffer_from_engine",
    "bytes_from_engine",
    "create_config",
    "create_config_rtx",
    "create_network",
    "current_gpu",
    "describe_engine",
    "describe_network",
    "engine_bytes_from_network",
    "engine_from_bytes",
    "engine_from_network",
    "engine_from_path",
    "get_trt_logger",
    "load_plugins",
    "load_runtime",
    "mark_debug",
    "modify_network_outputs",
    "network_from_onnx_bytes",
    "network_from_onnx_path",
    "onnx_like_from_network",
    "postprocess_config",
    "postprocess_network",
    "refit_engine",
    "save_engine",
    "set_decomposable_attentions",
    "set_layer_precisions",
    "set_tensor_datatypes",
    "set_tensor_formats",
    "support_table",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
