"""The one numerical core of every comparison: all statistics of two outputs, exact, in one streamed pass.

Definitions, with ``a`` the output under test and ``b`` the reference, in float64 throughout:

- absolute error ``d = |a - b|``; of integers exactly, also of 64-bit ones; of booleans ``a xor b``; of strings
  ``a != b`` as 0 or 1
- relative error ``r = d / |b|``, where a floating-point ``b`` of 0 counts as 2.220446049250313e-16
- an element *violates* tolerances if ``(d > atol or d is NaN) and (r > rtol or r is NaN)``
- L2 ``sqrt(sum(d²))``; cosine ``a·b / (|a| |b|)``, 1 if both are zero and 0 if one is; PSNR
  ``20 log10(max(a)) - 10 log10(mean(d²))``, with 1 for a maximum that is not positive; SNR
  ``10 log10(mean(a²) / mean(d²))``; both infinite where ``a`` equals ``b``
- NaN in ``d`` or ``r`` makes every statistic of it NaN

These are the definitions of the field's standard tool (Polygraphy 0.53.6), which computes them in the arrays' own
precision. Arrays are read in blocks that stay in the cache. Medians and quantiles come out exact without a copy of the
errors: a random sample brackets each wanted rank, the pass collects only the elements inside the brackets (about one
in a hundred), and the one at the wanted rank is selected among these. Where the sample misleads, the rank is found by
counting bit patterns instead, which sort like the non-negative floats that they stand for.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from trtops import errors
from trtops.comparator.arrays import Array, dtype_name, holds_strings, to_numpy
from trtops.record import Record

EPSILON = 2.220446049250313e-16
"""Stands for a floating-point zero in the denominator of a relative error."""

QUANTILES = (0.9, 0.99, 0.999)
"""Quantile levels that are recorded unless others are asked for."""

_BLOCK = 1 << 15
_SMALL = 1 << 17
_COPIED_BYTES = 1 << 24
_FRONTIER_POINTS = 128
_FRONTIER_SAMPLE = 256
_SAMPLE_ELEMENTS = 1 << 19
_HELD_ELEMENTS = 4_200_000

Pair: TypeAlias = tuple[Array, Array]
_Series: TypeAlias = Callable[[tuple[Array, Array, Array, Array]], Array]


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
class OutputStatistics(Record):
    """How far one output is from its reference; enough to judge it again under any tolerances.

    Errors are in the output's own unit (``*_abs``) or a fraction of the reference (``*_rel``); ``psnr`` and ``snr`` are
    in dB. See this module's text for the definitions.

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
        l2: Euclidean distance.
        cosine: Cosine similarity; None for strings.
        psnr: Peak signal-to-noise ratio; None for strings.
        snr: Signal-to-noise ratio; None for strings.
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
        top1_agreement: Share of rows (along the last axis longer than 1) whose largest element is at the same place;
            None unless the output is floating and has such an axis behind another one. Rows with NaN do not agree.
        infinities_equal: Whether equal infinities were counted as equal.
        nans_equal: Whether NaNs at the same place were counted as equal.
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
    l2: float
    cosine: float | None = None
    psnr: float | None = None
    snr: float | None = None
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
    top1_agreement: float | None = None
    infinities_equal: bool = False
    nans_equal: bool = False

    def any_violation(self, atol: float, rtol: float) -> bool:
        """Whether any element violates other tolerances than those that were counted with."""
        return self.nan_errors > 0 or any(a > atol and r > rtol for a, r in self.frontier)

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
) -> OutputStatistics:
    """As :func:`statistics`, for one output over several iterations, as if these were one long array.

    Args:
        pairs: Output and reference of each iteration; at least one. Shapes may vary between iterations.
        quantiles: As there.
        atol: As there.
        rtol: As there.
        infinities_equal: As there.
        nans_equal: As there.
    """
    for level in quantiles:
        if not 0 <= level <= 1:
            raise errors.ConfigError(f"A quantile level is {level}; it must be between 0 and 1.")
    arrays = _checked(pairs)
    first, first_reference = arrays[0]
    total = _Totals(atol=atol, rtol=rtol)
    differ = _difference_of(first, first_reference, infinities_equal, nans_equal)
    with np.errstate(all="ignore"):
        stream = _Stream([(_flat(a, b), _flat(b, a), a.size) for a, b in arrays], differ)
        (median_abs, median_rel), *orders = stream.run(total, (0.5, *quantiles))
    return OutputStatistics(
        shape=first.shape,
        dtype=dtype_name(first),
        reference_dtype=dtype_name(first_reference),
        median_abs=median_abs,
        median_rel=median_rel,
        quantiles=tuple(Quantile(level=q, abs=d, rel=r) for q, (d, r) in zip(quantiles, orders)),
        worst_index=None if total.worst is None else _place(arrays, total.worst),
        top1_agreement=_top1(arrays),
        infinities_equal=infinities_equal,
        nans_equal=nans_equal,
        **total.numbers(differ.text),
    )


def _checked(pairs: Sequence[tuple[object, object]]) -> list[Pair]:
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
        actual: As for :func:`statistics`.
        reference: As there.
        atol: As there.
        rtol: As there.

    Raises:
        ComparisonError: As there.
    """
    a, b = to_numpy(actual, "The output"), to_numpy(reference, "The reference")
    if a.shape != b.shape:
        raise errors.ComparisonError(f"The output has shape {a.shape}, its reference {b.shape}; they must be equal.")
    differ = _difference_of(a, b, False, False)
    fast = a.dtype == b.dtype == np.float32 and 0 <= atol < math.inf
    size, flat_a, flat_b = a.size, _flat(a, b), _flat(b, a)
    # A float32 difference is off by at most one part in 2^24, so these blocks are within for certain.
    surely = np.float32(atol * (1 - 1e-6))
    scratch = np.empty(min(size, 2 * _BLOCK), np.float32)
    with np.errstate(all="ignore"):
        for start in range(0, size, 2 * _BLOCK):
            x, y = flat_a[start : start + 2 * _BLOCK], flat_b[start : start + 2 * _BLOCK]
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
    differ = _difference_of(actual, reference, False, False)
    with np.errstate(all="ignore"):
        _, b, d = differ(actual.reshape(-1), reference.reshape(-1))
        r = differ.relative(d, b)
    return d.reshape(actual.shape), r.reshape(actual.shape)


def _block_within(differ: _Difference, x: Array, y: Array, atol: float, rtol: float) -> bool:
    _, b, d = differ(x, y)
    bad = ~(d <= atol)
    if not bad.any():
        return True
    d, b = d[bad], b[bad]
    return bool((differ.relative(d, b) <= rtol).all())


def _flat(array: Array, other: Array) -> Any:
    """The array in one dimension, without a copy of a large one: to be sliced and indexed, no more."""
    if array.flags.c_contiguous:
        return array.reshape(-1)
    if _is_transposed(array, other):
        return array.T.reshape(-1)
    return np.ascontiguousarray(array).reshape(-1) if array.nbytes <= _COPIED_BYTES else array.flat


def _is_transposed(array: Array, other: Array) -> bool:
    """Whether both are read with the first axis running fastest, as they lie in memory."""
    return not array.flags.c_contiguous and array.flags.f_contiguous and other.flags.f_contiguous


def _place(arrays: Sequence[Pair], position: int) -> int:
    """The index, counted with the last axis running fastest, of the element at a position in the order of reading."""
    before = 0
    for a, b in arrays:
        if position < before + a.size and _is_transposed(a, b):
            index = np.unravel_index(position - before, a.shape[::-1])
            return before + int(np.ravel_multi_index(index[::-1], a.shape))
        before += a.size
        if position < before:
            break
    return position


class _Difference:
    """Turns a block of two arrays into float64: ``a``, ``b`` and ``|a - b|``; knows the denominator's rule."""

    def __init__(self, floating: bool, exact: bool, text: bool, infinities_equal: bool, nans_equal: bool) -> None:
        self.floating = floating
        self.text = text
        self.exact = exact
        self.infinities_equal = infinities_equal
        self.nans_equal = nans_equal
        self.buffers = np.empty((4, 0))

    def __call__(self, a: Array, b: Array) -> tuple[Array, Array, Array]:
        n = a.size
        if self.buffers.shape[1] < n:
            self.buffers = np.empty((4, n))
        x, y, d = self.buffers[0, :n], self.buffers[1, :n], self.buffers[2, :n]
        if self.text:
            d[:] = a != b
            x[:], y[:] = d, 1
            return x, y, d
        x[:], y[:] = a, b
        if self.exact:
            d[:] = _integer_distance(a, b)
        else:
            np.subtract(x, y, out=d)
            np.absolute(d, out=d)
            if self.infinities_equal or self.nans_equal:
                self._forgive(x, y, d)
        return x, y, d

    def _forgive(self, x: Array, y: Array, d: Array) -> None:
        if self.infinities_equal:
            d[np.isinf(x) & (x == y)] = 0
        if self.nans_equal:
            d[np.isnan(x) & np.isnan(y)] = 0

    def relative(self, d: Array, b: Array) -> Array:
        r = np.absolute(b, out=self.buffers[3, : b.size])
        if self.floating and b.size and not r.min() > 0:
            r[r == 0] = EPSILON
        np.divide(d, r, out=r)
        if self.infinities_equal or self.nans_equal:
            r[(d == 0) & np.isnan(r)] = 0
        return r


def _difference_of(a: Array, b: Array, infinities_equal: bool, nans_equal: bool) -> _Difference:
    text = holds_strings(a)
    if text != holds_strings(b):
        raise errors.ComparisonError(
            f"Strings cannot be compared with numbers: the dtypes are {a.dtype} and {b.dtype}."
        )
    if text and _holds_bytes(a) != _holds_bytes(b):
        raise errors.ComparisonError("The output and its reference are text with bytes; decode the bytes first.")
    floating = not text and b.dtype.kind not in "biu" and not _is_small_integer(b)
    wide = a.dtype.kind in "iu" and b.dtype.kind in "iu" and max(a.dtype.itemsize, b.dtype.itemsize) == 8
    return _Difference(floating, wide, text, infinities_equal, nans_equal)


def _holds_bytes(array: Array) -> bool:
    return array.dtype.kind in "Sa" or (array.dtype.kind == "O" and any(isinstance(item, bytes) for item in array.flat))


def _is_small_integer(array: Array) -> bool:
    return array.dtype.name in {"int4", "uint4", "int2", "uint2"}


def _integer_distance(a: Array, b: Array) -> Array:
    """``|a - b|`` of integers of up to 64 bits, without overflow, as uint64 (float64 if signs and widths conspire)."""
    if a.dtype.kind != b.dtype.kind:
        if ((a if a.dtype.kind == "i" else b) < 0).any():
            # A negative against an unsigned number: at least 1 apart, and float64 keeps that.
            return np.abs(a.astype(np.float64) - b.astype(np.float64))
        a, b = a.astype(np.uint64), b.astype(np.uint64)
    larger = a > b
    # Two's complement: the difference modulo 2^64 is exact once its sign is known.
    low, high = np.where(larger, b, a), np.where(larger, a, b)
    distance: Array = high.astype(np.uint64) - low.astype(np.uint64)
    return distance


class _Totals:
    """What one pass adds up over blocks."""

    def __init__(self, atol: float, rtol: float) -> None:
        self.atol, self.rtol = atol, rtol
        self.elements = 0
        self.max_abs = self.max_rel = self.sum_abs = self.sum_rel = 0.0
        self.dd = self.aa = self.bb = self.ab = 0.0
        self.peak = -math.inf
        self.nan_a = self.nan_b = self.inf_a = self.inf_b = self.nan_d = self.violations = 0
        self.worst: int | None = None
        self.frontier = _Frontier()

    def add(self, a: Array, b: Array, d: Array, r: Array) -> None:
        aa, bb, dd = _dot(a, a), _dot(b, b), _dot(d, d)
        top_d, top_r = float(d.max()), float(r.max())
        if (not (top_d <= self.max_abs) and not math.isnan(self.max_abs)) or self.worst is None:
            self.worst = self.elements + int(d.argmax())
            self.max_abs = top_d
        self.max_rel = _nan_max(self.max_rel, top_r)
        if not (aa < math.inf and bb < math.inf and top_d < math.inf):
            self._count_nonfinite(a, b, d)
        if not (top_d <= self.atol or top_r <= self.rtol):
            self.violations += int(np.count_nonzero(~(d <= self.atol) & ~(r <= self.rtol)))
        self.elements += d.size
        self.sum_abs += float(d.sum())
        self.sum_rel += float(r.sum())
        self.aa, self.bb, self.dd, self.ab = self.aa + aa, self.bb + bb, self.dd + dd, self.ab + _dot(a, b)
        self.peak = _nan_max(self.peak, float(a.max()))
        self.frontier.add(d, r, top_d, top_r)

    def _count_nonfinite(self, a: Array, b: Array, d: Array) -> None:
        self.nan_a += int(np.count_nonzero(np.isnan(a)))
        self.nan_b += int(np.count_nonzero(np.isnan(b)))
        self.inf_a += int(np.count_nonzero(np.isinf(a)))
        self.inf_b += int(np.count_nonzero(np.isinf(b)))
        self.nan_d += int(np.count_nonzero(np.isnan(d)))

    def numbers(self, text: bool) -> dict[str, Any]:
        """The fields of :class:`OutputStatistics` that are known after the pass."""
        return {
            "elements": self.elements,
            "max_abs": self.max_abs,
            "max_rel": self.max_rel,
            "mean_abs": self.mean(self.sum_abs),
            "mean_rel": self.mean(self.sum_rel),
            "l2": math.sqrt(self.dd) if self.dd >= 0 else math.nan,
            "cosine": None if text else self.cosine(),
            "psnr": None if text else self.psnr(),
            "snr": None if text else self.snr(),
            "nan_count": self.nan_a,
            "reference_nan_count": self.nan_b,
            "inf_count": self.inf_a,
            "reference_inf_count": self.inf_b,
            "nan_errors": self.nan_d,
            "violations": self.violations,
            "atol": self.atol,
            "rtol": self.rtol,
            "frontier": self.frontier.points(),
            "frontier_exact": self.frontier.exact,
        }

    def mean(self, total: float) -> float:
        return total / self.elements if self.elements else 0.0

    def cosine(self) -> float:
        if self.aa == 0 and self.bb == 0:
            return 1.0
        if self.aa == 0 or self.bb == 0:
            return 0.0
        value = self.ab / (math.sqrt(self.aa) * math.sqrt(self.bb))
        return value if math.isnan(value) else max(-1.0, min(1.0, value))

    def psnr(self) -> float:
        noise = self.mean(self.dd)
        if noise == 0:
            return math.inf
        peak = self.peak if not self.peak <= 0 else 1.0
        return 20 * _log10(peak) - 10 * _log10(noise)

    def snr(self) -> float:
        noise = self.mean(self.dd)
        if noise == 0:
            return math.inf
        signal = self.mean(self.aa)
        return -math.inf if signal == 0 else 10 * _log10(signal / noise)


def _dot(a: Array, b: Array) -> float:
    # Not BLAS, which would start threads for arrays of this size.
    return float(np.einsum("i,i->", a, b))


def _nan_max(x: float, y: float) -> float:
    return y if y > x or math.isnan(y) else x


def _log10(x: float) -> float:
    return math.log10(x) if 0 < x < math.inf else (-math.inf if x == 0 else x)


class _Frontier:
    """The elements that no other one exceeds in both errors, kept as a staircase."""

    def __init__(self) -> None:
        self.d = np.empty(0)
        self.r = np.empty(0)
        self.pivot = (-1.0, -1.0)
        self.exact = True

    def aim(self, d: Array, r: Array) -> None:
        """Choose the point of a sample's staircase below which most elements will be, to skip them quickly."""
        steps_d, steps_r = _staircase(d, r)
        thin = np.linspace(0, steps_d.size - 1, min(steps_d.size, 16)).astype(int)
        pivots_d, pivots_r = steps_d[thin, None], steps_r[thin, None]
        covered = ((d <= pivots_d) & (r <= pivots_r)).sum(axis=1)
        best = thin[int(covered.argmax())]
        self._merge(steps_d, steps_r)
        self.pivot = float(steps_d[best]), float(steps_r[best])

    def add(self, d: Array, r: Array, top_d: float, top_r: float) -> None:
        if not (top_d < math.inf and top_r < math.inf):
            d, r = np.where(np.isnan(d), np.inf, d), np.where(np.isnan(r), np.inf, r)
            top_d, top_r = float(d.max()), float(r.max())
        if top_d <= self.pivot[0] and top_r <= self.pivot[1]:
            return
        d, r = self._outside(d, r)
        if d.size > _FRONTIER_SAMPLE:  # the pivot is no good for these
            step = d.size // _FRONTIER_SAMPLE
            self.aim(d[::step], r[::step])
            d, r = self._outside(d, r)
        self._merge(d, r)

    def _outside(self, d: Array, r: Array) -> Pair:
        keep = (d > self.pivot[0]) | (r > self.pivot[1])
        return d[keep], r[keep]

    def _merge(self, d: Array, r: Array) -> None:
        self.d, self.r = _staircase(np.concatenate([self.d, d]), np.concatenate([self.r, r]))
        if self.d.size > 4 * _FRONTIER_POINTS:
            self._thin()

    def _thin(self) -> None:
        """Join neighbours: the corner above both, which stands for them on the safe side."""
        groups = np.array_split(np.arange(self.d.size), _FRONTIER_POINTS)
        corners_d = np.array([self.d[g[0]] for g in groups])
        corners_r = np.array([self.r[g[-1]] for g in groups])
        self.d, self.r, self.exact = corners_d, corners_r, False

    def points(self) -> tuple[tuple[float, float], ...]:
        if self.d.size > _FRONTIER_POINTS:
            self._thin()
        return tuple(zip(self.d.tolist(), self.r.tolist()))


def _staircase(d: Array, r: Array) -> Pair:
    """The points that no other one exceeds in both coordinates, by falling ``d``."""
    if not d.size:
        return d, r
    order = np.argsort(-d)
    d, r = d[order], r[order]
    rises = np.empty(r.size, bool)
    rises[0] = True
    np.greater(r[1:], np.maximum.accumulate(r)[:-1], out=rises[1:])
    d, r = d[rises], r[rises]
    last = np.append(d[1:] != d[:-1], True)  # of equal absolute errors, the one with the largest relative error
    return d[last], r[last]


class _Bracket:
    """Collects the elements between two bounds, and finds one rank and the next among them."""

    def __init__(self, rank: int, low: float, high: float, tied: bool) -> None:
        self.rank, self.low, self.high = rank, low, high
        self.tied = tied  # many elements may be equal to a bound: these are counted, not collected
        self.up_to_low = self.at_low = self.at_high = self.held = 0
        self.missed = False
        self.inside: list[Array] = []

    def give_up(self) -> None:
        """Let go of what was collected, which is too much."""
        self.missed, self.held, self.inside = True, 0, []

    def add(self, x: Array) -> None:
        if self.missed:
            return
        inside = x > self.low
        self.up_to_low += x.size - int(np.count_nonzero(inside))
        if self.tied:
            self.at_low += int(np.count_nonzero(x == self.low))
            if self.low == self.high:
                return
            self.at_high += int(np.count_nonzero(x == self.high))
        inside &= x < self.high
        found = x[inside]
        self.held += found.size
        self.inside.append(found)

    def pick(self, last: int) -> tuple[float, float] | None:
        """The elements at the rank and behind it (``last`` is the last there is), or None if the bracket missed one."""
        if self.missed:
            return None
        ranks = self.rank - self.up_to_low, min(self.rank + 1, last) - self.up_to_low
        inside = np.concatenate(self.inside) if self.inside else np.empty(0)
        inner = [rank for rank in ranks if 0 <= rank < self.held]
        if inner:
            inside.partition(inner)
        found = [self._at(rank, inside) for rank in ranks]
        return None if found[0] is None or found[1] is None else (found[0], found[1])

    def _at(self, rank: int, inside: Array) -> float | None:
        if rank < 0:
            return self.low if rank >= -self.at_low else None
        if rank < self.held:
            return float(inside[rank])
        return self.high if rank < self.held + self.at_high else None


class _Stream:
    """Reads pairs of flat arrays block by block."""

    def __init__(self, pairs: Sequence[tuple[Any, Any, int]], differ: _Difference) -> None:
        self.pairs = pairs
        self.differ = differ
        self.elements = sum(size for _, _, size in pairs)

    def blocks(self) -> Iterator[tuple[Array, Array, Array, Array]]:
        for whole_a, whole_b, size in self.pairs:
            step = _SMALL if self.elements <= _SMALL else _BLOCK
            for start in range(0, size, step):
                a, b, d = self.differ(whole_a[start : start + step], whole_b[start : start + step])
                yield a, b, d, self.differ.relative(d, b)

    def run(self, total: _Totals, levels: Sequence[float]) -> list[tuple[float, float]]:
        """One pass: everything into ``total``; returns both errors at each quantile level."""
        if not self.elements:
            return [(0.0, 0.0) for _ in levels]
        if self.elements <= _SMALL:
            return self._run_small(total, levels)
        of_d, of_r = self._aim(total, levels)
        for a, b, d, r in self.blocks():
            total.add(a, b, d, r)
            for bracket in of_d:
                bracket.add(d)
            for bracket in of_r:
                bracket.add(r)
            if sum(bracket.held for bracket in (*of_d, *of_r)) > _HELD_ELEMENTS:
                max(of_d + of_r, key=lambda bracket: bracket.held).give_up()
        absolute = self._settle(of_d, levels, total.max_abs, lambda block: block[2])
        relative = self._settle(of_r, levels, total.max_rel, lambda block: block[3])
        return list(zip(absolute, relative))

    def _run_small(self, total: _Totals, levels: Sequence[float]) -> list[tuple[float, float]]:
        kept_d, kept_r = [], []
        for a, b, d, r in self.blocks():
            total.add(a, b, d, r)
            kept_d.append(d if len(self.pairs) == 1 else d.copy())
            kept_r.append(r if len(self.pairs) == 1 else r.copy())
        of_d = _select(np.concatenate(kept_d) if len(kept_d) > 1 else kept_d[0], levels, total.max_abs)
        of_r = _select(np.concatenate(kept_r) if len(kept_r) > 1 else kept_r[0], levels, total.max_rel)
        return list(zip(of_d, of_r))

    def _aim(self, total: _Totals, levels: Sequence[float]) -> tuple[list[_Bracket], list[_Bracket]]:
        """Brackets around the wanted ranks, and the frontier's pivot, from a random sample."""
        count = min(int(self.elements ** (2 / 3)), _SAMPLE_ELEMENTS)
        where = np.random.default_rng(0).integers(0, self.elements, count)
        parts, offset = [], 0
        for a, b, size in self.pairs:
            here = where[(where >= offset) & (where < offset + size)] - offset
            parts.append((a[here], b[here]))
            offset += size
        a, b = (np.concatenate(side) for side in zip(*parts))
        differ = copy.copy(self.differ)  # so that the large buffers go when this is done
        _, y, d = differ(a, b)
        r = differ.relative(d, y)
        d[np.isnan(d)], r[np.isnan(r)] = np.inf, np.inf
        total.frontier.aim(d, r)
        d.sort()
        r.sort()
        return [self._bracket(level, d) for level in levels], [self._bracket(level, r) for level in levels]

    def _bracket(self, level: float, sample: Array) -> _Bracket:
        rank = int(level * (self.elements - 1))
        # Five standard deviations of a rank in a sample, and one more place for luck at the ends.
        reach = 5 * math.sqrt(level * (1 - level) * sample.size) + 5
        first, last = int(level * sample.size - reach), int(level * sample.size + reach)
        low = float(sample[first]) if first >= 0 else -1.0
        high = float(sample[last]) if last < sample.size else math.inf
        tied = first > 0 and sample[first - 1] == low
        tied = tied or (first >= 0 and sample[first + 1] == low) or (last < sample.size and sample[last - 1] == high)
        return _Bracket(rank, low, high, bool(tied))

    def _settle(
        self, brackets: Sequence[_Bracket], levels: Sequence[float], largest: float, series: _Series
    ) -> list[float]:
        if math.isnan(largest):
            return [math.nan for _ in levels]
        last = self.elements - 1
        found = [bracket.pick(last) for bracket in brackets]
        missed = {r for b, f in zip(brackets, found) if f is None for r in (b.rank, min(b.rank + 1, last))}
        counted = self._count_out(missed, series) if missed else {}
        values = []
        for bracket, level, picked in zip(brackets, levels, found):
            low, high = picked or (counted[bracket.rank], counted[min(bracket.rank + 1, last)])
            values.append(_between(low, high, level * last - bracket.rank))
        return values

    def _count_out(self, ranks: set[int], series: _Series) -> dict[int, float]:
        """The elements at some ranks, by counting bit patterns, 16 bits more with each of four passes."""
        known = {rank: (0, rank) for rank in ranks}  # the bits known so far, and the rank among those that share them
        for shift in (48, 32, 16, 0):
            counts = {prefix: np.zeros(1 << 16, np.int64) for prefix, _ in known.values()}
            for block in self.blocks():
                bits = series(block).view(np.uint64)
                for prefix, count in counts.items():
                    alike = bits if shift == 48 else bits[bits >> np.uint64(shift + 16) == prefix]
                    digits = alike >> np.uint64(shift) & np.uint64(0xFFFF)
                    count += np.bincount(digits.astype(np.intp), minlength=1 << 16)
            known = {rank: _descend(counts[prefix], prefix, left) for rank, (prefix, left) in known.items()}
        return {rank: float(np.array(bits, np.uint64).view(np.float64)) for rank, (bits, _) in known.items()}


def _descend(counts: Array, prefix: int, rank: int) -> tuple[int, int]:
    up_to = np.cumsum(counts)
    digit = int(np.searchsorted(up_to, rank, side="right"))
    return prefix << 16 | digit, rank - (int(up_to[digit - 1]) if digit else 0)


def _select(values: Array, levels: Sequence[float], largest: float) -> list[float]:
    """Quantiles of an array that may be overwritten, interpolated linearly."""
    if math.isnan(largest):
        return [math.nan for _ in levels]
    end = values.size - 1
    ranks = [int(level * end) for level in levels]
    values.sort()  # for sizes that come here, faster than selecting several ranks
    return [
        _between(float(values[rank]), float(values[min(rank + 1, end)]), level * end - rank)
        for level, rank in zip(levels, ranks)
    ]


def _between(low: float, high: float, share: float) -> float:
    if share == 0 or low == high:
        return low
    return low + (high - low) * share


def _top1(arrays: Sequence[Pair]) -> float | None:
    rows = agree = 0
    for a, b in arrays:
        shape = list(a.shape)
        while len(shape) > 2 and shape[-1] == 1:
            shape.pop()
        if len(shape) < 2 or shape[-1] < 2 or not _is_floating(a) or not _is_floating(b):
            return None
        if a.size:
            rows += a.size // shape[-1]
            agree += _agreeing_rows(a, b, shape[-1])
    return agree / rows if rows else None


def _is_floating(array: Array) -> bool:
    return array.dtype.kind == "f" or "float" in array.dtype.name


def _agreeing_rows(a: Array, b: Array, length: int) -> int:
    agree = 0
    if a.flags.c_contiguous and b.flags.c_contiguous:
        a, b = a.reshape(-1, length), b.reshape(-1, length)
    step = max(1, 4 * _BLOCK // (a.size // len(a)))
    for start in range(0, len(a), step):
        x, y = (side[start : start + step].reshape(-1, length) for side in (a, b))
        best_x, best_y = x.argmax(axis=1), y.argmax(axis=1)
        rows = np.arange(len(x))
        # argmax takes the first NaN for the largest element.
        top_x, top_y = x[rows, best_x], y[rows, best_y]
        agree += int(np.count_nonzero((best_x == best_y) & (top_x == top_x) & (top_y == top_y)))
    return agree
