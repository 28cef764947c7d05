"""Conversion of data types to and from other libraries, under Polygraphy's module name.

Libraries are imported on use.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from trtops import errors
from trtops.lazy import known_as
from trtops.metadata import EXPORTERS, IMPORTERS, DataType

__all__ = [
    "DataType",
    "DataTypeEntry",
    "from_numpy",
    "from_onnx",
    "from_onnxrt",
    "from_tensorrt",
    "from_torch",
    "register_dtype_exporter",
    "register_dtype_importer",
]

F = TypeVar("F", bound=Callable[[Any], Any])

DataTypeEntry = DataType
"""The type of ``DataType``'s members."""

_ONNXRT_NAMES = {DataType.FLOAT64: "double", DataType.FLOAT32: "float"}
_NOT_IN_ONNXRT = (DataType.FLOAT4, DataType.FLOAT8E8M0)


def register_dtype_importer(source_module: str) -> Callable[[F], F]:
    """Decorate a function that returns our data type for one of a library, or None.

    ``source_module`` names the library.
    """

    def register(function: F) -> F:
        IMPORTERS[source_module] = function
        return function

    return register


def register_dtype_exporter(target_module: str) -> Callable[[F], F]:
    """Decorate a function that returns a library's data type for ours, or None; ``target_module`` names the method."""

    def register(function: F) -> F:
        EXPORTERS[target_module] = function
        if not hasattr(DataType, target_module):
            setattr(DataType, target_module, lambda dtype: DataType.to_dtype(dtype, target_module))
        return function

    return register


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


known_as(__name__, "datatype", "numpy", "onnx", "onnxrt", "tensorrt", "torch")
