"""Whether the largest element of each row is at the same place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trtops.comparator.arrays import Array
from trtops.comparator.metrics.difference import BLOCK


def top1_agreement(arrays: Sequence[tuple[Array, Array]]) -> float | None:
    """The share of rows that agree; None if the outputs are not floating or have no rows."""
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
    step = max(1, 4 * BLOCK // (a.size // len(a)))
    for start in range(0, len(a), step):
        x, y = (side[start : start + step].reshape(-1, length) for side in (a, b))
        best_x, best_y = x.argmax(axis=1), y.argmax(axis=1)
        rows = np.arange(len(x))
        # argmax takes the first NaN for the largest element.
        top_x, top_y = x[rows, best_x], y[rows, best_y]
        agree += int(np.count_nonzero((best_x == best_y) & (top_x == top_x) & (top_y == top_y)))
    return agree
