"""Differences between TensorRT releases: a name to probe for each feature, its releases, the alternative.

The table follows the Python API of 8.6.0, 10.8.0, 10.16.1, 11.4.0 and TensorRT-RTX 1.7.1; a test compares them.
"""

from enum import Enum
from typing import Any


class Feature(Enum):
    """A feature of some releases of TensorRT."""

    # The six values of a row are the arguments of __init__: ``probe``, a dotted name in the ``tensorrt`` module that
    # exists where the feature does; ``title``, the feature in words; ``since``, the first release that has it, empty if
    # only TensorRT-RTX does; ``last``, the last one, or None; ``rtx``, whether TensorRT-RTX has it; and ``instead``,
    # what to do on a release without it. The releases only serve messages and the support table; a running release is
    # probed.

    # fmt: off
    PRECISION_FLAGS = (
        "BuilderFlag.FP16", "precision flags of the builder (fp16, int8)", "8.6", "10.16", False,
        "Put the precision into the ONNX model: use NetworkFromOnnxPath(path, config=config), or convert it first.")
    BF16_FLAG = ("BuilderFlag.BF16", "bf16 precision flag", "10.0", "10.16", False, "Cast the ONNX model to bfloat16.")
    FP8_FLAG = (
        "BuilderFlag.FP8", "fp8 precision flag", "8.6", "10.16", False, "Put FP8 Q/DQ nodes into the ONNX model.")
    FP8_IN_MODELS = (
        "NetworkDefinitionCreationFlag.STRONGLY_TYPED", "FP8 from Q/DQ nodes of ONNX models", "10.0", None, True,
        "Build fp16 or int8.")
    LAYER_PRECISION = (
        "ILayer.precision_is_set", "precisions per layer", "8.6", "10.16", False,
        "Put Cast nodes into the ONNX model: trtops adds them if SetLayerPrecisions wraps a NetworkFromOnnx loader.")
    CALIBRATOR = (
        "IInt8EntropyCalibrator2", "INT8 calibration inside the builder", "8.6", "10.16", False,
        "Quantize the ONNX model with Q/DQ nodes.")
    QUANTIZATION_FLAGS = (
        "QuantizationFlag", "quantization flags", "8.6", "10.16", False, "Leave quantization_flags out.")
    ALGORITHM_SELECTOR = (
        "IAlgorithmSelector", "algorithm selectors", "8.6", "10.16", False,
        "Record and replay tactics through the editable timing cache.")
    TIMING_CACHE = (
        "IBuilderConfig.create_timing_cache", "timing caches", "8.6", None, False, "Build without a timing cache.")
    EDITABLE_TIMING_CACHE = (
        "ITimingCache.queryKeys", "editable timing caches", "10.8", None, False,
        "Record and replay tactics with TacticRecorder and TacticReplayer.")
    TIMING_CACHE_MISS_ERROR = (
        "BuilderFlag.ERROR_ON_TIMING_CACHE_MISS", "an error on a timing cache miss", "10.0", None, False,
        "Compare the engine's tactics after the build instead.")
    COMPILATION_CACHE_SWITCH = (
        "BuilderFlag.DISABLE_COMPILATION_CACHE", "a switch for the compilation cache", "10.0", None, True,
        "Leave disable_compilation_cache out.")
    STRONG_TYPING = (
        "NetworkDefinitionCreationFlag.STRONGLY_TYPED", "strongly typed networks", "10.0", None, True,
        "Use precision flags with precision_constraints='obey'.")
    STRIP_PLAN = ("BuilderFlag.STRIP_PLAN", "plans without weights", "10.0", None, True, "Leave strip_plan out.")
    WEIGHT_STREAMING = (
        "BuilderFlag.WEIGHT_STREAMING", "weight streaming", "10.0", None, True, "Use a device with more memory.")
    PROGRESS_MONITOR = (
        "IBuilderConfig.progress_monitor", "progress monitors", "10.0", None, True, "Follow the builder's log instead.")
    RUNTIME_PLATFORM = (
        "IBuilderConfig.runtime_platform", "building for another platform", "10.0", None, True,
        "Build on the platform itself.")
    TILING = (
        "IBuilderConfig.tiling_optimization_level", "tiling optimization", "10.8", None, True,
        "Leave tiling_optimization_level out.")
    MAX_NUM_TACTICS = (
        "IBuilderConfig.max_num_tactics", "a limit of timed tactics", "10.8", None, True, "Leave max_num_tactics out.")
    L2_LIMIT = (
        "IBuilderConfig.l2_limit_for_tiling", "a limit of L2 cache for tilings", "10.8", None, True,
        "Leave l2_limit_for_tiling out.")
    BUILD_ROUTE = (
        "IBuilderConfig.build_route", "build routes", "11.1", None, True, "Leave build_route out.")
    COMPUTE_CAPABILITIES = (
        "IBuilderConfig.set_compute_capability", "building for chosen compute capabilities", "", None, True,
        "Build on the device that the engine is for, or use hardware_compatibility_level.")
    DEBUG_TENSORS = (
        "INetworkDefinition.mark_debug", "debug tensors", "10.0", None, True, "Mark the tensors as outputs instead.")
    UNFUSED_DEBUG_TENSORS = (
        "INetworkDefinition.mark_unfused_tensors_as_debug_tensors", "marking all unfused tensors as debug tensors",
        "10.9", None, True, "Name the tensors in MarkDebug, or mark them as outputs.")
    PARSER_FLAGS = (
        "OnnxParser.set_flag", "flags of the ONNX parser", "10.0", None, True, "Leave the parser flags out.")
    UINT8_DLA = (
        "OnnxParserFlag.ENABLE_UINT8_AND_ASYMMETRIC_QUANTIZATION_DLA", "UINT8 and asymmetric quantization on DLA",
        "10.13", None, True, "Leave enable_uint8_asymmetric_quantization_dla out.")
    DECOMPOSABLE_ATTENTION = (
        "IAttention.decomposable", "decomposable attention", "10.14", None, True,
        "Nothing is needed: attention has no own layer.")
    ALLOCATION_STRATEGY = (
        "ExecutionContextAllocationStrategy", "allocation strategies of execution contexts", "10.0", None, True,
        "Use allocation_strategy='static', the only one.")
    ALIASED_IO = (
        "ICudaEngine.get_aliased_input_tensor", "outputs that share memory with inputs", "10.11", None, True, "")
    DLA_WORKSPACE_STRATEGY = (
        "Runtime.dla_workspace_allocation_strategy", "DLA workspace strategies", "11.4", None, True,
        "Leave dla_workspace_allocation_strategy out.")
    # fmt: on

    def __init__(self, probe: str, title: str, since: str, last: str | None, rtx: bool, instead: str) -> None:
        self.probe = probe
        self.title = title
        self.since = since
        self.last = last
        self.rtx = rtx
        self.instead = instead

    @property
    def releases(self) -> str:
        """Which releases have it, in words."""
        until = "and later" if self.last is None else f"to {self.last}"
        named = (self.since and f"TensorRT {self.since} {until}", self.rtx and "TensorRT-RTX")
        return " and ".join(name for name in named if name)

    def is_in(self, version: tuple[int, int], *, rtx: bool) -> bool:
        """Whether a release, given as (major, minor), has it according to this table."""
        if rtx:
            return self.rtx
        if not self.since or version < _major_minor(self.since):
            return False
        return self.last is None or version <= _major_minor(self.last)


def _major_minor(version: str) -> tuple[int, int]:
    major, minor = version.split(".")
    return int(major), int(minor)


def has(module: Any, dotted: str) -> bool:
    """Whether a module has a dotted name, such as ``ICudaEngine.name``; used for probing, once per process."""
    value = module
    for part in dotted.split("."):
        if not hasattr(value, part):
            return False
        value = getattr(value, part)
    return True
