"""Converts data types of TensorRT and trtops."""

from typing import Any

import numpy as np

from trtops import errors
from trtops.backend.trt import library
from trtops.metadata import DataType

# By name, since not every release has every type.
_NAMES = {
    "FLOAT": DataType.FLOAT32,
    "HALF": DataType.FLOAT16,
    "BF16": DataType.BFLOAT16,
    "INT8": DataType.INT8,
    "INT32": DataType.INT32,
    "INT64": DataType.INT64,
    "BOOL": DataType.BOOL,
    "UINT8": DataType.UINT8,
    "FP8": DataType.FLOAT8E4M3FN,
    "INT4": DataType.INT4,
    "FP4": DataType.FLOAT4,
}
_TRT_NAMES = {dtype: name for name, dtype in _NAMES.items()}


def from_trt(dtype: Any) -> DataType:
    """The data type of a ``tensorrt.DataType``; ConfigError for E8M0, a type for scales only."""
    try:
        return _NAMES[dtype.name]
    except KeyError:
        raise errors.ConfigError(f"TensorRT's data type {dtype.name} has no counterpart here.") from None


def to_trt(dtype: object) -> Any:
    """The ``tensorrt.DataType`` for a data type, a numpy dtype or a dtype's name; TensorRT's types are unchanged.

    Raises UnsupportedFeatureError if this release of TensorRT does not have the type.
    """
    members = library.load().DataType.__members__
    if isinstance(dtype, library.load().DataType):
        return dtype
    data_type = DataType.of(dtype)
    name = _TRT_NAMES.get(data_type, "")
    if name not in members:
        available = ", ".join(_NAMES[n].value for n in members if n in _NAMES)
        raise errors.UnsupportedFeatureError(
            f"{library.line().name} does not have the data type {data_type.value}. It has: {available}."
        )
    return members[name]


def as_int32(name: str, value: Any) -> Any:
    """Convert an INT64 array to INT32, if its values fit; other values are unchanged."""
    if not isinstance(value, np.ndarray) or value.dtype != np.int64:
        return value
    narrowed = value.astype(np.int32)
    if not np.array_equal(narrowed, value):
        raise errors.InputError(
            f"Input {name!r} has int64 values beyond int32, and {library.line().name} has no int64. Use TensorRT 10 "
            "or later."
        )
    return narrowed
