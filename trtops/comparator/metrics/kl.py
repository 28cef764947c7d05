"""The KL divergence of the distributions given by rows of scores."""

from collections.abc import Sequence

import numpy as np

from trtops.comparator.arrays import Array
from trtops.comparator.metrics.rows import hold_scores, row_blocks

# How far from 1 a row of probabilities may sum up: bfloat16 rounds each by up to 0.4 %, in either direction.
_SUM_TOLERANCE = 0.01
# The smallest positive float16. Engines in half precision round smaller probabilities to 0, for which the divergence
# would be infinite.
_SMALLEST_HALF = 2.0**-24


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
    scores (:func:`~trtops.comparator.metrics.rows.hold_scores`) or have no rows.
    """
    if not hold_scores(pairs):
        return None
    total, rows = 0.0, 0
    with np.errstate(all="ignore"):
        divergences = _of_logits
        if all(_are_probabilities(reference) for _, reference in row_blocks(pairs)):
            divergences = _of_probabilities
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
