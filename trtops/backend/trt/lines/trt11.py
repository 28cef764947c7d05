"""TensorRT 11: every network is strongly typed; precision flags, calibrators and algorithm selectors are gone."""

from typing import Any

from trtops.backend.trt.lines.base import ReleaseLine


class TensorRT11(ReleaseLine):
    """11.x."""

    def network_flags(self, strongly_typed: bool) -> int:
        """No flags: every network is strongly typed, asked or not."""
        return 0

    def is_strongly_typed(self, network: Any) -> bool:
        """True for every network."""
        return True
