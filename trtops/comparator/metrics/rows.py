"""Outputs as rows of scores, and the agreement of the largest elements' positions."""

from collections.abc import Iterator, Sequence

import numpy as np

from trtops.comparator.arrays import Array, is_floating
from trtops.comparator.metrics.difference import BLOCK

# Of the row's range: a class nearer to the best one than that may win by rounding alone.
_TIE = 0.05


def top1_agreement(pairs: Sequence[tuple[Array, Array]]) -> float | None:
    """The share of rows, along the last axis longer than 1, with the largest element at the same position.

    A place where the reference is within a twentieth of the row's range of its largest element agrees too. Rows with
    NaN do not agree. None if the outputs hold no scores or have no rows.
    """
    if not hold_scores(pairs):
        return None
    rows = agree = 0
    for x, y in row_blocks(pairs):
        best_x, best_y = x.argmax(axis=1), y.argmax(axis=1)
        numbers = np.arange(len(x))
        # argmax takes the first NaN for the largest element.
        top_x, top_y = x[numbers, best_x], y[numbers, best_y]
        agrees = best_x == best_y
        if not agrees.all():
            other = ~agrees
            chosen = y[numbers[other], best_x[other]].astype(np.float64)
            best, lowest = top_y[other].astype(np.float64), y[other].min(axis=1).astype(np.float64)
            agrees[other] = best - chosen <= _TIE * (best - lowest)
        agree += int(np.count_nonzero(agrees & (top_x == top_x) & (top_y == top_y)))
        rows += len(x)
    return agree / rows if rows else None


def likely_axis(shape: Sequence[int]) -> int | None:
    """The axis of classes by the shape alone: the second of images, else the last longer than 1."""
    if len(shape) >= 4 and shape[1] > 1:
        return 1
    return next((axis for axis in range(len(shape) - 1, 0, -1) if shape[axis] > 1), None)


def balanced_agreement(pairs: Sequence[tuple[Array, Array]]) -> float | None:
    """The share of equal integers, booleans or strings; None for floating point, and without elements.

    Where one value makes up half of the reference or more, its share and the share of all other values are computed
    separately and the smaller counts.
    """
    if any(is_floating(b) for _, b in pairs) or not sum(b.size for _, b in pairs):
        return None
    ours, theirs = (np.concatenate(list(map(np.ravel, sides))) for sides in zip(*pairs))
    values, counts = np.unique(theirs.astype(str) if theirs.dtype.kind == "O" else theirs, return_counts=True)
    equal = ours == theirs
    if 2 * counts.max() < theirs.size:
        return float(equal.mean())
    # A map of background alone must not agree with a map of mostly background.
    common = theirs == values[counts.argmax()]
    return float(min(equal[part].mean() for part in (common, ~common) if part.any()))


def hold_scores(pairs: Sequence[tuple[Array, Array]]) -> bool:
    """Whether arrays are floating and have an axis longer than 1 behind another axis."""
    return all(_row_length(a) > 1 and is_floating(a) and is_floating(b) for a, b in pairs)


def row_blocks(pairs: Sequence[tuple[Array, Array]]) -> Iterator[tuple[Array, Array]]:
    """Arrays of scores, a few rows at a time: two arrays ``(rows, length)`` of the arrays' own dtypes.

    A block fits into the cache, or is one row. Rows lie along the last axis longer than 1.
    """
    for a, b in pairs:
        length = _row_length(a)
        if a.flags.c_contiguous and b.flags.c_contiguous:
            a, b = a.reshape(-1, length), b.reshape(-1, length)
        if not a.size:
            continue
        # Of arrays that lie otherwise in memory, a block is whole items of the first axis, which reshaping copies; of a
        # single image it is whole lines.
        while len(a) == 1 and a.ndim > 2:
            a, b = a[0], b[0]
        step = max(1, BLOCK // (a.size // len(a)))
        for start in range(0, len(a), step):
            yield a[start : start + step].reshape(-1, length), b[start : start + step].reshape(-1, length)


def _row_length(array: Array) -> int:
    """The length of the last axis longer than 1, the first axis apart; 0 or 1 without one."""
    shape = list(array.shape)
    while len(shape) > 2 and shape[-1] == 1:
        shape.pop()
    return int(shape[-1]) if len(shape) > 1 else 0
