"""The noise of a model's outputs: errors of rounding, measured between two runs of the right model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from trtops import errors
from trtops.comparator.arrays import is_floating, to_numpy
from trtops.comparator.metrics.rows import balanced_agreement
from trtops.comparator.results import RunResults
from trtops.metadata import STANDS_FOR_INFINITY
from trtops.ops.evaluation.data import UNITS, root_mean_square
from trtops.record import Record
from trtops.spec import Rounding

# How many times the noise an engine's error may be, as a root mean square and for single elements. An engine rounds in
# other places and orders. For FP32 the noise is that of inputs and weights alone: sums are not emulated.
MULTIPLES: dict[Rounding, float] = {"fp32": 16.0, "tf32": 2.0, "fp16": 2.0, "bf16": 2.0, "fp8": 2.0, "int8": 2.0}
_LARGEST_MULTIPLES: dict[Rounding, float] = {
    "fp32": 64.0, "tf32": 4.0, "fp16": 4.0, "bf16": 4.0, "fp8": 3.0, "int8": 3.0,
}  # fmt: skip
# The error that is always allowed, in rounding units of the output's size. Nothing is rounded further than FP16 in
# operators that INT8 leaves out.
_UNITS_ALLOWED = {
    "fp32": 8 * UNITS["fp32"],
    **dict.fromkeys(("tf32", "fp16", "fp8", "int8"), UNITS["fp16"]),
    "bf16": UNITS["bf16"],
}
# The allowed error of an output of zeros.
ZERO = 1e-9
# Channels have their own limits if the ratio of the largest to the smallest root mean square is above this ...
_SCALES_DIFFER = 30.0
# ... with at least this number of elements in each, unless the engine's errors are predicted, and at most this number
# of channels.
CHANNEL_ELEMENTS = 16
_MOST_CHANNELS = 1024
# Where the engine's own errors are known, a sum may still round to another step. These change less than all errors.
_OTHERWISE = 1.5
# Elements that are in memory as FP64 at a time, since all may be many times as large as the model's own data.
_PIECE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Noise(Record):
    """Errors of rounding, of an output or one of its channels, in the output's own unit."""

    size: float  # root mean square of the right values
    scale: float  # largest right magnitude
    rms: float  # root mean square of the errors
    largest: float
    independent: float  # number of errors of equal size with the same fourth moment; 0 without any error
    draws: int = 1  # how often the errors were drawn; `rms` is of all draws
    predicted: float | None = None  # root mean square of the first draw, if the engine is expected to round the same
    range: float = 0.0  # the width of the values that the graph allows, such as 1 behind a sigmoid; 0 if unknown

    def unit_of_range(self, precision: Rounding) -> float:
        """The error of an output rounded to a precision relative to its range, at least that of FP32."""
        return max(UNITS[precision], _UNITS_ALLOWED["fp32"]) * self.range

    def is_lost(self, precision: Rounding) -> bool:
        """Whether rounding alone hides a value of zero instead of the right ones.

        An error below the precision's unit of the range loses nothing: the right values stay near zero on this data.
        """
        return 0 < self.size <= MULTIPLES["int8"] * self.rms and self.rms > self.unit_of_range(precision)

    def rms_limit(self, precision: Rounding, times: float = 1.0) -> float:
        """The largest root mean square error from rounding; more if few elements determine it.

        ``times`` multiplies the noise.
        """
        if self.predicted is not None:
            noise = max(MULTIPLES[precision] * self.predicted, _OTHERWISE * self.rms)
        else:
            few, in_all = (
                1 + 3 / math.sqrt(2 * count) if count else 1.0
                for count in (self.independent, self.draws * self.independent)
            )
            noise = max(MULTIPLES[precision] * in_all, few) * self.rms
        return max(times * noise, _UNITS_ALLOWED[precision] * self.size, self.unit_of_range("fp32")) or ZERO

    def largest_limit(self, precision: Rounding, times: float = 1.0) -> float:
        """The largest error of an element from rounding."""
        limit = max(times * _LARGEST_MULTIPLES[precision] * self.largest, 2 * self.rms_limit(precision, times))
        return max(limit, _UNITS_ALLOWED[precision] * self.scale) or ZERO


@dataclass(frozen=True, kw_only=True)
class OutputNoise(Record):
    """What rounding does to one output."""

    name: str
    whole: Noise | None = None  # None for an output that does not hold floating-point numbers
    equal: float | None = None  # share of equal values, as the metric `agreement`; None for floating point
    counted: int = 0  # values that the smaller of the two parts of this share has
    selected: bool = False  # whether a selection orders them: then all that ties do not explain must be equal
    channel_axis: int | None = None  # if the scales of channels along it differ
    channels: tuple[Noise, ...] = ()


def measure_noise(
    plain: RunResults,
    draws: Sequence[RunResults],
    join: Callable[[Sequence[Noise]], Noise],
    ranges: Mapping[str, npt.NDArray[Any]] = MappingProxyType({}),
    channel_elements: int = CHANNEL_ELEMENTS,
) -> tuple[OutputNoise, ...]:
    """The noise of each output of fixed shape, joined from that in each draw.

    ``ranges`` are those of :func:`output_ranges`. Channels with fewer elements have no noise of their own.
    """
    noises = []
    for name in plain[0][1][0]:
        try:
            right, *moved = (_arrays_of(run, name) for run in (plain, *draws))
        except errors.ComparisonError:  # maps, and sequences of tensors of other shapes
            continue
        if any(_shapes_of(draw) != _shapes_of(right) for draw in moved):
            continue
        if right[0].dtype.kind in "iubOSU":
            shares = [balanced_agreement(list(zip(draw, right))) for draw in moved]
            agreements = [share for share in shares if share is not None]
            if agreements:
                noises.append(OutputNoise(name=name, equal=min(agreements), counted=_counted(right)))
        elif is_floating(right[0]):
            axis = _channel_axis(right, channel_elements)
            [whole] = _join_draws(right, moved, None, ranges.get(name), join)
            channels = () if axis is None else _join_draws(right, moved, axis, ranges.get(name), join)
            noises.append(OutputNoise(name=name, whole=whole, channel_axis=axis, channels=channels))
    return tuple(noises)


def _arrays_of(run: RunResults, name: str) -> list[npt.NDArray[Any]]:
    return [to_numpy(outputs[name], "The output") for outputs in run[0][1]]


def _shapes_of(arrays: Sequence[npt.NDArray[Any]]) -> list[tuple[int, ...]]:
    return [array.shape for array in arrays]


def _join_draws(
    right: Sequence[npt.NDArray[Any]],
    moved: Sequence[Sequence[npt.NDArray[Any]]],
    axis: int | None,
    ranges: npt.NDArray[Any] | None,
    join: Callable[[Sequence[Noise]], Noise],
) -> tuple[Noise, ...]:
    """The noise in all draws, of each channel along an axis or of all numbers."""
    parts = zip(*(_measure(right, draw, axis) for draw in moved))
    widths = [0.0] * (1 if axis is None else right[0].shape[axis])
    if ranges is not None and (axis is None or ranges.shape[axis] == len(widths)):
        rows = ranges.reshape(1, -1) if axis is None else np.moveaxis(ranges, axis, 0)
        widths = list(map(root_mean_square, rows))
    return tuple(replace(join(part), range=width) for part, width in zip(parts, widths))


def _pieces(arrays: Sequence[npt.NDArray[Any]], axis: int | None) -> Iterator[npt.NDArray[np.float64]]:
    """All numbers, ``(channels, elements)``, or ``(1, elements)`` without an axis, about a million at a time."""
    for array in arrays:
        rows = array.reshape(1, -1) if axis is None else np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)
        width = max(1, _PIECE // max(1, len(rows)))
        for start in range(0, rows.shape[1], width):
            yield rows[:, start : start + width].astype(np.float64)


def _counted(right: Sequence[npt.NDArray[Any]]) -> int:
    """The number of values in the smaller part of :func:`balanced_agreement`."""
    values = np.concatenate(list(map(np.ravel, right)))
    _, counts = np.unique(values.astype(str) if values.dtype.kind == "O" else values, return_counts=True)
    largest = int(counts.max())
    return values.size if 2 * largest < values.size or largest == values.size else values.size - largest


def _channel_axis(right: Sequence[npt.NDArray[Any]], elements: int) -> int | None:
    """The second axis or the last one, whichever has channels of more different scales; None if neither has.

    The last axis of images is one of pixels.
    """
    ratios = {}
    for axis in dict.fromkeys((1, 2 if right[0].ndim == 3 else 1)):
        if axis < 1 or len({array.shape[axis] for array in right if array.ndim > axis}) != 1:
            continue
        channels = right[0].shape[axis]
        if 1 < channels <= _MOST_CHANNELS and sum(array.size for array in right) >= elements * channels:
            squares = np.zeros(channels)
            for rows in _pieces(right, axis):
                rows[~np.isfinite(rows) | (np.abs(rows) >= STANDS_FOR_INFINITY)] = 0
                squares += np.square(rows).sum(axis=1)
            sizes = np.sqrt(squares[squares > 0])
            ratios[axis] = float(sizes.max() / sizes.min()) if sizes.size else 0.0
    if not ratios:
        return None
    axis = max(ratios, key=ratios.__getitem__)
    return axis if ratios[axis] > _SCALES_DIFFER else None


def _measure(
    right: Sequence[npt.NDArray[Any]], moved: Sequence[npt.NDArray[Any]], axis: int | None = None
) -> list[Noise]:
    """The noise of all numbers together, or of each channel along an axis."""
    count, squares, scale, rms, fourth, largest = np.zeros((6, 1 if axis is None else right[0].shape[axis]))
    for values, others in zip(_pieces(right, axis), _pieces(moved, axis)):
        ignored = ~np.isfinite(values) | (np.abs(values) >= STANDS_FOR_INFINITY)
        with np.errstate(invalid="ignore", over="ignore"):
            error = np.nan_to_num(np.abs(others - values), copy=False, nan=math.inf, posinf=math.inf)
            values[ignored] = error[ignored] = 0
            count += (~ignored).sum(axis=1)
            scale = np.maximum(scale, np.abs(values).max(axis=1))
            largest = np.maximum(largest, error.max(axis=1))
            squares += np.square(values, out=values).sum(axis=1)
            rms += np.square(error, out=error).sum(axis=1)
            fourth += np.square(error, out=error).sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        independent = np.where(np.isinf(largest), 1.0, np.where(fourth > 0, rms**2 / fourth, 0.0))
        columns = np.sqrt(squares / np.maximum(count, 1)), scale, np.sqrt(rms / np.maximum(count, 1)), largest
    return [
        Noise(size=row[0], scale=row[1], rms=row[2], largest=row[3], independent=row[4])
        for row in np.stack([*columns, independent], axis=1).tolist()
    ]


def largest_noise(draws: Sequence[Noise]) -> Noise:
    """The noise of the draw with the largest errors."""
    worst = max(draws, key=lambda noise: noise.rms)
    return replace(worst, largest=max(noise.largest for noise in draws))


def pooled_noise(draws: Sequence[Noise]) -> Noise:
    """The noise of several draws of the same distribution."""
    return replace(
        largest_noise(draws),
        rms=math.sqrt(sum(noise.rms**2 for noise in draws) / len(draws)),
        independent=sum(noise.independent for noise in draws) / len(draws),
        draws=len(draws),
    )


def predicted_noise(draws: Sequence[Noise]) -> Noise:
    """The noise of an engine that is expected to round as the first draw."""
    return replace(pooled_noise(draws), predicted=draws[0].rms)
