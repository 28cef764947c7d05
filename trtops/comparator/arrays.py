"""Conversion of values to numpy arrays in host memory, casts of feeds, and the slack of tolerances."""

from __future__ import annotations

import functools
import logging
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from trtops import errors
from trtops.metadata import DataType, TensorSpec
from trtops.torch_tensors import from_torch, is_torch

if TYPE_CHECKING:
    from typing_extensions import TypeIs

_log = logging.getLogger(__name__)

Array: TypeAlias = np.ndarray[Any, Any]


def is_floating(array: Array) -> bool:
    """True for floating-point numbers, also of types that numpy itself lacks, such as bfloat16."""
    return array.dtype.kind == "f" or "float" in array.dtype.name


def to_numpy(value: object, name: str = "value") -> Array:
    """A value as a numpy array in host memory, sharing its memory if possible; ``name`` is for errors.

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
    """True for an array of text or bytes: a string dtype, or only strings as objects (ONNX Runtime's way)."""
    if array.dtype.kind in "USaT":
        return True
    return array.dtype.kind == "O" and all(isinstance(item, (str, bytes)) for item in array.flat)


def as_arrays(values: Mapping[str, Any]) -> dict[str, Array]:
    """Return arrays by name; arrays are not copied."""
    return {name: np.asarray(value) for name, value in values.items()}


def copied(outputs: Mapping[str, Any]) -> dict[str, Array]:
    """Return copies, since a runner may overwrite its outputs."""
    return {name: np.array(array) for name, array in outputs.items()}


def subset(outputs: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the outputs of some names."""
    return {name: outputs[name] for name in names}


def dtype_name(array: Array) -> str:
    """The dtype's name as :class:`trtops.metadata.DataType` spells it; ``str`` for strings of any length."""
    return "str" if array.dtype.kind in "USaOT" else _name_of(array.dtype)


_name_of = functools.cache(operator.attrgetter("name"))  # numpy makes the name again at each use


def closest_name(name: str, index: int, names: Iterable[str]) -> str | None:
    """The first name that contains the given one or is a part of it, or else the name at the same place."""
    candidates = list(names)
    near = [other for other in candidates if name.lower() in other.lower() or other.lower() in name.lower()]
    return next(iter(near or candidates[index : index + 1]), None)


def permuted_axes(shape: Sequence[int], target_shape: Sequence[int]) -> list[int]:
    """The order of axes for turning a shape into another one, of the same dimensions in another order."""
    left, axes = list(range(len(shape))), list[int]()
    for dim in target_shape:
        axes.append(next(axis for axis in left if shape[axis] == dim))
        left.remove(axes[-1])
    return axes


def cast_array(array: Array, name: str, dtype: DataType) -> Array:
    """An array in another type, with a warning; InputError if the type cannot hold all values."""
    _log.warning("Input %r is cast from %s to %s", name, array.dtype, dtype.value)
    if dtype.is_integral and array.size and array.dtype.kind in "fiub":
        limits = np.iinfo(dtype.numpy()) if dtype.numpy().isbuiltin == 1 else None
        if limits is not None and not (limits.min <= float(array.min()) and float(array.max()) <= limits.max):
            raise errors.InputError(f"Input {name!r} has values that {dtype.value} does not hold.")
    try:
        return array.astype(dtype.numpy())
    except (TypeError, ValueError) as exc:
        raise errors.InputError(f"Input {name!r} cannot be cast from {array.dtype} to {dtype.value}: {exc}.") from None


def cast_feed(feed: Mapping[str, Any], inputs: Mapping[str, TensorSpec]) -> Mapping[str, Any]:
    """Inputs with numbers cast to the types of the model's inputs, with a warning; other names stay unchanged.

    InputError if an array has values that the input's type does not hold.
    """
    cast = {}
    for name, array in feed.items():
        dtype = None if name not in inputs else inputs[name].dtype
        if dtype is None or dtype is DataType.STRING or not isinstance(array, np.ndarray):
            continue
        if array.dtype.kind in "fiub" and array.dtype != dtype.numpy():
            cast[name] = cast_array(array, name, dtype)
    return {**feed, **cast} if cast else feed


# The difference of two numbers that are a tolerance apart is a bit above it as often as a bit below: 1.1 and 1.0 differ
# by 0.10000002 in float32.
_DIGITS = 5


@functools.lru_cache(maxsize=64)
def largest_within(limit: float) -> float:
    """The largest error within a tolerance; a tolerance of 0 has no slack."""
    if limit == 0 or not math.isfinite(limit):
        return limit
    return limit + 0.5 * 10.0 ** (math.floor(math.log10(abs(limit))) - _DIGITS + 1)
