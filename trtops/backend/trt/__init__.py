"""The TensorRT back end, under Polygraphy's names. TensorRT itself is imported when something is made.

Where TensorRT is missing, importing this package works; what needs it raises ``BackendUnavailableError``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtops.lazy import exports, known_as

if TYPE_CHECKING:
    from trtops.backend.trt.building.backend import TensorRTBackend as TensorRTBackend
    from trtops.backend.trt.building.calibrator import Calibrator as Calibrator
    from trtops.backend.trt.building.config import CreateConfig as CreateConfig
    from trtops.backend.trt.building.config import CreateConfigRTX as CreateConfigRTX
    from trtops.backend.trt.building.config import PostprocessConfig as PostprocessConfig
    from trtops.backend.trt.building.config import create_config as create_config
    from trtops.backend.trt.building.config import create_config_rtx as create_config_rtx
    from trtops.backend.trt.building.config import postprocess_config as postprocess_config
    from trtops.backend.trt.building.engine import BufferFromEngine as BufferFromEngine
    from trtops.backend.trt.building.engine import BytesFromEngine as BytesFromEngine
    from trtops.backend.trt.building.engine import EngineBytesFromNetwork as EngineBytesFromNetwork
    from trtops.backend.trt.building.engine import EngineFromBytes as EngineFromBytes
    from trtops.backend.trt.building.engine import EngineFromNetwork as EngineFromNetwork
    from trtops.backend.trt.building.engine import EngineFromPath as EngineFromPath
    from trtops.backend.trt.building.engine import LoadPlugins as LoadPlugins
    from trtops.backend.trt.building.engine import LoadRuntime as LoadRuntime
    from trtops.backend.trt.building.engine import OnnxLikeFromNetwork as OnnxLikeFromNetwork
    from trtops.backend.trt.building.engine import SaveEngine as SaveEngine
    from trtops.backend.trt.building.engine import buffer_from_engine as buffer_from_engine
    from trtops.backend.trt.building.engine import bytes_from_engine as bytes_from_engine
    from trtops.backend.trt.building.engine import engine_bytes_from_network as engine_bytes_from_network
    from trtops.backend.trt.building.engine import engine_from_bytes as engine_from_bytes
    from trtops.backend.trt.building.engine import engine_from_network as engine_from_network
    from trtops.backend.trt.building.engine import engine_from_path as engine_from_path
    from trtops.backend.trt.building.engine import load_plugins as load_plugins
    from trtops.backend.trt.building.engine import load_runtime as load_runtime
    from trtops.backend.trt.building.engine import onnx_like_from_network as onnx_like_from_network
    from trtops.backend.trt.building.engine import save_engine as save_engine
    from trtops.backend.trt.building.network import CreateNetwork as CreateNetwork
    from trtops.backend.trt.building.network import NetworkFromOnnxBytes as NetworkFromOnnxBytes
    from trtops.backend.trt.building.network import NetworkFromOnnxPath as NetworkFromOnnxPath
    from trtops.backend.trt.building.network import create_network as create_network
    from trtops.backend.trt.building.network import network_from_onnx_bytes as network_from_onnx_bytes
    from trtops.backend.trt.building.network import network_from_onnx_path as network_from_onnx_path
    from trtops.backend.trt.building.network_changes import MarkDebug as MarkDebug
    from trtops.backend.trt.building.network_changes import ModifyNetworkOutputs as ModifyNetworkOutputs
    from trtops.backend.trt.building.network_changes import PostprocessNetwork as PostprocessNetwork
    from trtops.backend.trt.building.network_changes import SetDecomposableAttentions as SetDecomposableAttentions
    from trtops.backend.trt.building.network_changes import SetLayerPrecisions as SetLayerPrecisions
    from trtops.backend.trt.building.network_changes import SetTensorDatatypes as SetTensorDatatypes
    from trtops.backend.trt.building.network_changes import SetTensorFormats as SetTensorFormats
    from trtops.backend.trt.building.network_changes import mark_debug as mark_debug
    from trtops.backend.trt.building.network_changes import modify_network_outputs as modify_network_outputs
    from trtops.backend.trt.building.network_changes import postprocess_network as postprocess_network
    from trtops.backend.trt.building.network_changes import set_decomposable_attentions as set_decomposable_attentions
    from trtops.backend.trt.building.network_changes import set_layer_precisions as set_layer_precisions
    from trtops.backend.trt.building.network_changes import set_tensor_datatypes as set_tensor_datatypes
    from trtops.backend.trt.building.network_changes import set_tensor_formats as set_tensor_formats
    from trtops.backend.trt.building.profile import Profile as Profile
    from trtops.backend.trt.building.profile import ShapeTuple as ShapeTuple
    from trtops.backend.trt.choices.selector import Algorithm as Algorithm
    from trtops.backend.trt.choices.selector import TacticRecorder as TacticRecorder
    from trtops.backend.trt.choices.selector import TacticReplayData as TacticReplayData
    from trtops.backend.trt.choices.selector import TacticReplayer as TacticReplayer
    from trtops.backend.trt.choices.selector import TensorInfo as TensorInfo
    from trtops.backend.trt.describe.inspector import describe_engine as describe_engine
    from trtops.backend.trt.describe.network import describe_network as describe_network
    from trtops.backend.trt.infer.formats import FormattedArray as FormattedArray
    from trtops.backend.trt.infer.layer_times import layer_times as layer_times
    from trtops.backend.trt.infer.runner import TrtRunner as TrtRunner
    from trtops.backend.trt.library import get_trt_logger as get_trt_logger
    from trtops.backend.trt.library.device import Gpu as Gpu
    from trtops.backend.trt.library.device import current_gpu as current_gpu
    from trtops.backend.trt.library.file_reader import FileReader as FileReader
    from trtops.backend.trt.lines.support import support_table as support_table

__getattr__, __dir__ = exports(__name__)
known_as(__name__, "algorithm_selector", "calibrator", "config", "file_reader", "loader", "profile", "runner")
