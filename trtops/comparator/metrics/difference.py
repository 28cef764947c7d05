"""Blocks of an output and its reference as float64, and the errors between them."""

import numpy as np

from trtops import errors
from trtops.comparator.arrays import Array, holds_strings, is_floating

# Replaces a floating-point zero in the denominator of a relative error, as in Polygraphy.
EPSILON = 2.220446049250313e-16

# Elements that are read at a time, so that temporary arrays stay in the cache.
BLOCK = 1 << 15


class Difference:
    """Converts a block of two arrays to float64, and computes the errors between them."""

    def __init__(self, floating: bool, exact: bool, text: bool, infinities_equal: bool, nans_equal: bool) -> None:
        self.floating, self.exact, self.text = floating, exact, text
        self.infinities_equal, self.nans_equal = infinities_equal, nans_equal
        self.buffers = np.empty((4, 0))

    def widened(self, a: Array) -> Array:
        """A block in float64, in a buffer; the next call overwrites it."""
        if self.buffers.shape[1] < a.size:
            self.buffers = np.empty((4, a.size))
        x = self.buffers[0, : a.size]
        x[:] = a
        return x

    def __call__(self, a: Array, b: Array) -> tuple[Array, Array, Array]:
        """Both blocks and their distance, in buffers; the next call overwrites them."""
        x = self.widened(a != b if self.text else a)
        y, d = self.buffers[1, : a.size], self.buffers[2, : a.size]
        if self.text:
            d[:], y[:] = x, 1
            return x, y, d
        y[:] = b
        if self.exact:
            d[:] = _integer_distance(a, b)
        else:
            np.subtract(x, y, out=d)
            np.absolute(d, out=d)
            if self.infinities_equal:
                d[np.isinf(x) & (x == y)] = 0
            if self.nans_equal:
                d[np.isnan(x) & np.isnan(y)] = 0
        return x, y, d

    def relative(self, d: Array, b: Array) -> Array:
        """The relative error, in a buffer; the next call overwrites it."""
        r = np.absolute(b, out=self.buffers[3, : b.size])
        if self.floating and b.size and not r.min() > 0:
            r[r == 0] = EPSILON
        np.divide(d, r, out=r)
        if self.infinities_equal or self.nans_equal:
            r[(d == 0) & np.isnan(r)] = 0
        return r


def difference_of(a: Array, b: Array, infinities_equal: bool, nans_equal: bool) -> Difference:
    """The difference for the dtypes of two arrays; raises ComparisonError if only one of them holds strings."""
    text = holds_strings(a)
    if text != holds_strings(b):
        raise errors.ComparisonError(
            f"Strings cannot be compared with numbers: the dtypes are {a.dtype} and {b.dtype}."
        )
    if text and _holds_bytes(a) != _holds_bytes(b):
        raise errors.ComparisonError("The output and its reference are text with bytes; decode the bytes first.")
    wide = a.dtype.kind in "iu" and b.dtype.kind in "iu" and max(a.dtype.itemsize, b.dtype.itemsize) == 8
    return Difference(is_floating(b), wide, text, infinities_equal, nans_equal)


def _holds_bytes(array: Array) -> bool:
    return array.dtype.kind in "Sa" or (array.dtype.kind == "O" and any(isinstance(item, bytes) for item in array.flat))


def _integer_distance(a: Array, b: Array) -> Array:
    """``|a - b|`` of integers of up to 64 bits, as uint64; as float64 for negative and unsigned ones."""
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
