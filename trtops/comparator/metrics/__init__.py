"""The one numerical core of every comparison: all statistics of two outputs, exact, in one streamed pass.

Definitions, with ``a`` the output under test and ``b`` the reference, in float64 throughout:

- absolute error ``d = |a - b|``; of integers exactly, also of 64-bit ones; of booleans ``a xor b``; of strings
  ``a != b`` as 0 or 1
- relative error ``r = d / |b|``, where a floating-point ``b`` of 0 counts as 2.220446049250313e-16
- an element *violates* tolerances if ``(d > atol or d is NaN) and (r > rtol or r is NaN)``, with the last bit of slack
  that :mod:`trtops.comparator.limits` gives
- L2 ``sqrt(sum(d²))``; cosine ``a·b / (|a| |b|)``, 1 if both are zero and 0 if one is; PSNR
  ``20 log10(max(a)) - 10 log10(mean(d²))``, with 1 for a maximum that is not positive; SNR
  ``10 log10(mean(a²) / mean(d²))``; both infinite where ``a`` equals ``b``
- relative error of the whole, ``nrmse``: ``|d| / |b|`` of the norms; not known where ``b`` is 0
- correlation: Pearson's, 0 where ``a`` alone is constant; not known where ``b`` is
- agreement of integers, booleans and strings: the share that is equal; where half of ``b`` or more is one value, of that
  value or of all others, whichever is smaller
- top-1 agreement: the share of rows, along the axis of classes, whose largest element is at the same place, or where ``b``
  has one that is within a twentieth of the row's range; rows with NaN do not agree
- NaN in ``d`` or ``r`` makes every statistic of it NaN

But for the last four these are Polygraphy's definitions (0.53.6), which computes in the arrays' own precision.

Arrays are read in blocks that stay in the cache. Medians and quantiles come out exact without a copy of the errors: a
random sample brackets each wanted rank, the pass collects only the elements inside the brackets (about one in a
hundred), and the one at the wanted rank is selected among these. Where the sample misleads, the rank is found by
counting bit patterns instead, which sort like the non-negative floats that they stand for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from trtops import errors
from trtops.comparator.arrays import Array, dtype_name, holds_strings, to_numpy
from trtops.comparator.limits import most
from trtops.comparator.metrics.difference import BLOCK, EPSILON, Difference, difference_of
from trtops.comparator.metrics.one_pass import Stream
from trtops.comparator.metrics.rows import along_axis, likely_axis
from trtops.comparator.metrics.totals import Totals, largest_finite
from trtops.comparator.table import RECORDED, with_fields
from trtops.record import Record

__all__ = [
    "EPSILON",
    "QUANTILES",
    "OutputStatistics",
    "Quantile",
    "elementwise",
    "statistics",
    "statistics_of_iterations",
    "within",
]

QUANTILES = (0.9, 0.99, 0.999)
"""Quantile levels that are recorded unless others are asked for."""

_COPIED_BYTES = 1 << 24

# Masks are filled with -1e9, -1e10 or the smallest float32; FP16 ends at 65504, and what is added to that rounds away.
_FILLED = 1e9
_FLOAT32_END = 3e38
_CLAMPED = 3e4

Pair: TypeAlias = tuple[Array, Array]


@dataclass(frozen=True, kw_only=True)
class Quantile(Record):
    """One quantile of the errors.

    Attributes:
        level: Between 0 and 1.
        abs: The absolute error that this share of all elements does not exceed, interpolated linearly.
        rel: The same for the relative error.
    """

    level: float
    abs: float
    rel: float


@dataclass(frozen=True, kw_only=True)
@with_fields({m.name: f"The {m.described}, of {m.applies_to}; None for other outputs." for m in RECORDED})
class OutputStatistics(Record):
    """How far one output is from its reference; enough to evaluate it again under any tolerances.

    Errors are in the output's own unit (``*_abs``) or a fraction of the reference (``*_rel``). This module's text has the
    definitions. What is declared here is needed by name; further fields are those of the table of metrics
    (:mod:`trtops.comparator.table`).

    Attributes:
        shape: The output's shape, in the first iteration.
        dtype: Its element type.
        reference_dtype: The reference's element type.
        elements: Elements compared, over all iterations.
        max_abs: Largest absolute error.
        max_rel: Largest relative error.
        mean_abs: Mean absolute error.
        mean_rel: Mean relative error.
        median_abs: Median absolute error.
        median_rel: Median relative error.
        quantiles: Further quantiles of both errors, by level.
        nan_count: NaNs in the output.
        reference_nan_count: NaNs in the reference.
        inf_count: Infinities of either sign in the output.
        reference_inf_count: Infinities in the reference.
        nan_errors: Elements whose absolute error is NaN; they violate any tolerances.
        violations: Elements that violate ``atol`` and ``rtol`` both.
        atol: The absolute tolerance that ``violations`` was counted with.
        rtol: The relative tolerance that ``violations`` was counted with.
        frontier: Pairs of absolute and relative error that no other element exceeds in both, by falling absolute
            error. Whether any element violates given tolerances can be read from these alone. NaN counts as infinite.
        frontier_exact: False if the frontier was thinned by joining neighbours; it then never calls an output good
            that is not, and may call one bad whose errors are within a percent or so of the tolerances.
        worst_index: Where the largest absolute error is, as an index into the flattened output, counted on through
            the iterations; None without elements.
        infinities_equal: Whether equal infinities were counted as equal.
        nans_equal: Whether NaNs at the same place were counted as equal.
        scale: Largest finite magnitude in the reference; None in what was saved before it was recorded.
        class_axis: The axis along which classes were taken to lie because somebody said so, or the model does.
        clamped: Elements that stand for infinity on both sides and were counted as equal.
    """

    shape: tuple[int, ...]
    dtype: str
    reference_dtype: str
    elements: int
    max_abs: float
    max_rel: float
    mean_abs: float
    mean_rel: float
    median_abs: float
    median_rel: float
    quantiles: tuple[Quantile, ...] = ()
    nan_count: int = 0
    reference_nan_count: int = 0
    inf_count: int = 0
    reference_inf_count: int = 0
    nan_errors: int = 0
    violations: int = 0
    atol: float
    rtol: float
    frontier: tuple[tuple[float, float], ...] = field(default=(), repr=False)
    frontier_exact: bool = True
    worst_index: int | None = None
    infinities_equal: bool = False
    nans_equal: bool = False
    scale: float | None = None
    class_axis: int | None = None
    clamped: int = 0

    if TYPE_CHECKING:  # type checkers cannot know what the table adds: a float, or None

        def __getattr__(self, name: str) -> Any: ...

    def any_violation(self, atol: float, rtol: float) -> bool:
        """Whether any element violates other tolerances than those that were counted with."""
        most_abs, most_rel = most(atol), most(rtol)
        return self.nan_errors > 0 or any(a > most_abs and r > most_rel for a, r in self.frontier)

    def quantile(self, level: float) -> Quantile:
        """The errors at one level.

        Raises:
            ComparisonError: If that level was not recorded.
        """
        if level == 0.5:
            return Quantile(level=0.5, abs=self.median_abs, rel=self.median_rel)
        for quantile in self.quantiles:
            if math.isclose(quantile.level, level, rel_tol=1e-12):
                return quantile
        known = ", ".join(f"{q.level:g}" for q in self.quantiles) or "none"
        raise errors.ComparisonError(
            f"The {level:g} quantile was not recorded (recorded: {known}). Compare the outputs again with that level."
        )


def statistics(
    actual: object,
    reference: object,
    *,
    quantiles: Sequence[float] = QUANTILES,
    atol: float = 1e-5,
    rtol: float = 1e-5,
    infinities_equal: bool = False,
    nans_equal: bool = False,
) -> OutputStatistics:
    """All statistics of one output against its reference.

    Args:
        actual: The output under test: an array of any shape and dtype in host memory (or a torch tensor).
        reference: What it should be, of the same shape.
        quantiles: Quantile levels to record beside the median, each between 0 and 1.
        atol: Absolute tolerance to count violations with, in the output's unit.
        rtol: Relative tolerance to count violations with, as a fraction of ``|reference|``.
        infinities_equal: Count infinities of equal sign as equal; otherwise their difference is NaN.
        nans_equal: Count NaNs at the same place as equal.

    Returns:
        The statistics. Beside the arrays at most 64 MB of memory is used on the way.

    Raises:
        ComparisonError: If the shapes differ, or one holds strings and the other does not.
    """
    return statistics_of_iterations(
        [(actual, reference)],
        quantiles=quantiles,
        atol=atol,
        rtol=rtol,
        infinities_equal=infinities_equal,
        nans_equal=nans_equal,
    )


def statistics_of_iterations(
    pairs: Sequence[tuple[object, object]],
    *,
    quantiles: Sequence[float] = QUANTILES,
    atol: float = 1e-5,
    rtol: float = 1e-5,
    infinities_equal: bool = False,
    nans_equal: bool = False,
    clamped_equal: bool = False,
    atol_of_scale: float = 0.0,
    class_axis: int | None = None,
) -> OutputStatistics:
    """As :func:`statistics`, for one output over several iterations, as if these were one long array.

    Args:
        pairs: Output and reference of each iteration; at least one. Shapes may vary between iterations.
        quantiles: As in :func:`statistics`.
        atol: As in :func:`statistics`.
        rtol: As in :func:`statistics`.
        infinities_equal: As in :func:`statistics`.
        nans_equal: As in :func:`statistics`.
        clamped_equal: Count as equal what stands for infinity on both sides: the reference is beyond -1e9 or at the end of
            FP32, as masks are filled, and the output is of that sign and as large as FP16 can say it.
        atol_of_scale: Absolute tolerance as a fraction of the reference's largest finite magnitude; the larger of this and
            ``atol`` counts.
        class_axis: The axis of classes; unless given, the second of images and else the last longer than 1.

    Raises:
        ComparisonError: As in :func:`statistics`; or if there is no iteration, or dtypes change between iterations.
        ConfigError: If a quantile level is not between 0 and 1.
    """
    for level in quantiles:
        if not 0 <= level <= 1:
            raise errors.ConfigError(f"A quantile level is {level}; it must be between 0 and 1.")
    arrays, clamped = _checked_pairs(pairs), 0
    if clamped_equal:
        arrays, clamped = _without_clamped(arrays)
    first, first_reference = arrays[0]
    differ = difference_of(first, first_reference, infinities_equal, nans_equal)
    if atol_of_scale:
        atol = max(atol, atol_of_scale * max(_scale_of(b) for _, b in arrays))
    total = Totals(atol, rtol, differ.text)
    with np.errstate(all="ignore"):
        stream = Stream([(_flat_view(a, b), _flat_view(b, a), a.size) for a, b in arrays], differ)
        (total.median_abs, total.median_rel), *orders = stream.run(total, (0.5, *quantiles))
        rows = _along_classes(arrays, class_axis)
        measured: dict[str, Any] = {m.name: m.measure(total, rows if m.by_class else arrays) for m in RECORDED}
    return OutputStatistics(
        shape=first.shape,
        dtype=dtype_name(first),
        reference_dtype=dtype_name(first_reference),
        elements=total.elements,
        quantiles=tuple(Quantile(level=q, abs=d, rel=r) for q, (d, r) in zip(quantiles, orders)),
        reference_nan_count=total.nan_b,
        reference_inf_count=total.inf_b,
        nan_errors=total.nan_d,
        atol=atol,
        rtol=rtol,
        frontier=total.frontier.points(),
        frontier_exact=total.frontier.exact,
        worst_index=None if total.worst is None else _flat_index(arrays, total.worst),
        infinities_equal=infinities_equal,
        nans_equal=nans_equal,
        scale=None if differ.text else total.peak_b,
        class_axis=class_axis,
        clamped=clamped,
        **measured,
    )


def _along_classes(arrays: list[Pair], class_axis: int | None) -> list[Pair]:
    """The arrays with their axis of classes last."""
    axis = likely_axis(arrays[0][0].shape) if class_axis is None else class_axis
    ndim = arrays[0][0].ndim
    if axis is None or not -ndim <= axis < ndim or axis % ndim == ndim - 1:
        return arrays
    return [(along_axis(a, axis), along_axis(b, axis)) for a, b in arrays]


def _without_clamped(arrays: list[Pair]) -> tuple[list[Pair], int]:
    """The arrays with 0 on both sides where both stand for infinity, and how many elements that are."""
    kept, count = [], 0
    for a, b in arrays:
        if b.dtype.kind != "f" or a.dtype.kind != "f" or not b.size or not _may_be_filled(b):
            kept.append((a, b))
            continue
        same = ((b <= -_FILLED) & (a <= -_CLAMPED)) | ((b >= _FLOAT32_END) & (a >= _CLAMPED))
        count += int(np.count_nonzero(same))
        zeros = [np.where(same, side.dtype.type(0), side) for side in (a, b)]
        kept.append((zeros[0], zeros[1]))
    return kept, count


def _may_be_filled(array: Array) -> bool:
    return bool(array.min() <= -_FILLED or array.max() >= _FLOAT32_END)


def _scale_of(array: Array) -> float:
    """The largest finite magnitude in an array; 0 for strings."""
    return largest_finite(array.astype(np.float64)) if array.size and not holds_strings(array) else 0.0


def _checked_pairs(pairs: Sequence[tuple[object, object]]) -> list[Pair]:
    if not pairs:
        raise errors.ComparisonError("There are no iterations to compare.")
    arrays = [(to_numpy(a, "The output"), to_numpy(b, "The reference")) for a, b in pairs]
    dtypes = [dtype_name(array) for array in arrays[0]]
    for a, b in arrays:
        if a.shape != b.shape:
            raise errors.ComparisonError(
                f"The output has shape {a.shape}, its reference {b.shape}; they must be equal."
            )
        if [dtype_name(a), dtype_name(b)] != dtypes:
            raise errors.ComparisonError(
                f"The dtypes change between iterations, from {dtypes[0]} and {dtypes[1]} to {a.dtype} and {b.dtype}."
            )
    return arrays


def within(actual: object, reference: object, *, atol: float = 1e-5, rtol: float = 1e-5) -> bool:
    """Whether no element violates the tolerances: the verdict alone, at little more than the cost of reading.

    Args:
        actual: As in :func:`statistics`.
        reference: As in :func:`statistics`.
        atol: As in :func:`statistics`.
        rtol: As in :func:`statistics`.

    Raises:
        ComparisonError: As in :func:`statistics`.
    """
    a, b = to_numpy(actual, "The output"), to_numpy(reference, "The reference")
    if a.shape != b.shape:
        raise errors.ComparisonError(f"The output has shape {a.shape}, its reference {b.shape}; they must be equal.")
    differ = difference_of(a, b, False, False)
    fast = a.dtype == b.dtype == np.float32 and 0 <= atol < math.inf
    size, flat_a, flat_b = a.size, _flat_view(a, b), _flat_view(b, a)
    # A float32 difference is off by at most one part in 2^24, so these blocks are within for certain.
    surely = np.float32(atol * (1 - 1e-6))
    # Three passes over two megabytes that stay in the processor's cache; each call of numpy's costs as much as a thousand
    # elements, so smaller blocks are slower.
    step = 16 * BLOCK
    scratch = np.empty(min(size, step), np.float32)
    with np.errstate(all="ignore"):
        for start in range(0, size, step):
            x, y = flat_a[start : start + step], flat_b[start : start + step]
            if fast:
                d = np.subtract(x, y, out=scratch[: x.size])
                if max(d.max(), -d.min()) <= surely:
                    continue
            if not _block_within(differ, x, y, atol, rtol):
                return False
    return True


def elementwise(actual: Array, reference: Array) -> Pair:
    """Absolute and relative error of every element, as new float64 arrays of the same shape.

    Args:
        actual: The output under test, numbers in host memory.
        reference: What it should be, of the same shape.
    """
    differ = difference_of(actual, reference, False, False)
    with np.errstate(all="ignore"):
        _, b, d = differ(actual.reshape(-1), reference.reshape(-1))
        r = differ.relative(d, b)
    return d.reshape(actual.shape), r.reshape(actual.shape)


def _block_within(differ: Difference, x: Array, y: Array, atol: float, rtol: float) -> bool:
    _, b, d = differ(x, y)
    bad = ~(d <= most(atol))
    if not bad.any():
        return True
    d, b = d[bad], b[bad]
    return bool((differ.relative(d, b) <= most(rtol)).all())


def _flat_view(array: Array, other: Array) -> Any:
    """The array in one dimension; large arrays are not copied, and may come as an iterator that can be sliced and indexed."""
    if array.flags.c_contiguous:
        return array.reshape(-1)
    if is_transposed(array, other):
        return array.T.reshape(-1)
    return np.ascontiguousarray(array).reshape(-1) if array.nbytes <= _COPIED_BYTES else array.flat


def is_transposed(array: Array, other: Array) -> bool:
    """Whether both are read with the first axis running fastest, as they lie in memory."""
    return not array.flags.c_contiguous and array.flags.f_contiguous and other.flags.f_contiguous


def _flat_index(arrays: Sequence[Pair], position: int) -> int:
    """The index, counted with the last axis running fastest, of the element at a position in the order of reading."""
    before = 0
    for a, b in arrays:
        if position < before + a.size and is_transposed(a, b):
            index = np.unravel_index(position - before, a.shape[::-1])
            return before + int(np.ravel_multi_index(index[::-1], a.shape))
        before += a.size
        if position < before:
            break
    return position
