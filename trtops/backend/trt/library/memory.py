"""Device memory, pinned host memory, streams and events of the CUDA runtime, through cuda-python."""

from __future__ import annotations

import ctypes
import enum
import functools
import importlib
import math
import sys
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from trtops import errors
from trtops.extras import require
from trtops.metadata import DataType
from trtops.torch_tensors import is_torch

if TYPE_CHECKING:
    from typing_extensions import Self

# Handle of the default stream, which waits for all blocking streams, whatever the process calls its default stream.
LEGACY_STREAM = 1


@functools.cache
def cudart() -> Any:
    """The CUDA runtime's bindings; BackendUnavailableError if cuda-python is not installed."""
    require("cuda")
    failed: list[str] = []
    # The module moved in cuda-python 12.6.
    for name in ("cuda.bindings.runtime", "cuda.cudart"):
        try:
            return importlib.import_module(name)
        except ImportError as exc:
            failed.append(str(exc))
    raise errors.BackendUnavailableError(
        f"The CUDA runtime's bindings cannot be imported ({'; '.join(failed)}). Repair the installation of cuda-python."
    )


def call(function: str, *args: Any) -> Any:
    """Call a CUDA runtime function; returns its value, a tuple of several, or None. InferenceError if it fails."""
    result = getattr(cudart(), function)(*args)
    if result[0] != 0:
        raise cuda_error(function, result[0])
    if len(result) == 1:
        return None
    return result[1] if len(result) == 2 else result[1:]


def cuda_error(function: str, status: Any) -> errors.InferenceError:
    """The error for a CUDA status, with its name and text."""
    cuda = cudart()
    name = cuda.cudaGetErrorName(status)[1]
    text = cuda.cudaGetErrorString(status)[1]
    # Clears the error: TensorRT would report it as one of its next launch.
    cuda.cudaGetLastError()
    return errors.InferenceError(f"CUDA: {function} failed with {as_text(name)} ({as_text(text)}).")


def as_text(value: Any) -> str:
    """A text from CUDA as ``str``; some releases of cuda-python return ``bytes``."""
    return value.decode() if isinstance(value, bytes) else str(value)


def device_count() -> int:
    """Number of GPUs usable by CUDA; 0 without a driver or cuda-python."""
    try:
        status, count = cudart().cudaGetDeviceCount()
    except (errors.BackendUnavailableError, RuntimeError):
        return 0
    return int(count) if int(status) == 0 else 0


class Stream:
    """A CUDA stream; free it or use it in a ``with`` block.

    It is a blocking stream: its work and that of the default stream run in the order in which they were queued.
    """

    def __init__(self) -> None:
        self._handle = call("cudaStreamCreate")
        self.ptr = int(self._handle)
        self._event: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.free()

    def synchronize(self) -> None:
        """Wait until the stream has finished."""
        call("cudaStreamSynchronize", self.ptr)

    def wait_for(self, stream: int) -> None:
        """Make later work of this stream wait for all work queued so far on another one, given by its handle."""
        if self._event is None:
            self._event = call("cudaEventCreateWithFlags", cudart().cudaEventDisableTiming)
        call("cudaEventRecord", self._event, stream)
        call("cudaStreamWaitEvent", self.ptr, self._event, 0)

    def free(self) -> None:
        """Destroy the stream; does nothing the second time."""
        if self._event is not None:
            call("cudaEventDestroy", self._event)
            self._event = None
        if self.ptr:
            call("cudaStreamDestroy", self.ptr)
            self.ptr = 0


class Event:
    """A CUDA event: a point in a stream, with its time."""

    def __init__(self) -> None:
        self._handle = call("cudaEventCreate")
        # Not through call(), which looks the function up by name: an inference records up to four events.
        self._record = cudart().cudaEventRecord

    def record(self, stream: Stream) -> None:
        """Set the event to the stream's current point."""
        status = self._record(self._handle, stream.ptr)[0]
        if status != 0:
            raise cuda_error("cudaEventRecord", status)

    def seconds_since(self, earlier: Event) -> float:
        """Seconds from an earlier event to this one, after both were reached; resolution about 0.5 microseconds."""
        return float(call("cudaEventElapsedTime", earlier._handle, self._handle)) / 1e3

    def free(self) -> None:
        """Destroy the event; does nothing the second time."""
        if self._handle is not None:
            call("cudaEventDestroy", self._handle)
            self._handle = None


class DeviceAddress(int):
    """An address in device memory, with a reference to its owner."""

    owner: object

    def __new__(cls, address: int, owner: object) -> DeviceAddress:
        """Create the address."""
        instance = super().__new__(cls, address)
        instance.owner = owner
        return instance


class DeviceView:
    """A view of device memory as an array.

    It keeps a :class:`DeviceArray` alive if it is made from one or from its address; other memory is the caller's.
    Other libraries read it through ``__cuda_array_interface__``: ``torch.as_tensor(view, device="cuda")``.
    """

    def __init__(self, ptr: int, shape: Sequence[int], dtype: object) -> None:
        self._address = ptr if isinstance(ptr, DeviceAddress) else int(ptr)
        self.shape = tuple(shape)
        self.dtype: np.dtype[Any] = DataType.of(dtype).numpy()

    @property
    def ptr(self) -> int:
        """Address in device memory."""
        return self._address

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        interface = {"shape": self.shape, "typestr": self.dtype.str, "data": (int(self.ptr), False), "version": 3}
        return {**interface, "stream": LEGACY_STREAM}

    def copy_to(self, host_buffer: np.ndarray[Any, Any], stream: Stream | None = None) -> np.ndarray[Any, Any]:
        """Copy into a contiguous host array of the same dtype and size; asynchronously if a stream is given."""
        self._check(host_buffer)
        copy(host_buffer.ctypes.data, self.ptr, self.nbytes, "cudaMemcpyDeviceToHost", stream)
        return host_buffer

    def numpy(self) -> np.ndarray[Any, Any]:
        """A copy in host memory."""
        return self.copy_to(np.empty(self.shape, self.dtype))

    def _check(self, host_buffer: np.ndarray[Any, Any]) -> None:
        if host_buffer.nbytes != self.nbytes or not host_buffer.flags.c_contiguous:
            raise errors.InputError(
                f"A host array of shape {host_buffer.shape} and dtype {host_buffer.dtype} does not hold "
                f"{self.shape} of {self.dtype}, or is not contiguous."
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape}, dtype={self.dtype.name}, ptr={self.ptr:#x})"


class DeviceArray(DeviceView):
    """Device memory as an array, owned by this object; freed by ``with``, :meth:`free` or garbage collection."""

    def __init__(self, shape: Sequence[int] | None = None, dtype: object = None) -> None:
        super().__init__(0, () if shape is None else shape, "float32" if dtype is None else dtype)
        self.allocated_nbytes = 0
        self.resize(self.shape)

    @property
    def ptr(self) -> int:
        """Address in device memory; it keeps this array alive, and is valid until the array is resized or freed."""
        return DeviceAddress(self._address, self)

    @classmethod
    def raw(cls, shape: Sequence[int] | None = None) -> DeviceArray:
        """An array of bytes."""
        return cls(shape, np.uint8)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.free()

    def __del__(self) -> None:
        if getattr(self, "allocated_nbytes", 0):
            self.free()

    def resize(self, shape: Sequence[int]) -> Self:
        """Change the shape, and return the array. The content is lost if more memory has to be allocated."""
        nbytes = math.prod(shape) * self.dtype.itemsize
        if nbytes > self.allocated_nbytes:
            self.free()
            self._address = int(call("cudaMalloc", nbytes))
            self.allocated_nbytes = nbytes
        self.shape = tuple(shape)
        return self

    def copy_from(self, host_buffer: np.ndarray[Any, Any], stream: Stream | None = None) -> Self:
        """Copy a host array of the same dtype, with its shape; asynchronously if a stream is given."""
        self.resize(host_buffer.shape)
        self._check(host_buffer)
        copy(self.ptr, host_buffer.ctypes.data, self.nbytes, "cudaMemcpyHostToDevice", stream)
        return self

    def view(self, shape: Sequence[int] | None = None, dtype: object = None) -> DeviceView:
        """A view with another shape or dtype, of no more bytes; valid until this array is resized or freed."""
        device_view = DeviceView(
            self.ptr, self.shape if shape is None else shape, self.dtype if dtype is None else dtype
        )
        if device_view.nbytes > self.nbytes:
            raise errors.InputError(f"A view of {device_view.nbytes} bytes does not fit into {self!r}.")
        return device_view

    def free(self) -> None:
        """Free device memory, after which the shape is that of a scalar; does nothing the second time."""
        self.shape = ()
        if self.allocated_nbytes:
            # Forgotten before it is freed: if CUDA refuses, the garbage collector must not free it a second time.
            pointer, self._address, self.allocated_nbytes = self._address, 0, 0
            call("cudaFree", pointer)


class PinnedArray:
    """Page-locked host memory, for asynchronous copies at least twice as fast as from pageable memory.

    It is freed when this object has released it and no array made by :meth:`view` is left, so outputs may
    outlive their runner.
    """

    def __init__(self, nbytes: int = 0) -> None:
        self.nbytes = 0
        self.ptr = 0
        self._bytes: np.ndarray[Any, np.dtype[np.uint8]] = np.empty(0, np.uint8)
        self.reserve(nbytes)

    def reserve(self, nbytes: int) -> None:
        """Reserve at least ``nbytes``; arrays made by :meth:`view` before keep their memory."""
        if nbytes <= self.nbytes:
            return
        self.free()
        self.ptr = int(call("cudaMallocHost", nbytes))
        self.nbytes = nbytes
        block = (ctypes.c_uint8 * nbytes).from_address(self.ptr)
        # Every view references the block, so it is freed after the last view. Not at exit: CUDA may be shut
        # down then.
        weakref.finalize(block, call, "cudaFreeHost", self.ptr).atexit = False
        self._bytes = np.ctypeslib.as_array(block)

    def view(self, shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """The first bytes as an array, without a copy: later writes change it."""
        count = math.prod(shape)
        return self._bytes[: count * dtype.itemsize].view(dtype).reshape(tuple(shape))

    def free(self) -> None:
        """Release it; it is freed when no view of it is left."""
        self.ptr = self.nbytes = 0
        self._bytes = np.empty(0, np.uint8)


def device_address(value: Any) -> tuple[int, int] | None:
    """Return the address of an array in device memory, and the handle of its writer's stream; None for a host array.

    Reads :class:`DeviceView`, torch tensors and ``__cuda_array_interface__``. A torch tensor with gaps is copied, and
    the address keeps the copy alive; InputError for other arrays with gaps.
    """
    if isinstance(value, np.ndarray):
        return None
    if isinstance(value, DeviceView):
        return value.ptr, LEGACY_STREAM
    if is_torch(value):
        if not value.is_cuda:
            return None
        contiguous = value.detach().contiguous()
        stream = sys.modules["torch"].cuda.current_stream(value.device).cuda_stream
        return DeviceAddress(contiguous.data_ptr(), contiguous), stream or LEGACY_STREAM
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is None:
        return None
    shape, strides = tuple(interface["shape"]), interface.get("strides")
    itemsize = np.dtype(interface["typestr"]).itemsize
    if strides is not None and tuple(strides) != tuple(
        itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape))
    ):
        raise errors.InputError(
            f"An array in device memory of shape {shape} has strides {tuple(strides)}; expected contiguous rows. Pass "
            "a contiguous copy."
        )
    return DeviceAddress(interface["data"][0], value), interface.get("stream") or LEGACY_STREAM


def copy(destination: int, source: int, nbytes: int, kind: str, stream: Stream | None = None) -> None:
    """Copy bytes between host and device; asynchronously if a stream is given.

    ``kind`` is the name of a ``cudaMemcpyKind``.
    """
    direction = getattr(cudart().cudaMemcpyKind, kind)
    if stream is None:
        call("cudaMemcpy", destination, source, nbytes, direction)
        # From pageable memory cudaMemcpy returns once the bytes are staged, before they are on the device.
        call("cudaStreamSynchronize", 0)
    else:
        call("cudaMemcpyAsync", destination, source, nbytes, direction, stream.ptr)


class MemcpyKind(enum.IntEnum):
    """Source and target of a copy; ``Default`` follows from the addresses."""

    HostToHost, HostToDevice, DeviceToHost, DeviceToDevice, Default = range(5)


# Scripts for Polygraphy call these with addresses.
class Cuda:
    """CUDA's calls for memory, by address; each raises InferenceError if CUDA reports an error."""

    def malloc(self, nbytes: int) -> int:
        """Allocate device memory and return its address."""
        return int(call("cudaMalloc", nbytes))

    def free(self, ptr: int) -> None:
        """Free device memory."""
        call("cudaFree", ptr)

    def memcpy(self, dst: int, src: int, nbytes: int, kind: MemcpyKind, stream_ptr: int | None = None) -> None:
        """Copy bytes between addresses; asynchronously if a stream is given."""
        if stream_ptr is None:
            copy(dst, src, nbytes, f"cudaMemcpy{MemcpyKind(kind).name}")
        else:
            call("cudaMemcpyAsync", dst, src, nbytes, cudart().cudaMemcpyKind(int(kind)), stream_ptr)


wrapper = Cuda
