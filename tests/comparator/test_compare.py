import itertools
import math

import numpy as np
import pytest

from trtops import errors
from trtops.comparator import (
    AccuracyResults,
    Comparator,
    CompareFunc,
    IterationResult,
    L2Threshold,
    OutputCompareResult,
    PsnrThreshold,
    RunResults,
    SimpleThreshold,
)
from trtops.comparator import metrics as metrics_module
from trtops.comparator.report_lines import statistics_text


def pair(a, b):
    return IterationResult(a, runner_name="a"), IterationResult(b, runner_name="b")


def run_of(*runners):
    return RunResults((name, [IterationResult(o, runner_name=name) for o in outputs]) for name, outputs in runners)


X = np.array([1.0, 2.0, 4.0])


def test_options_of_simple_comparisons():
    assert CompareFunc.simple().thresholds_for("x") == SimpleThreshold("elemwise", 1e-5, 1e-5, 0.99)
    function = CompareFunc.simple(atol={"x": 1.0, "": 0.1}, rtol=0, check_error_stat={"y": "max"})
    matches = function(*pair({"x": X + 0.5, "y": X + 0.5}, {"x": X, "y": X}))
    assert {name: bool(match) for name, match in matches.items()} == {"x": True, "y": False}
    assert matches["y"].thresholds == SimpleThreshold("max", 0.1, 0)
    outputs = pair({"a": X + 1, "b": X}, {"a": X, "b": X})
    assert list(CompareFunc.simple(fail_fast=True)(*outputs)) == ["a"]
    assert list(CompareFunc.simple()(*outputs)) == ["a", "b"]
    infinite = pair({"x": np.array([np.inf, 1.0])}, {"x": np.array([np.inf, 1.0])})
    assert not CompareFunc.simple()(*infinite)["x"]
    assert CompareFunc.simple(infinities_compare_equal=True)(*infinite)["x"]
    with pytest.raises(errors.ConfigError, match="Did you mean 'median'"):
        CompareFunc.simple(check_error_stat="meddian")(*pair({"x": X}, {"x": X}))


@pytest.mark.parametrize("stat", ["elemwise", "max", "mean", "median", "quantile"])
def test_each_error_statistic_fails_only_beyond_both_tolerances(stat):
    outputs = pair({"x": X * 1.01}, {"x": X})
    assert not CompareFunc.simple(check_error_stat=stat, atol=1e-3, rtol=1e-3)(*outputs)["x"]
    assert CompareFunc.simple(check_error_stat=stat, atol=1.0, rtol=1e-3)(*outputs)["x"]
    assert CompareFunc.simple(check_error_stat=stat, atol=1e-3, rtol=0.5)(*outputs)["x"]


def test_evaluating_again_changes_all_or_nothing():
    result = CompareFunc.simple(check_error_stat="quantile", error_quantile=0.75)(*pair({"x": X + 1}, {"x": X}))["x"]
    assert isinstance(result, OutputCompareResult) and result.quantile_absdiff == 1.0
    result.set_thresholds(SimpleThreshold("elemwise", 2.0, 0.0))
    assert result
    result.set_thresholds(SimpleThreshold("elemwise", 0.5, 0.3))
    assert not result
    result.statistics, result.stored = None, True  # as in a file of Polygraphy
    result.set_thresholds(SimpleThreshold("elemwise", 2.0, 0.0))
    with pytest.raises(errors.ComparisonError, match="statistics only"):
        bool(result)
    run = run_of(("a", [{"x": X + 1e-3}]), ("b", [{"x": X}]))
    accuracy = Comparator.compare_accuracy(run, compare_func=[CompareFunc.simple(), CompareFunc.l2()])
    with pytest.raises(errors.ComparisonError, match="No result has psnr"):
        accuracy.reevaluate([L2Threshold(1.0), PsnrThreshold(1.0)])
    assert [bool(r) for r in accuracy] == [False, False]
    assert accuracy.reevaluate([{"x": L2Threshold(1.0)}]) and len(accuracy) == 1
    with pytest.raises(errors.ComparisonError, match="no threshold for output 'x'"):
        accuracy.reevaluate({"y": L2Threshold(1.0)})


def test_different_shapes_match_on_request_only(caplog):
    matches = CompareFunc.simple()(*pair({"x": np.ones((2, 3))}, {"x": np.ones((3, 2))}))
    assert matches == {"x": False}
    assert "(2, 3)" in caplog.text and "(3, 2)" in caplog.text
    a = np.arange(6.0).reshape(2, 3)
    function = CompareFunc.simple(check_shapes=False)
    assert function(*pair({"x": a}, {"x": a.T}))["x"]
    assert function(*pair({"x": a}, {"x": a.reshape(1, 6)}))["x"]
    assert not function(*pair({"x": a}, {"x": np.arange(5.0)}))["x"]


def test_counterparts_are_found_by_name():
    assert list(CompareFunc.simple()(*pair({"X_out": X}, {"x": X}))) == ["X_out"]
    assert list(CompareFunc.simple()(*pair({"p": X, "q": X}, {"q": X, "r": X + 9}))) == ["q"]
    swapped = CompareFunc.simple(find_output_func=lambda name, index, other: ["b" if name == "a" else "a"])
    assert all(swapped(*pair({"a": X, "b": X + 1}, {"a": X + 1, "b": X})).values())
    with pytest.raises(errors.ComparisonError, match="has a counterpart"):
        CompareFunc.simple(find_output_func=lambda *_: [])(*pair({"a": X}, {"b": X}))


def test_older_spellings_evaluate_both_numbers_and_survive_saving(tmp_path):
    run = run_of(("a", [{"x": X + 1e-6}]), ("b", [{"x": X}]))
    functions = [CompareFunc.distance_metrics(l2_tolerance=1e-3), CompareFunc.quality_metrics(psnr_tolerance=500.0)]
    Comparator.compare_accuracy(run, compare_func=functions).save(tmp_path / "accuracy.json")
    again = AccuracyResults.load(tmp_path / "accuracy.json")
    assert [bool(result) for result in again] == [True, False]
    assert again[0]["a", "b"][0]["x"].l2_norm == pytest.approx(1e-6 * math.sqrt(3))


def test_several_functions_share_one_computation(monkeypatch):
    calls = []
    real = metrics_module.measure
    monkeypatch.setattr(metrics_module, "measure", lambda *a, **k: calls.append(1) or real(*a, **k))
    run = run_of(("a", [{"x": X}, {"x": X}]), ("b", [{"x": X}, {"x": X}]))
    functions = [CompareFunc.simple(), CompareFunc.l2(), CompareFunc.psnr(), CompareFunc.snr()]
    assert Comparator.compare_accuracy(run, compare_func=functions)
    assert len(calls) == 2


def test_accuracy_is_asked_by_pair_and_function():
    run = run_of(("a", [{"x": X}]), ("b", [{"x": X}]), ("c", [{"x": X + 1}]))
    accuracy = Comparator.compare_accuracy(run, compare_func=[CompareFunc.simple(), CompareFunc.l2(10.0)])
    assert list(accuracy[0]) == [("a", "b"), ("b", "c")]
    assert [bool(result) for result in accuracy] == [False, True]
    assert accuracy.output_names() == ["x"]
    with pytest.raises(errors.ComparisonError, match="choose one"):
        accuracy.stats()
    crossed = Comparator.compare_accuracy(run, comparisons=[(0, 2)])
    assert list(crossed.keys()) == [("a", "c")] and not crossed
    with pytest.raises(errors.ComparisonError, match=r"number 0 .* end after 1"):
        Comparator.compare_accuracy(run_of(("a", [{"x": X}]), ("b", [{"x": X}, {"x": X}])))


def test_averages_need_a_number():
    run = run_of(("a", [{"x": X + e} for e in (3e-3, 0.0)]), ("b", [{"x": X}] * 2))
    mean = CompareFunc.simple(check_error_stat="max", atol=2e-3, rtol=0)
    accuracy = Comparator.compare_accuracy(run, compare_func=mean, check_average=True)
    assert accuracy and accuracy.stats() == (1, 1, 2)
    assert not Comparator.compare_accuracy(run, compare_func=mean)
    for bad in (CompareFunc.simple(), CompareFunc.indices(), lambda a, b: {}):
        with pytest.raises(errors.ConfigError, match="check_average"):
            Comparator.compare_accuracy(run, compare_func=bad, check_average=True)
    with pytest.raises(errors.ConfigError, match="exclude each other"):
        Comparator.compare_accuracy(run, compare_func=mean, check_average=True, fail_fast=True)
    other_shapes = run_of(("a", [{"x": X}, {"x": X[:2]}]), ("b", [{"x": X}] * 2))
    with pytest.raises(errors.ComparisonError, match="'x' cannot be averaged"):
        bool(Comparator.compare_accuracy(other_shapes, compare_func=CompareFunc.l2(), check_average=True))


def test_compare_functions_accept_all_dtypes():
    import ml_dtypes

    for a, b in [
        (np.array([True, False]), np.array([True, True])),
        (np.array([1, 2], np.uint8), np.array([2, 1], np.uint8)),
        (np.array(["a", "b"], object), np.array(["a", "c"], object)),
        (np.array([1, 2], ml_dtypes.bfloat16), np.array([1, 3], ml_dtypes.bfloat16)),
        (np.array(1.0), np.array(2.0)),
    ]:
        assert not CompareFunc.simple()(*pair({"x": a}, {"x": b}))["x"]
        assert CompareFunc.simple()(*pair({"x": a}, {"x": a.copy()}))["x"]
    with pytest.raises(errors.ComparisonError, match="holds strings"):
        CompareFunc.l2()(*pair({"x": np.array(["a"])}, {"x": np.array(["a"])}))


@pytest.mark.parametrize("noise", [0.0, 1e-3])
def test_logged_error_statistics_are_those_of_arrays(noise, caplog):
    caplog.set_level("INFO")
    random = np.random.default_rng(0)
    b = random.standard_normal((3, 20_000)).astype(np.float32)
    a = (b + noise * random.standard_normal(b.shape)).astype(np.float32)
    CompareFunc.simple(atol=1)(*pair({"x": a}, {"x": b}))
    distance = np.abs(a.astype(np.float64) - b)
    for label, errors_of in (("Absolute", distance), ("Relative", distance / np.abs(b.astype(np.float64)))):
        worst_index = tuple(map(int, np.unravel_index(errors_of.argmax(), b.shape)))
        p50, p95, p99 = np.quantile(errors_of, (0.5, 0.95, 0.99))
        assert (
            f"{label} Difference | Stats: mean={errors_of.mean():.5g}, std-dev={errors_of.std():.5g}, "
            f"var={errors_of.var():.5g}, median={p50:.5g}, min="
        ) in caplog.text
        assert f"max={errors_of.max():.5g} at {worst_index}, avg-magnitude={errors_of.mean():.5g}, p90=" in caplog.text
        assert f"p95={p95:.5g}, p99={p99:.5g}" in caplog.text
    b[2, 5], b[2, 9] = 9, -9  # behind the first block
    c = b.astype(np.float64)
    p50, p90, p95, p99 = np.quantile(c, (0.5, 0.9, 0.95, 0.99))
    assert statistics_text(b) == (
        f"mean={c.mean():.5g}, std-dev={c.std():.5g}, var={c.var():.5g}, median={p50:.5g}, min=-9 at (2, 9), "
        f"max=9 at (2, 5), avg-magnitude={np.abs(c).mean():.5g}, p90={p90:.5g}, p95={p95:.5g}, p99={p99:.5g}"
    )
    assert f"var={c.var():.5g}, " in statistics_text(c + 1e8)  # their squares have lost these digits


def test_errors_and_tolerances_are_logged(caplog):
    a = np.array([[1.0, 2.0], [4.5, 4.0]])
    caplog.set_level("INFO")
    CompareFunc.simple(atol=0.1, rtol=0.01)(*pair({"x": a}, {"x": np.array([[1.0, 2.0], [4.0, 4.0]])}))
    assert "Minimum Required Tolerance: elemwise error | [abs=0.5] OR [rel=0.125] (req" in caplog.text
    assert "Difference exceeds tolerance (rel=0.01, abs=0.1)" in caplog.text
    CompareFunc.distance_metrics()(*pair({"x": a}, {"x": a + 2}))
    assert "L2 Norm: 4 (tolerance: 1e-05), Cosine Similarity: 0.9" in caplog.text


@pytest.mark.parametrize("stat", ["elemwise", "max", "mean", "median", "quantile"])
def test_errors_that_print_as_tolerance_pass(stat):
    """A bit more or less of one of two float32 moves their difference by far more than its own last bit."""
    for value, tolerance in itertools.product((0.201, 1.0, 3.3, 12.5), (1e-3, 0.05, 0.1)):
        reference, nearest = np.float32(value), np.float32(value + tolerance)
        for actual in (nearest, *(np.nextafter(nearest, np.float32(end)) for end in (np.inf, -np.inf))):
            outputs = pair({"x": np.array([actual])}, {"x": np.array([reference])})
            required = abs(float(actual) - float(reference))
            for option, unit in (("atol", 1.0), ("rtol", float(reference))):
                options = {"atol": 0, "rtol": 0, option: tolerance / unit}
                passed = CompareFunc.simple(**options, check_error_stat=stat)(*outputs)["x"]
                assert passed or f"{required / unit:.5g}" != f"{tolerance / unit:.5g}"
