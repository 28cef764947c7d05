"""Verdicts by default tolerances on models like real exports: sound outputs are good, planted errors are bad."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

from tests import models, zoo
from tests.models import Case
from trtops import errors
from trtops.backend.onnx.class_axes import class_axes
from trtops.backend.onnx.model import Model
from trtops.backend.onnxrt.runner import reference_outputs
from trtops.comparator import Tolerances, compare_outputs
from trtops.comparator.results import IterationResult, RunResults
from trtops.ops.comparing.compare import compare
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.evaluation.data import golden_outputs
from trtops.ops.evaluation.limits import default_tolerances, tolerances_for
from trtops.spec import BuildConfig, OnnxRuntimeOptions, OptimizationProfile, Precision, ShapeRange
from trtops.tracking.memory import MemoryTracker

Array = np.ndarray

PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "bf16", "int8")
CHECK = CheckConfig(iterations=8, latency_runs=0, plots="never")


def golden_of(case: Case) -> dict[str, Array]:
    return dict(reference_outputs(case.proto, [case.feed])[0])


PLANTED: dict[str, Callable[[Array], Array]] = {
    "zeros": np.zeros_like,
    "a constant": lambda golden: np.full_like(golden, golden.reshape(-1)[0]),
    "shuffled": lambda golden: np.random.default_rng(0).permutation(golden.reshape(-1)).reshape(golden.shape),
    "rows reversed": lambda golden: np.ascontiguousarray(golden[..., ::-1]),
}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("make", zoo.EVALUATED)
def test_zeros_constants_and_shuffles_never_pass(make: Callable[[], Case], precision: Precision) -> None:
    case = make()
    assert class_axes(case.proto) == zoo.CLASS_AXES.get(case.name, {})
    golden = golden_of(case)
    tolerances = tolerances_for(precision, None, Model.from_proto(case.proto))
    assert compare_outputs(golden, golden, tolerances)
    for name, array in golden.items():
        for error, plant in PLANTED.items():
            wrong = plant(array)
            if not np.array_equal(wrong, array):
                report = compare_outputs({**golden, name: wrong}, golden, tolerances)
                assert report.verdict == "bad", f"{error} in {name}"


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
def test_verdicts_do_not_depend_on_scale(precision: Precision, scale: float) -> None:
    golden = scale * models.random(4, 200, seed=1)
    bits = {"fp32": 2e-6, "fp16": 2e-3, "bf16": 2e-2, "int8": 5e-2}
    for factor, verdict in ((1, "good"), (30, "bad")):
        noise = factor * bits[precision] * scale * models.random(4, 200, seed=2)
        assert compare_outputs({"y": golden + noise}, {"y": golden}, default_tolerances(precision)).verdict == verdict
    zeros, tolerances = np.zeros((2, 3), np.float32), default_tolerances(precision)
    if precision != "int8":
        assert compare_outputs({"y": zeros + np.float32(1e-12)}, {"y": zeros}, tolerances)
        assert not compare_outputs({"y": zeros + np.float32(1e-3)}, {"y": zeros}, tolerances)


@pytest.mark.parametrize(("precision", "scale"), [("fp32", 3e-5), ("fp16", 0.01), ("bf16", 0.1)])
def test_outputs_within_fixed_tolerances_must_vary_as_golden_ones(precision: Precision, scale: float) -> None:
    golden, other = (10 + models.random(1000, seed=seed, scale=scale).astype(float) for seed in (1, 2))
    *_, reason = compare_outputs({"y": other}, {"y": golden}, default_tolerances(precision)).reasons
    assert "correlation is" in reason


def test_clamped_masks_pass_and_lost_ones_fail() -> None:
    golden, tolerances = models.random(4, 8), default_tolerances("fp16")
    golden[:, 5:] = zoo.LOWEST
    mask = golden < -1e9
    for filled in (-65504.0, -np.inf):
        assert compare_outputs({"y": np.where(mask, np.float32(filled), golden)}, {"y": golden}, tolerances)
    assert not compare_outputs({"y": np.where(mask, np.float32(0), golden)}, {"y": golden}, tolerances)
    rolled = np.roll(golden, 1, axis=0)
    report = compare_outputs({"y": np.where(mask, np.float32(-65504), rolled)}, {"y": golden}, tolerances)
    assert not report
    with pytest.raises(errors.ComparisonError, match="clamped_equal"):  # what was left out needs the arrays
        report.evaluate(Tolerances())


def test_only_outputs_with_classes_are_evaluated_by_them() -> None:
    case = zoo.segmentation()
    golden = golden_of(case)
    # The same along each row of pixels: every column wins as often as its neighbour, and the classes stay.
    noisy = golden["out"] + 0.05 * golden["out"].std() * models.random(*golden["out"].shape, seed=9)
    tolerances = tolerances_for("int8", None, Model.from_proto(case.proto))
    report = compare_outputs({**golden, "out": noisy}, golden, tolerances)
    statistics = report.output("out").statistics
    assert statistics.class_axis == 1 and statistics.top1_agreement > 0.98
    assert report.output("out").verdict == "good"

    # Hidden states have no classes.
    for case in (zoo.masked_attention(), zoo.key_value_cache(), zoo.lstm()):
        golden = golden_of(case)
        noisy = {n: a + 0.06 * a.std() * models.random(*a.shape, seed=i) for i, (n, a) in enumerate(golden.items())}
        report = compare_outputs(noisy, golden, tolerances_for("int8", None, Model.from_proto(case.proto)))
        for output in report.outputs:
            assert output.name in zoo.CLASS_AXES.get(case.name, {}) or output.verdict == "good", output.reasons


def test_integers_and_classes_are_counted() -> None:
    golden = np.arange(1000, 1400)
    nearly = golden.copy()
    nearly[:3] += 1
    assert compare_outputs({"y": nearly}, {"y": golden}, default_tolerances("fp16"))
    assert not compare_outputs({"y": golden + 1}, {"y": golden}, default_tolerances("fp16"))  # within 1 % of each
    mostly_background = np.zeros((64, 64), np.int64)
    mostly_background[3, :6] = 2
    empty = np.zeros_like(mostly_background)
    assert not compare_outputs({"y": empty}, {"y": mostly_background}, default_tolerances("int8"))
    scores = np.array([[0.5, 0.499, 0.0], [0.9, 0.1, 0.0]], np.float32)
    tied, wrong = scores[:, [1, 0, 2]][:1], scores[:, [1, 0, 2]][1:]
    tolerances = Tolerances(atol=9, min_top1_agreement=1.0)
    assert compare_outputs({"y": tied}, {"y": scores[:1]}, tolerances)  # nearly equal classes may swap
    assert not compare_outputs({"y": wrong}, {"y": scores[1:]}, tolerances)


def test_quantized_models_use_int8_tolerances() -> None:
    model = Model.from_proto(models.qdq_net().proto)
    assert tolerances_for("fp32", None, model).max_nrmse == default_tolerances("int8").max_nrmse
    assert tolerances_for("fp32", Tolerances(atol=1e-7), model).atol == 1e-7


def test_labels_are_compared_with_segmentation_classes(tmp_path: Path) -> None:
    case = zoo.segmentation()
    path, best = case.write(tmp_path), golden_of(case)["best"]
    np.savez(tmp_path / "image.npz", **dict(case.feed))
    check = CheckConfig(data=str(tmp_path / "image.npz"), labels=str(tmp_path / "labels.npy"), latency_runs=0)
    for labels, share in ((best, 1.0), ((best + 1) % 6, 0.0)):
        np.save(tmp_path / "labels.npy", labels)
        (top1,) = convert(path, ConvertConfig(check=check), tracker=MemoryTracker()).evaluation.tasks
        assert (top1.actual, top1.golden, top1.samples) == (share, share, len(best))


@pytest.mark.parametrize("precision", ["int8", "fp32"])
def test_runs_are_compared_by_their_precision(precision: Precision, tmp_path: Path) -> None:
    case, tracker = models.conv_net().fixed(), MemoryTracker()
    path = case.write(tmp_path)
    for weight in case.proto.graph.initializer:
        weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(1.0001), weight.name))
    larger = case.write(tmp_path, "larger")
    config = ConvertConfig(build=BuildConfig(precision=precision), check=CHECK)
    built = convert(path, config, tracker=tracker)
    assert built.verdict == "good"
    forward = compare(f"run:{built.run_id}", path, CHECK, tracker=tracker)
    backward = compare(path, f"run:{built.run_id}", CHECK, tracker=tracker)
    strict = replace(CHECK, tolerances=Tolerances(atol=1e-9, rtol=1e-9))
    # An engine of FP32 may give the reference's very bits, but not those of a model whose weights are a little larger.
    stricter = compare(f"run:{built.run_id}", larger, strict, tracker=tracker)
    assert (forward.verdict, backward.verdict) == ("good", "good"), forward.reasons
    assert forward.evaluation.report.tolerances.atol_of_scale == built.evaluation.report.tolerances.atol_of_scale
    assert stricter.verdict == "bad"


QUICK = CheckConfig(latency_runs=0, plots="never")
HEAD = "(float[n,8] x) => (float[n,8] y) { h = MatMul(x, w) "
WEIGHTS = {
    "w": models.random(8, 8, seed=1), "zero": np.float32(0), "far": np.float32(1e3), "three": np.array(3),
    "on": np.array(True), "off": np.array(False), "half": np.float32(0.5), "bias": models.random(8, seed=2),
}  # fmt: skip
ROWS = models.random(8, 8, seed=3)
WITH_NAN = ROWS.copy()
WITH_NAN[3, 2] = np.nan


def evaluated(folder: Path, text: str, precision: Precision = "fp32", check: CheckConfig = QUICK, **feed: Array):
    proto = models.model(text, {name: array for name, array in WEIGHTS.items() if name in text})
    np.savez(folder / "x.npz", **feed)
    build = BuildConfig(precision=precision, options=OnnxRuntimeOptions(tactics=()))
    config = ConvertConfig(build=build, check=replace(check, data=str(folder / "x.npz")), isolated=False)
    return convert(Case(proto, feed, name="m").write(folder), config, tracker=MemoryTracker())


# By what makes outputs random: the rest of a model, and the node that is named.
RANDOM = {
    "Dropout": ("y = Dropout(h, half, on) }", "Dropout 'y'"),
    "seed": ("r = RandomNormalLike<seed = 3.0>(h) y = Add(h, r) }", "RandomNormalLike 'r'"),
    "sample": ("p = Sigmoid(h) y = Bernoulli(p) }", "Bernoulli 'y'"),
    "branch": (
        "y = If(on) <then_branch = a () => (float[n,8] u) { r = RandomUniformLike(h) u = Add(h, r) }, "
        "else_branch = b () => (float[n,8] v) { v = Identity(h) }> }",
        "RandomUniformLike 'r'",
    ),
    "loop": (
        "y = Loop(three, on, h) <body = b (int64 i, bool c, float[n,8] v) => (bool d, float[n,8] u) "
        "{ d = Identity(c) r = RandomNormalLike(v) u = Add(v, r) }> }",
        "RandomNormalLike 'r'",
    ),
    "function": (
        'y = custom.f(h) } <domain: "custom", opset_import: ["" : 17]> f (a) => (b) '
        "{ r = RandomUniformLike(a) b = Add(a, r) }",
        "RandomUniformLike 'r'",
    ),
}


@pytest.mark.parametrize("kind", RANDOM)
def test_random_models_are_unproven(kind: str, tmp_path: Path) -> None:
    text, node = RANDOM[kind]
    check = replace(QUICK, self_check=True, power=True) if kind == "seed" else QUICK
    result = evaluated(tmp_path, HEAD + text, "fp16" if kind == "Dropout" else "fp32", check, x=ROWS)
    assert result.verdict == "unproven" and "triage" not in str(result.next_step)
    [reason] = result.reasons
    assert f"the model is random: {node} draws random numbers" in reason and "`y`" in reason
    assert result.evaluation.power is None or result.evaluation.power.share is None


def test_outputs_that_are_not_random_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "(float[n,8] x) => (float[n,8] y, float[n,8] z) { h = MatMul(x, w) z = Tanh(h) "
    text += "r = RandomNormalLike<scale = 0.1>(h) y = Add(h, r) }"
    assert [o.name for o in evaluated(tmp_path, text, x=ROWS).evaluation.report.outputs] == ["z"]
    within = replace(QUICK, tolerances=Tolerances(atol=3.0))
    assert evaluated(tmp_path, text, check=within, x=ROWS).verdict == "good"

    def inverted(*args: Any) -> RunResults:
        results = golden_outputs(*args)
        for outputs in results[0][1]:
            outputs["z"] = -outputs["z"]
        return results

    monkeypatch.setattr("trtops.ops.engines.request.golden_outputs", inverted)
    assert evaluated(tmp_path, text, x=ROWS).verdict == "bad"


@pytest.mark.parametrize("text", [
    "y = Dropout(h, half, off) }",
    "y = Dropout(h, zero, on) }",
    RANDOM["branch"][0].replace("If(on)", "If(off)"),
])  # fmt: skip
def test_random_nodes_without_effect_are_good(text: str, tmp_path: Path) -> None:
    assert evaluated(tmp_path, HEAD + text, x=ROWS).verdict == "good"


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_nan_in_data_is_named_with_its_row(precision: Precision, tmp_path: Path) -> None:
    result = evaluated(tmp_path, HEAD + "y = Relu(h) }", precision, replace(QUICK, self_check=True), x=WITH_NAN)
    assert result.verdict == "unproven"
    [reason] = result.reasons
    assert reason.startswith("input `x` holds NaN in row 3 of feed 0, and MatMul 'h' computes with it")
    [output] = result.evaluation.report.outputs
    assert output.verdict == "good" and output.statistics.elements == 56  # of the 7 other rows
    everywhere = evaluated(tmp_path, HEAD + "y = Relu(h) }", x=np.full_like(ROWS, np.nan))
    assert everywhere.verdict == "unproven" and "8 rows with NaN" in everywhere.reasons[0]


@pytest.mark.parametrize(("text", "feed"), [
    ("(float[n,8] x) => (float[n,8] y) { i = IsNaN(x) r = Where(i, zero, x) y = MatMul(r, w) }", {"x": WITH_NAN}),
    (
        "(float[n,8] x, bool[n,1] k) => (float[n,8] y) { r = Where(k, x, zero) y = MatMul(r, w) }",
        {"x": WITH_NAN, "k": np.arange(8).reshape(8, 1) != 3},
    ),
])  # fmt: skip
def test_nan_that_a_model_replaces_is_good(text: str, feed: dict[str, Array], tmp_path: Path) -> None:
    for precision in ("fp32", "fp16"):
        result = evaluated(tmp_path, text, precision, **feed)
        assert result.verdict == "good" and result.evaluation.report.outputs[0].statistics.elements == 64


def test_nan_of_the_model_is_no_matter_of_precision(tmp_path: Path) -> None:
    result = evaluated(tmp_path, HEAD + "y = Log(h) }", x=ROWS)
    assert result.verdict == "bad" and "elements are NaN (golden: " in result.reasons[0]
    assert not any("does not suffice" in reason for reason in result.reasons)


# By the rest of a model: its data, and its verdict.
CONSTANT: dict[str, tuple[Array, str]] = {
    "s = Sub(h, far) y = Relu(s) }": (ROWS, "unproven"),
    "s = Sub(h, far) r = Relu(s) y = Add(r, bias) }": (ROWS, "unproven"),  # the same values in each row
    "s = Sub(h, far) r = Relu(s) y = Max(h, r) }": (ROWS, "good"),
    "s = Sub(h, half) y = Relu(s) }": (ROWS, "good"),  # few numbers are not 0
    "y = Identity(h) }": (np.repeat(ROWS[:1], 32, 0), "good"),  # a single sample
    "y = Relu(h) }": (ROWS[:1], "good"),
}


@pytest.mark.parametrize("text", CONSTANT)
def test_outputs_that_are_all_constant_prove_nothing(text: str, tmp_path: Path) -> None:
    rows, verdict = CONSTANT[text]
    result = evaluated(tmp_path, HEAD + text, x=rows)
    assert result.verdict == verdict
    assert ("every output is constant on this data (`y`)" in " ".join(result.reasons)) == (verdict == "unproven")
    assert ("1 sample (of 32 rows, since some are equal)" in result.evidence) == (len(rows) == 32)


def test_constant_outputs_beside_others_and_integers(tmp_path: Path) -> None:
    two = (
        "(float[n,8] x) => (float[n,8] y, float[n,8] z) { h = MatMul(x, w) y = Softmax(h) s = Sub(h, far) z = Relu(s) }"
    )
    assert evaluated(tmp_path, two, x=ROWS).verdict == "good"
    best = "(float[n,8] x) => (int64[n] y) { h = MatMul(x, w) y = ArgMax<axis = 1, keepdims = 0>(h) }"
    assert evaluated(tmp_path, best, x=ROWS).verdict == evaluated(tmp_path, best, x=ROWS[:1]).verdict == "good"
    alike = ROWS[:1] * np.linspace(1, 1.01, 4, dtype=np.float32)[:, None]
    assert evaluated(tmp_path, best, x=alike).verdict == "unproven"


def test_golden_outputs_of_other_data_are_named(tmp_path: Path) -> None:
    text, golden = HEAD + "y = Relu(h) }", str(tmp_path / "golden.json")
    for outputs, verdict in (
        ({"y": np.maximum(ROWS @ WEIGHTS["w"], 0)}, "good"),
        ({"y": np.maximum(ROWS[::-1] @ WEIGHTS["w"], 0)}, "bad"),
        ({"other": ROWS}, "bad"),
    ):
        RunResults([("saved", [IterationResult(outputs)])]).save(golden)
        result = evaluated(tmp_path, text, check=replace(QUICK, golden=golden), x=ROWS)
        assert result.verdict == verdict
        if verdict == "bad":
            assert result.reasons[0].startswith("the golden outputs are not this model's")
            assert "triage" not in str(result.next_step)


@pytest.mark.parametrize(("text", "rows", "origin"), [
    ("y = Relu(h) }", ROWS, "64 times FP32's rounding of the model on this data"),
    ("s = Sub(h, far) r = Relu(s) y = Mul(r, x) }", ROWS, "a fixed one of FP32 for outputs of zeros"),
    ("s = Shape(x) r = Cast<to = 1>(s) a = ReduceMax<keepdims = 0>(r) b = Add(x, a) y = Mul(b, zero) }", ROWS, "zeros"),
])  # fmt: skip
def test_evidence_names_the_limit_that_decides(text: str, rows: Array, origin: str, tmp_path: Path) -> None:
    assert origin in evaluated(tmp_path, HEAD + text, x=rows).evidence


def test_data_outside_the_profiles_is_named(tmp_path: Path) -> None:
    text, shape = HEAD + "y = Relu(h) }", ShapeRange(name="x", min=(1, 8), opt=(2, 8), max=(4, 8))
    case = Case(models.model(text, {"w": WEIGHTS["w"]}), {"x": ROWS}, name="m")
    np.savez(tmp_path / "x.npz", x=ROWS)
    build = BuildConfig(profiles=(OptimizationProfile(shapes=(shape,)),), options=OnnxRuntimeOptions(tactics=()))
    for check in (replace(QUICK, data=str(tmp_path / "x.npz")), replace(QUICK, input_shapes={"x": (8, 8)})):
        result = convert(case.write(tmp_path), ConvertConfig(build=build, check=check), tracker=MemoryTracker())
        assert "x 8x8 (outside of all profiles)" in result.evidence and "x 4x8 (profile 0 max)" in result.evidence
