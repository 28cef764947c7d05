"""The precision that an engine computes in, of real engines."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from tests import models, zoo
from tests.gates import with_wrong_weight
from tests.models import Case
from trtops import errors
from trtops.backend.base import BuildRequest
from trtops.backend.onnx.model import Model
from trtops.backend.onnxrt.builder import OnnxRuntimeBackend
from trtops.comparator import compare_outputs
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.engines.convert_result import ConvertResult, builds_table
from trtops.ops.evaluation.check import CheckConfig, Evaluation
from trtops.ops.evaluation.precision_check import PrecisionCheck, check_precision
from trtops.ops.registry.promote import promote
from trtops.ops.stored_runs import list_runs
from trtops.reports.sections import facts_of
from trtops.spec import BuildConfig, Layer, OnnxRuntimeOptions, Precision
from trtops.tracking import schema
from trtops.tracking.memory import MemoryTracker
from trtops.verdict import unmarked


def converted(
    case: Case,
    precision: Precision,
    folder: Path,
    tracker: MemoryTracker | None = None,
    share: float = 0.0,
    calibrated_at: float | None = None,  # multiple of the feed
) -> ConvertResult:
    np.savez(folder / "feed.npz", **dict(case.feed))
    check = CheckConfig(data=str(folder / "feed.npz"), latency_runs=0, plots="never", min_precision_share=share)
    build = BuildConfig(precision=precision, options=OnnxRuntimeOptions(tactics=()))
    config = ConvertConfig(build=build, check=check, isolated=False)
    if calibrated_at is not None:
        np.savez(
            folder / "smaller.npz", **{name: array * np.float32(calibrated_at) for name, array in case.feed.items()}
        )
        config = replace(config, calibration_data=str(folder / "smaller.npz"))
    return convert(case.write(folder), config, tracker=tracker or MemoryTracker())


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_sound_engines_are_within_limits(precision: Precision, tmp_path: Path) -> None:
    tracker = MemoryTracker()
    result = converted(zoo.classifier(), precision, tmp_path, tracker)
    assert (result.called, result.verdict) == (precision.upper(), "good")
    assert result.evaluation.computed.share == 1.0 and result.evaluation.emulated is None


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_wrong_engines_are_bad(precision: Precision, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = OnnxRuntimeBackend.build

    def build_another(self, request):  # one weight a tenth too large, as a wrong kernel would compute
        model = request.model
        wrong_model = Model.from_proto(with_wrong_weight(model.proto(), 1.1), model.name)
        wrong_build = build(self, replace(request, model=wrong_model))
        return replace(wrong_build, spec=replace(wrong_build.spec, model_sha256=model.info.sha256))

    monkeypatch.setattr(OnnxRuntimeBackend, "build", build_another)
    result = converted(models.conv_net(), precision, tmp_path)
    assert result.verdict == "bad" and not result.evaluation.noise.reasons(result.evaluation.report)


def test_insufficient_precision_is_the_cause(tmp_path: Path) -> None:
    """Weights of INT8 per channel are 1/254 of the largest of theirs: a thousandth of it rounds to nothing."""
    weight = np.full((64, 16), 1e-3, np.float32)
    weight[0] = 1.0
    proto = models.model("(float[4,64] x) => (float[4,16] y) { y = MatMul(x, w) }", {"w": weight})
    x = np.abs(models.random(4, 64, seed=3))
    x[:, 0] = 0
    result = converted(Case(proto, {"x": x}, name="lost"), "int8", tmp_path)
    assert result.verdict == "bad" and "INT8 does not suffice for this model on this data" in result.reasons[0]


def test_failed_emulation_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse = Mock(side_effect=errors.BackendError("no such kernel"))
    monkeypatch.setattr("trtops.ops.evaluation.right_model.run_in_16_bit", refuse)
    result = converted(zoo.classifier(), "fp16", tmp_path)
    assert "its noise was not measured (no such kernel)" in result.evidence


def test_fp16_engine_with_fp32_kernels_is_named(tmp_path: Path) -> None:
    tracker = MemoryTracker()
    result = converted(zoo.classifier(), "fp16", tmp_path, tracker)
    assert result.verdict == "good" and result.called == "FP32 (not FP16)"
    assert "0% compute in the requested FP16" in result.page()  # the engine is smaller in some releases
    with pytest.raises(errors.ConfigError, match="expected 0 or more, at most 1"):
        CheckConfig(min_precision_share=1.5)
    assert "FP32 (not FP16)" in str(builds_table([result]))
    info = tracker.info(result.run_id)
    assert info.metrics[schema.Metric.KERNELS_LOWERED] == 0.0
    assert "FP16 as a GPU rounds it, emulated: good" in info.tags[schema.Tag.NOTE]
    assert " FP32 (not FP16) ort " in info.name
    assert (info.params["precision"], info.params["computes_in"]) == ("fp16", "FP32 (not FP16)")
    assert [row.name for row in list_runs(tracker)] == [info.name]
    assert facts_of(info)["Size and speed"][0] == ("precision", "FP32 (not FP16)")
    promoted = promote(result.run_id, tracker=tracker)
    assert tracker.info(promoted.run_id).name == f"promote {unmarked(info.name)}"
    assert tracker.registered(promoted.name, promoted.alias).tags[schema.Tag.COMPUTES_IN] == "FP32 (not FP16)"
    assert Evaluation.from_json(result.evaluation.to_json()) == result.evaluation

    computed = result.evaluation.computed
    table = json.loads(tracker.load(result.run_id).read_bytes(schema.Artifact.PRECISIONS))
    rows = [dict(zip(table["columns"], row)) for row in table["data"]]
    counted = [row for row in rows if row["counted"]]
    assert {row["asked for"] for row in rows} == {"fp16"} and {row["computes in"] for row in counted} == {"fp32"}
    assert len(counted) == sum(count for _, count in computed.kernels)

    # Emulation stands in for FP16 kernels of ONNX Runtime only: TensorRT has them.
    on_tensorrt = replace(result.evaluation, computed=replace(computed, emulates=False))
    assert on_tensorrt.verdict == "bad" and on_tensorrt.reasons[0].startswith("No FP16 engine: Of ")
    assert on_tensorrt.computed.low_precision is None
    # Nor does it for a share that is required.
    required = converted(zoo.classifier(), "fp16", tmp_path, share=0.5)
    assert required.evaluation.emulated.verdict == "good"
    assert required.verdict == "bad" and required.reasons[-1].startswith("No FP16 engine: Of ")
    assert "at least 50% are required" in required.reasons[-1]


def test_fp16_overflow_is_found_by_emulation(tmp_path: Path) -> None:
    tracker = MemoryTracker()
    result = converted(zoo.overflowing(), "fp16", tmp_path, tracker, calibrated_at=0.1)
    assert result.evaluation.report.verdict == "good"
    assert result.verdict == tracker.info(result.run_id).verdict == "bad"
    assert result.reasons[0] == "in FP16 as a GPU rounds it: 'h' overflows, 79,488 > 65,504"
    assert tracker.info(result.run_id).metrics["error", "of_limit"] > 1


def test_overflow_hidden_from_outputs_is_found(tmp_path: Path) -> None:
    proto = models.model(
        "(float[2,8] x) => (float[2,8] y) { h = MatMul(x, big) y = Tanh(h) }", {"big": np.full((8, 8), 2e4, np.float32)}
    )
    result = converted(
        Case(proto, {"x": np.ones((2, 8), np.float32)}, name="hidden"), "fp16", tmp_path, calibrated_at=0.1
    )
    assert result.evaluation.emulated.report.verdict == "good"
    assert result.verdict == "bad" and "'h' overflows, 160,000" in result.reasons[0]
    masked = converted(zoo.masked_attention(), "fp16", tmp_path)
    # A mask that is filled is no overflow.
    assert masked.verdict == "good" and masked.evaluation.emulated.overflows == ()


CONV_Q = models.random(8, 3, 3, 3, seed=1, scale=20).astype(np.int8)
DENSE_Q = models.random(32, 16, seed=2, scale=20).astype(np.int8)
DENSE = {"q": DENSE_Q, "s": np.full(16, 5e-3, np.float32)}
QUANTIZED: dict[str, tuple[int, str, dict[str, Any]]] = {  # operator set, nodes that compute `h` from `x`, and weights
    "per channel": (13, """a = QuantizeLinear(x, sa, za) b = DequantizeLinear(a, sa, za)
        c = DequantizeLinear<axis = 0>(q, s) d = Conv(b, c) e = Relu(d) h = GlobalAveragePool(e)""",
        {"q": CONV_Q, "s": np.full(8, 5e-3, np.float32)}),
    "QLinearConv": (13, """a = QuantizeLinear(x, sa, za) b = QLinearConv(a, sa, za, q, s, za, sa, za)
        d = DequantizeLinear(b, sa, za) e = Relu(d) h = GlobalAveragePool(e)""",
        {"q": CONV_Q, "s": np.full(8, 5e-3, np.float32)}),
    "pairs of scales in FP16": (19, """a = QuantizeLinear(x, sa, za) b = DequantizeLinear(a, sa, za)
        v = QuantizeLinear<axis = 1>(w, s, zs) c = DequantizeLinear<axis = 1>(v, s, zs) d = MatMul(b, c) h = Tanh(d)""",
        {"w": DENSE_Q.astype(np.float32) * np.float32(5e-3), "s": DENSE["s"], "zs": np.zeros(16, np.int8)}),
    "newest": (25, """a = QuantizeLinear(x, sa, za) b = DequantizeLinear(a, sa, za)
        c = DequantizeLinear<axis = 1>(q, s) d = MatMul(b, c) h = Tanh(d)""", DENSE),
    "INT8 weights": (13, "c = DequantizeLinear<axis = 1>(q, s) d = MatMul(x, c) h = Tanh(d)", DENSE),
    "INT4 weights": (21, "c = DequantizeLinear<axis = 0, block_size = 16>(q, s) d = MatMul(x, c) h = Tanh(d)",
        {"q": DENSE_Q % 15 - 7, "s": np.full((2, 16), 0.05, np.float32)}),
    "FP8 weights": (19, "c = DequantizeLinear(q, s) d = MatMul(x, c) h = Tanh(d)",
        {"q": DENSE_Q, "s": np.float32(5e-3)}),
    "dynamic": (13, """a, sx, zx = DynamicQuantizeLinear(x) b = MatMulInteger(a, q, zx) c = Cast<to = 1>(b)
        t = Mul(sx, s) d = Mul(c, t) h = Tanh(d)""", DENSE),
}  # fmt: skip
TYPES = {"INT4 weights": TensorProto.INT4, "FP8 weights": TensorProto.FLOAT8E4M3FN}


def quantized(kind: str, *, sound: bool) -> Case:
    """A quantized layer, and behind it a product that FP16 holds or not."""
    opset, text, weights = QUANTIZED[kind]
    opset = min(opset, models.newest_opset())
    is_convolution = "Conv" in text
    inputs = "float[n,3,8,8] x" if is_convolution else "float[n,32] x"
    weights = weights | {"sa": np.float32(0.03), "za": np.int8(0), "big": np.float32(1e3 if sound else 5e5)}
    weights |= {"small": np.float32(1) / weights["big"]}
    output = "float[n,8,1,1] y" if is_convolution else "float[n,16] y"
    graph = f"({inputs}) => ({output}) {{ {text} p = Mul(h, big) y = Mul(p, small) }}"
    proto = models.model(graph, weights, opset=opset, ir_version=10)
    for tensor in proto.graph.initializer:
        if tensor.name == "q" and kind in TYPES:
            values = weights["q"].ravel().tolist()
            tensor.CopyFrom(helper.make_tensor("q", TYPES[kind], weights["q"].shape, values))
    x = models.random(8, 3, 8, 8) if is_convolution else models.random(8, 32)
    return Case(proto, {"x": x}, name="quantized")


@pytest.mark.parametrize("kind", QUANTIZED)
def test_quantized_models_are_emulated_in_16_bit(kind: str, tmp_path: Path) -> None:
    if kind == "pairs of scales in FP16" and tuple(map(int, ort.__version__.split(".")[:2])) <= (1, 23):
        pytest.skip("this release's engine is ten times less exact than FP16, and is called bad")
    good = converted(quantized(kind, sound=True), "fp16", tmp_path)
    assert good.verdict == "good" and good.evaluation.emulated.verdict == "good"
    assert good.evaluation.noise.outputs and not good.evaluation.noise.why_not
    [output] = good.evaluation.emulated.report.outputs
    assert output.statistics.max_abs > 0
    bad = converted(quantized(kind, sound=False), "fp16", tmp_path)
    assert bad.verdict == "bad" and any("'p' overflows" in reason for reason in bad.reasons)
    assert "emulated: good" not in bad.page() and "but the model sets its precisions: p" in bad.page()


def test_failed_emulation_of_quantized_models_is_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse = Mock(side_effect=errors.BackendError("no such kernel"))
    monkeypatch.setattr("trtops.ops.evaluation.right_model.run_in_16_bit", refuse)
    result = converted(quantized("QLinearConv", sound=True), "fp16", tmp_path)
    assert result.called == "INT8" and result.evaluation.report
    assert result.verdict == "bad" and result.evaluation.bad_in == ("precision",)
    assert "100% in a narrower precision" in result.reasons[-1]
    assert "The model does not run rounded to FP16 either" in result.reasons[-1]


@pytest.mark.parametrize("precision", ["fp16", "int8"])
@pytest.mark.parametrize("opset", [7, 8, 9, 10, 13, min(26, models.newest_opset())])
def test_old_and_new_operator_sets_are_good(opset: int, precision: Precision, tmp_path: Path) -> None:
    scales = "scales = [1.0,1.0,2.0,2.0], " if opset < 9 else ""
    op, inputs = "Upsample" if opset < 10 else "Resize", "c" if opset < 9 else "c, s" if opset < 11 else "c, , s"
    text = f"""(float[n,3,8,8] x) => (float[n,5] y) {{ a = Conv<pads = [1,1,1,1]>(x, w) c = Relu(a)
        u = {op}<{scales}mode = "linear">({inputs}) d = Conv(u, v) e = GlobalAveragePool(d) f = Flatten(e)
        y = Gemm(f, h, b) }}"""
    weights = {"w": models.random(8, 3, 3, 3, seed=1, scale=0.3), "v": models.random(8, 8, 3, 3, seed=2, scale=0.2)}
    weights |= {"h": models.random(8, 5, seed=3), "b": np.zeros(5, np.float32), "s": np.float32([1, 1, 2, 2])}
    proto = models.model(text, weights, opset=opset, ir_version=10)
    result = converted(Case(proto, {"x": models.random(8, 3, 8, 8, seed=4)}, name="old"), precision, tmp_path)
    assert result.verdict == "good" and not result.evaluation.noise.why_not


@pytest.mark.parametrize(
    ("precision", "kernels", "name", "sentence"),
    [
        (
            "fp16",
            {"int8": 21, "fp32": 2},
            "INT8+FP32 (not FP16)",
            "0% compute in the requested FP16, 91% in a narrower",
        ),
        ("fp16", {"int8": 21, "fp16": 2}, "INT8+FP16", "9% compute in the requested FP16, 91% in a narrower"),
        ("fp16", {"int8": 3}, "INT8", "0% compute in the requested FP16, 100% in a narrower"),
        ("fp16", {"fp32": 3}, "FP32 (not FP16)", "0% compute in the requested FP16."),
        ("fp16", {"fp32": 2, "fp16": 1}, "FP16 in 33%", "33% compute in the requested FP16."),
        ("fp32", {"int8": 21, "fp32": 2}, "INT8+FP32", "21 in INT8, 2 in FP32."),
        ("fp32", {"fp16": 2}, "FP16", "2 in FP16."),
        ("fp32", {"tf32": 2}, "TF32", "2 in TF32."),
        ("int8", {"int8": 21, "fp32": 2}, "INT8", "91% compute in the requested INT8."),
        ("int8", {"fp16": 9, "int8": 1}, "INT8 in 10%", "10% compute in the requested INT8."),
        ("bf16", {}, "BF16", "does not report"),
    ],
)
def test_builds_are_named_after_their_kernels(
    precision: Precision, kernels: dict[Any, int], name: str, sentence: str
) -> None:
    check = PrecisionCheck(requested=precision, kernels=tuple(kernels.items()))
    assert check.name == name and sentence in check.sentence()
    # 16 bit is emulated unless all kernels compute in it.
    assert (check.low_precision is not None) == (precision in ("fp16", "bf16"))


def test_precision_is_read_from_kernels_or_layers() -> None:
    build = OnnxRuntimeBackend().build(BuildRequest(Model.from_proto(zoo.lstm().proto), BuildConfig()))
    requested = replace(build, spec=replace(build.spec, config=BuildConfig(precision="int8")))
    precision_check = check_precision(requested)
    assert (precision_check.share, precision_check.lowered, precision_check.name) == (0.0, False, "FP32 (not INT8)")
    evaluation = Evaluation(report=compare_outputs({"y": np.ones(3)}, {"y": np.ones(3)}), computed=precision_check)
    assert evaluation.report and evaluation.verdict == "bad"
    assert evaluation.reasons[0].startswith("No INT8 engine: Of 2 kernels 2 in FP32.")

    # Without tactics, layers give the precisions.
    kinds = (("Convolution", "fp16"), ("Convolution", "fp32"), ("Reformat", "fp32"))
    requested = replace(
        build,
        layers=tuple(Layer(name=str(n), op=op, precision=precision) for n, (op, precision) in enumerate(kinds)),
        tactics=replace(build.tactics, mechanism="algorithm_selector"),
        spec=replace(build.spec, config=BuildConfig(precision="fp16")),
    )
    half = check_precision(requested, limit=0.5)
    assert (check_precision(requested).share, half.lowered, half.name) == (0.5, True, "FP16")
    below = check_precision(requested, limit=0.6)
    assert (below.lowered, below.name) == (False, "FP16 in 50%")
    assert "50% compute in the requested FP16; at least 60% are required." in below.reason()
