"""Further loaders, config parameters and refusals that need real TensorRT."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from tests import models
from trtops import errors
from trtops.backend.onnx.model import Model
from trtops.backend.onnx.sparsity import check_sparsity
from trtops.backend.trt import (
    BufferFromEngine,
    BytesFromEngine,
    CreateConfig,
    EngineFromBytes,
    EngineFromNetwork,
    LoadPlugins,
    NetworkFromOnnxBytes,
    TacticRecorder,
    TacticReplayData,
    TensorInfo,
    TensorRTBackend,
    TrtRunner,
    create_config,
    create_config_rtx,
    create_network,
    current_gpu,
    engine_bytes_from_network,
    engine_from_network,
    engine_from_path,
    get_trt_logger,
    library,
    load_plugins,
    load_runtime,
    mark_debug,
    modify_network_outputs,
    network_from_onnx_bytes,
    network_from_onnx_path,
    save_engine,
    set_decomposable_attentions,
    set_layer_precisions,
    set_tensor_datatypes,
    set_tensor_formats,
)
from trtops.backend.trt.library import load
from trtops.backend.trt.lines import Feature
from trtops.backend.trt.lines.support import CAPABILITIES
from trtops.cuda import DeviceArray
from trtops.spec import BuildConfig, OptimizationProfile, TensorRTOptions

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

QUICK = {"builder_optimization_level": 1}  # at 0 TensorRT 8.6 has no convolution without cuDNN


@pytest.fixture(scope="module")
def trt():
    return load()


@pytest.fixture(scope="module")
def line():
    return library.line()


def config_of(**options):
    """The builder config that parameters make, with what must live as long."""
    builder, network, parser = network_from_onnx_bytes(models.identity().proto.SerializeToString())
    return create_config(builder, network, **options), (builder, network, parser)


@pytest.mark.parametrize(
    ("options", "feature"),
    [
        ({"bf16": True}, "BF16_FLAG"),
        ({"strip_plan": True}, "STRIP_PLAN"),
        ({"error_on_timing_cache_miss": True}, "TIMING_CACHE_MISS_ERROR"),
        ({"disable_compilation_cache": True}, "COMPILATION_CACHE_SWITCH"),
        ({"progress_monitor": object()}, "PROGRESS_MONITOR"),
        ({"runtime_platform": "WINDOWS_AMD64"}, "RUNTIME_PLATFORM"),
        ({"tiling_optimization_level": "FAST"}, "TILING"),
        ({"edit_timing_cache": True}, "EDITABLE_TIMING_CACHE"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_features_of_later_releases_are_refused_by_title(line, options, feature):
    if line.supports(Feature[feature]):
        pytest.skip("this release has it")
    with pytest.raises(errors.UnsupportedFeatureError) as caught:
        config_of(**options)
    assert Feature[feature].title in str(caught.value) and Feature[feature].releases in str(caught.value)


def test_missing_dla_cores_are_reported(trt):
    builder, _network = create_network()
    if builder.num_DLA_cores:
        pytest.skip("this device has DLA cores")
    with pytest.raises(errors.UnsupportedFeatureError, match="no DLA core"):
        config_of(use_dla=True)


def test_rtx_config_is_refused_on_tensorrt():
    with pytest.raises(errors.UnsupportedFeatureError, match="RTX"):
        create_config_rtx(*create_network(), compute_capabilities=["SM89"])


def test_functions_change_outputs_types_and_formats(trt):
    proto = models.model("(float[2,8,4,6] x) => (float[2,8,4,6] y) { [a] a = Relu(x) [b] b = Neg(a) [c] y = Exp(b) }")
    parts = network_from_onnx_bytes(proto.SerializeToString())
    parts = modify_network_outputs(parts, outputs=["a"])
    parts = set_tensor_datatypes(parts, {"x": "float16", "a": np.float16})
    parts = set_tensor_formats(parts, {"a": ["CHW2"]})
    parts = set_layer_precisions(parts, {"a": "float16"})
    x = models.random(2, 8, 4, 6).astype(np.float16)

    with TrtRunner(
        engine_from_network(parts, CreateConfig(fp16=True, precision_constraints="obey", **QUICK))
    ) as runner:
        found = runner.infer({"x": x})
        assert list(found) == ["a"]
        np.testing.assert_array_equal(found["a"].linear(), np.maximum(x, 0))


def test_networks_are_refused_what_came_with_later_releases(line):
    if line.supports(Feature.DEBUG_TENSORS):
        pytest.skip("this release has debug tensors")
    data = models.identity().proto.SerializeToString()
    with pytest.raises(errors.UnsupportedFeatureError, match="debug tensors"):
        mark_debug(network_from_onnx_bytes(data), ["y"])
    with pytest.raises(errors.UnsupportedFeatureError, match="attention"):
        set_decomposable_attentions(network_from_onnx_bytes(data))
    with pytest.raises(errors.UnsupportedFeatureError, match="parser"):
        network_from_onnx_bytes(data, flags=["NATIVE_INSTANCENORM"])
    with pytest.raises(errors.InvalidModelError, match=r"absent\.onnx"):
        network_from_onnx_path("absent.onnx")


def test_engines_go_through_every_loader_and_its_twin(tmp_path: Path, trt):
    case = models.identity()
    runtime = trt.Runtime(get_trt_logger())
    load = EngineFromNetwork(
        NetworkFromOnnxBytes(case.proto.SerializeToString()), CreateConfig(**QUICK), runtime=runtime
    )
    engine = save_engine(LoadPlugins([], load), tmp_path / "identity.engine")

    assert get_trt_logger() is get_trt_logger()
    assert load_plugins(obj=7) == 7
    for other in (
        engine_from_path(tmp_path / "identity.engine"),
        EngineFromBytes(BytesFromEngine(engine), runtime=lambda: runtime)(),
        EngineFromBytes(BufferFromEngine(engine))(),
    ):
        with TrtRunner(other) as runner:
            case.check(runner.infer)


def test_missing_libraries_are_refused_by_name(tmp_path: Path):
    with pytest.raises(errors.BackendUnavailableError, match=r"absent\.so"):
        load_plugins([tmp_path / "absent.so"])
    with pytest.raises(errors.BackendUnavailableError, match=r"absent_lean\.so"):
        load_runtime(tmp_path / "absent_lean.so")
    with pytest.raises(errors.TrtopsError, match=r"absent\.engine"):
        engine_from_path(tmp_path / "absent.engine")


def test_a_recorded_algorithm_tells_how_its_tensors_lie():
    recorded = TacticReplayData()
    network = NetworkFromOnnxBytes(models.conv_net().proto.SerializeToString())
    engine_bytes_from_network(network, CreateConfig(algorithm_selector=TacticRecorder(recorded), **QUICK))

    [info] = {found for name, a in recorded.items() if name.startswith("conv0") for found in a.inputs[:1]}
    assert isinstance(info, TensorInfo)
    assert info.dtype == "DataType.FLOAT" and len(info.strides) == 4
    assert TacticReplayData.from_json(recorded.to_json()) == recorded


def test_what_tensorrt_says_goes_to_logging(caplog):
    with caplog.at_level(logging.INFO, "trtops.tensorrt"):
        engine_bytes_from_network(network_from_onnx_bytes(models.identity().proto.SerializeToString()))

    said = [record for record in caplog.records if record.name == "trtops.tensorrt"]
    assert {record.levelno for record in said} >= {logging.INFO}


def test_inference_works_after_running_out_of_memory():
    with pytest.raises(errors.BackendError, match=r"(?i)memory"):
        DeviceArray((current_gpu().memory_bytes,), np.float32)
    case = models.identity()
    network = NetworkFromOnnxBytes(case.proto.SerializeToString())
    with TrtRunner(engine_from_network(network, CreateConfig(**QUICK))) as runner:
        case.check(runner.infer)


def test_support_table_agrees_with_the_installed_release(line):
    major, minor = (int(part) for part in line.version.split(".")[:2])
    release = (f"{major}.{minor}", (major, minor), False)

    assert {f.name for f in Feature if f.is_in((major, minor), rtx=False)} == {f.name for f in line.features}
    for row in CAPABILITIES:
        assert (row.cell(release) != "-") == (row.feature is None or line.supports(row.feature))


def test_unknown_tactic_source_suggests_a_known_one():
    config = BuildConfig(options=TensorRTOptions(optimization_level=0, tactic_sources=("CUBLASS",)))
    with pytest.raises(errors.ConfigError, match="CUBLAS"):
        TensorRTBackend().build(Model.from_proto(models.identity().proto, "identity"), config)


def test_seeds_draw_different_tactics():
    case = models.conv_net()
    model = Model.from_proto(case.proto, case.name)
    profile = OptimizationProfile.fixed(image=(2, 3, 8, 8))

    def offered(seed: int) -> list[str]:
        options = TensorRTOptions(optimization_level=1, tactic_seed=seed)
        build = TensorRTBackend().build(model, BuildConfig(precision="fp16", profiles=(profile,), options=options))
        return [choice.tactic for choice in build.tactics.choices if choice.replayable]

    drawn = [offered(seed) for seed in range(4)]

    assert all(drawn) and len({tuple(tactics) for tactics in drawn}) > 1


def test_sparse_weights_give_the_right_result():
    weight = models.random(64, 64, 3, 3, scale=0.06)
    weight[:, np.arange(64) % 4 < 2] = 0  # two of each four input channels
    proto = models.model(
        "(float[8,64,28,28] x) => (float[8,64,28,28] y) { y = Conv<pads = [1,1,1,1]>(x, w) }", {"w": weight}
    )
    case = models.Case(proto, {"x": models.random(8, 64, 28, 28, seed=9)})

    network = NetworkFromOnnxBytes(proto.SerializeToString())
    with TrtRunner(engine_from_network(network, CreateConfig(fp16=True, sparse_weights=True, **QUICK))) as runner:
        found = np.array(runner.infer(case.feed)["y"])

    import onnxruntime

    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    [golden] = session.run(None, dict(case.feed))
    assert all(found_weight.sparse for found_weight in check_sparsity(proto))
    assert np.abs(found - golden).max() < 2e-2 * np.abs(golden).max()
