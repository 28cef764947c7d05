"""Shapes and tensor metadata, shared by all back ends. Nothing here imports a back end."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from trtops import errors
from trtops.datatype import DataType as DataType
from trtops.record import Record
from trtops.terminal import one_line

if TYPE_CHECKING:
    from typing_extensions import Self

Dim: TypeAlias = int | str | None
"""One dimension: a size, a symbolic name, or None (also -1) where it is not known."""

STANDS_FOR_INFINITY = 1e9
"""Masks are filled with magnitudes from this on, which may be clamped in 16 bit."""

DEFAULT_SHAPE_VALUE = 1
"""Default size of a dynamic dimension, the same as Polygraphy's."""


class BoundedShape(list[Dim]):
    """A shape with optional smallest and largest sizes, as Polygraphy's: a list, equal to tuples, too."""

    def __init__(
        self, shape: Sequence[Dim], min: Sequence[int] | None = None, max: Sequence[int] | None = None
    ) -> None:
        """Make a shape; bounds have the same rank."""
        super().__init__(shape)
        self.min = None if min is None else tuple(min)
        self.max = None if max is None else tuple(max)

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, (list, tuple)) else NotImplemented

    def __ne__(self, other: object) -> bool:
        return not self == other

    # Hashed as the tuple that it equals, by owners that do not change it.
    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self))

    # A slice stays a shape, and a sum has the type of the plain sequence in it.
    def __getitem__(self, index: Any) -> Any:
        selected = super().__getitem__(index)
        return BoundedShape(selected) if isinstance(index, slice) else selected

    def __add__(self, other: Any) -> Any:
        return type(other)((*self, *other)) if isinstance(other, (list, tuple)) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return type(other)((*other, *self)) if isinstance(other, (list, tuple)) else NotImplemented

    def __str__(self) -> str:
        return str(tuple(self))

    def __repr__(self) -> str:
        return f"BoundedShape({list(self)}, min={self.min}, max={self.max})"


Shape: TypeAlias = tuple[Dim, ...] | list[Dim]


def is_dynamic(dim: Dim) -> bool:
    """Whether a dimension has no fixed size."""
    return not isinstance(dim, int) or dim < 0


def shape_accepts(shape: Sequence[Dim], actual: Sequence[int]) -> bool:
    """Whether an array of shape ``actual`` fits a declared shape."""
    return len(shape) == len(actual) and all(is_dynamic(d) or d == a for d, a in zip(shape, actual))


# Not frozen like other records, since scripts for Polygraphy change entries of metadata in place.
@dataclass(unsafe_hash=True)
class TensorSpec(Record):
    """Name, data type and shape of a tensor."""

    name: str
    dtype: DataType | None = None  # None if not known
    shape: Shape | None = None  # None if the rank is not known
    docstring: str | None = None  # a comment to print with it

    def __post_init__(self) -> None:
        self.shape = self.shape  # pydantic sets the fields of stored records without __setattr__

    def __setattr__(self, name: str, value: Any) -> None:
        if value is not None and name == "dtype":
            value = DataType.of(value)
        elif value is not None and name == "shape" and not isinstance(value, BoundedShape):
            value = BoundedShape(value)
        object.__setattr__(self, name, value)

    def __iter__(self) -> Iterator[Any]:
        """Data type and shape: ``dtype, shape = metadata["x"]``."""
        return iter((self.dtype, self.shape))

    def __str__(self) -> str:
        parts = [f"dtype={self.dtype}"] if self.dtype is not None else []
        parts += [f"shape={tuple(self.shape)}"] if self.shape is not None else []
        parts += [self.docstring] if self.docstring else []
        return f"{one_line(self.name)} [{', '.join(parts)}]" if parts else one_line(self.name)


class MetadataTuple(TensorSpec):
    """A spec without a name; :class:`TensorMetadata` adds it."""

    def __init__(self, dtype: object, shape: Shape | None, docstring: str | None = None) -> None:
        """Make a spec; ``dtype`` is anything accepted by :meth:`DataType.of`."""
        super().__init__("", dtype, shape, docstring)  # type: ignore[arg-type]


class TensorMetadata(dict[str, TensorSpec]):
    """Tensors by name, in order: the inputs or the outputs of a model. Printed like Polygraphy's."""

    @classmethod
    def of(cls, specs: Iterable[TensorSpec]) -> Self:
        """Collect specs under their names, in order."""
        return cls((spec.name, spec) for spec in specs)

    @classmethod
    def from_feed_dict(cls, feed_dict: Mapping[str, Any]) -> Self:
        """The metadata of arrays or torch tensors."""
        return cls.of(TensorSpec(name, array.dtype, tuple(array.shape)) for name, array in feed_dict.items())

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

        In ``shape``, -1, None or a name stands for a dynamic dimension. Bounds become its ``.min`` and ``.max``.

        >>> print(TensorMetadata().add("image", "float32", ("batch", 3, 8, 8)))
        {image [dtype=float32, shape=('batch', 3, 8, 8)]}
        """
        bounded = None if shape is None else BoundedShape(shape, min=min_shape, max=max_shape)
        self[name] = TensorSpec(name, dtype, bounded, docstring)  # type: ignore[arg-type]
        return self

    def with_numpy_dtypes(self) -> TensorMetadata:
        """Return a copy with numpy's dtypes; :func:`with_data_types` is the inverse."""
        copied = with_data_types(self)
        for spec in copied.values():
            if spec.dtype is not None:
                object.__setattr__(spec, "dtype", spec.dtype.numpy())
        return copied

    def __setitem__(self, name: str, spec: TensorSpec) -> None:
        if not spec.name:
            spec = TensorSpec(name, spec.dtype, spec.shape, spec.docstring)
        super().__setitem__(name, spec)

    def __str__(self) -> str:
        return "{" + ",\n ".join(map(str, self.values())) + "}"


def with_data_types(metadata: Mapping[str, TensorSpec]) -> TensorMetadata:
    """Return a copy whose dtypes are members of DataType, also where they were numpy's."""
    copied = TensorMetadata()
    for name, spec in metadata.items():
        copied[name] = TensorSpec(spec.name, spec.dtype, copy.copy(spec.shape), spec.docstring)
    return copied


# A lookup takes four microseconds, and each inference looks up the type of each input.
_data_type = functools.cache(DataType.from_dtype)


def check_feed(inputs: Mapping[str, TensorSpec], feed: Mapping[str, Any]) -> None:
    """Check a feed (arrays by input name) against a model's inputs; None in a spec is not checked.

    Raises InputError if an input is not fed, a name is fed that the model does not have, or an array has another
    dtype, byte order or shape than its input.
    """
    if missing := [name for name in inputs if feed.get(name) is None]:
        raise errors.InputError(f"The following inputs were not found: {missing}. The feed has {list(feed)}.")
    if extra := [name for name in feed if name not in inputs]:
        raise errors.InputError(f"Extra inputs in the feed: {extra}. {errors.near(extra[0], inputs)}")
    for name, spec in inputs.items():
        array: Any = feed[name]
        if not hasattr(array, "dtype"):
            kind = type(array).__name__
            raise errors.InputError(
                f"Input {name!r} is fed a {kind}, which numpy.asarray(...) converts; expected {spec}."
            )
        # TensorRT and ONNX Runtime would read the bytes of another order as other numbers.
        native = getattr(array.dtype, "isnative", True)
        if spec.dtype is not None and (_data_type(array.dtype) is not spec.dtype or not native):
            raise errors.InputError(
                f"Input tensor: {name} | Received unexpected dtype: {array.dtype}. Expected {spec.dtype.value} in this "
                "machine's byte order. "
                f"Convert it, for example a numpy array with .astype({spec.dtype.value!r})."
            )
        if spec.shape is not None and not shape_accepts(spec.shape, array.shape):
            raise errors.InputError(
                f"Input tensor: {name} | Received incompatible shape: {tuple(array.shape)}. Expected {spec.shape}."
            )
