"""The precision that an engine really computes in, and the verdict on it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from tests import models, zoo
from tests.models import Case
from trtops.backend.onnx.model import Model
from trtops.backend.onnxrt.builder import OnnxRuntimeBackend
from trtops.comparator import compare_outputs
from trtops.ops.engines.convert import ConvertConfig, ConvertResult, builds_table, convert
from trtops.ops.evaluation.check import CheckConfig, Evaluation
from trtops.ops.evaluation.precision_check import check_precision
from trtops.spec import BuildConfig, Layer, Precision
from trtops.tracking import schema
from trtops.tracking.memory import MemoryTracker


def converted(
    case: Case, precision: Precision, folder: Path, tracker: MemoryTracker | None = None, share: float = 0.0
) -> ConvertResult:
    np.savez(folder / "feed.npz", **dict(case.feed))
    check = CheckConfig(data=str(folder / "feed.npz"), latency_runs=0, min_precision_share=share)
    config = ConvertConfig(build=BuildConfig(precision=precision), check=check)
    return convert(case.write(folder), config, tracker=tracker or MemoryTracker())


def test_fp16_engine_with_fp32_kernels_is_named(tmp_path: Path) -> None:
    tracker = MemoryTracker()
    result = converted(zoo.classifier(), "fp16", tmp_path, tracker)

    assert result.verdict == "good" and result.called == "FP32 (not FP16)"
    assert "0% compute in the requested FP16" in result.page()  # the engine is smaller in some releases
    assert "FP32 (not FP16)" in builds_table([result]) and " 0% " in builds_table([result])
    info = tracker.info(result.run_id)
    assert info.metrics[schema.Metric.KERNELS_LOWERED] == 0.0
    assert "FP16 as a GPU rounds it, emulated: good" in info.tags[schema.Tag.NOTE]
    assert Evaluation.from_json(result.evaluation.to_json()) == result.evaluation

    computed = result.evaluation.computed
    table = json.loads(tracker.load(result.run_id).read_bytes(schema.Artifact.PRECISIONS))
    rows = [dict(zip(table["columns"], row)) for row in table["data"]]
    counted = [row for row in rows if row["counted"]]
    assert {row["asked for"] for row in rows} == {"fp16"} and {row["computes in"] for row in counted} == {"fp32"}
    assert computed is not None and len(counted) == sum(count for _, count in computed.kernels)

    # Emulation stands in for FP16 kernels of ONNX Runtime only: TensorRT has them.
    on_tensorrt = replace(result.evaluation, computed=replace(computed, backend="tensorrt"))
    assert on_tensorrt.verdict == "bad" and on_tensorrt.reasons[0].startswith("No FP16 engine: Of ")
    assert on_tensorrt.computed is not None and on_tensorrt.computed.low_precision is None
    # Nor does it for a share that is required.
    required = converted(zoo.classifier(), "fp16", tmp_path, share=0.5)
    assert required.evaluation.emulated is not None and required.evaluation.emulated.verdict == "good"
    assert required.verdict == "bad" and required.reasons[-1].startswith("No FP16 engine: Of ")
    assert "at least 50% are required" in required.reasons[-1]


def test_fp32_and_int8_engines_are_called_so(tmp_path: Path) -> None:
    for precision in ("fp32", "int8"):
        result = converted(zoo.classifier(), precision, tmp_path)  # type: ignore[arg-type]
        assert (result.called, result.verdict) == (precision.upper(), "good")
        assert result.evaluation.computed is not None and result.evaluation.computed.share == 1.0
        assert result.evaluation.emulated is None


def test_fp16_overflow_is_found_by_emulation(tmp_path: Path) -> None:
    tracker = MemoryTracker()
    result = converted(zoo.overflowing(), "fp16", tmp_path, tracker)

    assert result.evaluation.report.verdict == "good"
    assert result.verdict == tracker.info(result.run_id).verdict == "bad"
    assert result.reasons[0] == "in FP16 as a GPU rounds it: 'h' overflows, 79,488 > 65,504"
    assert tracker.info(result.run_id).metrics[schema.Metric.EMULATED_OVERFLOWS] == 1


def test_overflow_hidden_from_outputs_is_found(tmp_path: Path) -> None:
    proto = models.model(
        "(float[2,8] x) => (float[2,8] y) { h = MatMul(x, big) y = Tanh(h) }", {"big": np.full((8, 8), 2e4, np.float32)}
    )
    result = converted(Case(proto, {"x": np.ones((2, 8), np.float32)}, name="hidden"), "fp16", tmp_path)
    assert result.evaluation.emulated is not None and result.evaluation.emulated.report.verdict == "good"
    assert result.verdict == "bad" and "'h' overflows, 160,000" in result.reasons[0]
    masked = converted(zoo.masked_attention(), "fp16", tmp_path)
    assert masked.verdict == "good"  # a mask that is filled is no overflow
    assert masked.evaluation.emulated is not None and masked.evaluation.emulated.overflows == ()


def test_int8_without_integer_kernels_is_bad() -> None:
    build = OnnxRuntimeBackend().build(Model.from_proto(zoo.lstm().proto), BuildConfig())
    asked = replace(build, spec=replace(build.spec, config=BuildConfig(precision="int8")))
    found = check_precision(asked)

    assert (found.share, found.lowered, found.name) == (0.0, False, "FP32 (not INT8)")
    golden = compare_outputs({"y": np.ones(3)}, {"y": np.ones(3)})
    evaluation = Evaluation(report=golden, computed=found)
    assert golden.verdict == "good" and evaluation.verdict == "bad"
    assert evaluation.reasons[0].startswith("No INT8 engine: Of 2 kernels 2 in FP32.")


def test_layers_give_precisions_without_tactics() -> None:
    build = OnnxRuntimeBackend().build(Model.from_proto(models.conv_net().proto), BuildConfig())
    layers = (
        Layer(name="a", op="Convolution", precision="fp16"),
        Layer(name="b", op="Convolution", precision="fp32"),
        Layer(name="c", op="Reformat", precision="fp32"),
    )
    asked = replace(
        build,
        layers=layers,
        tactics=replace(build.tactics, mechanism="algorithm_selector"),
        spec=replace(build.spec, config=BuildConfig(precision="fp16")),
    )
    assert check_precision(asked).share == 0.5 and check_precision(asked).name == "FP16"
    assert check_precision(asked, limit=0.5).lowered and check_precision(asked, limit=0.5).name == "FP16"
    below = check_precision(asked, limit=0.6)
    assert (below.lowered, below.name) == (False, "FP16 in 50%")
    assert "50% compute in the requested FP16; at least 60% are required." in below.reason()
