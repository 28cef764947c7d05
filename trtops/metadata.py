"""Data types, shapes and tensor metadata, shared by all back ends. Nothing here imports a back end."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import DynamicClassAttribute
from typing import TYPE_CHECKING, Any, TypeAlias

from trtops import errors
from trtops.record import Record

if TYPE_CHECKING:
    import numpy as np
    from typing_extensions import Self

Dim: TypeAlias = "int | str | None"
"""One dimension: a size, a symbolic name, or None (also -1) where it is not known."""

DEFAULT_SHAPE_VALUE = 1
"""Default size of a dynamic dimension, the same as Polygraphy's."""

Shape: TypeAlias = tuple[Dim, ...]


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
        bits = {"bool": 8, "str": 0}.get(self.value)
        if bits is None:
            bits = int(self.value.split("_")[0].lstrip("abcdefghijklmnopqrstuvwxyz"))
        return bits / 8 if bits % 8 else bits // 8

    def numpy(self) -> np.dtype[Any]:
        """The numpy dtype; bfloat16, 8-bit floats and 4-bit types come from ml_dtypes (a dependency of onnx)."""
        import numpy as np

        if self is DataType.STRING:
            return np.dtype(np.str_)
        try:
            dtype: np.dtype[Any] = np.dtype(self.value)
        except TypeError:
            import ml_dtypes

            dtype = np.dtype(getattr(ml_dtypes, self.value))
        return dtype

    def onnx(self) -> int:
        """The element type of ``onnx.TensorProto``; like the methods below, raises ConfigError without one."""
        return int(self.to_dtype(self, "onnx"))

    def onnxruntime(self) -> str:
        """ONNX Runtime's name of the type: ``tensor(float)``."""
        return str(self.to_dtype(self, "onnxruntime"))

    def tensorrt(self) -> Any:
        """The member of ``tensorrt.DataType``."""
        return self.to_dtype(self, "tensorrt")

    def torch(self) -> Any:
        """The dtype of PyTorch."""
        return self.to_dtype(self, "torch")

    @classmethod
    def from_dtype(cls, dtype: object, source_module: str | None = None) -> Any:
        """The data type for one of numpy, ONNX, ONNX Runtime, TensorRT or PyTorch.

        Args:
            dtype: The other library's data type; a DataType is returned unchanged.
            source_module: The library; all are tried by default.

        Returns:
            The data type; ``dtype`` itself, with a warning, if it is not known.

        Raises ConfigError if ``dtype`` is None, or the library is not known.
        """
        return importlib.import_module("trtops.datatype").from_library(dtype, source_module)

    @staticmethod
    def to_dtype(dtype: Any, target_module: str) -> Any:
        """The data type of another library for a DataType; other values are returned unchanged.

        Raises ConfigError if the library is not known, or it has no such type.
        """
        return importlib.import_module("trtops.datatype").to_library(dtype, target_module)

    @classmethod
    def of(cls, dtype: object) -> DataType:
        """The data type for a DataType, a numpy dtype or scalar type, or the name of one.

        Raises ConfigError if there is no such data type.
        """
        if isinstance(dtype, DataType):
            return dtype
        if isinstance(dtype, str):
            known = cls.__members__.get(dtype.upper())
            if known is not None:
                return known
        import numpy as np

        try:
            name = np.dtype(dtype).name  # type: ignore[call-overload]
        except TypeError:
            name = str(dtype)
        if name == "object" or name.startswith("str"):
            return cls.STRING
        try:
            return cls(name)
        except ValueError:
            hint = errors.near(name, [member.value for member in cls])
            raise errors.ConfigError(f"Unknown data type {dtype!r}. {hint}") from None


def is_dynamic(dim: Dim) -> bool:
    """Whether a dimension has no fixed size."""
    return not isinstance(dim, int) or dim < 0


def shape_accepts(shape: Sequence[Dim], actual: Sequence[int]) -> bool:
    """Whether an array of shape ``actual`` fits a declared shape."""
    return len(shape) == len(actual) and all(is_dynamic(d) or d == a for d, a in zip(shape, actual))


@dataclass(frozen=True)
class TensorSpec(Record):
    """Name, data type and shape of a tensor."""

    name: str
    dtype: DataType | None = None  # None if not known
    shape: Shape | None = None  # None if the rank is not known
    docstring: str | None = None  # a comment to print with it

    def __iter__(self) -> Iterator[Any]:
        """Data type and shape, so that ``dtype, shape = metadata["x"]``."""
        return iter((self.dtype, self.shape))

    def __str__(self) -> str:
        return f"{self.name} {self.described()}".rstrip()

    def described(self) -> str:
        """Data type, shape and comment in brackets; empty if nothing is known."""
        parts = [f"dtype={self.dtype}"] if self.dtype is not None else []
        parts += [f"shape={tuple(self.shape)}"] if self.shape is not None else []
        parts += [self.docstring] if self.docstring else []
        return f"[{', '.join(parts)}]" if parts else ""


class MetadataTuple(TensorSpec):
    """An entry of :class:`TensorMetadata`, which scripts for Polygraphy change in place; the rest is frozen."""

    def __init__(self, dtype: object, shape: Shape | None, docstring: str | None = None, *, name: str = "") -> None:
        """Make an entry; it gets its name when it is put into metadata."""
        super().__init__(name, None if dtype is None else DataType.of(dtype), shape, docstring)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, DataType.of(value) if name == "dtype" and value is not None else value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorSpec):
            return NotImplemented
        mine, its = ((s.name, s.dtype, s.shape, s.docstring) for s in (self, other))
        return mine == its

    __hash__ = TensorSpec.__hash__


class TensorMetadata(dict[str, TensorSpec]):
    """Tensors by name, in order: the inputs or the outputs of a model. Printed like Polygraphy's."""

    @classmethod
    def of(cls, specs: Iterable[TensorSpec]) -> Self:
        """Collect specs under their names, in order."""
        return cls((spec.name, spec) for spec in specs)

    @classmethod
    def from_feed_dict(cls, feed_dict: Mapping[str, Any]) -> Self:
        """The metadata of arrays or torch tensors."""
        meta = cls()
        for name, array in feed_dict.items():
            meta.add(name, str(array.dtype).removeprefix("torch."), tuple(array.shape))
        return meta

    def add(
        self,
        name: str,
        dtype: object = None,
        shape: Sequence[Dim] | None = None,
        min_shape: Sequence[int] | None = None,
        max_shape: Sequence[int] | None = None,
        docstring: str | None = None,
    ) -> Self:
        """Add one tensor, and return the metadata itself.

        ``dtype`` is anything that :meth:`DataType.of` accepts. In ``shape``, -1, None or a name stands for a dynamic
        dimension. Bounds are kept on the shape, as ``.min`` and ``.max``.
        """
        bounded = None if shape is None else BoundedShape(shape, min=min_shape, max=max_shape)
        self[name] = MetadataTuple(dtype, bounded, docstring, name=name)
        return self

    def __setitem__(self, name: str, spec: TensorSpec) -> None:
        if not spec.name:
            object.__setattr__(spec, "name", name)
        super().__setitem__(name, spec)

    def __str__(self) -> str:
        return "{" + ",\n ".join(f"{name} {spec.described()}".rstrip() for name, spec in self.items()) + "}"

    def __repr__(self) -> str:
        text = "TensorMetadata()"
        for name, spec in self.items():
            dtype = None if spec.dtype is None else spec.dtype.value
            text += f".add({name!r}, {dtype!r}, {None if spec.shape is None else list(spec.shape)}"
            for option, value in (("min_shape", "min"), ("max_shape", "max")):
                if bound := getattr(spec.shape, value, None):
                    text += f", {option}={list(bound)}"
            text += f", docstring={spec.docstring!r})" if spec.docstring else ")"
        return text


class BoundedShape(tuple[Dim, ...]):
    """A shape with optional smallest and largest sizes; equal to the plain tuple of its dimensions."""

    min: tuple[int, ...] | None
    max: tuple[int, ...] | None

    def __new__(
        cls, shape: Sequence[Dim], min: Sequence[int] | None = None, max: Sequence[int] | None = None
    ) -> BoundedShape:
        """Make a shape; bounds have the same rank."""
        made = super().__new__(cls, shape)
        made.min = None if min is None else tuple(min)
        made.max = None if max is None else tuple(max)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return BoundedShape, (tuple(self), self.min, self.max)


class FeedCheck:
    """Checks feeds against one model's inputs, like :func:`check_feed`, in about a microsecond for feeds as before."""

    def __init__(self, inputs: Mapping[str, TensorSpec]) -> None:
        """Prepare the check, which runs before every inference."""
        self._inputs = dict(inputs)
        self._accepted: list[tuple[str, Any, Any]] | None = None

    def __call__(self, feed: Mapping[str, Any]) -> None:
        """Check one feed: arrays by input name; anything with ``shape`` and ``dtype``."""
        found = [(name, getattr(array, "dtype", None), getattr(array, "shape", None)) for name, array in feed.items()]
        # Some releases of numpy cannot compare their data types with those of torch.
        with contextlib.suppress(TypeError):
            if found == self._accepted:
                return
        check_feed(self._inputs, feed)
        self._accepted = found


def check_feed(inputs: Mapping[str, TensorSpec], feed: Mapping[str, Any]) -> None:
    """Check a feed (arrays by input name) against a model's inputs; None in a spec is not checked.

    Raises InputError if an input is not fed, or a name is fed that the model does not have; InputDtypeError if an array
    has another dtype or byte order than its input, or is not an array; InputShapeError if an array's shape does not fit
    its input.
    """
    for name in feed:
        if name not in inputs:
            raise errors.InputError(
                f"The feed has {name!r}, which is not an input of this model. {errors.near(name, inputs)}"
            )
    for name, spec in inputs.items():
        array = feed.get(name)
        if array is None:
            fed = ", ".join(map(repr, feed)) or "nothing"
            raise errors.InputError(f"Input {name!r} is not fed; expected {spec}, found {fed}.")
        if not hasattr(array, "dtype"):
            raise errors.InputDtypeError(
                f"Input {name!r} is a {type(array).__name__}; expected an array. Convert it with numpy.asarray(...)."
            )
        if spec.dtype is not None:
            found, wanted = str(array.dtype).removeprefix("torch."), spec.dtype.value
            # Names of one type differ between libraries, such as "<U5" and "str".
            with contextlib.suppress(errors.ConfigError):
                found = found if found == wanted else DataType.of(found).value
            if found != wanted:
                torch = str(array.dtype).startswith("torch.")
                how = f".to(torch.{wanted})" if torch else f".astype({wanted!r})"
                raise errors.InputDtypeError(
                    f"Input {name!r} has dtype {found}; expected {wanted}. Convert it, for example with {how}."
                )
            if not getattr(array.dtype, "isnative", True):
                raise errors.InputDtypeError(
                    f"Input {name!r} has dtype {array.dtype}, whose bytes are in another order than this machine's. "
                    f"Convert it with .astype({wanted!r})."
                )
        if spec.shape is not None and not shape_accepts(spec.shape, array.shape):
            raise errors.InputShapeError(
                f"Input {name!r} has shape {tuple(array.shape)}; expected {spec.shape}"
                f"{' (any size where a dimension is a name, None or -1)' if any(map(is_dynamic, spec.shape)) else ''}."
            )
