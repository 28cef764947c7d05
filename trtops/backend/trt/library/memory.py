"""Device memory, pinned host memory, streams and events, over the CUDA runtime.

The CUDA runtime comes from cuda-python, whose module moved between releases: ``cuda.bindings.runtime`` from 12.6 on,
``cuda.cudart`` before.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import math
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from trtops import errors
from trtops.metadata import DataType

if TYPE_CHECKING:
    from typing_extensions import Self


@functools.cache
def cudart() -> Any:
    """The CUDA runtime's bindings.

    Raises:
        BackendUnavailableError: If cuda-python is not installed.
    """
    failed: list[str] = []
    for name in ("cuda.bindings.runtime", "cuda.cudart"):
        try:
            return importlib.import_module(name)
        except ImportError as exc:
            failed.append(str(exc))
    raise errors.BackendUnavailableError(
        f"The CUDA runtime's bindings cannot be imported ({'; '.join(failed)}). Install them with: pip install "
        "cuda-python"
    )


def call(function: str, *args: Any) -> Any:
    """Call a function of the CUDA runtime by name; returns its value, a tuple of several, or None.

    Raises:
        InferenceError: If CUDA reports an error; the message has its name and text.
    """
    result = getattr(cudart(), function)(*args)
    if result[0] != 0:
        raise cuda_error(function, result[0])
    if len(result) == 1:
        return None
    return result[1] if len(result) == 2 else result[1:]


def cuda_error(function: str, status: Any) -> errors.InferenceError:
    """The error that a status of CUDA's stands for, with its name and text."""
    cuda = cudart()
    name = cuda.cudaGetErrorName(status)[1]
    text = cuda.cudaGetErrorString(status)[1]
    cuda.cudaGetLastError()  # clears it; TensorRT would take it for an error of its own next launch
    return errors.InferenceError(f"CUDA: {function} failed with {as_text(name)} ({as_text(text)}).")


def as_text(value: Any) -> str:
    """A text from CUDA, which comes as ``bytes`` or as ``str`` depending on cuda-python's release."""
    return value.decode() if isinstance(value, bytes) else str(value)


def device_count() -> int:
    """GPUs that CUDA can use; 0 also where there is no driver, or no cuda-python."""
    try:
        status, count = cudart().cudaGetDeviceCount()
    except (errors.BackendUnavailableError, RuntimeError):
        return 0
    return int(count) if int(status) == 0 else 0


class Stream:
    """A CUDA stream that does not wait for the default stream; to be freed, or used in a ``with`` block.

    Attributes:
        ptr: Its handle, as an integer.
    """

    def __init__(self) -> None:
        self._handle = call("cudaStreamCreateWithFlags", cudart().cudaStreamNonBlocking)
        self.ptr = int(self._handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.free()

    def synchronize(self) -> None:
        """Wait until everything given to the stream is done."""
        call("cudaStreamSynchronize", self.ptr)

    def free(self) -> None:
        """Destroy the stream; does nothing the second time."""
        if self.ptr:
            call("cudaStreamDestroy", self.ptr)
            self.ptr = 0


class Event:
    """A point in a stream, with its time."""

    def __init__(self) -> None:
        self._handle = call("cudaEventCreate")
        self._record = (
            cudart().cudaEventRecord
        )  # not through call(), which costs a look-up by name: an inference records up to four

    def record(self, stream: Stream) -> None:
        """Set the event to the point after everything that the stream was given so far."""
        status = self._record(self._handle, stream.ptr)[0]
        if status != 0:
            raise cuda_error("cudaEventRecord", status)

    def seconds_since(self, earlier: Event) -> float:
        """Seconds from an earlier event to this one, both reached by the device; resolution about 0.5 microseconds."""
        return float(call("cudaEventElapsedTime", earlier._handle, self._handle)) / 1e3

    def free(self) -> None:
        """Destroy the event; does nothing the second time."""
        if self._handle is not None:
            call("cudaEventDestroy", self._handle)
            self._handle = None


class DeviceView:
    """Device memory that somebody else owns, seen as an array.

    Other libraries read it through ``__cuda_array_interface__``: ``torch.as_tensor(view, device="cuda")``.

    Attributes:
        ptr: Address of the first element.
        shape: Dimensions.
        dtype: Element type.
    """

    def __init__(self, ptr: int, shape: Sequence[int], dtype: object) -> None:
        self.ptr = int(ptr)
        self.shape = tuple(shape)
        self.dtype: np.dtype[Any] = DataType.of(dtype).numpy()

    @property
    def itemsize(self) -> int:
        """Bytes that one element takes."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes that the elements take."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": self.shape, "typestr": self.dtype.str, "data": (self.ptr, False), "version": 3}

    def copy_to(self, host_buffer: np.ndarray[Any, Any], stream: Stream | None = None) -> np.ndarray[Any, Any]:
        """Copy into a host array of the same dtype and size; asynchronously if a stream is given.

        Raises:
            InputShapeError: If the host array is of another size or not contiguous.
        """
        self._check(host_buffer)
        copy(host_buffer.ctypes.data, self.ptr, self.nbytes, "cudaMemcpyDeviceToHost", stream)
        return host_buffer

    def numpy(self) -> np.ndarray[Any, Any]:
        """A copy in host memory."""
        return self.copy_to(np.empty(self.shape, self.dtype))

    def _check(self, host_buffer: np.ndarray[Any, Any]) -> None:
        if host_buffer.nbytes != self.nbytes or not host_buffer.flags.c_contiguous:
            raise errors.InputShapeError(
                f"A host array of shape {host_buffer.shape} and dtype {host_buffer.dtype} does not hold "
                f"{self.shape} of {self.dtype}, or is not contiguous."
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape}, dtype={self.dtype.name}, ptr={self.ptr:#x})"


class DeviceArray(DeviceView):
    """Device memory that this object owns, seen as an array. Freed by ``with``, :meth:`free` or garbage collection.

    Attributes:
        allocated_nbytes: Bytes held, which may be more than the elements take.
    """

    def __init__(self, shape: Sequence[int] | None = None, dtype: object = None) -> None:
        super().__init__(0, () if shape is None else shape, "float32" if dtype is None else dtype)
        self.allocated_nbytes = 0
        self.resize(self.shape)

    @classmethod
    def raw(cls, shape: Sequence[int] | None = None) -> DeviceArray:
        """Memory as bytes."""
        return cls(shape, np.uint8)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.free()

    def __del__(self) -> None:
        if getattr(self, "allocated_nbytes", 0):
            self.free()

    def resize(self, shape: Sequence[int]) -> Self:
        """Take another shape; reallocates, and so loses the content, only if more memory is needed than is held.

        Returns:
            The array itself.
        """
        self.shape = tuple(shape)
        if self.nbytes > self.allocated_nbytes:
            nbytes = self.nbytes
            self.free()
            self.ptr = int(call("cudaMalloc", nbytes))
            self.allocated_nbytes = nbytes
        return self

    def copy_from(self, host_buffer: np.ndarray[Any, Any], stream: Stream | None = None) -> Self:
        """Take shape and content of a host array of the same dtype; asynchronously if a stream is given."""
        self.resize(host_buffer.shape)
        self._check(host_buffer)
        copy(self.ptr, host_buffer.ctypes.data, self.nbytes, "cudaMemcpyHostToDevice", stream)
        return self

    def view(self, shape: Sequence[int] | None = None, dtype: object = None) -> DeviceView:
        """The memory under another shape or dtype; valid until this array is resized or freed.

        Raises:
            InputShapeError: If that takes more bytes than the array has.
        """
        seen = DeviceView(self.ptr, self.shape if shape is None else shape, self.dtype if dtype is None else dtype)
        if seen.nbytes > self.nbytes:
            raise errors.InputShapeError(f"A view of {seen.nbytes} bytes does not fit into {self!r}.")
        return seen

    def free(self) -> None:
        """Free the memory; does nothing the second time."""
        if self.allocated_nbytes:
            pointer, self.ptr, self.allocated_nbytes = self.ptr, 0, 0
            call("cudaFree", pointer)


class PinnedArray:
    """Page-locked host memory: the device copies to and from it asynchronously, and twice as fast or more.

    The memory is freed once this object has let go of it and no array made by :meth:`view` is left, so outputs may
    outlive the runner that made them.

    Attributes:
        nbytes: Bytes held.
        ptr: Address in host memory.
    """

    def __init__(self, nbytes: int = 0) -> None:
        self.nbytes = 0
        self.ptr = 0
        self._bytes: np.ndarray[Any, np.dtype[np.uint8]] = np.empty(0, np.uint8)
        self.reserve(nbytes)

    def reserve(self, nbytes: int) -> None:
        """Hold at least so many bytes; arrays made by :meth:`view` before keep the memory that they are in."""
        if nbytes <= self.nbytes:
            return
        self.free()
        self.ptr = int(call("cudaMallocHost", nbytes))
        self.nbytes = nbytes
        block = (ctypes.c_uint8 * nbytes).from_address(self.ptr)
        # Every view holds the block, so the memory is freed after the last one. Not at exit: the process ends with it
        # anyway, and CUDA may be torn down by then.
        weakref.finalize(block, _free_host, self.ptr).atexit = False
        self._bytes = np.ctypeslib.as_array(block)

    def view(self, shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """The first bytes as an array, without a copy: whatever is written to this memory next shows in it."""
        count = math.prod(shape)
        return self._bytes[: count * dtype.itemsize].view(dtype).reshape(tuple(shape))

    def free(self) -> None:
        """Let go of the memory; it is freed once no view of it is left."""
        self.ptr = self.nbytes = 0
        self._bytes = np.empty(0, np.uint8)


def _free_host(pointer: int) -> None:
    call("cudaFreeHost", pointer)


def copy(destination: int, source: int, nbytes: int, kind: str, stream: Stream | None = None) -> None:
    """Copy bytes between host and device; ``kind`` is the name of a ``cudaMemcpyKind``."""
    direction = getattr(cudart().cudaMemcpyKind, kind)
    if stream is None:
        call("cudaMemcpy", destination, source, nbytes, direction)
    else:
        call("cudaMemcpyAsync", destination, source, nbytes, direction, stream.ptr)
