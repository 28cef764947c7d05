"""The tools on models and engines on real TensorRT and a GPU, with planted failures; ``-s`` shows the results."""

import dataclasses
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests import models
from trtops import accuracy, precision, reduce
from trtops.backend.base import BuildRequest
from trtops.backend.onnx.model import Model
from trtops.comparator.report import Tolerances, compare_outputs
from trtops.ops.campaign.diff_tactics import DiffTacticsConfig, diff_tactics
from trtops.ops.comparing.compare import compare
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.search.accuracy import AccuracyConfig
from trtops.ops.search.command import CommandCheck
from trtops.ops.search.precision import PrecisionConfig
from trtops.ops.search.precision_engines import EngineWriter
from trtops.ops.search.reduce import ReduceConfig
from trtops.ops.search.repeat import RepeatConfig, repeat
from trtops.ops.search.submodel import ComparisonCheck, EngineRunner
from trtops.spec import BuildConfig, OptimizationProfile, TensorRTOptions
from trtops.tracking.memory import MemoryTracker

pytestmark = pytest.mark.gpu

QUICK = TensorRTOptions(optimization_level=1)
FP16 = BuildConfig(precision="fp16", options=QUICK)
FP32 = BuildConfig(options=QUICK)
LOOSE = Tolerances(atol=0.05, rtol=0.05)


@pytest.fixture(scope="module")
def conv_engine(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A small network in FP32: its ONNX file and its engine."""
    from trtops.backend.trt import TensorRTBackend

    folder = tmp_path_factory.mktemp("conv_net")
    case = models.conv_net()
    path = case.write(folder)
    config = dataclasses.replace(FP32, profiles=(OptimizationProfile.fixed(image=(2, 3, 8, 8)),))
    build = TensorRTBackend().build(BuildRequest(Model.load(path), config))
    (folder / "conv_net.engine").write_bytes(build.engine.plan)
    (folder / "tactics.json").write_text(build.tactics.to_json())
    np.savez(folder / "feed.npz", **case.feed)
    return path, folder / "conv_net.engine"


def test_overflowing_layers_are_kept_by_layer_precisions(tmp_path: Path) -> None:
    from trtops.backend.onnxrt.runner import reference_outputs
    from trtops.backend.trt import (
        CreateConfig,
        NetworkFromOnnxBytes,
        SetLayerPrecisions,
        TrtRunner,
        engine_from_network,
    )
    from trtops.backend.trt.describe.inspector import read_layers

    case = models.overflowing()
    config = PrecisionConfig(tolerances=LOOSE, output=str(tmp_path / "mixed.onnx"))

    result = precision(case.proto, config, data=[case.feed], runner=EngineWriter().runner, progress=print)

    print(result.keep, f"{result.checks} checks in {result.seconds:.1f} s")
    assert result.outcome == "mixed" and result.minimal
    assert {"conv1", "conv2"} <= set(result.keep) <= {"conv1", "relu1", "conv2"}
    kinds = {
        t.name: t.type.tensor_type.elem_type
        for t in onnx.shape_inference.infer_shapes(onnx.load(tmp_path / "mixed.onnx")).graph.value_info
    }
    assert kinds["c"] == onnx.TensorProto.FLOAT and onnx.TensorProto.FLOAT16 in kinds.values()

    network = NetworkFromOnnxBytes(case.proto.SerializeToString())
    constrained_network = SetLayerPrecisions(network, dict.fromkeys(result.keep, "float32"))
    engine = engine_from_network(constrained_network, CreateConfig(fp16=True, precision_constraints="obey"))
    layers = {layer.name.split(" ")[0]: layer.precision for layer in read_layers(engine)}
    with TrtRunner(engine) as runner:
        outputs = [{"y": np.array(runner.infer(case.feed)["y"])}]
    [golden] = reference_outputs(case.proto, [case.feed])
    print(layers)
    assert layers["conv1"] == layers["conv2"] == "fp32" and layers["conv0"] == "fp16"
    assert compare_outputs(outputs, [dict(golden)], LOOSE).verdict == "good"


def test_nodes_that_the_parser_folds_are_kept_nowhere() -> None:
    # A bias is computed by nodes that fold into a constant; one of them has no name.
    case = models.overflowing()
    graph = case.proto.graph
    graph.node[-1].output[0] = "without_bias"
    for name, value in {"bias": models.random(14, 1), "minus": np.float32(-1)}.items():
        graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    graph.node.append(onnx.helper.make_node("Transpose", ["bias"], ["turned"], "turn", perm=[1, 0]))
    graph.node.append(onnx.helper.make_node("Mul", ["turned", "minus"], ["negated"]))
    graph.node.append(onnx.helper.make_node("Neg", ["negated"], ["computed"], "negate"))
    graph.node.append(onnx.helper.make_node("Add", ["without_bias", "computed"], [graph.output[0].name], "add"))

    result = precision(case.proto, PrecisionConfig(tolerances=LOOSE), data=[case.feed], runner=EngineWriter().runner)

    print(result)
    assert result.outcome == "mixed" and {"conv1", "conv2"} <= set(result.keep)


def test_accuracy_finds_where_fp16_overflows() -> None:
    case = models.overflowing()

    marked = accuracy(case.proto, FP16, AccuracyConfig(tolerances=LOOSE), data=[case.feed])

    print(marked)
    assert marked.verdict == "bad"
    # With marked outputs a convolution can compute in FP16 and write FP32: then the error disappears.
    assert marked.disappears or {marked.first, marked.first_nonfinite} <= {"c", "d", "y"}
    assert not marked.tensors or {t.verdict for t in marked.tensors if t.name in ("a", "b")} == {"good"}
    assert any("conv1" in tensor.layer for tensor in marked.tensors)


def test_accuracy_of_an_fp32_engine_is_good(conv_engine: tuple[Path, Path]) -> None:
    case = models.conv_net()
    config = dataclasses.replace(FP32, profiles=(OptimizationProfile.fixed(image=(2, 3, 8, 8)),))

    result = accuracy(case.proto, config, AccuracyConfig(tolerances=Tolerances(atol=1e-4, rtol=1e-3)), data=[case.feed])

    print(result)
    assert (result.verdict, result.first, result.first_nonfinite) == ("good", None, None)
    assert {tensor.name for tensor in result.tensors} >= {"c0", "r0", "scores"}


def test_reduce_finds_an_overflowing_convolution(tmp_path: Path) -> None:
    case = models.overflowing()
    check = ComparisonCheck(runner=EngineRunner(FP16), tolerances=LOOSE)
    config = ReduceConfig(output=str(tmp_path / "small.onnx"))

    result = reduce(case.proto, check, config, data=[case.feed], progress=print)

    assert result.verdict == "bad"
    culprit = result.culprit
    assert culprit.minimal
    assert {node.name for node in culprit.nodes} <= {"conv1", "relu1", "conv2"} and len(culprit.nodes) <= 2
    assert len(onnx.load(tmp_path / "small.onnx").graph.node) == len(culprit.nodes)


def test_an_engine_file_is_compared_with_its_model(conv_engine: tuple[Path, Path]) -> None:
    path, engine = conv_engine
    check = CheckConfig(data=str(path.with_name("feed.npz")), latency_runs=5, warm_up=1)
    tracker = MemoryTracker()

    usual, strict = (
        compare(engine, path, dataclasses.replace(check, tolerances=t), tracker=tracker)
        for t in (Tolerances(atol=1e-4, rtol=1e-4), Tolerances(min_snr=500))
    )

    assert usual.verdict == "good" and strict.verdict == "bad" and strict.reasons
    assert usual.evaluation.latency.runs == 5
    assert tracker.info(usual.run_id).metrics["error", "max_abs"] < 1e-4


def test_builds_are_repeated_and_sorted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trtops.backend.trt import CreateConfig, NetworkFromOnnxBytes, TacticRecorder, engine_bytes_from_network

    monkeypatch.chdir(tmp_path)
    network = NetworkFromOnnxBytes(models.conv_net().proto.SerializeToString())

    def make(number: int) -> None:
        config = CreateConfig(algorithm_selector=TacticRecorder("replay.json"), builder_optimization_level=number + 1)
        Path("repeated.engine").write_bytes(bytes(engine_bytes_from_network(network, config)))
        Path("number").write_text(str(number))

    evaluate = "import sys; sys.exit(open('number').read() == '1' or len(open('repeated.engine', 'rb').read()) < 1000)"
    check = CommandCheck(command=(sys.executable, "-c", evaluate), artifact="repeated.engine")
    config = RepeatConfig(until=3, artifacts=("replay.json",), folder="replays", intermediate="repeated.engine")

    result = repeat(make, check, config)

    assert [step.verdict for step in result.steps] == ["good", "bad", "good"]
    assert [len(list(Path("replays", kind).iterdir())) for kind in ("good", "bad")] == [2, 1]
    assert not Path("repeated.engine").exists()
    diff = diff_tactics(DiffTacticsConfig(folder="replays"), tracker=MemoryTracker())
    print(diff.diff.summary)
    assert diff.builds == 3 and not diff.skipped
