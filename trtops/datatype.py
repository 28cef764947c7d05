"""Conversion of data types to and from other libraries, under Polygraphy's module name."""

from __future__ import annotations

import contextlib
import importlib
import logging
import sys
from typing import Any

from trtops import errors
from trtops.lazy import known_as
from trtops.metadata import DataType

log = logging.getLogger(__name__)

DataTypeEntry = DataType
"""The type of ``DataType``'s members."""

LIBRARIES = ("numpy", "onnx", "onnxruntime", "tensorrt", "torch")


def to_library(dtype: Any, library: str) -> Any:
    """See :meth:`DataType.to_dtype`."""
    if not isinstance(dtype, DataType):
        return dtype
    if library not in LIBRARIES:
        raise errors.ConfigError(f"No data types of {library!r} are known. {errors.near(library, LIBRARIES)}")
    found: Any = None
    if library == "numpy":
        found = dtype.numpy()
    elif library == "onnx":
        data_type = importlib.import_module("trtops.backend.onnx.model").data_type
        found = next((element for element in range(1, 64) if data_type(element) is dtype), None)
    elif library == "onnxruntime":
        if dtype not in (DataType.FLOAT4, DataType.FLOAT8E8M0):
            found = f"tensor({ {'float64': 'double', 'float32': 'float'}.get(dtype.name, dtype.name) })"
    elif library == "tensorrt":
        found = importlib.import_module("trtops.backend.trt.library.dtypes").to_trt(dtype)
    else:
        try:
            found = getattr(importlib.import_module("torch"), dtype.value, None)
        except ImportError as exc:
            raise errors.BackendUnavailableError(
                f"PyTorch is needed and cannot be imported ({exc}): pip install torch"
            ) from exc
    if found is None:
        raise errors.ConfigError(f"{library} has no data type for {dtype}.")
    return found


def from_library(dtype: object, library: str | None = None) -> Any:
    """See :meth:`DataType.from_dtype`."""
    if isinstance(dtype, DataType):
        return dtype
    if dtype is None:
        raise errors.ConfigError("None is not a data type.")
    if library is not None:
        to_library(DataType.FLOAT32, library)  # raises if the library is not known
    for name in LIBRARIES if library is None else [library]:
        # A value of a library that was not imported does not exist. numpy knows types such as `float` as well.
        if name in ("tensorrt", "torch") and library is None and name not in sys.modules:
            continue
        # A library may not have a type, and numpy raises when it compares its types with something else.
        with contextlib.suppress(errors.TrtopsError):
            if name == "numpy":
                return DataType.of(dtype)
        for each in DataType:
            with contextlib.suppress(errors.TrtopsError, TypeError):
                if type(dtype) is not bool and bool(to_library(each, name) == dtype):
                    return each
    log.warning("Data type %r is not known, and stays as it is", dtype)
    return dtype


known_as(__name__, "datatype", "numpy", "onnx", "onnxrt", "tensorrt", "torch")
