"""All statistics of two outputs, exact, in one pass: every comparison takes its numbers from here.

Definitions, with ``a`` the output under test and ``b`` the reference, in float64:

- absolute error ``d = |a - b|``; exact for integers, also of 64 bits; for booleans ``a xor b``; for strings ``a != b``
- relative error ``r = d / |b|``, where a floating-point ``b`` of 0 counts as 2.220446049250313e-16
- an element *violates* tolerances if ``(d > atol or d is NaN) and (r > rtol or r is NaN)``, with the slack of one
  rounding that :mod:`trtops.comparator.arrays` gives
- L2 ``sqrt(sum(d²))``; cosine ``a·b / (|a| |b|)``, 1 if both are zero and 0 if one is; PSNR
  ``20 log10(max(a)) - 10 log10(mean(d²))``, with 1 for a maximum that is not positive; SNR
  ``10 log10(mean(a²) / mean(d²))``; both infinite where ``a`` equals ``b``
- NaN in ``d`` or ``r`` makes every statistic of it NaN

These are Polygraphy's definitions (0.53.6), which computes in the arrays' own precision. Further metrics:

- ``nrmse``: ``|d| / |b|`` of the norms; None where ``b`` is 0
- correlation: Pearson's, 0 where only ``a`` is constant; None where ``b`` is
- agreement of integers, booleans and strings, and top-1 agreement: see :mod:`trtops.comparator.metrics.rows`
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from trtops import errors
from trtops.comparator.arrays import Array, dtype_name, holds_strings, largest_within, to_numpy
from trtops.comparator.metrics.difference import Difference, difference_of
from trtops.comparator.metrics.frontier import Frontier
from trtops.comparator.metrics.quantiles import measure_in_one_pass
from trtops.comparator.metrics.rows import likely_axis
from trtops.comparator.metrics.totals import Totals, largest_finite
from trtops.comparator.table import METRICS, Metric, with_fields
from trtops.metadata import STANDS_FOR_INFINITY
from trtops.record import Config, Record

QUANTILES = (0.9, 0.99, 0.999)  # levels that are always recorded

# Masks are filled with -1e9, -1e10 or the smallest float32; FP16 ends at 65504, and adding to that rounds it off.
_FLOAT32_END = 3e38
_CLAMPED = 3e4

Pair: TypeAlias = tuple[Array, Array]


@dataclass(frozen=True, kw_only=True)
class Quantile(Record):
    """One quantile of the errors."""

    level: float
    abs: float
    rel: float


@dataclass(frozen=True, kw_only=True)
class ChannelErrors(Config):
    """Errors of each channel along an axis, in the output's own unit: measured ones, or limits of them.

    NaN in an error makes both of its channel's numbers NaN, and no limit allows them.
    """

    axis: int
    max_abs: tuple[float, ...]
    rms: tuple[float, ...]  # root mean square


@dataclass(frozen=True, kw_only=True)
@with_fields({metric.name: "" for metric in METRICS})
class OutputStatistics(Record):
    """How far one output is from its reference; enough to evaluate it again under any tolerances.

    Errors are in the output's own unit (``*_abs``) or a fraction of the reference (``*_rel``). The module's docstring
    has the definitions. The table of metrics (:mod:`trtops.comparator.table`) adds a field for each recorded metric,
    which is None for outputs that it does not apply to.
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
    nan_errors: int = 0  # elements whose absolute error is NaN; they violate any tolerances
    violations: int = 0  # elements that violate `atol` and `rtol` both, which are the tolerances counted with
    atol: float
    rtol: float
    # Pairs of absolute and relative error that no other element exceeds in both, by falling absolute error. They decide
    # whether any element violates given tolerances, without the arrays. NaN counts as infinite.
    frontier: tuple[tuple[float, float], ...] = field(default=(), repr=False)
    # False if neighbours in the frontier were joined: a good output within about a percent of the tolerances may then
    # be called bad. A bad one is still found.
    frontier_exact: bool = True
    infinities_equal: bool = False
    nans_equal: bool = False
    scale: float | None = None  # largest finite magnitude in the reference; None for strings
    class_axis: int | None = None  # as the tolerances or the model name it
    clamped: int = 0  # elements that stand for infinity on both sides and were counted as equal
    channels: ChannelErrors | None = None  # along the axis that the tolerances name
    unmeasured: tuple[str, ...] = ()  # metrics that were left out, since nothing used them

    if TYPE_CHECKING:  # the table adds fields of type `float | None`

        def __getattr__(self, name: str) -> Any: ...

    @property
    def has_near_zero(self) -> bool:
        """True if the largest relative error is that of an element near 0, and not as large as the output's scale."""
        return (self.max_rel or 0) > 1 and self.max_abs < (self.scale or 0)

    def any_violation(self, atol: float, rtol: float) -> bool:
        """Whether any element violates tolerances; other ones than those counted with are read from the frontier."""
        if (atol, rtol) == (self.atol, self.rtol):
            return self.violations > 0
        self.require("frontier")
        most_abs, most_rel = largest_within(atol), largest_within(rtol)
        return any(a > most_abs and r > most_rel for a, r in self.frontier)

    def error(self, stat: str, level: float) -> Quantile:
        """Both errors by one statistic: ``max``, ``mean``, ``median`` or ``quantile`` (at ``level``)."""
        if stat == "quantile":
            return self.quantile(level)
        self.require(f"{stat}_abs")
        return Quantile(level=level, abs=getattr(self, f"{stat}_abs"), rel=getattr(self, f"{stat}_rel"))

    def require(self, metric: str) -> None:
        """Raise ComparisonError if a metric was left out."""
        if metric in self.unmeasured:
            raise errors.ComparisonError(f"{metric} was not measured. Compare the outputs again.")

    def exceeds(self, stat: str, atol: float, rtol: float, level: float) -> bool:
        """Whether the error exceeds both tolerances: of any element (``elemwise``), or by another statistic."""
        if stat == "elemwise":
            return self.any_violation(atol, rtol)
        error = self.error(stat, level)
        return not (error.abs <= largest_within(atol) or error.rel <= largest_within(rtol))

    def quantile(self, level: float) -> Quantile:
        """The errors at one level; ComparisonError if it was not recorded."""
        if level == 0.5:
            self.require("median_abs")
            return Quantile(level=0.5, abs=self.median_abs, rel=self.median_rel)
        for quantile in self.quantiles:
            if math.isclose(quantile.level, level, rel_tol=1e-12):
                return quantile
        recorded = ", ".join(f"{q.level:g}" for q in self.quantiles) or "none"
        raise errors.ComparisonError(
            f"The {level:g} quantile was not recorded (recorded: {recorded}). Compare again with that level."
        )


def statistics(actual: object, reference: object, **options: Any) -> OutputStatistics:
    """All statistics of one output against its reference, of the same shape; see :func:`measure`."""
    return measure([(actual, reference)], **options)[0]


def measure(
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
    channel_axis: int | None = None,
    metrics: Collection[str] | None = None,
) -> tuple[OutputStatistics, Totals]:
    """All statistics of one output against its reference, over all iterations together, and the sums behind them.

    Args:
        pairs: Output and reference of each iteration, at least one: arrays of any dtype in host memory, or torch
            tensors. Shapes may vary between iterations.
        quantiles: Quantile levels to record in addition to the median, each between 0 and 1.
        atol: Absolute tolerance to count violations with, in the output's unit.
        rtol: The same, as a fraction of ``|reference|``.
        infinities_equal: Count infinities of equal sign as equal; otherwise their difference is NaN.
        nans_equal: Count NaNs at the same place as equal.
        clamped_equal: Count elements as equal that stand for infinity on both sides: the reference is beyond -1e9 or at
            the end of FP32, as masks are filled, and the output has its sign and is as large as FP16 can represent.
        atol_of_scale: Absolute tolerance as a fraction of the reference's largest finite magnitude; the larger of this
            and ``atol`` counts.
        class_axis: The axis of classes (default: the second of images and else the last longer than 1).
        channel_axis: The axis of channels whose errors are measured one by one; None measures none. All shapes must
            have as many channels.
        metrics: Names of the metrics to measure among those that take another pass over the arrays, ``median_abs`` for
            quantiles, and ``frontier`` (default: all). Others are listed as ``unmeasured``.

    Raises ComparisonError if there is no iteration, shapes differ, dtypes change between iterations, or one side alone
    holds strings; ConfigError if a quantile level is not between 0 and 1.
    """
    for level in quantiles:
        if not 0 <= level <= 1:
            raise errors.ConfigError(f"A quantile level is {level}; it must be between 0 and 1.")
    arrays, clamped = _checked_arrays(pairs), 0
    first, first_reference = arrays[0]
    if clamped_equal:
        arrays, clamped = _without_clamped(arrays)
    differ = difference_of(first, first_reference, infinities_equal, nans_equal)
    if atol_of_scale:
        scales = [largest_finite(b.astype(np.float64)) for _, b in arrays if b.size and not holds_strings(b)]
        atol = max(atol, atol_of_scale * max(scales, default=0.0))
    left_out = _left_out(metrics)
    frontier = None if "frontier" in left_out else Frontier()
    levels = () if "median_abs" in left_out else (0.5, *quantiles)
    total = Totals(atol, rtol, differ.text, frontier)
    with np.errstate(all="ignore"):
        flat = [(a.reshape(-1), b.reshape(-1)) for a, b in arrays]
        medians, *orders = measure_in_one_pass(flat, differ, total, levels) or [(math.nan, math.nan)]
        total.abs.median, total.rel.median = medians
        measured: dict[str, Any] = {}
        for m in METRICS:
            if m.name not in left_out or m.name.startswith("median_"):
                measured[m.name] = from_arrays(m, arrays, class_axis) if m.from_arrays else m.measure(total, ())
    statistics = OutputStatistics(
        shape=first.shape,
        dtype=dtype_name(first),
        reference_dtype=dtype_name(first_reference),
        elements=total.elements,
        quantiles=tuple(Quantile(level=q, abs=d, rel=r) for q, (d, r) in zip(levels[1:], orders)),
        reference_nan_count=total.nan_b,
        reference_inf_count=total.inf_b,
        nan_errors=total.nan_d,
        atol=atol,
        rtol=rtol,
        frontier=() if frontier is None else frontier.points(),
        frontier_exact=frontier is not None and frontier.exact,
        infinities_equal=infinities_equal,
        nans_equal=nans_equal,
        scale=None if differ.text else total.peak_b,
        class_axis=class_axis,
        clamped=clamped,
        channels=None if channel_axis is None else _errors_by_channel(arrays, channel_axis, differ),
        unmeasured=tuple(left_out),
        **measured,
    )
    return statistics, total


def _left_out(metrics: Collection[str] | None) -> list[str]:
    """Names of the statistics to leave out, since only further metrics need them."""
    if metrics is None:
        return []
    names = [] if "frontier" in metrics else ["frontier"]
    names += [metric.name for metric in METRICS if metric.from_arrays and metric.name not in metrics]
    return names if "median_abs" in metrics else [*names, "median_abs", "median_rel"]


def _checked_arrays(pairs: Sequence[tuple[object, object]]) -> list[Pair]:
    """The pairs as arrays, each of one shape and all of the same dtypes."""
    if not pairs:
        raise errors.ComparisonError("There are no iterations to compare.")
    arrays = [(to_numpy(a, "The output"), to_numpy(b, "The reference")) for a, b in pairs]
    dtypes = dtype_name(arrays[0][0]), dtype_name(arrays[0][1])
    for a, b in arrays:
        if a.shape != b.shape:
            raise errors.ComparisonError(
                f"The output has shape {a.shape}, its reference {b.shape}; they must be equal."
            )
        if (dtype_name(a), dtype_name(b)) != dtypes:
            raise errors.ComparisonError(
                f"The dtypes change between iterations, from {dtypes[0]} and {dtypes[1]} to {a.dtype} and {b.dtype}."
            )
    return arrays


def from_arrays(metric: Metric, arrays: Sequence[Pair], class_axis: int | None = None) -> float | None:
    """Compute a metric from pairs of output and reference; None if it does not apply to them."""
    first = arrays[0][0]
    axis = likely_axis(first.shape) if class_axis is None else class_axis
    if metric.by_class and axis is not None and -first.ndim <= axis < first.ndim:
        arrays = [(np.moveaxis(a, axis, -1), np.moveaxis(b, axis, -1)) for a, b in arrays]
    return metric.measure(None, arrays)


def _errors_by_channel(arrays: list[Pair], axis: int, differ: Difference) -> ChannelErrors | None:
    """The errors of each channel; None if there is no such axis, or its length changes."""
    if any(not -b.ndim <= axis < b.ndim for _, b in arrays) or len({b.shape[axis] for _, b in arrays}) != 1:
        return None
    largest = square = np.zeros(arrays[0][1].shape[axis])
    count = 0
    with np.errstate(all="ignore"):
        for a, b in arrays:
            d = differ(a.reshape(-1), b.reshape(-1))[2].reshape(b.shape)
            rows = np.moveaxis(d, axis, 0).reshape(b.shape[axis], -1)
            largest = np.maximum(largest, rows.max(axis=1, initial=0.0))
            square = square + np.einsum("ij,ij->i", rows, rows)
            count += rows.shape[1]
        rms = np.sqrt(square / max(count, 1))
    return ChannelErrors(axis=axis, max_abs=tuple(largest.tolist()), rms=tuple(rms.tolist()))


def _without_clamped(arrays: list[Pair]) -> tuple[list[Pair], int]:
    """Replace elements standing for infinity on both sides by 0; return the arrays and the number of these elements."""
    unclamped, count = [], 0
    for a, b in arrays:
        floating = b.dtype.kind == a.dtype.kind == "f" and b.size > 0
        if floating and (b.min() <= -STANDS_FOR_INFINITY or b.max() >= _FLOAT32_END):
            same = ((b <= -STANDS_FOR_INFINITY) & (a <= -_CLAMPED)) | ((b >= _FLOAT32_END) & (a >= _CLAMPED))
            count += int(np.count_nonzero(same))
            a, b = np.where(same, a.dtype.type(0), a), np.where(same, b.dtype.type(0), b)
        unclamped.append((a, b))
    return unclamped, count


def elementwise(actual: Array, reference: Array, infinities_equal: bool = False) -> Pair:
    """Absolute and relative error of every element, as new float64 arrays of the same shape."""
    differ = difference_of(actual, reference, infinities_equal, False)
    with np.errstate(all="ignore"):
        _, b, d = differ(actual.reshape(-1), reference.reshape(-1))
        r = differ.relative(d, b)
    return d.reshape(actual.shape), r.reshape(actual.shape)
