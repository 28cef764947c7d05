"""Counts one tensor's values in bounded memory, and chooses the range of values to represent in INT8."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from trtops import errors

if TYPE_CHECKING:
    from numpy.typing import NDArray

Algorithm: TypeAlias = Literal["minmax", "entropy", "percentile"]
ALGORITHMS: tuple[Algorithm, ...] = ("minmax", "entropy", "percentile")

# onnxruntime.quantization.calibrate is not used: its histogram calibrators keep every intermediate tensor of every feed
# until the data ends, and add bins without bound as the range grows; its entropy search, with its default of 128 bins,
# tries only the largest threshold.
BINS = 4096
DEFAULT_PERCENTILE = 99.99

_BLOCK_ELEMENTS = 1 << 16  # elements at a time, so that temporaries stay in the processor's cache
_QUANTIZED = 128  # levels of magnitude that INT8 has
_SHRINK = 2  # bins that are merged for the entropy search
_MIN_KEPT = 0.9  # minimum share of the values that the entropy search does not clip


class Histogram:
    """Magnitudes of one tensor, in 4,096 bins between zero and a power of two growing with the data (32 KiB).

    When the range doubles, neighbouring bins are merged, so counts depend neither on the order of the data nor on the
    size of the feeds.
    """

    __slots__ = ("counts", "high", "limit", "low", "not_finite", "size")

    def __init__(self) -> None:
        """Start empty."""
        self.counts = np.zeros(BINS, np.int64)  # without exact zeros
        self.limit = 0.0  # upper end of the last bin; 0 as long as only zeros were seen
        self.low = math.inf
        self.high = -math.inf
        self.size = 0  # finite values, including zeros
        self.not_finite = 0

    @property
    def amax(self) -> float:
        """The largest magnitude seen; 0 if there were no values."""
        return max(abs(self.low), abs(self.high)) if self.size else 0.0

    def add(self, array: NDArray[Any], counted: bool = True) -> None:
        """Add the values of an array in float16, float32 or float64.

        ``counted=False`` keeps the smallest and largest value only, as ``minmax`` needs, at less than half the cost.
        """
        values = np.ascontiguousarray(array).reshape(-1)
        for start in range(0, values.size, _BLOCK_ELEMENTS):
            self._add_block(values[start : start + _BLOCK_ELEMENTS], counted)

    def _add_block(self, block: NDArray[Any], counted: bool) -> None:
        if block.dtype == np.float16:
            block = block.astype(np.float32)
        low, high = float(block.min()), float(block.max())
        if not (math.isfinite(low) and math.isfinite(high)):
            finite = block[np.isfinite(block)]
            self.not_finite += block.size - finite.size
            if not finite.size:
                return
            block = finite
            low, high = float(block.min()), float(block.max())
        self.low, self.high = min(self.low, low), max(self.high, high)
        self.size += block.size
        if not counted:
            return
        amax = max(abs(low), abs(high))
        if amax >= self.limit and amax:
            limit = math.ldexp(1.0, max(math.frexp(amax)[1], -100))
            self.counts, self.limit = self._counts_up_to(limit), limit
        if self.limit:
            # Scaling by a power of two is exact, so a value's bin does not depend on earlier values.
            bins = (np.abs(block) * block.dtype.type(BINS / self.limit)).astype(np.intp)
            counts = np.bincount(bins, minlength=BINS)
            counts[0] -= block.size - np.count_nonzero(block)
            self.counts += counts

    def _counts_up_to(self, limit: float) -> NDArray[np.int64]:
        """The counts in bins up to a limit not smaller than this histogram's."""
        counts = np.zeros(BINS, np.int64)
        if self.limit:
            merged = self.counts.reshape(-1, int(min(limit / self.limit, BINS))).sum(axis=1)
            counts[: merged.size] = merged
        return counts

    def merged(self, other: Histogram) -> Histogram:
        """Return the histogram of the values of both."""
        union = Histogram()
        union.limit = max(self.limit, other.limit)
        union.counts = self._counts_up_to(union.limit) + other._counts_up_to(union.limit)
        union.low, union.high = min(self.low, other.low), max(self.high, other.high)
        union.size, union.not_finite = self.size + other.size, self.not_finite + other.not_finite
        return union

    def beyond(self, amax: float) -> float:
        """Return the share of values with a magnitude above ``amax``, to the width of a bin."""
        if not self.size or not self.limit or amax >= self.amax:
            return 0.0
        first = math.ceil(amax / self.limit * BINS)
        return float(self.counts[first:].sum()) / self.size

    def choose(self, algorithm: Algorithm, percentile: float = DEFAULT_PERCENTILE) -> float:
        """Return the largest magnitude to represent in INT8, in the tensor's unit.

        ``minmax`` is the largest magnitude seen; ``percentile`` the one that ``percentile`` percent of all values do
        not exceed; ``entropy`` the one whose 128 levels have the smallest Kullback-Leibler divergence from the values
        (Migacz, "8-bit Inference with TensorRT", GTC 2017).
        """
        check_algorithm(algorithm, percentile)
        if algorithm == "minmax" or not self.limit:
            return self.amax
        if algorithm == "percentile":
            within = np.cumsum(self.counts) + (self.size - int(self.counts.sum()))
            last = int(np.searchsorted(within, self.size * (percentile / 100)))
            return min((last + 1) * self.limit / BINS, self.amax)
        return min(_entropy_bins(self.counts) * self.limit / (BINS // _SHRINK), self.amax)


def check_algorithm(algorithm: str, percentile: float = DEFAULT_PERCENTILE) -> None:
    """Raise ConfigError if the algorithm is unknown, or the percentile is out of range."""
    errors.check_known(algorithm, ALGORITHMS, "Unknown calibration algorithm")
    if not 0 < percentile <= 100:
        raise errors.ConfigError(f"percentile is {percentile}; expected more than 0 and at most 100.")


def _entropy_bins(counts: NDArray[np.int64]) -> int:
    """Return the number of bins, merged in pairs, to keep for 128 levels to describe the distribution best.

    Candidate ``i`` keeps bins ``0..i-1`` and moves all values beyond into the last of them: that is P. Q spreads each
    of 128 levels evenly over its bins that are not empty. With sums per level, KL(P || Q) needs no loop over the bins:
    the terms P log P are running sums, and log Q is constant within a level.
    """
    bins = counts.reshape(-1, _SHRINK).sum(axis=1).astype(np.float64)
    used = int(np.flatnonzero(bins)[-1]) + 1
    if used <= _QUANTIZED:
        return used
    candidates = np.arange(_QUANTIZED, used + 1)
    total = bins.sum()
    running = np.concatenate([[0.0], np.cumsum(bins)])
    filled = np.concatenate([[0], np.cumsum(bins > 0)])
    entropies = np.concatenate([[0.0], np.cumsum(_x_log_x(bins))])

    edges = -(-np.arange(_QUANTIZED + 1) * candidates[:, None] // _QUANTIZED)
    levels = np.diff(running[edges], axis=1)
    spread = np.maximum(np.diff(filled[edges], axis=1), 1)
    described = (_x_log_x(levels) - levels * np.log(spread)).sum(axis=1)

    inside = running[candidates]
    outside = total - inside
    last = bins[candidates - 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        last_level = np.log(levels[:, -1] / spread[:, -1])
        moved = np.where(outside > 0, _x_log_x(last + outside) - _x_log_x(last) - outside * last_level, 0.0)
        divergence = (entropies[candidates] + moved - described) / total - math.log(total) + np.log(inside)
    # Candidates that move more than a tenth of the values are excluded: with nearly all values in its last bin P is a
    # single spike, which any 128 levels describe. Values that are all far from zero, as after 1 + erf, would be clipped
    # to one.
    divergence[((last == 0) & (outside > 0)) | (inside < _MIN_KEPT * total)] = np.inf
    return int(candidates[np.argmin(divergence)])


def _x_log_x(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return x * np.log(np.where(x > 0, x, 1.0))
