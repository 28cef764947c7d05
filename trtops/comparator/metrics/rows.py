"""Outputs as rows of scores: the agreement of the largest elements' positions, and the KL divergence."""

from collections.abc import Iterator, Sequence

import numpy as np

from trtops.comparator.arrays import Array, is_floating
from trtops.comparator.metrics.difference import BLOCK

# Of the row's range: a class nearer to the best one than that may win by rounding alone.
_TIE = 0.05
# How far from 1 a row of probabilities may sum up: bfloat16 rounds each by up to 0.4 %, in either direction.
_SUM_TOLERANCE = 0.01
# The smallest positive float16. Engines in half precision round smaller probabilities to 0, for which the divergence
# would be infinite.
_SMALLEST_HALF = 2.0**-24


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


def kl_divergence(pairs: Sequence[tuple[Array, Array]]) -> float | None:
    """The KL divergence of the output's distributions from the reference's, averaged over all rows, in nats.

    ``KL(p || q) = sum_i p_i log(p_i / q_i)`` with ``p`` from a row of the reference and ``q`` from that row of the
    output (Kullback and Leibler, "On Information and Sufficiency", Annals of Mathematical Statistics 22, 1951).

    If all rows of the reference are probabilities (no value below 0, sums between 0.99 and 1.01), rows of both sides
    are divided by their sums. Otherwise rows are logits, and their distribution is ``softmax(row)``; -inf rules a class
    out. A class of probability 0 in the reference adds nothing. Where logits of the output rule out a class that the
    reference has, the divergence is infinite. Where a probability of the output is 0 and the reference ``p > 0``, it
    counts as ``min(p, 2**-24)``. NaN in a row, +inf, and logits that are all -inf give NaN.

    ``pairs`` are output and reference of each iteration. The divergence is never negative; None if the outputs hold no
    scores (:func:`hold_scores`) or have no rows.
    """
    if not hold_scores(pairs):
        return None
    total, rows = 0.0, 0
    with np.errstate(all="ignore"):
        are_probabilities = all(_are_probabilities(reference) for _, reference in row_blocks(pairs))
        divergences = _of_probabilities if are_probabilities else _of_logits
        for output, reference in row_blocks(pairs):
            total += float(divergences(output, reference).sum())
            rows += len(reference)
    return total / rows if rows else None


def _are_probabilities(rows: Array) -> bool:
    return bool((rows >= 0).all() and (np.abs(rows.sum(axis=1, dtype=np.float64) - 1) <= _SUM_TOLERANCE).all())


def _of_probabilities(output: Array, reference: Array) -> Array:
    """The divergence of each row of probabilities, ``(rows,)``."""
    q, p = output.astype(np.float64), reference.astype(np.float64)
    np.copyto(q, np.minimum(p, _SMALLEST_HALF), where=q <= 0)
    return _divergences(p, np.log(p) - np.log(q), q.sum(axis=1))


def _of_logits(output: Array, reference: Array) -> Array:
    """The divergence of each row of logits, ``(rows,)``."""
    # With 0 for the largest logit, exp() cannot overflow, nor lose every term of a row.
    q, p = output.astype(np.float64), reference.astype(np.float64)
    q -= q.max(axis=1, keepdims=True)
    p -= p.max(axis=1, keepdims=True)
    return _divergences(np.exp(p), p - q, np.exp(q).sum(axis=1))


def _divergences(p: Array, log_ratio: Array, sum_q: Array) -> Array:
    """The divergences of rows divided by their sums, from ``log(p / q)`` of the rows as they are."""
    terms = p * log_ratio
    if not np.isfinite(terms).all():
        terms[p == 0] = 0  # classes that are impossible in the reference, whose ratio may be infinite
    sum_p = p.sum(axis=1)
    divergences: Array = np.maximum(terms.sum(axis=1) / sum_p + np.log(sum_q / sum_p), 0)  # rounding may give -1e-17
    return divergences
