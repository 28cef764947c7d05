"""All differences between TensorRT releases: one class per release line, chosen once by probing."""

from typing import Any

from trtops import errors
from trtops.backend.trt.lines.base import ALLOCATION_STRATEGIES, AllocationStrategy, ReleaseLine
from trtops.backend.trt.lines.features import Feature, has
from trtops.backend.trt.lines.trt8 import TensorRT8
from trtops.backend.trt.lines.trt10 import TensorRT10
from trtops.backend.trt.lines.trt11 import TensorRT11, TensorRTRTX

LINES: tuple[type[ReleaseLine], ...] = (TensorRT8, TensorRT10, TensorRT11, TensorRTRTX)

__all__ = [
    "ALLOCATION_STRATEGIES", "LINES", "AllocationStrategy", "Feature", "ReleaseLine", "TensorRT8", "TensorRT10",
    "TensorRT11", "TensorRTRTX", "release_line",
]  # fmt: skip


def release_line(trt: Any) -> ReleaseLine:
    """The line of a ``tensorrt`` or ``tensorrt_rtx`` module; BackendUnavailableError before 8.6, and for 9.x."""
    # By what the modules contain, not by version numbers: TensorRT-RTX counts its own, and 9.x is neither 8 nor 10.
    if has(trt, "IRuntimeCache"):
        return TensorRTRTX(trt)
    if not has(trt, "IInt8EntropyCalibrator2"):
        return TensorRT11(trt)
    if not has(trt, "ICudaEngine.get_binding_name"):
        return TensorRT10(trt)
    if has(trt, "IBuilderConfig.hardware_compatibility_level") and not has(trt, "BuilderFlag.BF16"):
        return TensorRT8(trt)
    raise errors.BackendUnavailableError(
        f"TensorRT {trt.__version__} is not supported by trtops. Install 8.6, 10.x or 11.x."
    )
