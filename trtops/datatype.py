"""Data types, and their conversion to and from other libraries, under Polygraphy's module name."""

from __future__ import annotations

import contextlib
import importlib
import sys
from enum import Enum
from types import DynamicClassAttribute
from typing import TYPE_CHECKING, Any

from trtops import errors
from trtops.lazy import known_as

if TYPE_CHECKING:
    import numpy as np

LIBRARIES = ("numpy", "onnx", "onnxruntime", "tensorrt", "torch")


def _converter(library: str) -> Any:
    return lambda self: DataType.to_dtype(self, library)


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

    def __repr__(self) -> str:
        return f"DataType.{self._name_}"

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
        """Bytes per element: 0.5 for 4-bit types, 0 for strings, whose size varies."""
        if self in (DataType.BOOL, DataType.STRING):
            return int(self is DataType.BOOL)
        bits = int(self.value.split("_")[0].lstrip("abcdefghijklmnopqrstuvwxyz"))
        return bits / 8 if bits % 8 else bits // 8

    def numpy(self) -> np.dtype[Any]:
        """The numpy dtype; bfloat16, 8-bit floats and 4-bit types come from ml_dtypes (a dependency of onnx)."""
        import numpy as np

        try:
            return np.dtype(self.value)
        except TypeError:
            import ml_dtypes

            dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, self.value))
            return dtype

    @classmethod
    def of(cls, dtype: object) -> DataType:
        """The data type for a DataType, a numpy dtype or scalar type, or the name of one; ConfigError otherwise."""
        if isinstance(dtype, DataType):
            return dtype
        if isinstance(dtype, str) and (known := cls.__members__.get(dtype.upper())) is not None:
            return known
        import numpy as np

        try:
            name = np.dtype(dtype).name  # type: ignore[call-overload]
        except TypeError:
            name = str(dtype)
        # Names of strings contain their length, such as "str96".
        if name == "object" or name.startswith("str"):
            return cls.STRING
        try:
            return cls(name)
        except ValueError:
            hint = errors.near(name, [member.value for member in cls])
            raise errors.ConfigError(f"Unknown data type {dtype!r}. {hint}") from None

    @staticmethod
    def to_dtype(dtype: Any, target_module: str) -> Any:
        """Another library's data type for a DataType; other values are returned unchanged.

        Raises ConfigError if the library is not known, or it has no such type.
        """
        if not isinstance(dtype, DataType):
            return dtype
        found: Any = None
        # These modules are above this one, so that it does not import them by a statement.
        if target_module == "numpy":
            found = dtype.numpy()
        elif target_module == "onnx":
            data_type = importlib.import_module("trtops.backend.onnx.model").data_type
            found = next((element for element in range(1, 64) if data_type(element) is dtype), None)
        elif target_module == "onnxruntime":
            if dtype not in (DataType.FLOAT4, DataType.FLOAT8E8M0):
                found = f"tensor({ {'float64': 'double', 'float32': 'float'}.get(dtype.name, dtype.name) })"
        elif target_module == "tensorrt":
            found = importlib.import_module("trtops.backend.trt.library.dtypes").to_trt(dtype)
        elif target_module == "torch":
            found = getattr(importlib.import_module("torch"), dtype.value, None)
        else:
            hint = errors.near(target_module, LIBRARIES)
            raise errors.ConfigError(f"No data types of {target_module!r} are known. {hint}")
        if found is None:
            raise errors.ConfigError(f"{target_module} has no data type for {dtype}.")
        return found

    onnx, onnxruntime, tensorrt, torch = map(_converter, ("onnx", "onnxruntime", "tensorrt", "torch"))

    @classmethod
    def from_dtype(cls, dtype: object, source_module: str | None = None) -> Any:
        """The DataType for a library's data type; ``dtype`` itself if it is not known. All libraries by default.

        Raises ConfigError if the library is not known, or ``dtype`` is None.
        """
        if dtype is None:
            raise errors.ConfigError("None is not a data type.")
        if source_module is not None:
            cls.to_dtype(cls.FLOAT32, source_module)  # raises if the library is not known
        for name in LIBRARIES if source_module is None else [source_module]:
            # A value of a library that was not imported does not exist. numpy knows types such as `float` as well.
            if name in ("tensorrt", "torch") and source_module is None and name not in sys.modules:
                continue
            if name == "numpy":
                with contextlib.suppress(errors.ConfigError):
                    return cls.of(dtype)
            for each in cls:
                # A library may not have a type, and numpy raises when it compares its types with something else.
                with contextlib.suppress(errors.TrtopsError, TypeError):
                    if type(dtype) is not bool and bool(cls.to_dtype(each, name) == dtype):
                        return each
        return dtype


DataTypeEntry = DataType
"""The type of ``DataType``'s members."""

known_as(__name__, "datatype", "numpy", "onnx", "onnxrt", "tensorrt", "torch")
