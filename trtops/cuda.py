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
    """CUDA's calls for memory and streams, by address; each raises InferenceError if CUDA reports an error."""

    def create_stream(self) -> int:
        """Create a stream and return its address."""
        return int(_device_memory().call("cudaStreamCreate"))

    def stream_synchronize(self, ptr: int) -> None:
        """Wait until a stream is idle."""
        _device_memory().call("cudaStreamSynchronize", ptr)

    def destroy_stream(self, ptr: int) -> None:
        """Destroy a stream."""
        _device_memory().call("cudaStreamDestroy", ptr)

    def malloc(self, nbytes: int) -> int:
        """Allocate device memory and return its address."""
        return int(_device_memory().call("cudaMalloc", nbytes))

    def free(self, ptr: int) -> None:
        """Free device memory."""
        _device_memory().call("cudaFree", ptr)

    def memcpy(self, dst: int, src: int, nbytes: int, kind: MemcpyKind, stream_ptr: int | None = None) -> None:
        """Copy bytes between addresses; asynchronously if a stream is given."""
        memory = _device_memory()
        direction = memory.cudart().cudaMemcpyKind(int(kind))
        if stream_ptr is None:
            memory.call("cudaMemcpy", dst, src, nbytes, direction)
        else:
            memory.call("cudaMemcpyAsync", dst, src, nbytes, direction, stream_ptr)


_CUDA = Cuda()


def wrapper() -> Cuda:
    """Return CUDA's calls, whose library is imported on use."""
    return _CUDA


def _device_memory() -> Any:
    from trtops.backend.trt.library import memory

    return memory


known_as(__name__, "cuda")
