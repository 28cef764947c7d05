"""What follows from the table of metrics, for each of its entries."""

import inspect
import math
import sys

import numpy as np
import pytest

import trtops.comparator
from trtops.cli import configs, groups, loading
from trtops.cli.flags import Options
from trtops.comparator import (
    AccuracyResult,
    AccuracyResults,
    CompareFunc,
    IterationResult,
    OutputTolerances,
    Tolerances,
    compare_outputs,
    statistics,
)
from trtops.comparator.table import COMPARISONS, LIMITED, METRICS
from trtops.ops.evaluation.check import Evaluation, evaluation_metrics

GOLDEN = np.random.default_rng(0).standard_normal((4, 5))
ACTUAL = GOLDEN + 0.1 * np.random.default_rng(1).standard_normal((4, 5))
COMPARED = [metric for metric in METRICS if metric.limit is not None]


def arrays_for(metric):
    """An output and its reference that the metric applies to."""
    if metric.applies_to.startswith("integers"):
        return np.rint(3 * ACTUAL).astype(np.int64), np.rint(3 * GOLDEN).astype(np.int64)
    return ACTUAL, GOLDEN


def named(metrics):
    return pytest.mark.parametrize("metric", metrics, ids=lambda metric: metric.name)


def test_metric_names_are_unique():
    for names in (
        [m.name for m in METRICS],
        [m.result_field for m in METRICS],
        [m.tolerance for m in LIMITED],
        [c.name for c in COMPARISONS],
        [flag for group in (groups.THRESHOLDS, groups.COMPARING) for f in group.flags for flag in f.names],
    ):
        assert len({*names}) == len(names)
    for metric in METRICS:
        assert metric.limit_kind == ("largest" if metric.better == "lower" else "smallest")
    for metric in LIMITED:
        assert metric.tolerance == f"{'max' if metric.better == 'lower' else 'min'}_{metric.name}"
    limits = {"l2": 1e-5, "cosine": 0.997, "psnr": 30.0, "snr": 20.0, "kl": 1e-3}
    assert {metric.name: metric.limit for metric in COMPARED} == limits


@named(METRICS)
def test_metrics_are_in_the_statistics(metric):
    actual, golden = arrays_for(metric)
    stats = statistics(actual, golden)
    value = getattr(stats, metric.name)
    assert value is not None and not math.isnan(value)
    assert stats.to_dict()[metric.name] == value
    outputs = ({"x": actual, "y": actual}, {"x": golden, "y": actual})
    logged = evaluation_metrics(Evaluation(report=compare_outputs(*outputs)))
    if metric.name == "max_rel" and stats.has_near_zero:
        value = 0.0  # of the other output
    assert logged.get(("error", metric.name)) == (value if metric.logged else None)  # of the worse output
    assert logged["error", "x", "max_abs"] == stats.max_abs and logged["error", "y", "max_abs"] == 0


def test_infinite_share_of_a_limit_is_logged_as_a_number():
    report = compare_outputs({"x": ACTUAL}, {"x": GOLDEN}, Tolerances(atol=0.0, rtol=0.0))
    assert evaluation_metrics(Evaluation(report=report))["error", "of_limit"] == 1e9  # MLflow shows infinity as 1.79...


@named(LIMITED)
def test_tolerances_hold_up_to_their_limit(metric):
    actual, golden = arrays_for(metric)
    value = getattr(statistics(actual, golden), metric.name)
    beyond = math.nextafter(value, -math.inf if metric.better == "lower" else math.inf)
    report = compare_outputs({"x": actual}, {"x": golden}, Tolerances(atol=9.0))
    assert report.evaluate(Tolerances(atol=9.0, **{metric.tolerance: value}))
    [reason] = report.evaluate(Tolerances(atol=9.0, **{metric.tolerance: beyond})).reasons
    assert reason.startswith(f"x: {metric.label} is ") and reason.count(metric.suffix or "is") >= 1
    tolerances = Tolerances(atol=9.0, per_output={"x": OutputTolerances(**{metric.tolerance: beyond})})
    assert not report.evaluate(tolerances) and Tolerances.from_json(tolerances.to_json()) == tolerances
    assert f"{metric.tolerance}: The {metric.limit_kind} allowed" in Tolerances.__doc__


@named(COMPARED)
def test_each_limit_has_a_compare_function(metric, tmp_path):
    function = getattr(CompareFunc, metric.key)
    value = getattr(statistics(ACTUAL, GOLDEN), metric.name)
    beyond = math.nextafter(value, -math.inf if metric.better == "lower" else math.inf)
    outputs = IterationResult({"x": ACTUAL}), IterationResult({"x": GOLDEN})
    assert getattr(function(), metric.option) == metric.limit
    assert function({"x": value, "": beyond})(*outputs)["x"]
    comparison = function(beyond)(*outputs)["x"]
    assert not comparison and comparison.metric_values() == {metric.result_field: value}
    assert comparison.describe()[0].startswith(f"{metric.title}: ") and "FAILED" in comparison.describe()[0]
    AccuracyResults([AccuracyResult({("a", "b"): [{"x": comparison}]})]).save(tmp_path / "accuracy.json")
    again = AccuracyResults.load(tmp_path / "accuracy.json")[0]["a", "b"][0]["x"]
    assert type(again) is type(comparison) and not again and again.thresholds == comparison.thresholds
    assert again.metric_values() == comparison.metric_values()


@pytest.mark.parametrize("comparison", COMPARISONS, ids=lambda comparison: comparison.name)
def test_classes_of_the_table_are_exported_and_documented(comparison):
    for name in (comparison.threshold, comparison.result, comparison.compare_func):
        kind = getattr(trtops.comparator, name)
        assert (kind.__name__, kind.__qualname__) == (name, name) and kind.__doc__
        assert getattr(sys.modules[kind.__module__], name) is kind and name in trtops.comparator.__all__
    assert getattr(CompareFunc, comparison.name) is getattr(trtops.comparator, comparison.compare_func)


@named(COMPARED)
def test_each_limit_has_an_option(metric):
    [flag] = [flag for flag in groups.THRESHOLDS.flags if flag.dest == metric.option]
    assert flag.names[0] == f"--{metric.option.replace('_', '-')}"
    assert flag in groups.STATISTICS.flags
    unset_options = {option.dest: None for group in (groups.THRESHOLDS, groups.COMPARING) for option in group.flags}
    args = Options(**{**unset_options, metric.option: [("", 0.5), ("x", 0.25)], "compare": [metric.key]})
    [compare_func] = loading.compare_functions(args)
    assert getattr(compare_func, metric.option) == {"": 0.5, "x": 0.25}
    if metric.tolerance is not None:
        tolerances = configs.tolerances(args)
        assert getattr(tolerances, metric.tolerance) == 0.5
        assert getattr(tolerances.of("x"), metric.tolerance) == 0.25


@pytest.mark.parity
def test_names_and_limits_that_polygraphy_has_are_polygraphys():
    theirs = pytest.importorskip("polygraphy.comparator")
    fields = {name for kind in vars(theirs).values() if hasattr(kind, "metric_fields") for name in kind.metric_fields()}
    assert {metric.polygraphy for metric in METRICS} - {None} <= fields
    shared_metrics = [c for c in COMPARISONS if hasattr(theirs, c.compare_func)]
    assert {c.name for c in shared_metrics} >= {"l2", "cosine_similarity", "psnr", "snr"}
    for comparison in shared_metrics:
        parameters = inspect.signature(getattr(theirs, comparison.compare_func)).parameters
        assert {*comparison.limits, "check_shapes", "fail_fast", "find_output_func"} >= parameters.keys()
        if hasattr(theirs, comparison.result):
            ours, other = (getattr(module, comparison.result) for module in (trtops.comparator, theirs))
            assert ours.metric_fields() == other.metric_fields()
