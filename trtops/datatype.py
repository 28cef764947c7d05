"""Conversion of data types to and from other libraries, under Polygraphy's module name.

Libraries are imported on use.
"""

from __future__ import annotations

import importlib
import logging
import sys
from typing import Any

from trtops import errors
from trtops.lazy import known_as
from trtops.metadata import DataType

__all__ = [
    "DataType",
    "DataTypeEntry",
    "from_numpy",
    "from_onnx",
    "from_onnxrt",
    "from_tensorrt",
    "from_torch",
]

log = logging.getLogger(__name__)

DataTypeEntry = DataType
"""The type of ``DataType``'s members."""

_ONNXRT_NAMES = {DataType.FLOAT64: "double", DataType.FLOAT32: "float"}
_NOT_IN_ONNXRT = (DataType.FLOAT4, DataType.FLOAT8E8M0)


def from_numpy(numpy_type: Any) -> DataType | None:
    """Return our data type for one of numpy."""
    home = type(numpy_type).__module__.split(".")[0]
    if isinstance(numpy_type, int) or home not in ("numpy", "builtins", "ml_dtypes"):
        return None
    try:
        return DataType.of(numpy_type)
    except errors.ConfigError:
        return None


def to_numpy(dtype: DataType) -> Any:
    """Return numpy's data type for one of ours."""
    return dtype.numpy()


def from_onnx(onnx_type: Any) -> DataType | None:
    """Return our data type for a ``TensorProto.DataType``, a whole number."""
    if not isinstance(onnx_type, int) or isinstance(onnx_type, bool):
        return None
    found: DataType | None = importlib.import_module("trtops.backend.onnx.model").data_type(int(onnx_type))
    return found


def to_onnx(dtype: DataType) -> int | None:
    """Return ONNX's data type for one of ours."""
    data_type = importlib.import_module("trtops.backend.onnx.model").data_type
    return next((element for element in range(1, 64) if data_type(element) is dtype), None)


def from_onnxrt(onnxrt_type: Any) -> DataType | None:
    """Return our data type for ONNX Runtime's name of one, such as ``tensor(float)``."""
    return next((each for each in DataType if to_onnxrt(each) == onnxrt_type), None)


def to_onnxrt(dtype: DataType) -> str | None:
    """Return ONNX Runtime's name for a data type."""
    return None if dtype in _NOT_IN_ONNXRT else f"tensor({_ONNXRT_NAMES.get(dtype, dtype.name)})"


def from_tensorrt(tensorrt_type: Any) -> DataType | None:
    """Return our data type for a ``tensorrt.DataType``."""
    if type(tensorrt_type).__name__ != "DataType" or not type(tensorrt_type).__module__.startswith("tensorrt"):
        return None
    found: DataType = importlib.import_module("trtops.backend.trt.library.dtypes").from_trt(tensorrt_type)
    return found


def to_tensorrt(dtype: DataType) -> Any:
    """Return TensorRT's data type for one of ours; UnsupportedFeatureError if this release has none."""
    return importlib.import_module("trtops.backend.trt.library.dtypes").to_trt(dtype)


def from_torch(torch_type: Any) -> DataType | None:
    """Return our data type for one of PyTorch."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(torch_type, torch.dtype):
        return None
    return DataType.__members__.get(str(torch_type).removeprefix("torch.").upper())


def to_torch(dtype: DataType) -> Any:
    """Return PyTorch's data type for one of ours, or None; BackendUnavailableError without PyTorch."""
    try:
        torch = importlib.import_module("torch")
    except ImportError as exc:
        raise errors.BackendUnavailableError(
            f"PyTorch is needed and cannot be imported ({exc}): pip install torch"
        ) from exc
    return getattr(torch, dtype.value, None)


_FROM = {
    "numpy": from_numpy,
    "onnx": from_onnx,
    "onnxruntime": from_onnxrt,
    "tensorrt": from_tensorrt,
    "torch": from_torch,
}
_TO = {"numpy": to_numpy, "onnx": to_onnx, "onnxruntime": to_onnxrt, "tensorrt": to_tensorrt, "torch": to_torch}


def from_library(dtype: object, library: str | None = None) -> Any:
    """See :meth:`DataType.from_dtype`."""
    if isinstance(dtype, DataType):
        return dtype
    if dtype is None:
        raise errors.ConfigError("None is not a data type.")
    _check_library(library)
    for convert in _FROM.values() if library is None else [_FROM[library]]:
        if (found := convert(dtype)) is not None:
            return found
    log.warning("Data type %r is not known, and stays as it is", dtype)
    return dtype


def to_library(dtype: Any, library: str) -> Any:
    """See :meth:`DataType.to_dtype`."""
    if not isinstance(dtype, DataType):
        return dtype
    _check_library(library)
    found: Any = _TO[library](dtype)
    if found is None:
        raise errors.ConfigError(f"{library} has no data type for {dtype}.")
    return found


def _check_library(library: str | None) -> None:
    if library is not None and library not in _FROM:
        raise errors.ConfigError(f"No data types of {library!r} are known. {errors.near(library, _FROM)}")


known_as(__name__, "datatype", "numpy", "onnx", "onnxrt", "tensorrt", "torch")
