"""Inputs and outputs of a runner: their host and device memory, and their state in the execution context."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trtops import errors
from trtops.backend.trt import library
from trtops.backend.trt.infer import callbacks, staging
from trtops.backend.trt.infer.formats import FormattedArray, Layout
from trtops.backend.trt.library import dtypes, memory
from trtops.backend.trt.lines import Feature
from trtops.torch_tensors import from_torch, is_torch


@dataclass(frozen=True, eq=False)
class Execution:
    """An engine ready to run; the runner owns its parts."""

    name: str  # the runner's name, for messages
    engine: Any
    context: Any
    stream: memory.Stream  # the stream of copies and inferences
    stager: staging.Stager  # copies large inputs to the device
    needs_profile: bool  # whether a shape of the engine is dynamic or depends on the data


class Slot:
    """One input or output, with its memory (it only grows), and the shape and address set in the context."""

    def __init__(self, execution: Execution, name: str, profile: int) -> None:
        engine = execution.engine
        trt = library.load()
        self.execution = execution
        self.name: str = name
        self.dtype = dtypes.from_trt(engine.get_tensor_dtype(name))
        self.on_host = bool(engine.get_tensor_location(name) == trt.TensorLocation.HOST)
        tensor_format, self.vectorized_dim, self.components = library.line().tensor_layout(engine, name, profile)
        self.is_linear = bool(tensor_format == trt.TensorFormat.LINEAR)
        self.is_plain = self.is_linear and self.dtype.itemsize >= 1
        # Data types smaller than a byte are copied as packed bytes.
        self.numpy_dtype: np.dtype[Any] = np.dtype(np.uint8) if self.dtype.itemsize < 1 else self.dtype.numpy()
        self.device = memory.DeviceArray.raw((0,))
        self.pinned = memory.PinnedArray()
        # The view of the pinned memory that the last inference used; None once the shape has changed.
        self.host: np.ndarray[Any, Any] | None = None
        self.host_as_bytes = False
        self.shape: tuple[int, ...] | None = None
        self.address = 0

    def layout(self) -> Layout:
        """The tensor's memory layout at the current shape."""
        assert self.shape is not None
        strides = tuple(self.execution.context.get_tensor_strides(self.name))
        return Layout(self.shape, self.numpy_dtype, strides, self.vectorized_dim, max(self.components, 1))

    def nbytes(self) -> int:
        """Size in device memory at the current shape, in bytes."""
        if not self.is_linear:
            return self.layout().nbytes
        assert self.shape is not None
        return math.ceil(math.prod(self.shape) * self.dtype.itemsize)

    def reserve_device(self, nbytes: int) -> int:
        """Reserve device memory of at least ``nbytes``, and return its address."""
        # TensorRT refuses a null address, even for an empty tensor.
        return self.device.resize((max(nbytes, 1),)).ptr

    def reserve_host(self, nbytes: int, *, as_bytes: bool) -> np.ndarray[Any, Any]:
        """Reserve pinned host memory, as an array of bytes or with the tensor's current shape and dtype."""
        assert self.shape is not None
        self.pinned.reserve(max(nbytes, 1))
        shape, dtype = ((nbytes,), np.dtype(np.uint8)) if as_bytes else (self.shape, self.numpy_dtype)
        self.host, self.host_as_bytes = self.pinned.view(shape, dtype), as_bytes
        return self.host

    def set_address(self, address: int) -> None:
        """Set the tensor's address in the context, if it changed; its owner lives until the next one."""
        if address != self.address and not self.execution.context.set_tensor_address(self.name, int(address)):
            raise errors.InferenceError(f"TensorRT refuses address {address:#x} for {self.name!r}.")
        self.address = address

    def free(self) -> None:
        """Free host and device memory."""
        self.host = None
        self.device.free()
        self.pinned.free()


class Input(Slot):
    """An input."""

    def __init__(self, execution: Execution, name: str, profile: int) -> None:
        super().__init__(execution, name, profile)
        engine = execution.engine
        fixed = tuple(engine.get_tensor_shape(name))
        self.smallest, self.largest = fixed, fixed
        if -1 in fixed:
            self.smallest, _, self.largest = library.line().profile_range(engine, name, profile)
        is_shape_tensor = engine.is_shape_inference_io(name)
        self._value_range = library.line().profile_values(engine, name, profile) if is_shape_tensor else []
        self._values: bytes | None = None

    def feed(self, value: Any) -> bool:
        """Queue the copy of a value to the device; returns True if output shapes may have changed."""
        on_device = memory.device_address(value.array if isinstance(value, FormattedArray) else value)
        changed = self._set_shape(tuple(value.shape))
        if self.on_host:
            if on_device is not None:
                raise errors.InferenceError(f"Input {self.name!r} is a shape tensor: it must be in host memory.")
            return self._feed_shape_tensor(np.asarray(value)) or changed
        if on_device is None:
            self._upload(value)
        else:
            address, writer = on_device
            self.set_address(address)
            self.execution.stream.wait_for(writer)
        return changed

    def _set_shape(self, shape: tuple[int, ...]) -> bool:
        if shape == self.shape:
            return False
        self.shape = None
        # 8.6 crashes when it infers shapes without one.
        if self.execution.needs_profile and self.execution.context.active_optimization_profile < 0:
            raise errors.InferenceError(
                f"{self.execution.name} has no optimization profile: another context of this engine uses the first. "
                "Call set_profile, or give optimization_profile."
            )
        # 8.6 accepts shapes outside the profile here, and crashes when it infers output shapes from them.
        if not _in_range(shape, self.smallest, self.largest):
            raise errors.InputError(self._shape_refusal(shape))
        with library.collect_log() as log:
            accepted = self.execution.context.set_input_shape(self.name, shape)
        if not accepted:
            raise errors.InputError(self._shape_refusal(shape) + log.tail())
        self.shape = shape
        self.host = None
        return True

    def _shape_refusal(self, shape: tuple[int, ...]) -> str:
        """The error message for a refused shape, with the expected shapes and a suitable profile."""
        engine = self.execution.engine
        current = max(int(self.execution.context.active_optimization_profile), 0)
        line = library.line()
        ranges = [line.profile_range(engine, self.name, i) for i in range(engine.num_optimization_profiles)]
        fits = [i for i, (low, _, high) in enumerate(ranges) if _in_range(shape, low, high)]
        smallest, _, largest = ranges[current]
        advice = f"Profile {fits[0]} accepts it: call set_profile({fits[0]}). " if fits else "No profile accepts it. "
        return (
            f"Input {self.name!r} has shape {shape}; profile {current} expects min {smallest}, max {largest}. {advice}"
        )

    def _feed_shape_tensor(self, array: np.ndarray[Any, Any]) -> bool:
        self._check_values(array)
        values = array.astype(self.numpy_dtype, copy=False).tobytes()
        self.reserve_host(len(values), as_bytes=True)[:] = np.frombuffer(values, np.uint8)
        self.set_address(self.pinned.ptr)
        changed, self._values = values != self._values, values
        return changed

    def _check_values(self, array: np.ndarray[Any, Any]) -> None:
        if not self._value_range:
            return
        low, _, high = self._value_range
        values, checked_count = array.reshape(-1).tolist(), len(low)  # 8.6 does not return the range of every value
        if not _in_range(values[:checked_count], low, high):
            raise errors.InputError(
                f"Shape tensor {self.name!r} has values {values}; the current profile expects min {low}, max {high}"
                f"{'' if checked_count == len(values) else f' for the first {checked_count}'}."
            )

    def _upload(self, value: Any) -> None:
        """Copy a host array to the device through pinned memory, in pieces if it is large."""
        raw = isinstance(value, FormattedArray)
        value = from_torch(value) if is_torch(value) else value
        host = self._staging_memory(value.array.nbytes if raw else None)
        stream = self.execution.stream
        # The previous value may have been on the device, at another address.
        self.set_address(self.device.ptr)
        if raw:
            host[...] = np.asarray(value.array).reshape(-1).view(np.uint8)
        elif not self.is_linear:
            self.layout().pack(np.asarray(value), host)
        elif host.nbytes > staging.CHUNK:
            self.execution.stager.upload(np.ascontiguousarray(value), host, self.device.ptr, stream)
            return
        else:
            np.copyto(host, np.asarray(value))
        memory.copy(self.device.ptr, self.pinned.ptr, host.nbytes, "cudaMemcpyHostToDevice", stream)

    def _staging_memory(self, raw_nbytes: int | None) -> np.ndarray[Any, Any]:
        """Pinned memory for a value, with the same amount of device memory: for an array or for raw bytes.

        Reused by the next inference if shape, kind and size of the value are the same.
        """
        as_bytes = raw_nbytes is not None or not self.is_plain
        if self.host is not None and self.host_as_bytes is as_bytes and raw_nbytes in (None, self.host.nbytes):
            return self.host
        nbytes = self.nbytes()
        if raw_nbytes is not None:
            if raw_nbytes < nbytes:
                raise errors.InputError(
                    f"Input {self.name!r} of shape {self.shape} takes {nbytes} bytes in its format; the "
                    f"FormattedArray has {raw_nbytes}."
                )
            nbytes = raw_nbytes
        self.reserve_device(nbytes)
        return self.reserve_host(nbytes, as_bytes=as_bytes)


class Output(Slot):
    """An output. If its size is not known before the inference, TensorRT calls an allocator during it."""

    def __init__(self, execution: Execution, name: str, profile: int) -> None:
        super().__init__(execution, name, profile)
        # That of an earlier runner of this context. After an inference 8.6 states its size as the output's shape.
        self.allocator: Any = execution.context.get_output_allocator(name)

    def prepare(self, inputs: Sequence[Input]) -> None:
        """Reserve memory once the input shapes are set; an output aliasing an input uses its memory."""
        context, engine = self.execution.context, self.execution.engine
        shape = tuple(context.get_tensor_shape(self.name))
        aliased = engine.get_aliased_input_tensor(self.name) if library.line().supports(Feature.ALIASED_IO) else None
        self.host = None
        if aliased:
            self.shape = shape
            self.set_address(next(slot.address for slot in inputs if slot.name == aliased))
        elif self.allocator is None and any(dim < 0 for dim in shape):
            self.allocator = callbacks.make_output_allocator(self._largest_size(inputs))
            if not context.set_output_allocator(self.name, self.allocator):
                raise errors.InferenceError(f"TensorRT refuses an output allocator for {self.name!r}.")
        elif self.allocator is not None:
            if not hasattr(self.allocator, "buffer"):
                raise errors.InferenceError(
                    f"Output {self.name!r} has an allocator that is not trtops's. Use another execution context."
                )
        else:
            self.shape = shape
            if self.on_host:
                self.reserve_host(self.nbytes(), as_bytes=False)
            self.set_address(self.pinned.ptr if self.on_host else self.reserve_device(self.nbytes()))

    def _largest_size(self, inputs: Sequence[Input]) -> int:
        """Return an upper bound of an output's bytes in the profile, of a context that has run no inference."""
        context = self.execution.context
        for slot in inputs:
            context.set_input_shape(slot.name, slot.largest)
        context.infer_shapes()
        nbytes = int(context.get_max_output_size(self.name))
        for slot in inputs:
            context.set_input_shape(slot.name, slot.shape)
        return nbytes

    def fetch(self, copy_out: bool, raw: bool) -> Any:
        """The output of a queued inference; its content is complete when the stream has finished."""
        if self.allocator is not None:
            self.shape, self.host = self.allocator.shape, None
        assert self.shape is not None
        # The allocator reserves device memory, also for outputs that TensorRT would write to the host.
        if self.on_host and self.allocator is None:
            return self.pinned.view(self.shape, self.numpy_dtype).copy()
        if copy_out or self.on_host:
            return self._download(raw)
        return memory.DeviceView(self._address(), self.shape, self.dtype)

    def _address(self) -> int:
        return self.address if self.allocator is None else int(self.allocator.buffer.ptr)

    def _download(self, raw: bool) -> Any:
        formatted = raw or not self.is_plain
        host = self.host
        if host is None or self.host_as_bytes is not formatted:
            host = self.reserve_host(self.nbytes(), as_bytes=formatted)
        assert self.shape is not None
        if host.nbytes:
            memory.copy(self.pinned.ptr, self._address(), host.nbytes, "cudaMemcpyDeviceToHost", self.execution.stream)
        if not formatted:
            return host
        return FormattedArray(host, self.shape, self.layout() if self.dtype.itemsize >= 1 else None)


def _in_range(sizes: Sequence[int], low: Sequence[int], high: Sequence[int]) -> bool:
    """Whether sizes or shape tensor values are in a profile's range."""
    return len(sizes) == len(low) and all(a <= size <= b for a, size, b in zip(low, sizes, high))
