"""Optimization profiles: the shapes supported by an engine."""

from __future__ import annotations

import fnmatch
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trtops import errors
from trtops.backend.trt.describe.layers import inputs_of
from trtops.metadata import DEFAULT_SHAPE_VALUE
from trtops.spec import OptimizationProfile

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ShapeTuple:
    """Shapes of one input in one profile, or values of a shape tensor."""

    min: tuple[int, ...]  # smallest sizes
    opt: tuple[int, ...]  # sizes to optimize for
    max: tuple[int, ...]  # largest sizes

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        yield from (self.min, self.opt, self.max)

    def accepts(self, shape: tuple[int, ...]) -> bool:
        """Whether a shape is within the range."""
        return len(shape) == len(self.min) and all(a <= b <= c for a, b, c in zip(self.min, shape, self.max))

    def __str__(self) -> str:
        return f"(min={self.min}, opt={self.opt}, max={self.max})"


class Profile(dict[str, ShapeTuple]):
    """Shapes by input name or pattern; :meth:`add` calls can be chained."""

    @classmethod
    def of(cls, profile: OptimizationProfile) -> Self:
        """The profile of a build config."""
        filled = cls()
        for shape in profile.shapes:
            filled.add(shape.name, shape.min, shape.opt, shape.max)
        return filled

    def add(self, name: str, min: Sequence[int], opt: Sequence[int], max: Sequence[int]) -> Self:
        """Set the shapes of one input, or the values of a shape tensor; returns the profile itself."""
        self[name] = ShapeTuple(tuple(min), tuple(opt), tuple(max))
        return self

    def __missing__(self, name: str) -> ShapeTuple:
        raise errors.ConfigError(f"The profile has no shapes for {name!r}. {errors.near(name, self)}")

    def find(self, name: str) -> ShapeTuple | None:
        """The shapes of an input, by its name or the first matching pattern; None if there is no entry."""
        if name in self:
            return self[name]
        return next((shapes for pattern, shapes in self.items() if fnmatch.fnmatch(name, pattern)), None)

    def fill_defaults(self, network: Any, default_shape_value: int | None = None) -> Self:
        """Add missing inputs, with size 1 or the given one for each dynamic dimension; return the profile itself."""
        size = DEFAULT_SHAPE_VALUE if default_shape_value is None else default_shape_value
        for tensor in inputs_of(network):
            if self.find(tensor.name) is not None:
                continue
            declared = tuple(tensor.shape)
            if tensor.is_shape_tensor:
                shape: tuple[int, ...] = (size,) * (declared[0] if declared else 1)
            else:
                shape = tuple(size if dim < 0 else dim for dim in declared)
            if tensor.is_shape_tensor or shape != declared:
                text = "Input %s is not in the profile, and is fixed to %s. Add it to the profile if it varies."
                log.warning(text, tensor.name, shape)
            self.add(tensor.name, shape, shape, shape)
        return self

    def to_trt(self, builder: Any, network: Any) -> Any:
        """The profile as ``trt.IOptimizationProfile``; ConfigError if it does not fit the network's inputs."""
        inputs = inputs_of(network)
        names = [tensor.name for tensor in inputs]
        for pattern in self:
            if pattern not in names and not fnmatch.filter(names, pattern):
                raise errors.ConfigError(
                    f"The profile names {pattern!r}, which is no input. {errors.near(pattern, names)}"
                )
        profile = builder.create_optimization_profile()
        for tensor in inputs:
            shapes = self.find(tensor.name)
            if shapes is None and not tensor.is_shape_tensor:
                raise errors.ConfigError(
                    f"The profile has no shapes for input {tensor.name!r} {tuple(tensor.shape)}. Add them, or call "
                    "fill_defaults(network)."
                )
            if shapes is not None and (reason := _set_shapes(profile, tensor, shapes)):
                input_text = f"Input {tensor.name!r} is {tuple(tensor.shape)} in the network"
                raise errors.ConfigError(f"{input_text}, and cannot have {shapes}: {reason}.")
        return profile

    def __str__(self) -> str:
        return "{" + ",\n ".join(f"{name} [min={s.min}, opt={s.opt}, max={s.max}]" for name, s in self.items()) + "}"

    def __repr__(self) -> str:
        return "Profile()" + "".join(
            f".add({name!r}, min={s.min}, opt={s.opt}, max={s.max})" for name, s in self.items()
        )


def _set_shapes(profile: Any, tensor: Any, shapes: ShapeTuple) -> str:
    """Set the shapes of one input in TensorRT's profile; returns why the input cannot have them."""
    declared = tuple(tensor.shape)
    if not tensor.is_shape_tensor and not all(
        len(declared) == len(shape) and all(size in (dim, -1) for size, dim in zip(declared, shape)) for shape in shapes
    ):
        return "only dimensions that are -1 may have another size"
    if not all(lo <= mid <= hi for lo, mid, hi in zip(*shapes)):
        return "expected min <= opt <= max throughout"
    try:
        if tensor.is_shape_tensor:
            profile.set_shape_input(tensor.name, list(shapes.min), list(shapes.opt), list(shapes.max))
        else:
            profile.set_shape(tensor.name, shapes.min, shapes.opt, shapes.max)
    except (RuntimeError, ValueError) as exc:
        return str(exc)
    return ""
