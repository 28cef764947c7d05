"""Device memory and streams, for those who hand arrays on the GPU to runners and calibrators.

The names are Polygraphy's; the work is done in :mod:`trtops.backend.trt.library.memory`.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

from trtops.lazy import known_as

if TYPE_CHECKING:
    from trtops.backend.trt.library.memory import Stream

_MOVED = ("DeviceArray", "DeviceView", "Event", "PinnedArray", "Stream", "device_count")
__all__ = [*_MOVED, "Cuda", "MemcpyKind", "try_get_stream_handle", "wrapper"]

known_as(__name__, "cuda")


class MemcpyKind(enum.IntEnum):
    """From where to where memory is copied."""

    HostToHost = 0
    """From host memory to host memory."""
    HostToDevice = 1
    """From host memory to device memory."""
    DeviceToHost = 2
    """From device memory to host memory."""
    DeviceToDevice = 3
    """From device memory to device memory."""
    Default = 4
    """As the addresses say."""


def __getattr__(name: str) -> Any:
    if name not in _MOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from trtops.backend.trt.library import memory

    return getattr(memory, name)


class Cuda:
    """The CUDA runtime's calls for memory and streams, by addresses; use :func:`wrapper` to get it.

    The classes above do the same, and free what they hold. What the bindings have besides is found here as well; those
    functions return a status and values.

    Raises:
        InferenceError: From each method, if CUDA reports an error.
        BackendUnavailableError: From each, if cuda-python is not installed.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(_device_memory().cudart(), name)

    def check(self, status: Any) -> None:
        """Raise the error that a status stands for; nothing if it is no error."""
        if int(status) != 0:
            raise _device_memory().cuda_error("check", status)

    def create_stream(self) -> int:
        """Make a stream; its address."""
        return int(_device_memory().call("cudaStreamCreate"))

    def stream_synchronize(self, ptr: int) -> None:
        """Wait for all that a stream was given."""
        _device_memory().call("cudaStreamSynchronize", ptr)

    def destroy_stream(self, ptr: int) -> None:
        """Destroy a stream."""
        _device_memory().call("cudaStreamDestroy", ptr)

    def malloc(self, nbytes: int) -> int:
        """Take device memory; its address."""
        return int(_device_memory().call("cudaMalloc", nbytes))

    def free(self, ptr: int) -> None:
        """Give device memory back."""
        _device_memory().call("cudaFree", ptr)

    def memcpy(self, dst: int, src: int, nbytes: int, kind: MemcpyKind, stream_ptr: int | None = None) -> None:
        """Copy bytes from one address to another; asynchronously if a stream is given."""
        memory = _device_memory()
        direction = memory.cudart().cudaMemcpyKind(int(kind))
        if stream_ptr is None:
            memory.call("cudaMemcpy", dst, src, nbytes, direction)
        else:
            memory.call("cudaMemcpyAsync", dst, src, nbytes, direction, stream_ptr)


_CUDA = Cuda()


def wrapper() -> Cuda:
    """The CUDA runtime's calls; nothing is imported before one of them is used."""
    return _CUDA


def try_get_stream_handle(stream: Stream | None) -> int | None:
    """The address of a stream; None for none."""
    return None if stream is None else stream.ptr


def _device_memory() -> Any:
    from trtops.backend.trt.library import memory

    return memory
