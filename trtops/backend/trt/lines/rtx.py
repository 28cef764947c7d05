"""TensorRT-RTX, for GeForce and RTX GPUs: as 11, but builds without a GPU and keeps no timings."""

from __future__ import annotations

from typing import Any, ClassVar

from trtops.backend.trt.lines.features import Feature
from trtops.backend.trt.lines.trt11 import TensorRT11


class TensorRTRTX(TensorRT11):
    """1.x. Kernels are compiled on the device at run time, so there is nothing to time while building."""

    title: ClassVar[str] = "TensorRT-RTX"
    lacks: ClassVar[frozenset[Feature]] = frozenset(
        {Feature.TIMING_CACHE, Feature.EDITABLE_TIMING_CACHE, Feature.TIMING_CACHE_MISS_ERROR}
    )

    def set_compute_capabilities(self, config: Any, capabilities: Any) -> None:
        """Build for these compute capabilities, given as enum members or as their names (``SM89``)."""
        members = self.trt.ComputeCapability.__members__
        super().set_compute_capabilities(config, [members[c] if isinstance(c, str) else c for c in capabilities])
