"""Device memory and streams, under Polygraphy's module name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtops.lazy import exports, known_as

if TYPE_CHECKING:
    from trtops.backend.trt.library.memory import Cuda as Cuda
    from trtops.backend.trt.library.memory import DeviceArray as DeviceArray
    from trtops.backend.trt.library.memory import DeviceView as DeviceView
    from trtops.backend.trt.library.memory import Event as Event
    from trtops.backend.trt.library.memory import MemcpyKind as MemcpyKind
    from trtops.backend.trt.library.memory import PinnedArray as PinnedArray
    from trtops.backend.trt.library.memory import Stream as Stream
    from trtops.backend.trt.library.memory import device_count as device_count
    from trtops.backend.trt.library.memory import wrapper as wrapper

__getattr__, __dir__ = exports(__name__)
known_as(__name__, "cuda")
