"""The KL divergence, compared with SciPy's."""

import functools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.special import rel_entr
from scipy.special import softmax as softmax_of

from trtops.comparator.metrics import rows as rows_module
from trtops.comparator.metrics.rows import kl_divergence

softmax = functools.partial(softmax_of, axis=-1)

LOGITS = np.random.default_rng(0).normal(0, 3, (6, 10))
NOISY = LOGITS + np.random.default_rng(1).normal(0, 0.1, LOGITS.shape)


def pairs(elements, dtypes):
    """An output and its reference: two rows of two elements at least."""
    shapes = st.tuples(st.just(2), st.integers(2, 7), st.integers(2, 7))
    return hnp.arrays(dtypes, shapes, elements=elements)


@settings(max_examples=100, deadline=None)
@given(pairs(st.floats(-60, 60, width=16), st.sampled_from([np.float16, np.float32, np.float64])))
def test_divergence_of_logits_is_that_of_their_softmax(pair):
    output, reference = pair
    reference[0, 0] = -61  # so the rows are no probabilities
    expected = rel_entr(softmax(reference.astype(float)), softmax(output.astype(float))).sum(axis=1).mean()
    assert kl_divergence([(output, reference)]) == pytest.approx(expected, rel=1e-9, abs=1e-13)
    assert kl_divergence([(reference, reference)]) == 0


@settings(max_examples=100, deadline=None)
@given(pairs(st.floats(1e-6, 1), st.just(np.float64)))
def test_divergence_of_probabilities_normalizes_rows(pair):
    output, reference = pair
    reference /= reference.sum(axis=1, keepdims=True)
    expected = rel_entr(reference, output / output.sum(axis=1, keepdims=True)).sum(axis=1).mean()
    for scale in (1, 3):
        assert kl_divergence([(scale * output, reference)]) == pytest.approx(expected, rel=1e-9, abs=1e-13)


def test_reference_decides_between_logits_and_probabilities():
    for integers in (np.ones((2, 3), int), np.ones((2, 3), bool)):
        assert kl_divergence([(integers, integers)]) is kl_divergence([(integers.astype(float), integers)]) is None
    probabilities = softmax(LOGITS)
    assert kl_divergence([(LOGITS, LOGITS), (NOISY, probabilities)]) > 0.1  # one iteration's logits: all are
    assert kl_divergence([(probabilities, probabilities * 1.009)]) == pytest.approx(0, abs=1e-15)
    assert kl_divergence([(probabilities, probabilities * 1.02)]) > 1e-9  # logits, since bfloat16 rounds less
    assert kl_divergence([(NOISY + 7, LOGITS - 3)]) == pytest.approx(kl_divergence([(NOISY, LOGITS)]), rel=1e-9)


def test_small_differences_are_not_lost():
    output = LOGITS.copy()
    output[:, 0] += 1e-6
    p = softmax(LOGITS)[:, 0]
    assert kl_divergence([(output, LOGITS)]) == pytest.approx((p * (1 - p)).mean() * 1e-12 / 2, rel=1e-2)
    assert kl_divergence([(LOGITS * 1e300, LOGITS * 1e300)]) == 0


@pytest.mark.parametrize(
    ("output", "reference", "expected"),
    [
        ([5, 0, 1], [-math.inf, 0, 1], math.log((math.exp(5) + 1 + math.e) / (1 + math.e))),
        ([-math.inf, 0, 1], [5, 0, 1], math.inf),
        ([-math.inf, 0, 1], [-1e9, 0, 1], 0),
        ([math.inf, 0, 1], [5, 0, 1], math.nan),
        ([5, 0, 1], [math.inf, 0, 1], math.nan),
        ([5, math.nan, 1], [5, 0, 1], math.nan),
        ([5, 0, 1], [-math.inf] * 3, math.nan),
        ([-math.inf] * 3, [5, 0, 1], math.nan),
        ([0.5, 0.5, 0], [0.5, 0.5, 1e-9], 0),  # what float16 rounds to 0
        ([0.5, 0.5, 0], [0.5, 0.25, 0.25], 0.25 * math.log(0.5) + 0.25 * math.log(0.25 * 2**24)),
        ([0.5, 0.5, -3], [0.5, 0.5, 0], 0),
        ([0, 0, 0], [0.5, 0.25, 0.25], 0.5 * math.log(1.5) + 0.5 * math.log(0.75)),
        ([0.5, math.inf, 0.5], [0.5, 0, 0.5], math.inf),
        ([0.5, math.inf, 0.5], [0.5, 0.25, 0.25], math.nan),
    ],
)
def test_zeros_infinities_and_nan(output, reference, expected):
    divergence = kl_divergence([(np.array([output], float), np.array([reference], float))])
    assert divergence == pytest.approx(expected, abs=1e-6, nan_ok=True)


def test_rows_count_alike_over_blocks_iterations_and_layouts(monkeypatch):
    expected = kl_divergence([(NOISY, LOGITS)])
    halves = [(NOISY[:1], LOGITS[:1]), (NOISY[1:], LOGITS[1:])]
    for pairs_ in (halves, [(np.asfortranarray(NOISY), LOGITS)], [(NOISY[::-1], LOGITS[::-1])]):
        assert kl_divergence(pairs_) == pytest.approx(expected, rel=1e-12)
    for block in (1, 3, 25):
        monkeypatch.setattr(rows_module, "BLOCK", block)
        for ours, theirs in ((NOISY, LOGITS), (softmax(NOISY), softmax(LOGITS))):
            assert kl_divergence([(ours, theirs)]) == pytest.approx(expected, rel=1e-12)
