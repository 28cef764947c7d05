"""Histograms and ranges, compared with numpy, a literal entropy search, and ONNX Runtime's formulas."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtops import errors
from trtops.calibration.choice import AlgorithmError, Comparison, relative_error
from trtops.calibration.histogram import BINS, Histogram


def histogram(*arrays: np.ndarray) -> Histogram:
    result = Histogram()
    for array in arrays:
        result.add(array)
    return result


def heavy_tailed(size: int = 200_000, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_t(3, size).astype(np.float32)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=200), st.randoms())
def test_counts_do_not_depend_on_order_or_batching(values: list[float], random) -> None:
    whole = histogram(np.array(values, np.float32))
    shuffled = list(values)
    random.shuffle(shuffled)
    middle = len(shuffled) // 2
    parts = histogram(*(np.array(part, np.float32) for part in (shuffled[:middle], shuffled[middle:]) if part))
    merged = histogram(np.array(shuffled[:middle], np.float32)).merged(
        histogram(np.array(shuffled[middle:], np.float32))
    )
    for other in (parts, merged):
        assert np.array_equal(whole.counts, other.counts)
        assert (whole.low, whole.high, whole.limit, whole.size) == (other.low, other.high, other.limit, other.size)
    assert whole.counts.sum() == np.count_nonzero(np.array(values, np.float32))
    assert whole.counts.size == BINS and whole.choose("minmax") == float(np.abs(np.array(values, np.float32)).max())


@pytest.mark.parametrize("percentile", [50.0, 99.0, 99.9, 99.99])
def test_percentile_equals_numpys_within_a_bin(percentile: float) -> None:
    data = np.maximum(heavy_tailed(), 0)
    result = histogram(data)
    exact = np.percentile(np.abs(data).astype(np.float64), percentile, method="inverted_cdf")
    assert exact <= result.choose("percentile", percentile) <= exact + result.limit / BINS
    assert result.beyond(result.choose("percentile", percentile)) <= 1 - percentile / 100 + 1e-9


def test_entropy_equals_a_literal_search() -> None:
    for seed, scale in ((0, 1.0), (1, 0.37)):
        result = histogram(heavy_tailed(20_000, seed) * np.float32(scale))
        bins = result.counts.reshape(-1, 2).sum(1).astype(float)
        bins = bins[: np.flatnonzero(bins)[-1] + 1]
        expected = literal_entropy_threshold(bins) * result.limit / (BINS // 2)
        assert result.choose("entropy") == pytest.approx(min(expected, result.amax))
        assert result.choose("entropy") < 0.6 * result.amax


@pytest.mark.parametrize(("share", "clipped"), [(0.05, 0.05), (0.08, 0.08), (0.12, 0), (0.3, 0), (0.45, 0)])
def test_entropy_clips_at_most_a_tenth(share: float, clipped: float) -> None:
    outliers = np.random.default_rng(1).normal(1.2, 0.1, int(6000 * share))
    result = histogram(np.concatenate([np.full(6000 - outliers.size, 0.5), outliers]).astype(np.float32))
    assert result.beyond(result.choose("entropy")) == pytest.approx(clipped, abs=2e-3)


def test_entropy_keeps_values_far_from_zero() -> None:
    """As after 1 + erf of a GELU, or a softmax of few classes: without a limit, 99.9 % were clipped to one value."""
    result = histogram(np.random.default_rng(0).normal(1.0, 0.12, 6000).astype(np.float32))
    assert result.beyond(result.choose("entropy")) <= 0.1


def literal_entropy_threshold(bins: np.ndarray) -> int:
    """Run the published procedure step by step and bin by bin."""
    best, best_divergence = len(bins), math.inf
    for i in range(128, len(bins) + 1):
        p = bins[:i].copy()
        p[-1] += bins[i:].sum()
        q = np.zeros(i)
        edges = [-(-level * i // 128) for level in range(129)]
        for start, end in itertools.pairwise(edges):
            filled = bins[start:end] > 0
            if filled.any():
                q[start:end][filled] = bins[start:end].sum() / filled.sum()
        p, q = p / p.sum(), q / q.sum()
        if (q[p > 0] == 0).any():
            continue
        divergence = float(np.sum(p[p > 0] * np.log(p[p > 0] / q[p > 0])))
        if divergence < best_divergence - 1e-12:
            best, best_divergence = i, divergence
    return best


@pytest.mark.parametrize("algorithm", ["minmax", "entropy", "percentile"])
@pytest.mark.parametrize(
    "data", [np.zeros(10, np.float32), np.full(10, -3.5, np.float32), np.array([1e-44], np.float32)]
)
def test_degenerate_tensors_keep_their_range(algorithm, data: np.ndarray) -> None:
    assert histogram(data).choose(algorithm) == pytest.approx(float(np.abs(data).max()))


def test_invalid_algorithm_or_percentile_is_refused() -> None:
    for algorithm, percentile, message in (("entrpy", 99.9, "entropy"), ("percentile", 100.5, "100")):
        with pytest.raises(errors.ConfigError, match=message):
            histogram(heavy_tailed(10)).choose(algorithm, percentile)  # type: ignore[arg-type]


def comparison(**algorithm_errors: float) -> Comparison:
    of_each = tuple(AlgorithmError(algorithm=name, error=error) for name, error in algorithm_errors.items())  # type: ignore[arg-type]
    return Comparison(errors=of_each, feeds=3, data="held-out calibration data")


@pytest.mark.parametrize(
    ("algorithm_errors", "chosen", "text"),
    [
        (
            (0.2, 0.4, 0.05),
            "percentile",
            "percentile, relative error 0.05, 75% smaller than with the next (minmax 0.2, entropy 0.4)",
        ),
        ((0.1005, 0.1, 0.3), "minmax", "minmax, relative error 0.101, equal to the next within 1% (entropy 0.1,"),
        ((0.2, 0.1, 0.1), "percentile", "equal to the next within 1% (entropy 0.1, minmax 0.2), on 3 feeds of the"),
        ((math.inf, math.inf, 2.0), "percentile", "100% smaller than with the next"),
        ((math.inf, math.inf, math.inf), "minmax", "relative error inf, equal"),
        ((0.0, 0.1, 0.1), "minmax", "100% smaller than with the next"),
    ],
)
def test_smallest_error_is_chosen(algorithm_errors, chosen, text) -> None:
    compared = comparison(**dict(zip(("minmax", "entropy", "percentile"), algorithm_errors)))
    assert compared.chosen == chosen and text in compared.sentence()
    assert [row[0] for row in compared.rows() if row[2]] == [chosen]
    assert Comparison.from_json(compared.to_json()) == compared


def test_relative_error_is_that_of_the_worst_output() -> None:
    golden = [{"a": np.array([3.0, 4.0]), "b": np.array([1.0, np.nan]), "n": np.array([1, 2])}]
    actual = [{"a": np.array([3.0, 4.5]), "b": np.array([1.2, 7.0]), "n": np.array([9, 9])}]
    assert relative_error(actual, golden) == pytest.approx(0.2)
    assert relative_error([{**actual[0], "b": np.array([np.nan, 0.0])}], golden) == math.inf
    assert relative_error([{**actual[0], "b": np.zeros(3)}], golden) == math.inf
    integers = [{"n": np.array([1, 2, 3, 4])}], [{"n": np.array([1, 2, 3, 5])}]
    assert relative_error(*integers) == 0.5
    with pytest.raises(errors.CalibrationError, match="no output of numbers"):
        relative_error([{"t": np.array(["x"])}], [{"t": np.array(["x"])}])
