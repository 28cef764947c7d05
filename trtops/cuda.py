"""Device memory and streams, under Polygraphy's module name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtops.lazy import exports, known_as

if TYPE_CHECKING:
    from trtops.backend.trt.library.memory import (
        Cuda,
        DeviceArray,
        DeviceView,
        Event,
        MemcpyKind,
        PinnedArray,
        Stream,
        device_count,
        wrapper,
    )

__getattr__, __dir__ = exports(__name__)
known_as(__name__, "cuda")
