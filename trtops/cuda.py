"""Device memory and streams under Polygraphy's names; :mod:`trtops.backend.trt.library.memory` implements them."""

from __future__ import annotations

import enum
from typing import Any

from trtops.lazy import known_as

_MOVED = ("DeviceArray", "DeviceView", "Event", "PinnedArray", "Stream", "device_count")
__all__ = [*_MOVED, "Cuda", "MemcpyKind", "wrapper"]


class MemcpyKind(enum.IntEnum):
    """Source and target of a copy; ``Default`` follows from the addresses."""

    HostToHost = 0
    HostToDevice = 1
    DeviceToHost = 2
    DeviceToDevice = 3
    Default = 4


def __getattr__(name: str) -> Any:
    if name not in _MOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_device_memory(), name)


class Cuda:
    """CUDA's calls for memory, by address; each raises InferenceError if CUDA reports an error."""

    def malloc(self, nbytes: int) -> int:
        """Allocate device memory and return its address."""
        return int(_device_memory().call("cudaMalloc", nbytes))

    def free(self, ptr: int) -> None:
        """Free device memory."""
        _device_memory().call("cudaFree", ptr)

    def memcpy(self, dst: int, src: int, nbytes: int, kind: MemcpyKind, stream_ptr: int | None = None) -> None:
        """Copy bytes between addresses; asynchronously if a stream is given."""
        memory = _device_memory()
        name, stream = ("cudaMemcpy", ()) if stream_ptr is None else ("cudaMemcpyAsync", (stream_ptr,))
        memory.call(name, dst, src, nbytes, memory.cudart().cudaMemcpyKind(int(kind)), *stream)


def wrapper() -> Cuda:
    """Return CUDA's calls, whose library is imported on use."""
    return Cuda()


def _device_memory() -> Any:
    from trtops.backend.trt.library import memory

    return memory


known_as(__name__, "cuda")
