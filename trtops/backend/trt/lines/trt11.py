"""TensorRT 11 and TensorRT-RTX: networks are strongly typed, without precision flags, calibrators and selectors."""

from typing import Any, ClassVar

from trtops.backend.trt.lines.base import ReleaseLine
from trtops.backend.trt.lines.features import Feature


class TensorRT11(ReleaseLine):
    """11.x."""

    def network_flags(self, strongly_typed: bool) -> int:
        """No flags: every network is strongly typed, asked or not."""
        return 0

    def is_strongly_typed(self, network: Any) -> bool:
        """True for every network."""
        return True


class TensorRTRTX(TensorRT11):
    """1.x, for GeForce and RTX GPUs: it builds without a GPU and stores no timings."""

    title: ClassVar[str] = "TensorRT-RTX"
    # The names exist, but kernels are compiled on the device at run time: there is nothing to time while building.
    lacks: ClassVar[frozenset[Feature]] = frozenset(
        {Feature.TIMING_CACHE, Feature.EDITABLE_TIMING_CACHE, Feature.TIMING_CACHE_MISS_ERROR}
    )

    def set_compute_capabilities(self, config: Any, capabilities: Any) -> None:
        """Build for these compute capabilities, given as enum members or as their names (``SM89``)."""
        members = self.trt.ComputeCapability.__members__
        super().set_compute_capabilities(config, [members[c] if isinstance(c, str) else c for c in capabilities])
