"""The shapes of an evaluation: requested, of profiles, or suggested by the model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from trtops import errors
from trtops.backend.base import Feed, ProfiledFeed
from trtops.metadata import BoundedShape, Dim, TensorMetadata, TensorSpec, is_dynamic, shape_accepts
from trtops.spec import OptimizationProfile, ShapeRange
from trtops.system.limits import check_array

if TYPE_CHECKING:
    from trtops.backend.onnx.accepted_inputs import AcceptedInputs

# Sizes of dynamic dimensions that are neither given nor required by weights. Two samples show whether rows mix; 64 is a
# multiple of every usual stride.
BATCH, OTHER = 2, 64
OUTSIDE = "outside"  # the point of given shapes that no profile accepts
_IS_BATCH = re.compile(r"batch|^(n|b|bs)$", re.IGNORECASE)


@dataclass(frozen=True)
class ShapePoint:
    """Shapes of all inputs, and their origin."""

    shapes: Mapping[str, tuple[int, ...]]
    profile: int | None = None
    point: str = ""  # min, opt, max or between, of a profile, or outside of all
    assumed: tuple[str, ...] = field(default=(), compare=False)  # inputs with sizes that are not given


def points(
    inputs: TensorMetadata,
    input_shapes: Mapping[str, Sequence[int]],
    profiles: Sequence[OptimizationProfile] = (),
    accepted: AcceptedInputs | None = None,
    other: int = OTHER,
) -> list[ShapePoint]:
    """The shapes to evaluate with random data: the given ones first, then those of every profile.

    A profile has its ``opt``, ``min`` and ``max``, and shapes between the last two of them. An input of an engine,
    whose shape has bounds, counts as a profile of its own. Without given shapes or profiles there is one point, with
    the sizes that the model suggests: those of weights, the same size for the same name, 2 for a batch and ``other``
    elsewhere.

    Raises ConfigError if given shapes do not fit the model; InputError if the rank or type of an input is not known.
    """
    for name in input_shapes:
        if name not in inputs:
            raise errors.ConfigError(f"Shapes name {name!r}, which is no input. {errors.near(name, inputs)}")
    if not profiles and not input_shapes:
        ranges = []
        for name, spec in inputs.items():
            bounds = spec.shape
            if isinstance(bounds, BoundedShape) and bounds.min is not None and bounds.max is not None:
                ranges.append(ShapeRange(name=name, min=bounds.min, opt=bounds.max, max=bounds.max))
        profiles = (OptimizationProfile(shapes=tuple(ranges)),) if ranges else ()
    shape_points = list(profile_points(inputs, profiles, accepted))
    if not input_shapes and shape_points:
        if len(shape_points) == 1 and all(spec.shape is not None for spec in inputs.values()):
            suggested = _completed(inputs, {}, accepted, other)
            if suggested.shapes == shape_points[0].shapes:  # the profile was made of them (DataConfig.profiled)
                shape_points = [replace(shape_points[0], assumed=suggested.assumed)]
        return shape_points
    # Sizes that are not given are those of the first profile.
    usual = {bounds.name: bounds.opt for bounds in profiles[0].shapes} if profiles else {}
    whole: dict[str, Sequence[int]] = dict(usual)
    for name, dims in input_shapes.items():
        whole[name] = [dim if dim >= 0 else opt for dim, opt in zip(dims, usual.get(name, dims))]
    base = _completed(inputs, whole, accepted, other)
    for name, shape in base.shapes.items():
        check_array(name, shape, 1)
    number = profile_of({name: np.broadcast_to(0, shape) for name, shape in base.shapes.items()}, profiles)
    base = replace(base, profile=number, point=OUTSIDE if profiles and number is None else "")
    return [base, *(point for point in shape_points if (point.profile, point.shapes) != (number, base.shapes))]


def profile_points(
    inputs: TensorMetadata, profiles: Sequence[OptimizationProfile], accepted: AcceptedInputs | None = None
) -> Iterator[ShapePoint]:
    """Yield the different shapes of each profile: opt, min, max, and between."""
    for number, profile in enumerate(profiles):
        seen: list[Mapping[str, tuple[int, ...]]] = []
        for point in ("opt", "min", "max", "between"):
            shapes = {bounds.name: _at(bounds, point) for bounds in profile.shapes if bounds.name in inputs}
            if shapes not in seen:
                seen.append(shapes)
                yield replace(_completed(inputs, shapes, accepted), profile=number, point=point)


def _at(bounds: ShapeRange, point: str) -> tuple[int, ...]:
    if point != "between":
        dims: tuple[int, ...] = getattr(bounds, point)
        return dims
    low = bounds.opt if bounds.opt != bounds.max else bounds.min
    return tuple((lower + upper) // 2 for lower, upper in zip(low, bounds.max))


def _completed(
    inputs: TensorMetadata,
    input_shapes: Mapping[str, Sequence[int]],
    accepted: AcceptedInputs | None,
    other: int = OTHER,
) -> ShapePoint:
    """Shapes of all inputs; missing dynamic dimensions get the model's suggestions."""
    shapes: dict[str, tuple[int, ...]] = {}
    assumed: list[str] = []
    sizes: dict[str, int] = {}
    for name, spec in inputs.items():
        if name in input_shapes:
            _check_fits(spec, input_shapes[name])
            # Dimensions of the same name have the same size.
            for dim, size in zip(spec.shape or (), input_shapes[name]):
                if isinstance(dim, str) and size >= 0:
                    sizes[dim] = size
    determined = set(sizes)
    for name, spec in inputs.items():
        dims: Sequence[Dim] | None = input_shapes.get(name, spec.shape)
        if dims is None:
            raise errors.InputError(
                f"Input {name!r} has no known {'type' if spec.dtype is None else 'rank'}, so it needs data. Give a "
                "data source, or make it inside the model."
            )
        required = {} if accepted is None else accepted.sizes.get(name, {})
        whole: list[int] = []
        for axis, dim in enumerate(dims):
            declared = spec.shape[axis] if spec.shape is not None and len(spec.shape) == len(dims) else dim
            dim = declared if is_dynamic(dim) else dim
            if is_dynamic(dim):
                suggested = required.get(axis, required.get(axis - len(dims)))
                if suggested is None:
                    suggested = _size_of(dim, sizes, axis, other)
                    assumed += [] if dim in determined else [name]
                dim = suggested
            assert isinstance(dim, int)
            whole.append(dim)
        shapes[name] = tuple(whole)
    return ShapePoint(shapes, assumed=tuple(dict.fromkeys(assumed)))


def _size_of(dim: Dim, sizes: dict[str, int], axis: int, other: int) -> int:
    """The size of a dynamic dimension; names of several may be added and multiplied (``past + 1``)."""
    if not isinstance(dim, str) or not dim:
        return BATCH if axis == 0 else other
    if dim not in sizes and re.fullmatch(r"\w+(\s*[+*]\s*\w+)+", dim):
        total = 0
        for summand in dim.split("+"):
            product = 1
            for factor in summand.split("*"):
                factor = factor.strip()
                product *= int(factor) if factor.isdigit() else _size_of(factor, sizes, 1, other)
            total += product
        return total
    return sizes.setdefault(dim, BATCH if axis == 0 or _IS_BATCH.search(dim) else other)


def _check_fits(spec: TensorSpec, shape: Sequence[int]) -> None:
    if spec.shape is None:
        return
    values = spec.dtype is not None and spec.dtype.is_integral and tuple(spec.shape) == (len(shape),)
    # A size of -1 leaves the declared one.
    declared = [-1 if size < 0 else dim for dim, size in zip(spec.shape, shape)]
    if not values and not (len(shape) == len(spec.shape) and shape_accepts(declared, shape)):
        raise errors.ConfigError(
            f"Input {spec.name!r} cannot have shape {tuple(shape)}; the model declares {tuple(spec.shape)}."
        )


def profile_of(feed: Feed, profiles: Sequence[OptimizationProfile]) -> int | None:
    """The first profile for the shapes of a feed; None without one."""

    def accepts(bounds: ShapeRange) -> bool:
        shape = np.shape(feed.get(bounds.name, ()))
        if len(shape) != len(bounds.min):  # not fed, or the values of a shape tensor
            return True
        return all(low <= size <= high for low, size, high in zip(bounds.min, shape, bounds.max))

    return next((number for number, profile in enumerate(profiles) if all(map(accepts, profile.shapes))), None)


def spanning(feeds: Iterable[Feed], inputs: TensorMetadata) -> tuple[OptimizationProfile, ...]:
    """A profile of the dynamic inputs from the smallest to the largest size of each axis, at the most frequent shape.

    Empty without dynamic inputs. Feeds that lack one are refused where they are run.
    """
    dynamic = [name for name, spec in inputs.items() if any(map(is_dynamic, spec.shape or ()))]
    seen = Counter[tuple[tuple[int, ...], ...]]()
    for feed in feeds if dynamic else ():
        if feed.keys() >= set(dynamic):
            seen[tuple(np.shape(feed[name]) for name in dynamic)] += 1
    if not seen:
        return ()
    ranges = []
    for name, usual, shapes in zip(dynamic, seen.most_common(1)[0][0], zip(*seen)):
        sizes = tuple(zip(*shapes))  # of each axis
        ranges.append(ShapeRange(name=name, min=tuple(map(min, sizes)), opt=usual, max=tuple(map(max, sizes))))
    return (OptimizationProfile(shapes=tuple(ranges)),)


def with_profiles(
    feeds: Iterable[Feed], inputs: TensorMetadata, profiles: Sequence[OptimizationProfile], *, added: bool = True
) -> Iterator[Feed]:
    """Yield the source's data, and then, if ``added``, data for the missing shapes of each profile.

    That is the first feed, repeated or cropped along each axis, so that its values stay real.
    """
    first: Feed | None = None
    seen = set()
    for feed in feeds:
        if not isinstance(feed, Mapping):
            yield feed  # refused where it is read
            continue
        first = feed if first is None else first
        number = profile_of(feed, profiles)
        seen.add((number, _sorted_shapes(feed)))
        yield ProfiledFeed(feed, number, OUTSIDE if number is None else "")
    for point in profile_points(inputs, profiles) if added and first is not None else ():
        assert first is not None
        fitted = dict(first)
        for bounds in profiles[point.profile or 0].shapes:
            if bounds.name in first:
                fitted[bounds.name] = _resized(np.asarray(first[bounds.name]), point.shapes[bounds.name])
        if (point.profile, _sorted_shapes(fitted)) not in seen:
            yield ProfiledFeed(fitted, point.profile, point.point)


def _sorted_shapes(feed: Feed) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple(sorted((name, np.shape(array)) for name, array in feed.items()))


def _resized(array: np.ndarray[Any, Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    if array.ndim != len(shape):  # the profile holds values of a shape tensor
        return np.array(shape, array.dtype) if array.shape == (len(shape),) else array
    for axis, size in enumerate(shape):
        if array.shape[axis] != size and array.shape[axis]:
            array = np.take(array, np.arange(size) % array.shape[axis], axis)
    return np.ascontiguousarray(array)
