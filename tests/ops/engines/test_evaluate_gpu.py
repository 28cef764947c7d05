"""Plans that plain TensorRT builds: good ones are good, wrong ones are named."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import trtops
from tests import models
from tests.gates import with_wrong_weight
from trtops.tracking.memory import MemoryTracker
from trtops.tracking.mlflow import MlflowTracker

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


def plan(
    proto: onnx.ModelProto,
    path: Path,
    *,
    flags: tuple[str, ...] = (),
    profiles: int = 1,
    level: int = 1,
    ranges: dict[str, float] | None = None,
    swap_outputs: bool = False,
) -> None:
    """Build a plan by TensorRT's own Python API; ``ranges`` are the largest values of tensors for INT8."""
    import tensorrt as trt

    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    batch: Any = getattr(trt.NetworkDefinitionCreationFlag, "EXPLICIT_BATCH", None)
    network = builder.create_network(0 if batch is None else 1 << int(batch))
    parser, config = trt.OnnxParser(network, logger), builder.create_builder_config()
    assert parser.parse(proto.SerializeToString())
    for flag in flags:
        config.set_flag(getattr(trt.BuilderFlag, flag))
    config.builder_optimization_level = level
    tensors = [network.get_input(index) for index in range(network.num_inputs)]
    if ranges is not None:
        layers = [network.get_layer(index) for index in range(network.num_layers)]
        for tensor in tensors + [layer.get_output(index) for layer in layers for index in range(layer.num_outputs)]:
            tensor.dynamic_range = (-ranges[tensor.name], ranges[tensor.name])
    if swap_outputs:
        first, second = (network.get_output(index) for index in range(2))
        first.name, second.name = "b_", "a"
        first.name = "b"
    if any(size < 0 for tensor in tensors for size in tensor.shape):
        for number in range(profiles):
            profile = builder.create_optimization_profile()
            for tensor in tensors:
                sizes = [
                    tuple(size if dim < 0 else dim for dim in tensor.shape) for size in (1, 2 + number, 4 + number)
                ]
                profile.set_shape(tensor.name, *sizes)
            config.add_optimization_profile(profile)
    path.write_bytes(bytes(builder.build_serialized_network(network, config)))


def largest_values(case: models.Case) -> dict[str, float]:
    """The largest absolute value of each tensor on the case's feed."""
    proto = onnx.ModelProto.FromString(case.proto.SerializeToString())
    names = [name for node in proto.graph.node for name in node.output]
    marked = {value.name for value in proto.graph.output}
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in marked)
    arrays = {**case.feed, **models.run(proto, case.feed)}
    return {name: float(np.abs(array).max()) for name, array in arrays.items()}


def saturated(proto: onnx.ModelProto, largest: float) -> onnx.ModelProto:
    """The model with its input ``x`` in 8 bits, whose largest value is too small.

    By nodes, which TensorRT follows; with ranges alone it may choose FP32.
    """
    wrong = onnx.ModelProto.FromString(proto.SerializeToString())
    for node in wrong.graph.node:
        node.input[:] = ["x_d" if name == "x" else name for name in node.input]
    scale = onnx.numpy_helper.from_array(np.float32(largest / 127), "x_scale")
    zero = onnx.numpy_helper.from_array(np.int8(0), "x_zero")
    wrong.graph.initializer.extend([scale, zero])
    wrong.graph.node.insert(0, onnx.helper.make_node("QuantizeLinear", ["x", "x_scale", "x_zero"], ["x_q"]))
    wrong.graph.node.insert(1, onnx.helper.make_node("DequantizeLinear", ["x_q", "x_scale", "x_zero"], ["x_d"]))
    return wrong


def twins() -> models.Case:
    """Two outputs of one shape."""
    text = """(float[4,8] x) => (float[4,6] a, float[4,6] b) {
        [left] a = MatMul(x, wa)
        [right] b = MatMul(x, wb)
    }"""
    weights = {"wa": models.random(8, 6, seed=1), "wb": models.random(8, 6, seed=2)}
    return models.Case(models.model(text, weights, name="twins"), {"x": models.random(4, 8, seed=3)}, name="twins")


def test_plans_of_plain_tensorrt(tmp_path: Path) -> None:
    """Eighteen plans of five models in one folder, five of them wrong in different ways.

    Plain TensorRT computes in TF32, which the sums of ``overflowing`` show.
    """
    (engines := tmp_path / "engines").mkdir()
    (onnx_files := tmp_path / "models").mkdir()
    net, wide, overflowing = models.conv_net(), models.two_convolutions(3, 4), models.overflowing()
    cases = {"net": net, "wide": wide, "twins": twins(), "overflowing": overflowing, "identity": models.identity()}
    protos = {name: case.proto for name, case in cases.items()}
    for name, case in cases.items():
        case.write(onnx_files, name)

    for name in ("net", "wide", "twins", "overflowing", "identity"):
        plan(protos[name], engines / f"{name}_fp32.plan")
    for name in ("net", "wide", "twins", "identity"):
        plan(protos[name], engines / f"{name}_half.plan", flags=("FP16",))
    plan(protos["net"], engines / "net_tf32.engine", flags=("TF32",), level=3)
    plan(protos["net"], engines / "net_two_profiles.plan", profiles=2)
    plan(protos["wide"], engines / "wide_refit.trt", flags=("REFIT",))
    plan(protos["wide"], engines / "wide_int8.plan", flags=("INT8",), ranges=largest_values(wide))

    wrong = dict.fromkeys(("net_other_weights", "wide_saturated", "wide_older", "twins_swapped"), "bad")
    wrong["net_cut"] = "error"
    plan(models.off_by(protos["net"], 3.0, "relu0"), engines / "net_other_weights.plan")
    plan(saturated(protos["wide"], 0.05), engines / "wide_saturated.plan", flags=("INT8",))
    plan(with_wrong_weight(protos["wide"]), engines / "wide_older.plan")
    plan(protos["twins"], engines / "twins_swapped.plan", swap_outputs=True)
    (engines / "net_cut.plan").write_bytes((engines / "net_fp32.plan").read_bytes()[:-100])

    result = trtops.evaluate(engines, onnx_files, tracker=MemoryTracker())

    by_name = {Path(engine.file).stem: engine for engine in result.engines}
    assert len(by_name) == 18
    others = {n: (e.verdict, e.reasons) for n, e in by_name.items() if e.verdict != wrong.get(n, "good")}
    assert others == {}
    for name in by_name.keys() - {"net_cut"}:
        assert {"builder flags", "calibration data"} <= set(by_name[name].unknown), name


def test_plan_of_another_model_is_bad(tmp_path: Path) -> None:
    case = models.conv_net()
    plan(models.two_convolutions(3, 4).proto, tmp_path / "net.plan")

    result = trtops.evaluate(tmp_path / "net.plan", case.write(tmp_path, "net"), tracker=MemoryTracker())

    assert result.verdict == "bad" and "its inputs are" in " ".join(result.reasons), result.reasons


def test_plan_built_elsewhere_is_promoted_gated_and_audited(tmp_path: Path) -> None:
    case, tracker = models.conv_net(), MlflowTracker(tmp_path / "mlruns")
    model, data = case.write(tmp_path, "net"), tmp_path / "feed.npz"
    np.savez(data, **case.feed)  # type: ignore[arg-type]
    plan(case.proto, tmp_path / "net.plan", flags=("FP16",))

    run = trtops.evaluate(tmp_path / "net.plan", model, data=str(data), tracker=tracker)
    accepted = trtops.promote(run.run_id, tracker=tracker)
    audited = trtops.audit(runs=(run.run_id, accepted.run_id), tracker=tracker)

    assert run.verdict == "good" and accepted.engine_sha256 == run.engines[0].engine_sha256
    assert trtops.resolve(model, backend="tensorrt", tracker=tracker, name="net").run_id == accepted.run_id
    assert audited.verdict == "good" and "not rebuilt" in audited.page(), audited.page()
