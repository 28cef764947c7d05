import functools
import math
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.special import rel_entr
from scipy.special import softmax as softmax_of

from trtops import errors
from trtops.comparator.arrays import largest_within
from trtops.comparator.metrics import measure, quantiles, statistics
from trtops.comparator.metrics import rows as rows_module
from trtops.comparator.metrics.rows import kl_divergence

FLOATS = [np.float16, np.float32, np.float64]
INTEGERS = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]


@np.errstate(all="ignore")
def plain_errors(a, b):
    """The definition, spelled out: absolute and relative error of each element, in float64."""
    if a.dtype.kind in "iu" and b.dtype.kind in "iu":
        d = np.array([float(abs(int(x) - int(y))) for x, y in zip(a.ravel(), b.ravel())]).reshape(a.shape)
    else:
        d = np.abs(a.astype(np.float64) - b.astype(np.float64))
    divisor = np.abs(b.astype(np.float64))
    if b.dtype.kind == "f":
        divisor = np.where(divisor == 0, 2.220446049250313e-16, divisor)
    return np.ravel(d), np.ravel(d / divisor)


@st.composite
def pairs(draw, dtypes):
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, max_side=6))
    if dtype.itemsize == 2 and dtype.kind == "f":
        elements = st.floats(width=16)
    elif dtype.kind == "f":  # below the square root of what float64 holds, so that the plain definition has a value
        limit = 2.0**100
        special = st.sampled_from([0.0, -0.0, 1.0, math.nan, math.inf, -math.inf])
        elements = st.floats(-limit, limit, width=32, allow_subnormal=False) | special
    else:
        elements = hnp.from_dtype(dtype)
    arrays = hnp.arrays(dtype, shape, elements=elements)
    a = draw(arrays)
    return a, draw(st.just(a.copy()) | arrays)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    pairs([*FLOATS, *INTEGERS, bool]), st.floats(0, 10), st.floats(0, 10), st.sampled_from([0.0, 0.3, 0.9, 0.99, 1.0])
)
@np.errstate(all="ignore")
def test_statistics_are_those_of_the_plain_float64_definition(pair, atol, rtol, level):
    a, b = pair
    stats = statistics(a, b, quantiles=(level,), atol=atol, rtol=rtol)
    d, r = plain_errors(a, b)
    assert stats.elements == a.size
    expected = plain_statistics(a, b, atol, rtol)
    for name in ("max_abs", "max_rel", "violations"):
        assert getattr(stats, name) == pytest.approx(expected[name], rel=1e-12, nan_ok=True), name
    for name in ("mean_abs", "mean_rel", "l2", "cosine", "psnr", "snr"):
        assert getattr(stats, name) == pytest.approx(expected[name], rel=1e-9, abs=1e-9, nan_ok=True), name
    for values, *quantiles_found in (
        (d, stats.median_abs, stats.quantile(level).abs),
        (r, stats.median_rel, stats.quantile(level).rel),
    ):
        for quantile_level, value in zip((0.5, level), quantiles_found):
            ordered = np.full(values.size, np.nan) if np.isnan(values).any() else np.sort(values)
            position = quantile_level * (values.size - 1)
            below, above = ordered[math.floor(position)], ordered[math.ceil(position)]
            expected = below if below == above else below + (above - below) * (position % 1)
            assert value == pytest.approx(float(expected), rel=1e-9, nan_ok=True)
    assert stats.any_violation(atol, rtol) == (stats.violations > 0)


@np.errstate(all="ignore")
def plain_statistics(a, b, atol, rtol):
    d, r = plain_errors(a, b)
    x, y = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    dd, aa, bb, ab = (d * d).sum(), (x * x).sum(), (y * y).sum(), (x * y).sum()
    noise, signal = dd / d.size, aa / d.size
    peak = x.max() if not x.max() <= 0 else 1.0
    cosine = (1.0 if aa == bb == 0 else 0.0) if 0 in (aa, bb) else ab / (np.sqrt(aa) * np.sqrt(bb))
    return {
        **{"max_abs": d.max(), "max_rel": r.max(), "mean_abs": d.mean(), "mean_rel": r.mean(), "l2": np.sqrt(dd)},
        "cosine": cosine if np.isnan(cosine) else min(1.0, max(-1.0, cosine)),
        "psnr": math.inf if noise == 0 else float(20 * np.log10(peak) - 10 * np.log10(noise)),
        "snr": math.inf if noise == 0 else (-math.inf if signal == 0 else float(10 * np.log10(signal / noise))),
        "violations": int((~(d <= largest_within(atol)) & ~(r <= largest_within(rtol))).sum()),
    }


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "kind", ["continuous", "missed by sample", "ties", "identical", "mostly zero", "half", "sorted", "heavy tails"]
)
def test_quantiles_of_large_arrays_are_exact(kind, seed, monkeypatch):
    if kind == "missed by sample":
        found_between = quantiles._Bounds.elements
        bounded_elements = lambda bounds, ranks: found_between(bounds, ranks) if bounds.low == 0 else None  # noqa: E731
        monkeypatch.setattr(quantiles._Bounds, "elements", bounded_elements)
    random = np.random.default_rng(seed)
    b = random.standard_normal(300_000 + seed).astype(np.float32)
    noise = {
        "ties": random.integers(-2, 3, b.size) * 2.0**-8,
        "identical": np.zeros(b.size),
        "mostly zero": (random.random(b.size) < 0.49) * 2.0**-6,
        "half": b.astype(np.float16) - b + random.integers(-2, 3, b.size) * 2.0**-10,
        "sorted": np.sort(random.standard_normal(b.size)),
        "heavy tails": random.standard_cauchy(b.size),
    }.get(kind, random.standard_normal(b.size) * 1e-3)
    a = (b + noise).astype(np.float32)

    stats = statistics(a, b, quantiles=(0.01, 0.9, 0.99, 0.999, 1.0))
    d, r = plain_errors(a, b)
    for quantile in stats.quantiles:
        assert quantile.abs == pytest.approx(np.quantile(d, quantile.level), rel=1e-12)
        assert quantile.rel == pytest.approx(np.quantile(r, quantile.level), rel=1e-12)
    assert (stats.median_abs, stats.median_rel) == (np.median(d), np.median(r))
    rectified, levels = np.maximum(a, 0), (0.5, 0.9, 0.99)
    assert quantiles.quantiles(rectified, levels) == pytest.approx(np.quantile(rectified.astype(float), levels))


def test_statistics_cover_all_iterations():
    random = np.random.default_rng(0)
    runs = [(random.random((n, 7)), random.random((n, 7))) for n in (1, 40, 30_000, 3)]
    together = measure(runs)[0]
    joined = statistics(np.concatenate([a for a, _ in runs]), np.concatenate([b for _, b in runs]))
    for name in ("elements", "max_abs", "mean_rel", "median_abs", "median_rel", "l2", "snr", "top1_agreement"):
        assert getattr(together, name) == pytest.approx(getattr(joined, name)), name


@settings(max_examples=60, deadline=None)
@given(
    hnp.arrays(np.float32, st.integers(1, 400), elements=st.floats(-4, 4, width=16)),
    st.floats(-0.1, 0.1),
    st.sampled_from([0.0, 1e-4, 1e-2, 0.1, 1.0]),
    st.sampled_from([0.0, 1e-3, 0.05, 0.5, 4.0]),
)
def test_frontier_decides_any_tolerances(b, scale, atol, rtol):
    a = (b * np.float32(1 + scale) + np.roll(b, 1) * np.float32(scale)).astype(np.float32)
    stats = statistics(a, b, atol=123.0, rtol=456.0)
    d, r = plain_errors(a, b)
    assert stats.frontier_exact
    assert stats.any_violation(atol, rtol) == bool(((d > largest_within(atol)) & (r > largest_within(rtol))).any())


def test_thinned_frontier_never_hides_violations():
    n = 5000
    d = np.linspace(1, 2, n)
    b = np.linspace(1, 4, n) ** 2  # the larger the absolute error, the smaller the relative one
    stats = statistics(b + d, b)
    assert not stats.frontier_exact and len(stats.frontier) <= 512
    d, r = plain_errors(b + d, b)
    for atol in np.linspace(0.9, 2.1, 40):
        for rtol in np.linspace(r.min() * 0.9, r.max() * 1.1, 40):
            if ((d > atol) & (r > rtol)).any():
                assert stats.any_violation(atol, rtol)


def test_64_bit_integers_are_compared_exactly():
    a = np.array([2**62, 2**63 - 1, -(2**63)], np.int64)
    b = np.array([2**62 + 1, -(2**63), 2**63 - 1], np.int64)
    stats = statistics(a, b, atol=0.5, rtol=0)
    assert (stats.violations, stats.max_abs) == (3, float(2**64 - 1))
    assert statistics(np.array([2**64 - 1], np.uint64), np.array([-1], np.int64)).max_abs == float(2**64)


def test_small_floats_strings_and_empty_outputs():
    values = np.array([1.0, 2.5, -3.0])
    for dtype in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.float16):
        assert statistics(values.astype(dtype), values + 0.5).max_abs == 0.5
    a = np.array(["cat", "dog", "日本"], object)
    stats = statistics(a, np.array(["cat", "cow", "日本"]))
    assert (stats.dtype, stats.max_abs, stats.violations, stats.cosine) == ("str", 1.0, 1, None)
    assert stats.mean_abs == pytest.approx(1 / 3)
    empty = statistics(np.zeros((0, 3), np.float32), np.ones((0, 3), np.float32))
    assert (empty.elements, empty.max_abs, empty.median_rel, empty.violations) == (0, 0, 0, 0)
    assert (empty.cosine, empty.psnr, empty.l2) == (1.0, math.inf, 0.0)


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (np.array([{}], object), np.array([1.0]), "Python objects"),
        (np.array(["1"]), np.array([1.0]), "Strings cannot be compared with numbers"),
        (np.array([1j]), np.array([1j]), "complex128"),
        (np.zeros(2, "f4,i4"), np.zeros(2, "f4,i4"), "only numbers"),
        (np.zeros((2, 3)), np.zeros((3, 2)), r"\(2, 3\).*\(3, 2\)"),
        (np.array(["a"]), np.array([b"a"]), "text with bytes"),
    ],
)
def test_incomparable_arrays_are_refused(a, b, message):
    with pytest.raises(errors.ComparisonError, match=message):
        statistics(a, b)


def test_nan_and_infinity_match_on_request_only():
    a = np.array([np.nan, np.inf, -np.inf, 1.0, np.inf])
    b = np.array([np.nan, np.inf, np.inf, 1.0, 3.0])
    strict, lenient = statistics(a, b), statistics(a, b, infinities_equal=True, nans_equal=True)
    assert (strict.nan_count, strict.reference_nan_count, strict.inf_count, strict.reference_inf_count) == (1, 1, 3, 2)
    assert (strict.nan_errors, strict.violations) == (2, 4)
    assert math.isnan(strict.median_abs)
    assert (lenient.nan_errors, lenient.violations, lenient.median_abs) == (0, 2, 0.0)


def test_top1_agreement_counts_rows_and_none_with_nan():
    b = np.array([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6]], np.float32)
    a = b.copy()
    a[1] = [0.2, 0.8]
    a[3, 1] = np.nan
    assert statistics(a, b).top1_agreement == 0.5
    assert statistics(a[:, :, None, None], b[:, :, None, None]).top1_agreement == 0.5
    assert statistics(a[0], b[0]).top1_agreement is None
    assert statistics(b.astype(int), b.astype(int)).top1_agreement is None


def test_memory_order_makes_no_difference():
    a, b = np.random.default_rng(0).random((2, 60, 50, 60))
    expected = statistics(a, b)
    for ours, theirs in (
        (np.asfortranarray(a), np.asfortranarray(b)),
        (np.asfortranarray(a), b),
        (np.repeat(a, 2, axis=1)[:, ::2], b),
        (a[::-1].copy()[::-1], b),
    ):
        stats = statistics(ours, theirs)
        for name in ("max_abs", "median_abs", "median_rel", "psnr", "top1_agreement"):
            assert getattr(stats, name) == pytest.approx(getattr(expected, name)), name


def test_extra_memory_stays_below_64_mb():
    random = np.random.default_rng(0)
    b = random.random(6_000_000, dtype=np.float32)
    a = b + np.float32(1e-3) * random.random(b.size, dtype=np.float32)
    tracemalloc.start()
    statistics(a, b)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64e6


# The KL divergence is compared with SciPy's.
softmax = functools.partial(softmax_of, axis=-1)
LOGITS = np.random.default_rng(0).normal(0, 3, (6, 10))
NOISY = LOGITS + np.random.default_rng(1).normal(0, 0.1, LOGITS.shape)


def row_pairs(elements, dtypes):
    """An output and its reference: two rows of two elements at least."""
    shapes = st.tuples(st.just(2), st.integers(2, 7), st.integers(2, 7))
    return hnp.arrays(dtypes, shapes, elements=elements)


@settings(max_examples=100, deadline=None)
@given(row_pairs(st.floats(-60, 60, width=16), st.sampled_from([np.float16, np.float32, np.float64])))
def test_divergence_of_logits_is_that_of_their_softmax(pair):
    output, reference = pair
    reference[0, 0] = -61  # so the rows are no probabilities
    expected = rel_entr(softmax(reference.astype(float)), softmax(output.astype(float))).sum(axis=1).mean()
    assert kl_divergence([(output, reference)]) == pytest.approx(expected, rel=1e-9, abs=1e-13)
    assert kl_divergence([(reference, reference)]) == 0


@settings(max_examples=100, deadline=None)
@given(row_pairs(st.floats(1e-6, 1), st.just(np.float64)))
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
    for pairs in (halves, [(np.asfortranarray(NOISY), LOGITS)], [(NOISY[::-1], LOGITS[::-1])]):
        assert kl_divergence(pairs) == pytest.approx(expected, rel=1e-12)
    for block in (1, 3, 25):
        monkeypatch.setattr(rows_module, "BLOCK", block)
        for ours, theirs in ((NOISY, LOGITS), (softmax(NOISY), softmax(LOGITS))):
            assert kl_divergence([(ours, theirs)]) == pytest.approx(expected, rel=1e-12)
