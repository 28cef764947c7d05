"""TensorRT-RTX, for GeForce and RTX GPUs: like 11, but it builds without a GPU and stores no timings."""

from typing import Any, ClassVar

from trtops.backend.trt.lines.features import Feature
from trtops.backend.trt.lines.trt11 import TensorRT11


class TensorRTRTX(TensorRT11):
    """1.x."""

    title: ClassVar[str] = "TensorRT-RTX"
    # The names exist, but kernels are compiled on the device at run time: there is nothing to time while building.
    lacks: ClassVar[frozenset[Feature]] = frozenset(
        {Feature.TIMING_CACHE, Feature.EDITABLE_TIMING_CACHE, Feature.TIMING_CACHE_MISS_ERROR}
    )

    def set_compute_capabilities(self, config: Any, capabilities: Any) -> None:
        """Build for these compute capabilities, given as enum members or as their names (``SM89``)."""
        members = self.trt.ComputeCapability.__members__
        super().set_compute_capabilities(config, [members[c] if isinstance(c, str) else c for c in capabilities])
