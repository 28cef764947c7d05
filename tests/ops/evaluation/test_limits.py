"""Limits from the model's own noise: sound engines of real ONNX Runtime are good, planted defects are bad."""

import math
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal
from unittest.mock import Mock

import numpy as np
import pytest
from onnx import numpy_helper

from tests import defects, models, zoo
from tests.defects import Defect, Sound
from tests.gates import with_wrong_weight
from tests.long_runs import LONG
from tests.models import Case
from trtops.backend.base import Build, BuildRequest, Caches
from trtops.backend.engines import engine_backend
from trtops.backend.onnx.model import Model
from trtops.backend.onnx.walk import mean_sum_length
from trtops.comparator import ComparisonReport, RunResults, Tolerances, compare_outputs
from trtops.ops.campaign.iteration import EvaluationCase, evaluate_in_child
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.engines.convert_result import builds_table
from trtops.ops.evaluation import right_model as module
from trtops.ops.evaluation.check import CheckConfig, Evaluation
from trtops.ops.evaluation.data import Feeds, collect, golden_outputs
from trtops.ops.evaluation.evidence import Evidence
from trtops.ops.evaluation.limits import (
    NoiseLimits,
    default_tolerances,
    tolerances_for,
    useful_tolerances,
)
from trtops.ops.evaluation.noise import Noise, OutputNoise, largest_noise, measure_noise
from trtops.ops.evaluation.output_ranges import output_ranges
from trtops.ops.evaluation.precision_check import check_precision
from trtops.ops.evaluation.right_model import RightModel
from trtops.spec import BuildConfig, OnnxRuntimeOptions, Precision, TensorRTOptions
from trtops.tracking.memory import MemoryTracker


def run(model: Model, sound: Sound, config: BuildConfig) -> tuple[RunResults, Build]:
    """Build a model with ONNX Runtime and run it on the sound model's data."""
    backend, data = engine_backend("onnxruntime"), Feeds("the pair's data", lambda: sound.feeds)
    build = backend.build(BuildRequest(model, config, caches=Caches(), calibration_data=data))
    with backend.runner(build.engine) as runner:
        return collect(runner, sound.feeds), build


UNTIMED = OnnxRuntimeOptions(tactics=())


def with_defect(sound: Sound, defect: Defect, precision: Precision, outputs: RunResults) -> RunResults:
    if not defect.stale:
        # No settings are timed, unlike for sound models.
        return run(sound.model(defect), sound, BuildConfig(precision=precision, options=UNTIMED))[0]
    iterations, stale = outputs[0][1], RunResults()
    stale.add([dict(iterations[max(0, number - 1)]) for number in range(len(iterations))])
    return stale


SHARE = 1 if LONG else 0.5
"""The share of the defects that is tried."""


def tried(sound: Sound) -> list[Defect]:
    return [
        defect for number, defect in enumerate(sound.defects) if LONG or number % 2 == 0 or "inverted" in defect.kind
    ]


def times_the_noise(report: ComparisonReport, noise: NoiseLimits) -> float:
    """The largest root mean square error of an output or a channel, as a multiple of the emulated one."""
    ratios = [0.0]
    for output in noise.outputs:
        statistics = report.output(output.name).statistics
        if output.whole is not None and output.whole.rms > 0:
            error = statistics.nrmse * output.whole.size / output.whole.rms
            ratios.append(math.inf if math.isnan(error) else error)
        if output.channels:
            pairs = zip(statistics.channels.rms, output.channels)
            ratios += [error / channel.rms for error, channel in pairs if channel.rms > 0]
    return max(ratios)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_planted_defects_above_noise_are_caught(precision: Precision) -> None:
    missed, above, within, false_alarms, count = [], 0, [], [], 0
    step = 1 if LONG else 2 if precision == "fp16" else 3
    for make in defects.MODELS[::step]:
        sound = make()
        model = sound.model()
        golden = golden_outputs(model, sound.feeds, None)
        config = BuildConfig(precision=precision)
        outputs, build = run(model, sound, config)
        ranges = build.calibration_cache
        right = RightModel(model=model, build=config, feeds=sound.feeds, golden=golden, calibration=ranges)
        tolerances = right.tolerances(None)
        assert not right.noise.why_not and not right.noise.insufficient
        if not compare_outputs(outputs, golden, tolerances):
            false_alarms.append(sound.name)
        for defect in tried(sound):
            count += 1
            report = compare_outputs(with_defect(sound, defect, precision, outputs), golden, tolerances)
            if times_the_noise(report, right.noise) > 2:
                above += 1
                missed += [f"{sound.name}: {defect.kind}"] if report else []
            elif report:
                within.append(f"{sound.name}: {defect.kind}")
    print(f"{precision}: {count} pairs, {above} above twice the noise, missed {missed}, within {within}")
    assert count >= 53 / step * SHARE and above >= 50 / step * SHARE
    assert false_alarms == []
    assert len(missed) <= 0.05 * above, missed


NOISE = Noise(size=2.0, scale=5.0, rms=1e-3, largest=3e-3, independent=1e4)


def test_outputs_within_noise_must_vary_as_golden_ones() -> None:
    """Next to a mean of 10, errors as large as what varies are within limits, and leave the direction as it is."""
    golden, other = (10 + models.random(1000, seed=seed, scale=0.03) for seed in (1, 2))
    noise = Noise(size=10.0, scale=10.2, rms=0.03, largest=0.1, independent=1e4)
    limits = NoiseLimits(precision="fp16", outputs=(OutputNoise(name="y", whole=noise),))
    tolerances = limits.tolerances(useful_tolerances("fp16"))

    assert compare_outputs({"y": golden + 0.3 * (other - 10)}, {"y": golden}, tolerances)
    [reason] = compare_outputs({"y": other}, {"y": golden}, tolerances).reasons
    assert "correlation is" in reason and "at least 0.5 is required" in reason


def test_limits_are_multiples_of_noise() -> None:
    assert NOISE.rms_limit("fp16") == pytest.approx(2e-3, rel=0.05)
    assert NOISE.largest_limit("fp16") == pytest.approx(12e-3)
    # Few elements say little about the noise of others.
    assert replace(NOISE, independent=2.0).rms_limit("fp16") > 2 * NOISE.rms_limit("fp16")
    none = Noise(size=2.0, scale=5.0, rms=0.0, largest=0.0, independent=0.0)
    assert none.rms_limit("fp16") == 2.0 * 2**-11 and none.largest_limit("fp16") == 5.0 * 2**-11
    zeros = Noise(size=0.0, scale=0.0, rms=0.0, largest=0.0, independent=0.0)
    assert (zeros.rms_limit("fp16"), zeros.largest_limit("fp16")) == (1e-9, 2e-9)


def test_sums_in_fp16_widen_tensorrt_limits() -> None:
    # Each value sums 18 products in the convolution, 64 in the transposed one, and 512 in the matrix product.
    nodes = "a = Conv(x, w) b = ConvTranspose<strides = [2, 2]>(a, t) c = Flatten(b) y = MatMul(c, m) z = MatMul(y, y)"
    weights = {"w": np.ones((64, 2, 3, 3), np.float32), "t": np.ones((64, 8, 2, 2), np.float32)}
    weights["m"] = np.ones((512, 4), np.float32)
    signature = "(float[1,2,10,10] x) => (float[r,4] y, float[r,4] z)"
    proto = models.model(f"{signature} {{ {nodes} }}", weights)
    assert mean_sum_length(proto.graph) == (18 + 64 + 512) / 3

    def times(options: TensorRTOptions | OnnxRuntimeOptions, precision: Precision = "fp16") -> float:
        build = BuildConfig(precision=precision, options=options)
        return RightModel(model=Model.from_proto(proto), build=build, feeds=(), golden=RunResults()).times

    assert times(TensorRTOptions()) == pytest.approx(math.sqrt(1 + 198 / 96))
    assert (times(TensorRTOptions(), "bf16"), times(OnnxRuntimeOptions())) == (1.5, 1.0)
    assert times(OnnxRuntimeOptions(providers=("cuda",))) == 1.5


def test_integers_may_change_as_rounding_changes_them() -> None:
    for equal, counted, allowed in ((1.0, 10_000, 0.9997), (0.99, 10_000, 0.9797), (1.0, 4, 0.95), (0.9, 10_000, 0.95)):
        noise = NoiseLimits(precision="fp16", outputs=(OutputNoise(name="y", equal=equal, counted=counted),))
        tolerances = noise.tolerances(default_tolerances("fp16")).of("y")
        assert tolerances.min_agreement == pytest.approx(allowed)


def right_model(case: Case, precision: Precision = "fp16", **options) -> RightModel:
    model, feeds = Model.from_proto(case.proto), [case.feed]
    golden = golden_outputs(model, feeds, None)
    return RightModel(model=model, build=BuildConfig(precision=precision), feeds=feeds, golden=golden, **options)


def test_channels_of_small_scale_have_limits() -> None:
    units = np.array([1000, 1, 0.01], np.float32)
    proto = models.model("(float[64,3] x) => (float[64,3] y) { h = Tanh(x) y = Mul(h, units) }", {"units": units})
    right = right_model(Case(proto, {"x": models.random(64, 3, seed=1)}, name="units"))
    tolerances, golden = right.tolerances(None), right.golden[0][1][0]["y"]
    good = compare_outputs(right.rounded[0], right.golden, tolerances)
    assert right.noise.outputs[0].channel_axis == 1 and "per channel" in right.noise.sentence(good)
    assert good
    lost = golden * np.array([1, 1, 0], np.float32)
    report = compare_outputs({"y": lost}, {"y": golden}, tolerances)
    assert not report and "the worst is channel 2" in report.reasons[0]
    assert "channel 2: " in report.decided_by
    stored = ComparisonReport.from_json(report.to_json())
    assert stored == report and stored.evaluate(tolerances) == report
    # Without limits of channels it is a small error.
    assert stored.evaluate(default_tolerances("fp16"))


def test_zeros_and_constants_have_floors() -> None:
    text = "(float[8,4] x) => (float[8,4] zero, float[8,4] same) { zero = Sub(x, x) h = Mul(zero, x) same = Add(h, c) }"
    case = Case(models.model(text, {"c": np.full(4, 0.3, np.float32)}), {"x": models.random(8, 4)}, name="constant")
    for precision in ("fp32", "fp16"):
        right = right_model(case, precision)
        golden, tolerances = dict(right.golden[0][1][0]), right.tolerances(None)
        assert compare_outputs(golden, golden, tolerances)
        assert not compare_outputs({**golden, "zero": golden["zero"] + np.float32(1e-3)}, golden, tolerances)
        assert not compare_outputs({**golden, "same": golden["same"] * np.float32(1.01)}, golden, tolerances)


def test_noise_of_large_outputs_takes_little_memory() -> None:
    exact, rounded = RunResults(), RunResults()
    values = np.random.default_rng(0).standard_normal((4, 1 << 19), np.float32)
    values[3] *= 1e-3  # channels of other scales have limits of their own
    for results, arrays in ((exact, values), (rounded, values * np.float32(1 + 1e-6))):
        results.add([{"y": arrays[None], "empty": np.zeros((2, 0), np.float32)}] * 4, runner_name="x")

    tracemalloc.start()
    noise, empty = measure_noise(exact, [rounded], largest_noise)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 100 << 20  # the outputs are 32 MiB, and 128 MiB as FP64
    assert noise.channel_axis == 1 and len(noise.channels) == 4
    assert noise.whole.rms == pytest.approx(0.866e-6, rel=0.1) and empty.whole.size == empty.whole.rms == 0


def test_noise_is_measured_only_for_default_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emulated, moved = Mock(side_effect=module.run_in_16_bit), Mock(side_effect=module.moved_reference)
    monkeypatch.setattr(module, "run_in_16_bit", emulated)
    monkeypatch.setattr(module, "moved_reference", moved)
    path = zoo.segmentation().write(tmp_path)
    check = CheckConfig(latency_runs=0, plots="never", tolerances=Tolerances(atol=1.0))
    convert_config = ConvertConfig(build=BuildConfig(precision="fp32"), check=check)
    result = convert(path, convert_config, tracker=MemoryTracker())
    assert result.evaluation.noise is None and not emulated.called and not moved.called
    # Limits and emulation share one run.
    check = replace(check, tolerances=None)
    config = ConvertConfig(build=BuildConfig(precision="fp16"), check=check, isolated=False)
    result = convert(path, config, tracker=MemoryTracker())
    assert result.evaluation.report and emulated.call_count == 1
    assert Evaluation.from_json(result.evaluation.to_json()).noise == result.evaluation.noise is not None


@pytest.mark.parametrize("options", [OnnxRuntimeOptions(providers=("cuda",), tf32=True), TensorRTOptions(tf32=True)])
def test_tf32_has_limits_of_its_own(options: OnnxRuntimeOptions | TensorRTOptions) -> None:
    case = zoo.classifier()
    exact = right_model(case, "fp32")
    right = replace(exact, build=BuildConfig(options=options), _draws=[])
    wrong = golden_outputs(Model.from_proto(with_wrong_weight(case.proto, 1.1)), [case.feed], None)

    good = compare_outputs(right.rounded[0], right.golden, right.tolerances(None))
    assert good and right.precision == "tf32" and "TF32" in right.noise.sentence(good)
    assert not compare_outputs(right.rounded[0], right.golden, exact.tolerances(None))
    assert not compare_outputs(wrong, right.golden, right.tolerances(None))


def around_qdq(opset: int = 13, batch: int = 8) -> Case:
    """Two products whose inputs are quantized, with weights in INT8 per channel and GELU in between."""
    weights = {"sx": np.float32(0.025), "sr": np.float32(0.03), "z": np.int8(0)}
    for name, shape in (("a", (16, 24)), ("b", (24, 4))):
        weights[f"q{name}"] = models.random(*shape, seed=shape[0], scale=40).clip(-127, 127).astype(np.int8)
        weights[f"s{name}"] = np.full(shape[1], 6e-3, np.float32)
    text = f"""(float[{batch},16] x) => (float[{batch},4] y) {{
        q = QuantizeLinear(x, sx, z) d = DequantizeLinear(q, sx, z) v = DequantizeLinear<axis = 1>(qa, sa)
        m = MatMul(d, v) t = Sigmoid(m) g = Mul(m, t) r = QuantizeLinear(g, sr, z) e = DequantizeLinear(r, sr, z)
        w = DequantizeLinear<axis = 1>(qb, sb) y = MatMul(e, w) }}"""
    return Case(models.model(text, weights, opset=opset), {"x": models.random(batch, 16, seed=9)}, name="qdq")


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_limits_around_quantized_parts_are_those_of_rounding(precision: Literal["fp16", "bf16"]) -> None:
    for opset, batch in ((13, 1), (19, 1), (13, 32)):
        right = right_model(case := around_qdq(opset, batch), precision)
        limit = right.tolerances(None).of("y").max_nrmse
        assert not right.noise.why_not and limit < 0.2
        # Other roundings before the quantization move other values to the next step.
        moved = {"x": case.feed["x"] * (1 + models.random(batch, 16, seed=5, scale=1e-4))}
        outputs = RunResults()
        outputs.add(module.run_in_16_bit(right.model, precision, [moved])[0])
        assert compare_outputs(outputs, right.golden, right.tolerances(None))
    wrong = case.proto
    scale = next(tensor for tensor in wrong.graph.initializer if tensor.name == "sa")
    scale.CopyFrom(numpy_helper.from_array(np.full(24, 6e-3 * 1.1, np.float32), "sa"))
    report = compare_outputs(
        golden_outputs(Model.from_proto(wrong), [case.feed], None), right.golden, right.tolerances(None)
    )
    assert report.verdict == "bad"


def test_tensorrt_rounds_what_qdq_leaves() -> None:
    right = right_model(around_qdq(), "int8")
    for lower_precisions, precision in ((("fp16",), "fp16"), (("fp16", "bf16"), "bf16"), ((), "int8")):
        build = BuildConfig(precision="int8", options=TensorRTOptions(also=lower_precisions))
        assert replace(right, build=build, _draws=[]).precision == precision
    plain = right_model(models.conv_net(), "int8")
    build = BuildConfig(precision="int8", options=TensorRTOptions(also=("fp16",)))
    assert replace(plain, build=build, _draws=[]).precision == "int8"


def test_unknown_noise_leaves_fixed_limits() -> None:
    cases: tuple[tuple[Case, Precision, str], ...] = (
        (models.qdq_net(), "int8", "quantized already"),
        (models.qdq_net(), "fp32", "quantized already"),
        (models.conv_net(), "int8", "no calibration cache"),
        (models.conv_net(), "fp8", "no calibration cache"),
    )
    for case, precision, reason in cases:
        right = right_model(case, precision)
        fixed = tolerances_for(precision, None, right.model)
        assert right.tolerances(None) == fixed
        assert reason in right.noise.why_not
        assert "fixed" in right.noise.sentence(compare_outputs(right.golden, right.golden, fixed))


def test_scales_of_shapes_are_not_moved() -> None:
    text = '(float[1,2,6,6] x) => (float[1,2,12,12] y) { h = Mul(x, w) y = Resize<mode = "linear">(h, , s) }'
    weights = {"s": np.float32([1, 1, 2, 2]), "w": np.float32(0.3)}
    case = Case(models.model(text, weights), {"x": models.random(1, 2, 6, 6)}, name="resize")
    right = right_model(case, "fp32")
    assert right.noise.outputs[0].whole.rms > 0 and not right.noise.why_not


def test_precision_that_rounding_destroys_is_named() -> None:
    text = "(float[4,64] x) => (float[4,64] y) { a = Add(x, big) y = Sub(a, big) }"
    case = Case(models.model(text, {"big": np.float32(3e4)}), {"x": models.random(4, 64)}, name="cancelling")
    right = right_model(case)
    report = compare_outputs(right.rounded[0], right.golden, right.tolerances(None))
    assert report.verdict == "bad"
    [reason] = right.noise.reasons(report)
    assert "FP16 does not suffice for this model on this data" in reason
    assert right.noise.sentence(report) == "what is useful in FP16, since rounding alone exceeds it in `y`"
    unbounded = Noise(size=1.0, scale=1.0, rms=np.inf, largest=np.inf, independent=0.0)
    noise = replace(right.noise, outputs=(OutputNoise(name="y", whole=unbounded),), insufficient=())
    assert "gives infinity or NaN" in noise.sentence(report)
    # An engine that is better than its precision is good.
    assert right.noise.reasons(compare_outputs(right.golden, right.golden, right.tolerances(None))) == ()


def test_every_row_shows_its_limit(tmp_path: Path) -> None:
    check = CheckConfig(latency_runs=0, plots="never")
    result = convert(zoo.boxes().write(tmp_path), ConvertConfig(check=check), tracker=MemoryTracker())
    columns, rows = result.evaluation.report.table()
    column = columns.index("decided by")
    assert all(" of " in row[column] for row in rows)
    assert result.evaluation.report.decided_by in str(builds_table([result]))
    assert all(row[column] in result.page() for row in rows)


def test_builds_of_a_campaign_share_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emulated = Mock(side_effect=module.run_in_16_bit)
    monkeypatch.setattr(module, "run_in_16_bit", emulated)
    case = zoo.segmentation()
    model, golden, check = Model.from_proto(case.proto), str(tmp_path / "golden.npz"), CheckConfig(latency_runs=0)
    golden_outputs(model, check.open_for(model), None).save(golden)
    build = engine_backend("onnxruntime").build(BuildRequest(model, BuildConfig(precision="fp16"), caches=Caches()))
    first, second = (
        evaluate_in_child(
            build.engine, EvaluationCase(model, check, build.spec.config, golden), check_precision(build)
        )[0]
        for _ in range(2)
    )
    assert emulated.call_count == 1 and first.noise.outputs
    assert first.report.tolerances == second.report.tolerances


HEAD = """(float[n,24] x) => (float[n,5] det) {
    h = MatMul(x, w1) a = Relu(h) l = MatMul(a, w2) p = Sigmoid(l) det = Mul(p, pixels)
}"""
PERCEPTRON = "(float[n,16] x) => (float[n,6] y) { h = Gemm(x, w1, b1) a = Relu(h) y = Gemm(a, w2, b2) }"
UNITS = "(float[n,12] x) => (float[n,4] y) { h = Gemm(x, w1, b1) a = Tanh(h) q = MatMul(a, w2) y = Mul(q, units) }"


def small_models(rows: int) -> list[Sound]:
    """Small models, evaluated on few rows; a detection head, a perceptron, and a regression in several units."""
    weights = {
        "head": {"w1": (24, 32), "w2": (32, 5), "pixels": np.array([640, 640, 640, 640, 1], np.float32)},
        "perceptron": {"w1": (16, 24), "b1": (24,), "w2": (24, 6), "b2": (6,)},
        "units": {"w1": (12, 24), "b1": (24,), "w2": (24, 4), "units": np.array([1000, 5, 0.1, 0.02], np.float32)},
    }
    small = []
    for name, text in (("head", HEAD), ("perceptron", PERCEPTRON), ("units", UNITS)):
        arrays = {
            key: models.random(*value, seed=number, scale=0.4) if isinstance(value, tuple) else value
            for number, (key, value) in enumerate(weights[name].items(), start=1)
        }
        feeds = [{"x": models.random(rows, len(arrays["w1"]), seed=90)}]
        planted = [
            defects.weight(f"{kind} of {key}", key, change)
            for key, array in arrays.items()
            for kind, change in planted_changes(array.ndim - 1).items()
        ]
        activation = "Relu" if "Relu" in text else "Tanh"
        planted.append(defects.replaced("missing activation", (f"{activation}(", "Identity(")))
        small.append(Sound(name, text, arrays, feeds, tuple(planted)))
    inverted = ("det = Mul(p, pixels)", "n = Mul(p, sign) q = Add(n, shift) det = Mul(q, pixels)")
    small[0].weights.update(sign=np.float32([1, 1, 1, 1, -1]), shift=np.float32([0, 0, 0, 0, 1]))
    defect = defects.replaced("inverted score", inverted)
    small[0] = replace(small[0], defects=(*small[0].defects, defect))
    return small


def planted_changes(axis: int) -> dict[str, Callable[[np.ndarray], np.ndarray]]:
    """Small changes of the last channel of a weight."""

    def scaled(factor: float) -> Callable[[np.ndarray], np.ndarray]:
        def change(array: np.ndarray) -> np.ndarray:
            factors = np.ones(array.shape[axis], np.float32)
            factors[-1] = factor
            return array * factors

        return change

    return {
        "flipped channel": scaled(-1),
        "lost channel": scaled(0),
        "wrong scale": scaled(1.5),
        "shifted channels": lambda array: np.roll(array, 1, axis),
    }


def engine_on_other_rows(model: Model, sound: Sound) -> tuple[RunResults, bytes | None]:
    """The outputs of an INT8 engine that is calibrated on more rows than it is evaluated on, and its cache."""
    feed = {"x": models.random(64, *sound.feeds[0]["x"].shape[1:], seed=7)}
    backend = engine_backend("onnxruntime")
    build = backend.build(
        BuildRequest(
            model,
            BuildConfig(precision="int8", options=UNTIMED),
            caches=Caches(),
            calibration_data=Feeds("rows", lambda: [feed, feed]),
        )
    )
    with backend.runner(build.engine) as runner:
        return collect(runner, sound.feeds), build.calibration_cache


@pytest.mark.slow
def test_small_defects_on_few_rows_are_caught_in_int8() -> None:
    missed, above = [], 0
    for sound in (*small_models(1), *small_models(16)):
        model = sound.model()
        golden = golden_outputs(model, sound.feeds, None)
        outputs, ranges = engine_on_other_rows(model, sound)
        config = BuildConfig(precision="int8", options=UNTIMED)
        right = RightModel(model=model, build=config, feeds=sound.feeds, golden=golden, calibration=ranges)
        tolerances = right.tolerances(None)
        assert compare_outputs(outputs, golden, tolerances) and not right.noise.lost, sound.name
        emulated = replace(right.noise, outputs=measure_noise(golden, [right.rounded[0]], largest_noise))
        for defect in tried(sound):
            report = compare_outputs(engine_on_other_rows(sound.model(defect), sound)[0], golden, tolerances)
            if times_the_noise(report, emulated) > 2:
                above += 1
                missed += [f"{sound.name}: {defect.kind}"] if report else []
            assert not report or "inverted" not in defect.kind
    print(f"{above} above twice the noise, missed {missed}")
    assert above > 50 * SHARE
    assert len(missed) <= max(1, 0.02 * above), missed


def test_draws_of_int8_move_only_quantized_tensors() -> None:
    text = "(float[4,8] x) => (float[4,3] y) { h = MatMul(x, w) y = Mul(h, pixels) }"
    weights = {"w": models.random(8, 3, seed=1), "pixels": np.array([640, 640, 1], np.float32)}
    case = Case(models.model(text, weights), {"x": models.random(4, 8, seed=2)}, name="scaled")
    build = engine_backend("onnxruntime").build(
        BuildRequest(
            Model.from_proto(case.proto),
            BuildConfig(precision="int8", options=UNTIMED),
            caches=Caches(),
            calibration_data=Feeds("rows", lambda: [{"x": models.random(4, 8, seed=n)} for n in range(2, 9)]),
        )
    )
    right = right_model(case, "int8", calibration=build.calibration_cache)
    [noise] = right.noise.outputs
    assert len(right._draws) > 2
    first, *others = (draw[0][1][0]["y"] - right.golden[0][1][0]["y"] for draw in right._draws)
    for other in others:
        assert not np.array_equal(first, other)
        # The error of the small channel is one of its products, which the large constant does not enter.
        assert 0.2 < np.linalg.norm(other[:, 2]) / np.linalg.norm(first[:, 2]) < 5
    assert noise.whole is not None and noise.whole.draws == len(right._draws)


def test_lost_channel_is_never_good(tmp_path: Path) -> None:
    # Boxes and scores share one quantized tensor, as a head that concatenates them before a product does.
    text = "(float[16,8] x) => (float[16,2] y) { h = MatMul(x, w) y = MatMul(h, turn) }"
    weights = {"w": models.random(8, 2, seed=1) * np.float32([1e4, 1e-2]), "turn": np.eye(2, dtype=np.float32)}
    np.save(tmp_path / "x.npy", models.random(16, 8, seed=2))
    path = Case(models.model(text, weights), {}, name="lost").write(tmp_path)
    check = CheckConfig(data=str(tmp_path / "x.npy"), latency_runs=0, plots="never")
    config = ConvertConfig(build=BuildConfig(precision="int8", options=UNTIMED), check=check)
    result = convert(path, config, tracker=MemoryTracker())
    assert result.evaluation.noise.lost == (("y", "nothing is left of channel 1"),)
    assert result.verdict == "bad" and "INT8 does not suffice" in result.reasons[0]


FAINT = """(float[2,3,16,16] x) => (float[2,2,16,16] det) {
    c = Conv<pads = [1,1,1,1]>(x, w) d = Add(c, low) s = Sigmoid(d) o = Sigmoid(d) det = Mul(s, o)
}"""


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("low", [-7.0, -9.0])
def test_outputs_near_zero_have_a_floor_of_their_range(low: float, precision: Precision) -> None:
    weights = {"w": models.random(2, 3, 3, 3, seed=1, scale=0.05), "low": np.float32(low)}
    case = Case(models.model(FAINT, weights), {"x": models.random(2, 3, 16, 16, seed=2)}, name="faint")
    right = right_model(case, precision)
    golden, tolerances = right.golden[0][1][0]["det"], right.tolerances(None)
    assert right.noise.outputs[0].whole.range == 1 and not right.noise.insufficient
    # Functions are exact to units of FP32 of [0, 1].
    assert compare_outputs({"det": golden + np.float32(2.1e-7)}, {"det": golden}, tolerances)
    assert not compare_outputs({"det": golden + np.float32(1e-5)}, {"det": golden}, tolerances)
    assert right.emulation(None).verdict == "good" if precision == "fp16" else True


def test_ranges_are_those_of_bounded_functions() -> None:
    text = """(float[2,4] x) => (float[2,3] mixed, float[2,4] sum, float[2,4] t, int64[2] best) {
        h = MatMul(x, w) s = Sigmoid(h) t0 = Tanh(h) t = Mul(t0, three)
        a, b = Split<axis = 1>(s) u = Slice(x, zero, one, one) mixed = Concat<axis = 1>(u, a)
        sum = MatMul(s, w) best = ArgMax<axis = 1, keepdims = 0>(s)
    }"""
    weights = {"w": models.random(4, 4), "three": np.float32(3), "zero": np.array([0]), "one": np.array([1])}
    model = Model.from_proto(models.model(text, weights))
    ranges = output_ranges(model, {"x": models.random(2, 4)})
    assert ranges.keys() == {"mixed", "t"}
    assert ranges["mixed"].tolist() == [[0, 1, 1]] * 2 and ranges["t"].max() == ranges["t"].min() == 6


def test_random_data_does_not_blame_fp32() -> None:
    # The sum cancels: rounding of FP32 is all that is left.
    text = "(float[4,64] x) => (float[4,64] y) { a = Add(x, big) b = Sub(a, same) y = MatMul(b, w) }"
    weights = {"big": np.float32(3e6), "same": np.float32(3e6), "w": models.random(64, 64, scale=0.1)}
    case = Case(models.model(text, weights), {"x": models.random(4, 64)}, name="cancelling")
    right = right_model(case, "fp32")
    assert right.noise.insufficient
    report = compare_outputs({"y": right.golden[0][1][0]["y"] + np.float32(1)}, right.golden, right.tolerances(None))
    evidence = Evidence(
        source="random data",
        random=True,
        feeds=1,
        samples=4,
        rows=4,
        shapes=(),
        reference="",
        limits="",
        margin="",
        elements=1,
    )
    evaluation = Evaluation(report=report, evidence=evidence, noise=right.noise)
    assert evaluation.verdict == "unproven" and "random data" in evaluation.reasons[0]
    assert not any("does not suffice" in reason for reason in evaluation.reasons)
    with_real_data = replace(evaluation, evidence=replace(evidence, random=False))
    assert with_real_data.verdict == "bad" and "FP32 does not suffice" in with_real_data.reasons[0]
