"""Device memory and streams, under Polygraphy's module name."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from trtops.lazy import exports, known_as
from trtops.mod import LazyModule

if TYPE_CHECKING:
    from trtops.backend.trt.library.memory import DeviceArray as DeviceArray
    from trtops.backend.trt.library.memory import DeviceView as DeviceView
    from trtops.backend.trt.library.memory import Event as Event
    from trtops.backend.trt.library.memory import PinnedArray as PinnedArray
    from trtops.backend.trt.library.memory import Stream as Stream
    from trtops.backend.trt.library.memory import device_count as device_count

_memory = LazyModule("trtops.backend.trt.library.memory")


class MemcpyKind(enum.IntEnum):
    """Source and target of a copy; ``Default`` follows from the addresses."""

    HostToHost = 0
    HostToDevice = 1
    DeviceToHost = 2
    DeviceToDevice = 3
    Default = 4


class Cuda:
    """CUDA's calls for memory, by address; each raises InferenceError if CUDA reports an error."""

    def malloc(self, nbytes: int) -> int:
        """Allocate device memory and return its address."""
        return int(_memory.call("cudaMalloc", nbytes))

    def free(self, ptr: int) -> None:
        """Free device memory."""
        _memory.call("cudaFree", ptr)

    def memcpy(self, dst: int, src: int, nbytes: int, kind: MemcpyKind, stream_ptr: int | None = None) -> None:
        """Copy bytes between addresses; asynchronously if a stream is given."""
        name, stream = ("cudaMemcpy", ()) if stream_ptr is None else ("cudaMemcpyAsync", (stream_ptr,))
        _memory.call(name, dst, src, nbytes, _memory.cudart().cudaMemcpyKind(int(kind)), *stream)


wrapper = Cuda
__getattr__, __dir__ = exports(__name__)
known_as(__name__, "cuda")
