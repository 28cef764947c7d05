"""Conversion of values to numpy arrays in host memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from trtops import errors
from trtops.torch_tensors import from_torch, is_torch

if TYPE_CHECKING:
    from typing_extensions import TypeIs

Array: TypeAlias = "np.ndarray[Any, Any]"


def to_numpy(value: object, name: str = "value") -> Array:
    """A value as a numpy array in host memory, which shares memory with it where it can; ``name`` is for errors.

    The value is a numpy array or scalar, a torch tensor on any device, something with a ``load()`` that returns one of
    these (a :class:`~trtops.comparator.results.LazyArray`), or nested sequences of numbers. ComparisonError if it holds
    anything but numbers, booleans or strings.
    """
    if isinstance(value, np.ndarray):
        array = value
    elif is_torch(value):
        array = from_torch(value)
    elif callable(load := getattr(value, "load", None)):
        return to_numpy(load(), name)
    else:
        try:
            array = np.asarray(value)
        except ValueError as exc:  # sequences of different lengths
            raise errors.ComparisonError(f"{name} is not an array: {exc}") from None
    # Types of ml_dtypes are of the kind "V", with 2 for isbuiltin.
    if array.dtype.kind in "cMm" or (array.dtype.kind == "V" and array.dtype.isbuiltin != 2):
        raise errors.ComparisonError(
            f"{name} has dtype {array.dtype}; only numbers, booleans and strings can be compared."
        )
    if array.dtype.kind == "O" and not holds_strings(array):
        raise errors.ComparisonError(
            f"{name} is an array of Python objects; only numbers, booleans and strings can be compared. "
            "Give its values one dtype first."
        )
    return array


def holds_strings(array: Array) -> TypeIs[Array]:
    """Whether an array holds text or bytes: a string dtype, or objects that all are strings (ONNX Runtime's way)."""
    if array.dtype.kind in "USaT":
        return True
    return array.dtype.kind == "O" and all(isinstance(item, (str, bytes)) for item in array.flat)


def dtype_name(array: Array) -> str:
    """The dtype's name as :class:`trtops.metadata.DataType` spells it; ``str`` for strings of any length."""
    return "str" if array.dtype.kind in "USaOT" else array.dtype.name


def permuted_axes(shape: Sequence[int], wanted: Sequence[int]) -> list[int]:
    """The axes whose order turns one shape into another, which must have the same dimensions in another order."""
    left, axes = list(range(len(shape))), list[int]()
    for dim in wanted:
        axes.append(next(axis for axis in left if shape[axis] == dim))
        left.remove(axes[-1])
    return axes
