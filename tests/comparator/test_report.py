import dataclasses

import numpy as np
import pytest

from trtops import errors
from trtops.comparator import (
    ComparisonReport,
    IterationResult,
    OutputTolerances,
    RunResults,
    Tolerances,
    compare_outputs,
    standalone,
)
from trtops.comparator.metrics import ChannelErrors
from trtops.ops.evaluation.limits import default_tolerances

GOLDEN = {"scores": np.array([[0.1, 0.9], [0.8, 0.2]], np.float32), "boxes": np.arange(12.0).reshape(3, 4)}


def changed(**outputs):
    return {**GOLDEN, **outputs}


@pytest.mark.parametrize(
    ("actual", "reason"),
    [
        ({"scores": GOLDEN["scores"]}, "boxes: missing output: the golden run has it as float64[3, 4]"),
        (changed(extra=np.ones(2)), "extra: extra output: the golden run does not have it"),
        (changed(boxes=np.ones((4, 3))), "boxes: shape is (4, 3), the golden one (3, 4)"),
        (changed(boxes=GOLDEN["boxes"].astype(np.float32)), "boxes: dtype is float32, the golden one float64"),
        (changed(boxes=GOLDEN["boxes"] + 1), "boxes: 12 of 12 elements exceed atol 1e-05 and rtol 1e-05"),
        (changed(boxes=np.full((3, 4), np.nan)), "boxes: 12 of 12 elements are NaN (golden: 0)"),
        (changed(boxes=np.full((3, 4), "x")), "boxes: Strings cannot be compared with numbers"),
        (changed(boxes=np.full((3, 4), {}, object)), "boxes: The output is an array of Python objects"),
    ],
)
def test_differences_are_reasons_not_errors(actual, reason):
    report = compare_outputs(actual, GOLDEN)
    assert not report and report.verdict == "bad"
    assert len(report.reasons) == 1 or "NaN" in reason
    assert report.reasons[0].startswith(reason)
    lenient = compare_outputs(actual, GOLDEN, Tolerances(allow_extra_outputs=True, check_dtypes=False))
    assert lenient.verdict == ("good" if reason.startswith(("extra", "boxes: dtype")) else "bad")


def test_int32_for_int64_is_evaluated_by_its_values():
    golden = {"index": np.array([1, 2, 1 << 40])}
    assert compare_outputs({"index": np.array([1, 2], np.int32)}, {"index": golden["index"][:2]})
    lost = compare_outputs({"index": golden["index"].astype(np.int32)}, golden)
    assert lost.reasons[0].startswith("index: 1 of 3 elements exceed")
    assert not compare_outputs(golden, {"index": np.array([1, 2, 3], np.int32)})


def test_reports_are_reevaluated_without_arrays():
    report = compare_outputs(changed(boxes=GOLDEN["boxes"] + 1e-3), GOLDEN)
    again = ComparisonReport.from_json(report.to_json())
    assert again == report and not report
    assert again.evaluate(Tolerances(atol=2e-3))
    assert not again.evaluate(Tolerances(atol=5e-4, rtol=0))
    assert again.evaluate(Tolerances(check_error_stat="max", atol=1.1e-3))
    assert again.evaluate(Tolerances(per_output={"boxes": OutputTolerances(atol=1e-2)}))
    assert not again.evaluate(Tolerances(per_output={"scores": OutputTolerances(atol=1e-2)}))


def test_each_limit_is_evaluated_and_named():
    actual = changed(scores=np.array([[0.55, 0.45], [0.8, 0.2]], np.float32))
    for expected, limits in (
        ("top-1 agreement is 0.5, at least 0.9 is required", {"atol": 1.0, "min_top1_agreement": 0.9}),
        ("mean error is", {"check_error_stat": "mean"}),
        ("0.75 quantile of the error is", {"check_error_stat": "quantile", "error_quantile": 0.75}),
    ):
        [reason] = compare_outputs(actual, GOLDEN, Tolerances(**limits)).reasons
        assert reason.startswith(f"scores: {expected}")


def test_nan_fails_unless_both_have_it():
    golden = {"x": np.array([1.0, np.nan, np.inf])}
    wide = {"atol": 1e30, "rtol": 1e30}
    assert not compare_outputs(golden, golden, Tolerances(**wide))
    assert not compare_outputs(golden, golden, Tolerances(**wide, nans_equal=True))
    assert compare_outputs(golden, golden, Tolerances(**wide, nans_equal=True, infinities_equal=True))
    assert not compare_outputs({"x": np.array([np.nan, 1.0, 2.0])}, golden, Tolerances(**wide, nans_equal=True))
    with pytest.raises(errors.ComparisonError, match=r"nans_equal=False.*Compare the arrays again"):
        compare_outputs(golden, golden, Tolerances(infinities_equal=True)).evaluate(
            Tolerances(infinities_equal=True, nans_equal=True)
        )


def test_iterations_are_evaluated_together():
    report = compare_outputs([GOLDEN, changed(boxes=GOLDEN["boxes"] + 1)], [GOLDEN, GOLDEN])
    statistics = report.output("boxes").statistics
    assert (report.iterations, statistics.violations, statistics.elements) == (2, 12, 24)
    same = compare_outputs(GOLDEN, GOLDEN)
    assert same and same.reasons == () and [output.name for output in same.outputs] == ["scores", "boxes"]
    with pytest.raises(errors.ComparisonError, match="2 iterations, the golden run 1"):
        compare_outputs([GOLDEN, GOLDEN], GOLDEN)
    results = RunResults([("ort", [IterationResult(GOLDEN)])])
    assert compare_outputs(results, GOLDEN) and compare_outputs(results["ort"], results)
    results.append(("trt", [IterationResult(GOLDEN)]))
    with pytest.raises(errors.ComparisonError, match="'ort', 'trt'"):
        compare_outputs(results, GOLDEN)


def test_bundles_evaluate_as_reports_do():
    floats = np.random.default_rng(0).standard_normal((4, 60))
    special = np.where(floats > 1, np.inf, np.where(floats < -1, -1e9, floats))
    integers = (floats > 0).astype(np.int64), np.where(floats > 2, 3, 0)
    by_statistic = (Tolerances(atol=0.02, rtol=0.0, check_error_stat=s) for s in ("max", "mean", "median", "quantile"))
    lenient = Tolerances(infinities_equal=True, nans_equal=True, max_l2=3.0)
    limits = ChannelErrors(axis=1, max_abs=(0.02,) * 59 + (1e300,), rms=(0.01,) * 60)
    by_channel = Tolerances(atol=0.5, rtol=0.0, channels=limits)
    for tolerances in (default_tolerances("fp16"), default_tolerances("int8"), lenient, by_channel, *by_statistic):
        for golden in (floats, special, np.where(floats > 1, np.nan, floats), *integers):
            for wrong in (golden, golden + 1, golden * 1.01, np.zeros_like(golden), golden[:, ::-1], golden + 0.03):
                actual = wrong.astype(golden.dtype)
                report = compare_outputs({"x": actual}, {"x": golden}, tolerances)
                objections = standalone.objections([actual], [golden], dataclasses.asdict(tolerances))
                assert (objections == []) == bool(report), (report.reasons, objections)


def test_invalid_tolerances_are_refused():
    for options, message in (
        ({"atol": -1}, "atol: found -1.0; expected 0 or more"),
        ({"rtol": np.nan}, "rtol: found nan; expected a number"),
        ({"error_quantile": 2}, "at most 1"),
    ):
        with pytest.raises(errors.ConfigError, match=message):
            Tolerances(**options)
    with pytest.raises(errors.FormatError, match="atoll"):
        Tolerances.from_dict({"atoll": 1})


@pytest.mark.parametrize("other", [{"max_kl": 1.0}, {"check_error_stat": "median"}, {"check_error_stat": "quantile"}])
def test_unmeasured_metrics_are_not_evaluated(other):
    report = compare_outputs(GOLDEN, GOLDEN, only_limited=True)
    assert report and report.outputs[0].statistics.kl is None
    with pytest.raises(errors.ComparisonError, match="was not"):
        report.evaluate(Tolerances(**other))
    assert compare_outputs(GOLDEN, GOLDEN, Tolerances(**other), only_limited=True)
