"""Memory formats of inputs and outputs: vectors of channels (CHW32), channels last (HWC8), and row major (LINEAR)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trtops.json import Decoder, Encoder, add_json_methods


@dataclass(frozen=True)
class Layout:
    """Memory layout of a tensor."""

    shape: tuple[int, ...]  # its dimensions
    dtype: np.dtype[Any]  # data type of its elements
    strides: tuple[int, ...]  # strides in vectors
    vectorized_dim: int = -1  # the dimension that is split into vectors, or -1
    components: int = 1  # elements per vector

    @property
    def nbytes(self) -> int:
        """Size of the tensor in bytes, with padding."""
        sizes = self._vector_sizes()
        if 0 in sizes:
            return 0
        # From the last vector's position, since strides may leave gaps.
        last = sum((size - 1) * stride for size, stride in zip(sizes, self.strides))
        return (last + 1) * self.components * self.dtype.itemsize

    def _vector_sizes(self) -> tuple[int, ...]:
        if self.components == 1 or self.vectorized_dim < 0:
            return self.shape
        sizes = list(self.shape)
        sizes[self.vectorized_dim] = math.ceil(sizes[self.vectorized_dim] / self.components)
        return tuple(sizes)

    def _vectors(self, raw: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """A view of raw memory as vectors: the elements of a vector are the last dimension."""
        width = self.components * self.dtype.itemsize
        return np.lib.stride_tricks.as_strided(
            raw.view(self.dtype),
            (*self._vector_sizes(), self.components),
            (*(stride * width for stride in self.strides), self.dtype.itemsize),
        )

    def pack(self, array: np.ndarray[Any, Any], out: np.ndarray[Any, Any]) -> None:
        """Write an array of :attr:`shape` into raw memory of :attr:`nbytes` bytes; padding becomes zero."""
        out[...] = 0
        vectors = self._vectors(out)
        if self.components == 1:
            vectors[..., 0] = array
            return
        dim = self.vectorized_dim
        # CHW4 of 6 channels: 2 channels of padding, split into (2, 4), and the 4 moved to the end.
        padding = [(0, 0)] * array.ndim
        padding[dim] = (0, -array.shape[dim] % self.components)
        padded = np.pad(array, padding)
        split = padded.reshape(*array.shape[:dim], -1, self.components, *array.shape[dim + 1 :])
        vectors[...] = np.moveaxis(split, dim + 1, -1)

    def unpack(self, raw: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Copy the array of :attr:`shape` out of raw memory."""
        vectors = self._vectors(raw)
        if self.components == 1:
            return np.ascontiguousarray(vectors[..., 0])
        dim = self.vectorized_dim
        joined = np.moveaxis(vectors, -1, dim + 1)
        padded = joined.reshape(*self.shape[:dim], -1, *self.shape[dim + 1 :])
        unpadded = tuple(slice(size) for size in self.shape)
        return np.ascontiguousarray(padded[unpadded])


@add_json_methods("formatted array")
@dataclass(eq=False)
class FormattedArray:
    """An array in a memory format unknown to numpy, such as a vectorized TensorRT tensor."""

    array: Any  # the bytes, on the host or, as a device view, on the device
    shape: Sequence[int]  # the tensor's own
    layout: Layout | None = None  # of an array that a runner returned

    @property
    def dtype(self) -> Any:
        """Data type of the elements; of the raw memory if the layout is unknown."""
        return self.array.dtype if self.layout is None else self.layout.dtype

    def linear(self) -> np.ndarray[Any, Any]:
        """The tensor as a plain numpy array. Raises ValueError if the layout is unknown."""
        if self.layout is None:
            raise ValueError("The layout of this FormattedArray is unknown; only arrays returned by a runner have one.")
        return self.layout.unpack(self.array)


Encoder.register(FormattedArray)(lambda formatted: {"array": formatted.array, "shape": list(formatted.shape)})
Decoder.register(FormattedArray)(lambda members: FormattedArray(members["array"], members["shape"]))
