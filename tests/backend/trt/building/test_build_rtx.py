"""Building on real TensorRT-RTX, which needs no GPU for that: parser, networks, configs, profiles, plans."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from tests import models
from trtops import errors, func
from trtops.backend.onnx.model import Model
from trtops.backend.trt import (
    CreateConfig,
    CreateConfigRTX,
    CreateNetwork,
    EngineBytesFromNetwork,
    EngineFromNetwork,
    MarkDebug,
    ModifyNetworkOutputs,
    NetworkFromOnnxBytes,
    NetworkFromOnnxPath,
    OnnxLikeFromNetwork,
    PostprocessConfig,
    PostprocessNetwork,
    Profile,
    SetLayerPrecisions,
    SetTensorFormats,
    TensorRTBackend,
    create_network,
    describe_network,
    engine_bytes_from_network,
    library,
    network_from_onnx_bytes,
    network_from_onnx_path,
)
from trtops.backend.trt.describe.layers import tensors_of
from trtops.backend.trt.library import memory
from trtops.backend.worker import IsolatedBackend
from trtops.spec import BuildConfig, OptimizationProfile, TensorRTOptions

pytestmark = pytest.mark.usefixtures("rtx")


@pytest.fixture
def conv_net() -> models.Case:
    return models.conv_net()


@pytest.fixture
def network(conv_net) -> NetworkFromOnnxBytes:
    return NetworkFromOnnxBytes(conv_net.proto.SerializeToString())


def dtypes_in(parts) -> set[str]:
    described = describe_network(parts[1])
    return {tensor.dtype.value for layer in described.layers for tensor in layer.outputs}


def test_a_static_network_builds(tmp_path):
    case = models.identity()

    plan = EngineBytesFromNetwork(NetworkFromOnnxPath(case.write(tmp_path)))()

    assert plan.nbytes > 1000 and bytes(plan)[:4] == b"vtrt"


def test_a_dynamic_network_builds_with_three_profiles(network):
    profiles = [Profile().add("image", (1, 3, 8, 8), (n, 3, 8, 8), (32, 3, 8, 8)) for n in (1, 4, 32)]

    parts = network()
    config = CreateConfig(profiles=profiles)(*parts[:2])

    assert config.num_optimization_profiles == 3
    assert engine_bytes_from_network(parts, config).nbytes > 1000


def test_a_modified_network_builds(network):
    parts = ModifyNetworkOutputs(network, outputs=["r*", "scores"], exclude_outputs=["r1"])()

    assert [spec.name for spec in describe_network(parts[1]).outputs] == ["r0", "scores"]
    assert engine_bytes_from_network(parts).nbytes > 1000


def test_a_network_made_with_the_api_builds():
    trt = library.load()

    @func.extend(CreateNetwork())
    def create(builder, network):
        given = network.add_input("input", trt.float32, (4, 4))
        ones = network.add_constant((4, 4), np.ones((4, 4), np.float32)).get_output(0)
        total = network.add_elementwise(given, ones, trt.ElementWiseOperation.SUM).get_output(0)
        total.name = "output"
        network.mark_output(total)

    assert engine_bytes_from_network(create).nbytes > 1000


def test_fp16_is_written_into_strongly_typed_models(network, tmp_path, conv_net):
    config = CreateConfig(fp16=True)

    assert dtypes_in(network()) == {"float32", "int64"}
    assert "float16" in dtypes_in(network_from_onnx_bytes(network.model_bytes, config=config))
    assert "float16" in dtypes_in(network_from_onnx_path(conv_net.write(tmp_path), config=config))
    assert engine_bytes_from_network(network, config).nbytes > 1000
    inputs = describe_network(network_from_onnx_bytes(network.model_bytes, config=config)[1]).inputs
    assert inputs[0].dtype.value == "float32"
    changed = ModifyNetworkOutputs(PostprocessNetwork(network, lambda network: None), outputs=["scores"])

    assert engine_bytes_from_network(changed, PostprocessConfig(CreateConfig(fp16=True), lambda *_: None)).nbytes > 1000


def test_layer_precisions_are_written_into_the_model(network):
    trt = library.load()
    parts = SetLayerPrecisions(network, {"conv1": trt.float16})()
    types = {layer.name: layer.outputs[0].dtype.value for layer in describe_network(parts[1]).layers}

    assert (types["conv0"], types["conv1"]) == ("float32", "float16")
    kept = SetLayerPrecisions(
        NetworkFromOnnxBytes(network.model_bytes, config=CreateConfig(fp16=True)), {"conv0": "float32"}
    )
    types = {layer.name: layer.outputs[0].dtype.value for layer in describe_network(kept()[1]).layers}
    assert (types["conv0"], types["conv1"]) == ("float32", "float16")


def test_late_precision_is_refused_with_a_remedy(network):
    parts = network()
    quantized = NetworkFromOnnxBytes(models.qdq_net().proto.SerializeToString())

    with pytest.raises(errors.UnsupportedFeatureError, match="config=config"):
        CreateConfig(fp16=True)(*parts[:2])
    with pytest.raises(errors.UnsupportedFeatureError, match="Cast"):
        SetLayerPrecisions(parts, {"conv0": "float16"})()
    assert engine_bytes_from_network(quantized, CreateConfig(int8=True)).nbytes > 1000
    with pytest.raises(errors.UnsupportedFeatureError, match=r"Q/DQ.*TensorRTBackend puts.*insert_qdq"):
        engine_bytes_from_network(network, CreateConfig(int8=True))


@pytest.mark.parametrize(
    ("options", "feature"),
    [
        ({"precision_constraints": "obey"}, "precisions per layer"),
        ({"load_timing_cache": b""}, "timing caches"),
        ({"error_on_timing_cache_miss": True}, "timing cache miss"),
        ({"quantization_flags": []}, "quantization flags"),
        ({"algorithm_selector": object()}, "algorithm selectors"),
    ],
)
def test_missing_options_name_releases_that_have_them(network, options, feature):
    with pytest.raises(errors.UnsupportedFeatureError, match=f"TensorRT-RTX.*{feature}.*TensorRT"):
        engine_bytes_from_network(network, CreateConfig(**options))


def test_config_sets_all_options():
    trt = library.load()
    builder, empty = create_network()
    flags = {name.lower(): flag for name, flag in trt.BuilderFlag.__members__.items()}
    flags["refittable"] = flags["refit"]
    switches = (
        "tf32", "sparse_weights", "refittable", "direct_io", "version_compatible", "exclude_lean_runtime", "strip_plan",
        "weight_streaming", "disable_compilation_cache",
    )  # fmt: skip
    limits = {trt.MemoryPoolType.WORKSPACE: 1 << 20}
    others = {"memory_pool_limits": limits, "builder_optimization_level": 2, "max_aux_streams": 1}
    config = CreateConfig(**dict.fromkeys(switches, True), **others, preview_features=[])(builder, None)

    assert [name for name in switches if config.get_flag(flags[name])] == list(switches)
    assert config.get_memory_pool_limit(trt.MemoryPoolType.WORKSPACE) == 1 << 20
    assert (config.builder_optimization_level, config.max_aux_streams) == (2, 1)
    assert config.profiling_verbosity == trt.ProfilingVerbosity.DETAILED
    assert empty.num_layers == 0
    assert not CreateConfig()(builder, None).get_flag(flags["tf32"])


def test_rtx_builds_for_chosen_compute_capabilities(network):
    config = CreateConfigRTX(compute_capabilities=["SM86", "SM89"])

    parts = network()
    made = config(*parts[:2])

    assert made.num_compute_capabilities == 2
    assert engine_bytes_from_network(parts, made).nbytes > 1000


def test_debug_tensors_are_marked(network):
    parts = MarkDebug(network, ["c0", "r*"])()

    marked = [name for name in ("c0", "n0", "r0") if parts[1].is_debug_tensor(tensors_of(parts[1])[name])]
    assert marked == ["c0", "r0"]


def test_formats_of_inputs_and_outputs_are_set(network):
    formats = library.load().TensorFormat
    parts = SetTensorFormats(network, {"image": [formats.LINEAR, "hwc"]})()

    assert parts[1].get_input(0).allowed_formats == 1 << int(formats.LINEAR) | 1 << int(formats.HWC)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda n: ModifyNetworkOutputs(n, outputs=["score"]), "no tensor 'score'.*Did you mean 'scores'"),
        (lambda n: ModifyNetworkOutputs(n, exclude_outputs=["scores"]), "without outputs"),
        (lambda n: ModifyNetworkOutputs(n, mark_layer_types=["CONV"]), "no layer type CONV"),
        (lambda n: SetLayerPrecisions(n, {"conv7": "float16"}), "no node 'conv7'"),
        (lambda n: SetTensorFormats(n, {"*": ["CHW3"]}), "no tensor format 'CHW3'"),
        (lambda n: MarkDebug(n, ["c9"]), "no tensor 'c9'"),
    ],
)
def test_unknown_names_suggest_known_ones(network, make, words):
    with pytest.raises(errors.ConfigError, match=words):
        make(network)()


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        (Profile().add("imag", (1, 3, 8, 8), (1, 3, 8, 8), (1, 3, 8, 8)), "no input. Did you mean 'image'"),
        (Profile().add("image", (1, 4, 8, 8), (1, 4, 8, 8), (1, 4, 8, 8)), r"\(-1, 3, 8, 8\)"),
        (Profile().add("image", (4, 3, 8, 8), (2, 3, 8, 8), (8, 3, 8, 8)), "min <= opt <= max"),
    ],
)
def test_profiles_that_do_not_fit_are_refused(network, profile, words):
    with pytest.raises(errors.ConfigError, match=words):
        engine_bytes_from_network(network, CreateConfig(profiles=[profile]))


def test_profiles_are_filled_from_the_network(network):
    parts = network()

    assert Profile().fill_defaults(parts[1])["image"].opt == (1, 3, 8, 8)
    assert Profile().fill_defaults(parts[1], 5)["image"].max == (5, 3, 8, 8)
    assert list(Profile().add("im*", (1, 3, 8, 8), (1, 3, 8, 8), (1, 3, 8, 8)).fill_defaults(parts[1])) == ["im*"]


def test_a_network_is_described_with_attributes_and_weights(network):
    parts = network()
    description = describe_network(parts[1])

    text = description.text(show=("layers", "attrs", "weights"))

    assert "Strongly Typed Network" in text
    assert "{image [dtype=float32, shape=(-1, 3, 8, 8)]}" in text
    assert "conv1.stride_nd = (2, 2)" in text
    assert "| relu0 [Op: ActivationType.RELU]" in text
    assert "conv0.kernel = float32 (216,), min=-0.813386" in text
    assert "conv1.stride_nd" not in description.text(show=("layers",))
    assert type(description).from_json(description.to_json()) == description


def test_a_network_is_drawn_as_an_onnx_model(network):
    drawn = OnnxLikeFromNetwork(network)()

    assert [node.name for node in drawn.graph.node][:2] == ["conv0", "bn0"]
    assert {a.name for a in drawn.graph.node[0].attribute} >= {"stride_nd", "num_groups"}
    assert drawn.graph.input[0].name == "image"


def test_models_that_do_not_parse_are_named(tmp_path):
    path = tmp_path / "junk.onnx"
    path.write_bytes(b"junk" * 100)

    with pytest.raises(errors.EngineBuildError, match=r"junk\.onnx"):
        network_from_onnx_path(path)
    with pytest.raises(errors.InvalidModelError, match="does not exist"):
        network_from_onnx_path(tmp_path / "none.onnx")
    with pytest.raises(errors.EngineBuildError, match="Frobnicate"):
        network_from_onnx_bytes(models.no_kernel().proto.SerializeToString())


def test_loading_an_engine_needs_a_gpu(network):
    if memory.device_count():
        pytest.skip("there is a GPU")
    with pytest.raises(errors.BackendUnavailableError, match="needs a GPU to load engines"):
        EngineFromNetwork(network)()


def test_external_weights_are_found(tmp_path, conv_net):
    path = models.write_external(conv_net, tmp_path)

    assert engine_bytes_from_network(NetworkFromOnnxPath(path)).nbytes > 1000
    assert engine_bytes_from_network(NetworkFromOnnxPath(path), CreateConfig(fp16=True)).nbytes > 1000


CONFIG = BuildConfig(
    precision="fp16",
    profiles=(OptimizationProfile.fixed(image=(2, 3, 8, 8)),),
    options=TensorRTOptions(),
)


def test_the_engine_back_end_builds(conv_net, caplog):
    caplog.set_level(logging.INFO, "trtops.tensorrt")

    build = TensorRTBackend().build(Model.from_proto(conv_net.proto, "conv_net"), CONFIG)

    assert build.engine.options["outputs"] == ["scores"]
    assert len(build.engine.plan) > 1000
    assert build.engine.environment.backend == "tensorrt-rtx"
    assert build.timing_cache is None
    assert build.tactics.mechanism == "inspector"
    assert build.spec.config == CONFIG
    assert "[INFO]" in build.log
    assert logging.INFO in {record.levelno for record in caplog.records if record.name == "trtops.tensorrt"}


def test_layer_precisions_are_part_of_the_spec(conv_net):
    names = [node.name for node in conv_net.proto.graph.node]
    options = TensorRTOptions(layer_precisions=((names[0], "float32"),))
    model = Model.from_proto(conv_net.proto, "conv_net")

    build = TensorRTBackend().build(model, replace(CONFIG, options=options))
    assert build.spec.digest != TensorRTBackend().build(model, CONFIG).spec.digest
    with pytest.raises(errors.ConfigError, match="no node 'nowhere'"):
        wrong = TensorRTOptions(layer_precisions=(("nowhere", "float32"),))
        TensorRTBackend().build(model, replace(CONFIG, options=wrong))


def test_a_build_in_a_child_process(conv_net):
    isolated = IsolatedBackend("tensorrt", timeout=600)

    with isolated.worker:
        build = isolated.build(Model.from_proto(conv_net.proto, "conv_net"), CONFIG)
        refused = Model.from_proto(models.no_kernel().proto, "no_kernel")
        with pytest.raises(errors.EngineBuildError, match="Frobnicate"):
            isolated.build(refused, BuildConfig(options=TensorRTOptions()))

    assert len(build.engine.plan) > 1000
    assert isolated.worker.starts == 1


def test_missing_tensorrt_is_reported_on_first_use():
    code = "import trtops.backend.trt as t; t.CreateConfig(), t.NetworkFromOnnxPath('m.onnx'); t.create_network()"
    environment = {k: v for k, v in os.environ.items() if k != "TRTOPS_USE_TENSORRT_RTX"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)

    last = done.stderr.splitlines()[-1]
    assert "BackendUnavailableError" in last and "pip install tensorrt" in done.stderr, done.stderr


def test_loaders_are_values(network):
    config = CreateConfig(fp16=True, profiles=[Profile().add("image", (1, 3, 8, 8), (1, 3, 8, 8), (1, 3, 8, 8))])
    loader = ModifyNetworkOutputs(network, outputs=["scores"])

    assert pickle.loads(pickle.dumps(config)) == config
    assert pickle.loads(pickle.dumps(loader)) == loader
    assert "fp16=True" in repr(config)


def test_loading_for_a_device_works_without_one():
    code = "from trtops.backend.trt import library as l; print(l.load_for_device() is l.load() is l.load_for_device())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "True"
