"""Objects called by TensorRT during an inference: output allocators and debug listeners."""

from typing import Any

import numpy as np

from trtops.backend.trt import library
from trtops.backend.trt.library import dtypes, memory
from trtops.backend.trt.lines import Feature
from trtops.metadata import DataType


def make_output_allocator(nbytes: int) -> Any:
    """Create a ``trt.IOutputAllocator`` for one output, with the output's ``buffer`` and ``shape``.

    ``nbytes`` is an upper bound of the output's size. TensorRT 8.6 may request the size of the last inference, and
    write more: it requested 24 bytes for an output of 131,072 on an H200.

    The execution context references the allocator. The allocator must not reference the context: its memory and profile
    would never be released, since Python's garbage collector does not see references in TensorRT. A context keeps its
    allocator, since the bound is known before its first inference only.
    """
    base: Any = library.load().IOutputAllocator

    class OutputAllocator(base):  # type: ignore[misc]
        """Called from C++ for an output of unknown size before the inference."""

        def __init__(self) -> None:
            base.__init__(self)
            self.shape: tuple[int, ...] = ()
            # TensorRT refuses a null address, even for an empty tensor.
            self.buffer = memory.DeviceArray.raw((max(nbytes, 1),))

        def reallocate_output(self, tensor_name: str, memory: Any, size: int, alignment: int) -> int:
            return int(self.buffer.resize((max(size, 1),)).ptr)

        def reallocate_output_async(self, tensor_name: str, memory: Any, size: int, alignment: int, stream: int) -> int:
            return self.reallocate_output(tensor_name, memory, size, alignment)

        def notify_shape(self, tensor_name: str, shape: Any) -> None:
            self.shape = tuple(shape)

    return OutputAllocator()


def make_debug_listener() -> Any:
    """A ``trt.IDebugListener`` with ``tensors``: debug tensors of the last inference by name, in host memory."""
    library.line().require(Feature.DEBUG_TENSORS)
    trt = library.load()
    base: Any = trt.IDebugListener

    class DebugTensors(base):  # type: ignore[misc]
        """Called from C++; copies debug tensors to the host."""

        def __init__(self) -> None:
            base.__init__(self)
            self.tensors: dict[str, np.ndarray[Any, Any]] = {}

        def process_debug_tensor(self, addr: int, location: Any, type: Any, shape: Any, name: str, stream: int) -> bool:
            dtype: DataType = dtypes.from_trt(type)
            # numpy has no data types smaller than a byte.
            if dtype.itemsize < 1:
                return True
            # The content is complete once the stream has reached this point.
            memory.call("cudaStreamSynchronize", stream)
            array = np.empty(tuple(shape), dtype.numpy())
            kind = "cudaMemcpyHostToHost" if location == trt.TensorLocation.HOST else "cudaMemcpyDeviceToHost"
            memory.copy(array.ctypes.data, int(addr), array.nbytes, kind)
            self.tensors[name] = array
            return True

    return DebugTensors()
