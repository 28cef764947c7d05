"""The KL divergence against its definition in decimal numbers, and against SciPy's."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from trtops.comparator.metrics import rows as rows_module
from trtops.comparator.metrics import statistics
from trtops.comparator.metrics.kl import kl_divergence

LOGITS = np.random.default_rng(0).normal(0, 3, (6, 10))
NOISY = LOGITS + np.random.default_rng(1).normal(0, 0.1, LOGITS.shape)


def softmax(rows):
    powers = np.exp(rows - rows.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def decimal_divergence(q, p):
    """``sum p log(p / q)`` of two rows of weights, each divided by its sum, to 40 digits."""
    p, q = ([weight / sum(side) for weight in side] for side in (p, q))
    return sum((a * (a / b).ln() for a, b in zip(p, q) if a), Decimal(0))


def plain_divergence(output, reference, weigh):
    """The mean over rows."""
    with localcontext() as context:
        context.prec = 40
        rows = [
            decimal_divergence(
                [weigh(Decimal(float(x))) for x in row], [weigh(Decimal(float(x))) for x in of_reference]
            )
            for row, of_reference in zip(output, reference)
        ]
        return float(sum(rows) / len(rows))


def pairs(elements, dtypes):
    """An output and its reference: two rows of two elements at least."""
    shapes = st.tuples(st.just(2), st.integers(2, 7), st.integers(2, 7))
    return hnp.arrays(dtypes, shapes, elements=elements)


@settings(max_examples=100, deadline=None)
@given(pairs(st.floats(-60, 60, width=16), st.sampled_from([np.float16, np.float32, np.float64])))
def test_divergence_of_logits_is_that_of_their_softmax(pair):
    output, reference = pair
    reference[0, 0] = -61  # so the rows are no probabilities

    found = kl_divergence([(output, reference)])

    assert found == pytest.approx(plain_divergence(output, reference, Decimal.exp), rel=1e-9, abs=1e-13)
    assert found >= 0 and kl_divergence([(reference, reference)]) == 0


@settings(max_examples=100, deadline=None)
@given(pairs(st.floats(1e-6, 1), st.just(np.float64)))
def test_divergence_of_probabilities_normalizes_rows(pair):
    output, reference = pair
    reference /= reference.sum(axis=1, keepdims=True)

    found = kl_divergence([(output, reference)])

    assert found == pytest.approx(plain_divergence(output, reference, lambda weight: weight), rel=1e-9, abs=1e-13)
    assert kl_divergence([(3 * output, reference)]) == pytest.approx(found, abs=1e-13)


def test_reference_decides_between_logits_and_probabilities():
    probabilities = softmax(LOGITS)
    assert kl_divergence([(LOGITS, LOGITS), (NOISY, probabilities)]) > 0.1  # one iteration's logits: all are
    assert kl_divergence([(probabilities, probabilities * 1.009)]) == pytest.approx(0, abs=1e-15)
    assert kl_divergence([(NOISY + 7, LOGITS - 3)]) == pytest.approx(kl_divergence([(NOISY, LOGITS)]), rel=1e-9)


def test_small_differences_are_not_lost():
    output = LOGITS.copy()
    output[:, 0] += 1e-6
    p = softmax(LOGITS)[:, 0]
    assert kl_divergence([(output, LOGITS)]) == pytest.approx((p * (1 - p)).mean() * 1e-12 / 2, rel=1e-2)
    for rows in (LOGITS, softmax(LOGITS), LOGITS * 1e300):
        assert kl_divergence([(rows, rows.copy())]) == 0


@pytest.mark.parametrize(
    ("output", "reference", "expected"),
    [
        ([-math.inf, 0, 1], [-math.inf, 0, 1], 0),
        ([5, 0, 1], [-math.inf, 0, 1], math.log((math.exp(5) + 1 + math.e) / (1 + math.e))),
        ([-math.inf, 0, 1], [5, 0, 1], math.inf),
        ([-math.inf, 0, 1], [-1e9, 0, 1], 0),
        ([math.inf, 0, 1], [5, 0, 1], math.nan),
        ([5, 0, 1], [math.inf, 0, 1], math.nan),
        ([5, math.nan, 1], [5, 0, 1], math.nan),
        ([5, 0, 1], [5, math.nan, 1], math.nan),
        ([5, 0, 1], [-math.inf] * 3, math.nan),
        ([-math.inf] * 3, [5, 0, 1], math.nan),
        ([0.5, 0.5, 0], [0.5, 0.5, 0], 0),
        ([0.5, 0.5, 0], [0.5, 0.5, 1e-9], 0),  # what float16 rounds to 0
        ([0.5, 0.5, 0], [0.5, 0.25, 0.25], 0.25 * math.log(0.5) + 0.25 * math.log(0.25 * 2**24)),
        ([0.5, 0.5, -3], [0.5, 0.25, 0.25], 0.25 * math.log(0.5) + 0.25 * math.log(0.25 * 2**24)),
        ([0.5, 0.5, -3], [0.5, 0.5, 0], 0),
        ([0, 0, 0], [0.5, 0.25, 0.25], 0.5 * math.log(1.5) + 0.5 * math.log(0.75)),
        ([0.5, math.nan, 0.5], [0.5, 0, 0.5], math.nan),
        ([0.5, math.inf, 0.5], [0.5, 0, 0.5], math.inf),
        ([0.5, math.inf, 0.5], [0.5, 0.25, 0.25], math.nan),
    ],
)
def test_zeros_infinities_and_nan(output, reference, expected):
    found = kl_divergence([(np.array([output], float), np.array([reference], float))])
    assert found == pytest.approx(expected, abs=1e-6, nan_ok=True)


def test_non_floats_have_no_divergence():
    for rows in (np.ones((2, 3), int), np.ones((2, 3), bool)):
        assert kl_divergence([(rows, rows)]) is None
        assert kl_divergence([(rows.astype(float), rows)]) is None
    assert statistics(np.array([["a", "b"]]), np.array([["a", "b"]])).kl is None


def test_rows_count_alike_over_blocks_iterations_and_layouts(monkeypatch):
    expected = kl_divergence([(NOISY, LOGITS)])
    assert kl_divergence([(NOISY[:1], LOGITS[:1]), (NOISY[1:], LOGITS[1:])]) == pytest.approx(expected, rel=1e-12)
    assert kl_divergence([(np.asfortranarray(NOISY), LOGITS)]) == pytest.approx(expected, rel=1e-12)
    assert kl_divergence([(NOISY[::-1], LOGITS[::-1])]) == pytest.approx(expected, rel=1e-12)
    for block in (1, 3, 25):
        monkeypatch.setattr(rows_module, "BLOCK", block)
        for ours, theirs in ((NOISY, LOGITS), (softmax(NOISY), softmax(LOGITS))):
            assert kl_divergence([(ours, theirs)]) == pytest.approx(expected, rel=1e-12)
