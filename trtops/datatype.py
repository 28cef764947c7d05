"""Data types, and their conversion to and from other libraries, under Polygraphy's module name."""

from __future__ import annotations

import contextlib
import importlib
import re
from enum import Enum
from functools import partialmethod
from types import DynamicClassAttribute
from typing import TYPE_CHECKING, Any

from trtops import errors
from trtops.lazy import known_as

if TYPE_CHECKING:
    import numpy as np

LIBRARIES = ("numpy", "onnx", "onnxruntime", "tensorrt", "torch")


class DataType(Enum):
    """Element types of tensors. The value is the type's name in numpy or ml_dtypes.

    Name and text are the member's name in lower case (``float8e4m3fn``). numpy accepts a member as a dtype.
    """

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT8E4M3FN = "float8_e4m3fn"
    FLOAT8E4M3FNUZ = "float8_e4m3fnuz"
    FLOAT8E5M2 = "float8_e5m2"
    FLOAT8E5M2FNUZ = "float8_e5m2fnuz"
    FLOAT8E8M0 = "float8_e8m0fnu"
    FLOAT4 = "float4_e2m1fn"
    INT64 = "int64"
    INT32 = "int32"
    INT16 = "int16"
    INT8 = "int8"
    INT4 = "int4"
    UINT64 = "uint64"
    UINT32 = "uint32"
    UINT16 = "uint16"
    UINT8 = "uint8"
    BOOL = "bool"
    STRING = "str"

    @DynamicClassAttribute
    def name(self) -> str:
        """The member's name in lower case."""
        return self._name_.lower()

    def __str__(self) -> str:
        return self.name

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype; numpy reads this attribute."""
        return self.numpy()

    @property
    def is_floating(self) -> bool:
        """Whether the type is a floating-point type of any width."""
        return "float" in self.value

    @property
    def is_integral(self) -> bool:
        """Whether the type is an integer type, signed or not; bool is not."""
        return "int" in self.value

    @property
    def itemsize(self) -> float:
        """Bytes per element: 0.5 for 4-bit types, 0 for strings (their size varies)."""
        width = re.search(r"\d+", self.value)
        bits = int(width[0]) if width else 8 * (self is DataType.BOOL)
        return bits / 8 if bits % 8 else bits // 8

    def numpy(self) -> np.dtype[Any]:
        """The numpy dtype; bfloat16, 8-bit floats and 4-bit types come from ml_dtypes (a dependency of onnx)."""
        import numpy as np

        try:
            return np.dtype(str(self.value))
        except TypeError:
            import ml_dtypes

            dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, self.value))
            return dtype

    @classmethod
    def of(cls, dtype: object) -> DataType:
        """The data type for a DataType, a dtype of numpy or torch, or a name of one; ConfigError otherwise.

        >>> DataType.of("float16").itemsize
        2
        """
        if isinstance(dtype, DataType):
            return dtype
        if isinstance(dtype, str) and (named := cls.__members__.get(dtype.upper())) is not None:
            return named
        import numpy as np

        try:
            name = np.dtype(dtype).name  # type: ignore[call-overload]
        except TypeError:
            name = str(dtype).removeprefix("torch.")
        # Names of strings contain their length, such as "str96".
        if name == "object" or name.startswith("str"):
            return cls.STRING
        try:
            return cls(name)
        except ValueError:
            hint = errors.near(name, [member.value for member in cls])
            raise errors.ConfigError(f"Unknown data type {dtype!r}. {hint}") from None

    def to_dtype(dtype: Any, target_module: str) -> Any:
        """Another library's data type for a DataType; other values are returned unchanged.

        Raises ConfigError if the library is not known, or it has no such type.
        """
        if not isinstance(dtype, DataType):
            return dtype
        if target_module not in LIBRARIES:
            hint = errors.near(target_module, LIBRARIES)
            raise errors.ConfigError(f"No data types of {target_module!r} are known. {hint}")
        converted: Any
        # Back ends and torch are not imported by a statement: they are above this module, or not installed.
        if target_module == "numpy":
            converted = dtype.numpy()
        elif target_module == "onnx":
            data_type = importlib.import_module("trtops.backend.onnx.model").data_type
            converted = next((element for element in range(1, 64) if data_type(element) is dtype), None)
        elif target_module == "onnxruntime":
            name = {"float64": "double", "float32": "float"}.get(dtype.name, dtype.name)
            converted = None if dtype in (DataType.FLOAT4, DataType.FLOAT8E8M0) else f"tensor({name})"
        elif target_module == "tensorrt":
            converted = importlib.import_module("trtops.backend.trt.library.dtypes").to_trt(dtype)
        else:
            converted = getattr(importlib.import_module("torch"), dtype.value, None)
        if converted is None:
            raise errors.ConfigError(f"{target_module} has no data type for {dtype}.")
        return converted

    onnx = partialmethod(to_dtype, target_module="onnx")
    onnxruntime = partialmethod(to_dtype, target_module="onnxruntime")
    tensorrt = partialmethod(to_dtype, target_module="tensorrt")
    torch = partialmethod(to_dtype, target_module="torch")

    @classmethod
    def from_dtype(cls, dtype: object, source_module: str | None = None) -> Any:
        """The DataType for a library's data type; ``dtype`` itself if it is not known.

        Raises ConfigError if the library is not known, or ``dtype`` is None.
        """
        if dtype is None:
            raise errors.ConfigError("None is not a data type.")
        cls.to_dtype(cls.FLOAT32, source_module or "numpy")  # raises if the library is not known
        with contextlib.suppress(errors.ConfigError):
            return cls.of(dtype)
        for library in ("onnx", "onnxruntime", "tensorrt"):
            for data_type in cls:
                # A library may be missing or lack a type, and numpy raises when its types are compared with others.
                with contextlib.suppress(errors.TrtopsError, TypeError):
                    if cls.to_dtype(data_type, library) == dtype:
                        return data_type
        return dtype


DataTypeEntry = DataType
"""The type of ``DataType``'s members."""

known_as(__name__, "datatype", "numpy", "onnx", "onnxrt", "tensorrt", "torch")
