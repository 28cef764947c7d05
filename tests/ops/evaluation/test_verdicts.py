"""Verdicts by default tolerances on models like real exports: sound outputs are good, planted errors are bad."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper

from tests import models, zoo
from tests.models import Case
from trtops import errors
from trtops.backend.onnx.model import Model, class_axes
from trtops.backend.onnxrt.runner import reference_outputs
from trtops.comparator import Tolerances, compare_outputs
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.evaluation.compare import compare
from trtops.ops.evaluation.limits import default_tolerances, tolerances_for
from trtops.spec import BuildConfig, Precision
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
    zeros, own = np.zeros((2, 3), np.float32), default_tolerances(precision)
    if precision != "int8":
        assert compare_outputs({"y": zeros + np.float32(1e-12)}, {"y": zeros}, own)
        assert not compare_outputs({"y": zeros + np.float32(1e-3)}, {"y": zeros}, own)


def test_clamped_masks_pass_and_lost_ones_fail() -> None:
    golden, own = models.random(4, 8), default_tolerances("fp16")
    golden[:, 5:] = zoo.LOWEST
    mask = golden < -1e9
    for filled in (-65504.0, -np.inf):
        assert compare_outputs({"y": np.where(mask, np.float32(filled), golden)}, {"y": golden}, own)
    assert not compare_outputs({"y": np.where(mask, np.float32(0), golden)}, {"y": golden}, own)
    rolled = np.roll(golden, 1, axis=0)
    report = compare_outputs({"y": np.where(mask, np.float32(-65504), rolled)}, {"y": golden}, own)
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
    own = Tolerances(atol=9, min_top1_agreement=1.0)
    assert compare_outputs({"y": tied}, {"y": scores[:1]}, own)  # nearly equal classes may swap
    assert not compare_outputs({"y": wrong}, {"y": scores[1:]}, own)


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
        found = convert(path, ConvertConfig(check=check), tracker=MemoryTracker()).evaluation.accuracy
        assert (found.actual, found.samples) == (share, best.size)


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
