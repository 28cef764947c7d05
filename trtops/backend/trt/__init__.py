"""The TensorRT back end, under Polygraphy's names. TensorRT itself is imported when something is made.

Where TensorRT is missing, importing this package works; what needs it raises ``BackendUnavailableError``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtops.lazy import exports, known_as

if TYPE_CHECKING:
    from trtops.backend.trt.building.backend import TensorRTBackend
    from trtops.backend.trt.building.calibrator import Calibrator
    from trtops.backend.trt.building.config import (
        CreateConfig,
        CreateConfigRTX,
        PostprocessConfig,
        create_config,
        create_config_rtx,
        postprocess_config,
    )
    from trtops.backend.trt.building.engine import (
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
        save_engine,
    )
    from trtops.backend.trt.building.network import (
        CreateNetwork,
        NetworkFromOnnxBytes,
        NetworkFromOnnxPath,
        create_network,
        network_from_onnx_bytes,
        network_from_onnx_path,
    )
    from trtops.backend.trt.building.network_changes import (
        MarkDebug,
        ModifyNetworkOutputs,
        PostprocessNetwork,
        SetDecomposableAttentions,
        SetLayerPrecisions,
        SetTensorDatatypes,
        SetTensorFormats,
        mark_debug,
        modify_network_outputs,
        postprocess_network,
        set_decomposable_attentions,
        set_layer_precisions,
        set_tensor_datatypes,
        set_tensor_formats,
    )
    from trtops.backend.trt.building.profile import Profile, ShapeTuple
    from trtops.backend.trt.choices.selector import (
        Algorithm,
        TacticRecorder,
        TacticReplayData,
        TacticReplayer,
        TensorInfo,
    )
    from trtops.backend.trt.describe.inspector import describe_engine
    from trtops.backend.trt.describe.network import describe_network
    from trtops.backend.trt.infer.formats import FormattedArray
    from trtops.backend.trt.infer.layer_times import layer_times
    from trtops.backend.trt.infer.runner import TrtRunner
    from trtops.backend.trt.library import get_trt_logger
    from trtops.backend.trt.library.device import Gpu, current_gpu
    from trtops.backend.trt.library.file_reader import FileReader

__getattr__, __dir__ = exports(__name__)
known_as(__name__, "algorithm_selector", "calibrator", "config", "file_reader", "loader", "profile", "runner")
