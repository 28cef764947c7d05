"""Sums over all elements, and the metrics computed from them."""

import math

import numpy as np

from trtops.comparator.arrays import Array, largest_within
from trtops.comparator.metrics.frontier import Frontier

# The variance over the squared mean, below which only the rounding of the sums is left.
_CONSTANT = 1e-12
_PART = 8192
_ZERO = np.zeros(1)


class Errors:
    """Sums and extremes of the errors of one kind; the median is set afterwards."""

    max: float = 0.0
    min: float = math.inf
    max_at: int = 0
    min_at: int = 0
    sum: float = 0.0
    squares: float = 0.0
    median: float = 0.0

    def add(self, errors: Array, offset: int) -> float:
        """Add a block beginning at ``offset``, and return its largest error. NaN counts as larger than all."""
        largest_at, smallest_at = int(errors.argmax()), int(errors.argmin())
        top = float(errors[largest_at])
        if top > self.max or (math.isnan(top) and not math.isnan(self.max)):
            self.max, self.max_at = top, offset + largest_at
        if errors[smallest_at] < self.min:
            self.min, self.min_at = float(errors[smallest_at]), offset + smallest_at
        self.sum += float(errors.sum())
        self.squares += _dot_product(errors, errors)
        return top

    def add_zeros(self, offset: int) -> None:
        """Add a block of zeros."""
        if self.min > 0:
            self.min, self.min_at = 0.0, offset


class Totals:
    """What one pass over blocks adds up."""

    def __init__(self, atol: float, rtol: float, text: bool, frontier: Frontier | None) -> None:
        self.atol, self.rtol = largest_within(atol), largest_within(rtol)
        self.text = text
        self.elements = self.violations = 0
        self.nan_a = self.nan_b = self.nan_d = self.inf_a = self.inf_b = 0
        self.aa = self.bb = self.ab = 0.0  # dot products of the output and the reference
        self.sum_a = self.sum_b = self.peak_b = 0.0
        self.peak = -math.inf
        self.abs: Errors = Errors()
        self.rel: Errors = Errors()
        self.frontier = frontier

    def add(self, a: Array, b: Array, d: Array | None, r: Array | None) -> None:
        """Add a block of both arrays and both errors (None if all errors are 0)."""
        aa = bb = ab = _dot_product(a, a)
        sum_a = sum_b = float(a.sum())
        if d is None or r is None:
            d = r = _ZERO
            top_d = top_r = 0.0
            self.abs.add_zeros(self.elements)
            self.rel.add_zeros(self.elements)
        else:
            bb, ab, sum_b = _dot_product(b, b), _dot_product(a, b), float(b.sum())
            top_d, top_r = self.abs.add(d, self.elements), self.rel.add(r, self.elements)
        # Comparisons are negated because every comparison with NaN is false, and NaN counts as larger than all.
        # With finite sums there is no NaN or infinity, and counting them would take another pass.
        if not (aa < math.inf and bb < math.inf and top_d < math.inf):
            self.nan_a += int(np.count_nonzero(np.isnan(a)))
            self.nan_b += int(np.count_nonzero(np.isnan(b)))
            self.inf_a += int(np.count_nonzero(np.isinf(a)))
            self.inf_b += int(np.count_nonzero(np.isinf(b)))
            self.nan_d += int(np.count_nonzero(np.isnan(d)))
        if not (top_d <= self.atol or top_r <= self.rtol):
            self.violations += int(np.count_nonzero(~(d <= self.atol) & ~(r <= self.rtol)))
        self.elements += a.size
        self.aa, self.bb, self.ab = self.aa + aa, self.bb + bb, self.ab + ab
        self.sum_a, self.sum_b = self.sum_a + sum_a, self.sum_b + sum_b
        self.peak = float(np.maximum(self.peak, a.max()))  # NaN counts as larger
        self.peak_b = max(self.peak_b, largest_finite(b))
        # Errors of 0 exceed no point of a front.
        if self.frontier is not None and (top_d or top_r or not self.frontier.d.size):
            self.frontier.add(d, r, top_d, top_r)

    def mean(self, total: float) -> float:
        """A sum over the number of elements."""
        return total / self.elements if self.elements else 0.0

    def l2(self) -> float:
        """Euclidean distance."""
        return math.sqrt(self.abs.squares) if self.abs.squares >= 0 else math.nan

    def cosine(self) -> float | None:
        """Cosine similarity; None for strings."""
        if self.text:
            return None
        if self.aa == 0 or self.bb == 0:
            return float(self.aa == self.bb)
        return _at_most_1(self.ab / (math.sqrt(self.aa) * math.sqrt(self.bb)))

    def nrmse(self) -> float | None:
        """L2 distance over the reference's norm; None for strings, and for a reference of zeros."""
        if self.text or self.bb == 0:
            return None
        finite = self.abs.squares < math.inf and self.bb < math.inf
        return math.sqrt(self.abs.squares / self.bb) if finite else math.nan

    def correlation(self) -> float | None:
        """Pearson's correlation; 0 for a constant output, None for strings and for a constant reference."""
        if self.text or not self.elements:
            return None
        mean_a, mean_b = self.sum_a / self.elements, self.sum_b / self.elements
        spread_a = self.aa / self.elements - mean_a * mean_a
        spread_b = self.bb / self.elements - mean_b * mean_b
        if spread_b <= _CONSTANT * mean_b * mean_b:
            return None
        if spread_a <= _CONSTANT * mean_a * mean_a:
            return 0.0
        covariance = self.ab / self.elements - mean_a * mean_b
        return _at_most_1(covariance / (math.sqrt(spread_a) * math.sqrt(spread_b)))

    def psnr(self) -> float | None:
        """Peak signal-to-noise ratio in dB; None for strings."""
        if self.text:
            return None
        noise = self.mean(self.abs.squares)
        peak = self.peak if not self.peak <= 0 else 1.0
        return math.inf if noise == 0 else 20 * _extended_log10(peak) - 10 * _extended_log10(noise)

    def snr(self) -> float | None:
        """Signal-to-noise ratio in dB; None for strings."""
        if self.text:
            return None
        noise, signal = self.mean(self.abs.squares), self.mean(self.aa)
        if noise == 0:
            return math.inf
        return -math.inf if signal == 0 else 10 * _extended_log10(signal / noise)


def largest_finite(array: Array) -> float:
    """The largest finite magnitude in an array of float64; 0 without one."""
    largest = max(float(array.max()), -float(array.min()))
    if math.isfinite(largest):
        return largest
    return float(np.abs(array[np.isfinite(array)]).max(initial=0.0))


def _dot_product(a: Array, b: Array) -> float:
    # In parts, because BLAS starts threads for more than 10,000 elements, which cost more than they save.
    return float(sum(np.dot(a[i : i + _PART], b[i : i + _PART]) for i in range(0, a.size, _PART)))


def _at_most_1(value: float) -> float:
    return value if math.isnan(value) else max(-1.0, min(1.0, value))


def _extended_log10(x: float) -> float:
    """The decimal logarithm; -inf of 0, and infinity and NaN of themselves."""
    return math.log10(x) if 0 < x < math.inf else (-math.inf if x == 0 else x)
