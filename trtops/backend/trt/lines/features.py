"""Differences between TensorRT releases: a name to probe for each feature, the releases that have it, the alternative.

The table follows the API surfaces of 8.6.0, 10.8.0, 10.16.1, 11.4.0 and TensorRT-RTX 1.7.1, against which a test
checks it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


@dataclass(frozen=True)
class _Fact:
    probe: str
    title: str
    since: str
    until: str | None
    rtx: bool
    instead: str


class Feature(Enum):
    """Something that only some releases of TensorRT have."""

    PRECISION_FLAGS = _Fact(
        "BuilderFlag.FP16", "precision flags of the builder (fp16, int8)", "8.6", "10.16", False,
        "Put the precision into the ONNX model: use NetworkFromOnnxPath(path, config=config), or convert it first.",
    )  # fmt: skip
    BF16_FLAG = _Fact(
        "BuilderFlag.BF16", "bf16 precision flag", "10.0", "10.16", False,
        "Cast the ONNX model to bfloat16.",
    )  # fmt: skip
    FP8_FLAG = _Fact(
        "BuilderFlag.FP8", "fp8 precision flag", "8.6", "10.16", False,
        "Put FP8 Q/DQ nodes into the ONNX model.",
    )  # fmt: skip
    LAYER_PRECISION = _Fact(
        "ILayer.precision_is_set", "precisions per layer", "8.6", "10.16", False,
        "Put Cast nodes into the ONNX model: trtops adds them if SetLayerPrecisions wraps a NetworkFromOnnx loader.",
    )  # fmt: skip
    CALIBRATOR = _Fact(
        "IInt8EntropyCalibrator2", "INT8 calibration inside the builder", "8.6", "10.16", False,
        "Quantize the ONNX model with Q/DQ nodes.",
    )  # fmt: skip
    QUANTIZATION_FLAGS = _Fact(
        "QuantizationFlag", "quantization flags", "8.6", "10.16", False,
        "Leave quantization_flags out.",
    )  # fmt: skip
    ALGORITHM_SELECTOR = _Fact(
        "IAlgorithmSelector", "algorithm selectors", "8.6", "10.16", False,
        "Record and replay tactics through the editable timing cache.",
    )  # fmt: skip
    TIMING_CACHE = _Fact(
        "IBuilderConfig.create_timing_cache", "timing caches", "8.6", None, False,
        "Build without a timing cache.",
    )  # fmt: skip
    EDITABLE_TIMING_CACHE = _Fact(
        "ITimingCache.queryKeys", "editable timing caches", "10.8", None, False,
        "Record and replay tactics with TacticRecorder and TacticReplayer.",
    )  # fmt: skip
    TIMING_CACHE_MISS_ERROR = _Fact(
        "BuilderFlag.ERROR_ON_TIMING_CACHE_MISS", "an error on a timing cache miss", "10.0", None, False,
        "Compare the engine's tactics after the build instead.",
    )  # fmt: skip
    COMPILATION_CACHE_SWITCH = _Fact(
        "BuilderFlag.DISABLE_COMPILATION_CACHE", "a switch for the compilation cache", "10.0", None, True,
        "Leave disable_compilation_cache out.",
    )  # fmt: skip
    STRONG_TYPING = _Fact(
        "NetworkDefinitionCreationFlag.STRONGLY_TYPED", "strongly typed networks", "10.0", None, True,
        "Use precision flags with precision_constraints='obey'.",
    )  # fmt: skip
    STRIP_PLAN = _Fact("BuilderFlag.STRIP_PLAN", "plans without weights", "10.0", None, True, "Leave strip_plan out.")
    WEIGHT_STREAMING = _Fact(
        "BuilderFlag.WEIGHT_STREAMING", "weight streaming", "10.0", None, True,
        "Use a device with more memory.",
    )  # fmt: skip
    PROGRESS_MONITOR = _Fact(
        "IBuilderConfig.progress_monitor", "progress monitors", "10.0", None, True,
        "Follow the builder's log instead.",
    )  # fmt: skip
    RUNTIME_PLATFORM = _Fact(
        "IBuilderConfig.runtime_platform", "building for another platform", "10.0", None, True,
        "Build on the platform itself.",
    )  # fmt: skip
    TILING = _Fact(
        "IBuilderConfig.tiling_optimization_level", "tiling optimization", "10.8", None, True,
        "Leave tiling_optimization_level out.",
    )  # fmt: skip
    COMPUTE_CAPABILITIES = _Fact(
        "IBuilderConfig.set_compute_capability", "building for chosen compute capabilities", "", None, True,
        "Build on the device that the engine is for, or use hardware_compatibility_level.",
    )  # fmt: skip
    DEBUG_TENSORS = _Fact(
        "INetworkDefinition.mark_debug", "debug tensors", "10.0", None, True,
        "Mark the tensors as outputs instead.",
    )  # fmt: skip
    UNFUSED_DEBUG_TENSORS = _Fact(
        "INetworkDefinition.mark_unfused_tensors_as_debug_tensors", "marking all unfused tensors as debug tensors",
        "10.9", None, True,
        "Name the tensors in MarkDebug, or mark them as outputs.",
    )  # fmt: skip
    PARSER_FLAGS = _Fact(
        "OnnxParser.set_flag", "flags of the ONNX parser", "10.0", None, True,
        "Leave the parser flags out.",
    )  # fmt: skip
    UINT8_DLA = _Fact(
        "OnnxParserFlag.ENABLE_UINT8_AND_ASYMMETRIC_QUANTIZATION_DLA", "UINT8 and asymmetric quantization on DLA",
        "10.13", None, True,
        "Leave enable_uint8_asymmetric_quantization_dla out.",
    )  # fmt: skip
    DECOMPOSABLE_ATTENTION = _Fact(
        "IAttention.decomposable", "decomposable attention", "10.14", None, True,
        "Nothing is needed: attention has no own layer.",
    )  # fmt: skip
    ALLOCATION_STRATEGY = _Fact(
        "ExecutionContextAllocationStrategy", "allocation strategies of execution contexts", "10.0", None, True,
        "Use allocation_strategy='static', the only one.",
    )  # fmt: skip
    ALIASED_IO = _Fact(
        "ICudaEngine.get_aliased_input_tensor", "outputs that share memory with inputs", "10.11", None, True,
        "",
    )  # fmt: skip
    DLA_WORKSPACE_STRATEGY = _Fact(
        "Runtime.dla_workspace_allocation_strategy", "DLA workspace strategies", "11.0", None, True,
        "Leave dla_workspace_allocation_strategy out.",
    )  # fmt: skip

    @property
    def probe(self) -> str:
        """Dotted name inside the ``tensorrt`` module that exists where the feature does."""
        return self.value.probe

    @property
    def title(self) -> str:
        """What it is, in words."""
        return self.value.title

    @property
    def releases(self) -> str:
        """Which releases have it, in words."""
        fact = self.value
        parts = []
        if fact.since:
            parts.append(f"TensorRT {fact.since} {'and later' if fact.until is None else 'to ' + fact.until}")
        if fact.rtx:
            parts.append("TensorRT-RTX")
        return " and ".join(parts)

    @property
    def instead(self) -> str:
        """What to do on a release without it."""
        return self.value.instead

    def is_in(self, version: tuple[int, int], *, rtx: bool) -> bool:
        """Whether a release, given as (major, minor), has it according to this table."""
        fact = self.value
        if rtx:
            return fact.rtx
        if not fact.since or version < _major_minor(fact.since):
            return False
        return fact.until is None or version <= _major_minor(fact.until)


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
