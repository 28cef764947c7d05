"""Building on real TensorRT-RTX, which needs no GPU for that: parser, networks, configs, profiles, plans."""

import logging
import os
import signal
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import trtops.backend.trt as back
from tests import models
from trtops import errors
from trtops.backend import worker
from trtops.backend.base import BuildRequest
from trtops.backend.onnx.model import Model
from trtops.backend.trt import library, util
from trtops.backend.trt.building.precision import layers_to_keep
from trtops.backend.trt.describe.layers import layers_of, tensors_of
from trtops.backend.trt.library import memory
from trtops.backend.trt.library.log import LOGGER
from trtops.backend.worker import IsolatedBackend
from trtops.cli.main import main
from trtops.metadata import DataType
from trtops.ops.search import precision_engines
from trtops.ops.search.precision import Candidate, PrecisionConfig
from trtops.ops.search.precision_engines import EngineWriter
from trtops.spec import BuildConfig, OptimizationProfile, TensorRTOptions

pytestmark = pytest.mark.usefixtures("rtx")


@pytest.fixture
def conv_net() -> models.Case:
    return models.conv_net()


@pytest.fixture
def network(conv_net) -> back.NetworkFromOnnxBytes:
    return back.NetworkFromOnnxBytes(conv_net.proto.SerializeToString())


def dtypes_in(parts) -> set[str]:
    described = back.describe_network(parts[1])
    return {tensor.dtype.value for layer in described.layers for tensor in layer.outputs}


def test_a_static_network_builds(tmp_path):
    plan = back.EngineBytesFromNetwork(back.NetworkFromOnnxPath(models.identity().write(tmp_path)))()

    assert plan.nbytes > 1000 and bytes(plan)[:4] == b"vtrt"


def test_interruptions_while_tensorrt_logs_are_kept(network, monkeypatch):
    sent = []

    def interrupt(level: int, *args: object) -> None:
        sent.append(level)
        os.kill(os.getpid(), signal.SIGINT)  # Python runs the handler in here

    monkeypatch.setattr(LOGGER, "log", interrupt)
    monkeypatch.setattr(LOGGER, "isEnabledFor", lambda level: not sent)
    with pytest.raises(KeyboardInterrupt):
        back.EngineBytesFromNetwork(network)()
    assert len(sent) == 1
    assert back.EngineBytesFromNetwork(network)().nbytes > 1000  # nothing is left of it

    ended = []
    monkeypatch.setattr(os, "_exit", ended.append)
    with pytest.raises(KeyboardInterrupt), library.collect_log():
        library.keep_interrupt()
        library.keep_interrupt()
    assert ended == [130]


def test_a_dynamic_network_builds_with_three_profiles(network):
    profiles = [back.Profile().add("image", (1, 3, 8, 8), (n, 3, 8, 8), (32, 3, 8, 8)) for n in (1, 4, 32)]

    parts = network()
    config = back.CreateConfig(profiles=profiles)(*parts[:2])

    assert config.num_optimization_profiles == 3
    assert back.engine_bytes_from_network(parts, config).nbytes > 1000


def test_dimensions_of_one_name_may_have_different_sizes(caplog):
    proto = models.model("(float[n,3,h,h] x) => (float[n,3,p,q] y) { y = Relu(x) }")
    network, profile = back.NetworkFromOnnxBytes(proto.SerializeToString()), back.Profile()
    profile.add("x", (1, 3, 48, 192), (2, 3, 48, 192), (8, 3, 48, 192))

    plan = back.EngineBytesFromNetwork(network, back.CreateConfig(profiles=[profile]))()

    assert plan.nbytes > 1000
    assert "'h'" in caplog.text and "'n'" not in caplog.text


def test_a_modified_network_builds(network):
    parts = back.ModifyNetworkOutputs(network, outputs=["r*", "scores"], exclude_outputs=["r1"])()

    assert [spec.name for spec in back.describe_network(parts[1]).outputs] == ["r0", "scores"]
    assert back.engine_bytes_from_network(parts).nbytes > 1000


def test_a_network_made_with_the_api_builds(adding_network):
    assert back.engine_bytes_from_network(adding_network).nbytes > 1000


def test_fp16_is_written_into_strongly_typed_models(network, tmp_path, conv_net):
    config = back.CreateConfig(fp16=True)

    assert dtypes_in(network()) == {"float32", "int64"}
    parts = back.network_from_onnx_bytes(network.model_bytes, config=config)
    assert "float16" in dtypes_in(parts)
    assert back.describe_network(parts[1]).inputs[0].dtype.value == "float32"
    assert "float16" in dtypes_in(back.network_from_onnx_path(conv_net.write(tmp_path), config=config))
    assert back.engine_bytes_from_network(network, config).nbytes > 1000
    changed = back.ModifyNetworkOutputs(back.PostprocessNetwork(network, lambda network: None), outputs=["scores"])
    changed_config = back.PostprocessConfig(config, lambda *_: None)

    assert back.engine_bytes_from_network(changed, changed_config).nbytes > 1000


def test_layer_precisions_are_written_into_the_model(network):
    in_half = back.NetworkFromOnnxBytes(network.model_bytes, config=back.CreateConfig(fp16=True))

    for loader, precisions in ((network, {"conv1": library.load().float16}), (in_half, {"conv0": "float32"})):
        parts = back.SetLayerPrecisions(loader, precisions)()
        types = {layer.name: layer.outputs[0].dtype.value for layer in back.describe_network(parts[1]).layers}
        assert (types["conv0"], types["conv1"]) == ("float32", "float16")


FOLDING = """(float[2,4] x) => (float[2,4] y) {
    [c] k = Mul(w, two)
    h = MatMul(x, k)
    [s] s = Sigmoid(h)
    y = Mul(s, h)
}"""


@pytest.fixture
def folded_network(monkeypatch) -> SimpleNamespace:
    """A network as TensorRT 8.6 parses the model above: layers have precisions, and c, which is constant, is folded."""
    proto = models.model(FOLDING, {"w": models.random(4, 4), "two": np.float32(2)})
    network = back.NetworkFromOnnxBytes(proto.SerializeToString())()[1]
    layers = [
        SimpleNamespace(
            name=layer.name,
            precision=None,
            type=layer.type,
            num_outputs=layer.num_outputs,
            get_output=layer.get_output,
            parsed=network,  # which owns the outputs
        )
        for layer in layers_of(network)
        if layer.name != "c"
    ]
    line = SimpleNamespace(name="TensorRT 8.6", supports=lambda feature: True, require=lambda feature: None)
    monkeypatch.setattr(library, "line", lambda: line)
    monkeypatch.setattr(precision_engines, "line", lambda: line)
    return SimpleNamespace(proto=proto, layers=layers, num_layers=len(layers), get_layer=layers.__getitem__)


def test_kept_nodes_may_be_folded_or_without_names(folded_network):
    # What is kept is called by the names that the search has, which are outputs for nodes without a name.
    candidate = Candidate(original=folded_network.proto, keep=frozenset("chs"), config=PrecisionConfig())
    writer = EngineWriter(network=lambda: (object(), folded_network), config=lambda *_: None)

    loader, _ = writer._network_and_config(candidate)
    loader()

    kept_layers = {layer.name for layer in folded_network.layers if layer.precision is not None}
    assert kept_layers == {"node_of_h", "s"}
    for layer in folded_network.layers:
        layer.name, layer.get_output = "other", lambda index: None
    with pytest.raises(errors.ConfigError, match=r"none with the name of one of the model's 4 nodes"):
        writer._network_and_config(candidate)[0]()


def test_precisions_of_layers_that_are_absent_are_refused(folded_network):
    with pytest.raises(errors.ConfigError, match="The network has no layer 'c'"):
        back.SetLayerPrecisions((object(), folded_network), {"c": "float32"})()
    config = BuildConfig(precision="fp16", keep=("y", "k"), options=TensorRTOptions())
    assert layers_to_keep(folded_network.proto, config) == {"c": "float32", "y": "float32"}


def test_late_precision_is_refused_with_a_remedy(network):
    parts = network()
    quantized = back.NetworkFromOnnxBytes(models.qdq_net().proto.SerializeToString())

    with pytest.raises(errors.UnsupportedFeatureError, match="config=config"):
        back.CreateConfig(fp16=True)(*parts[:2])
    with pytest.raises(errors.UnsupportedFeatureError, match="Cast"):
        back.SetLayerPrecisions(parts, {"conv0": "float16"})()
    assert back.engine_bytes_from_network(quantized, back.CreateConfig(int8=True)).nbytes > 1000
    with pytest.raises(errors.UnsupportedFeatureError, match=r"Q/DQ.*TensorRTBackend puts.*insert_qdq"):
        back.engine_bytes_from_network(network, back.CreateConfig(int8=True))


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
        back.engine_bytes_from_network(network, back.CreateConfig(**options))


def test_config_sets_all_options():
    trt = library.load()
    builder, _ = back.create_network()
    flags = {name.lower(): flag for name, flag in trt.BuilderFlag.__members__.items()}
    flags["refittable"] = flags["refit"]
    switches = (
        "tf32", "sparse_weights", "refittable", "direct_io", "version_compatible", "exclude_lean_runtime", "strip_plan",
        "weight_streaming", "disable_compilation_cache",
    )  # fmt: skip
    limits = {trt.MemoryPoolType.WORKSPACE: 1 << 20}
    others = {"memory_pool_limits": limits, "builder_optimization_level": 2, "max_aux_streams": 1}
    config = back.CreateConfig(**dict.fromkeys(switches, True), **others, preview_features=[])(builder, None)

    assert [name for name in switches if config.get_flag(flags[name])] == list(switches)
    assert config.get_memory_pool_limit(trt.MemoryPoolType.WORKSPACE) == 1 << 20
    assert (config.builder_optimization_level, config.max_aux_streams) == (2, 1)
    assert config.profiling_verbosity == trt.ProfilingVerbosity.DETAILED
    assert not back.CreateConfig()(builder, None).get_flag(flags["tf32"])


def test_rtx_builds_for_chosen_compute_capabilities(network):
    parts = network()
    config = back.create_config_rtx(*parts[:2], compute_capabilities=["SM86", "SM89"])

    assert config.num_compute_capabilities == 2
    assert back.engine_bytes_from_network(parts, config).nbytes > 1000


def test_debug_tensors_are_marked(network):
    parts = back.MarkDebug(network, ["c0", "r*"])()
    marked = [name for name in ("c0", "n0", "r0") if parts[1].is_debug_tensor(tensors_of(parts[1])[name])]
    assert marked == ["c0", "r0"]
    formats = library.load().TensorFormat
    parts = back.SetTensorFormats(network, {"image": [formats.LINEAR, "hwc"]})()

    assert parts[1].get_input(0).allowed_formats == 1 << int(formats.LINEAR) | 1 << int(formats.HWC)


def profiled(network, *shapes):
    return back.EngineBytesFromNetwork(network, back.CreateConfig(profiles=[back.Profile().add(*shapes)]))


def configured(network, **options):
    return back.EngineBytesFromNetwork(network, back.CreateConfig(**options))


def test_names_stand_for_values_of_tensorrts_enums():
    trt, builder = library.load(), library.make_builder()
    config = back.CreateConfig(profiling_verbosity="layer-names-only", memory_pool_limits={"workspace": 1 << 20})

    built = config(builder, None)

    assert built.profiling_verbosity == trt.ProfilingVerbosity.LAYER_NAMES_ONLY
    assert built.get_memory_pool_limit(trt.MemoryPoolType.WORKSPACE) == 1 << 20


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda n: back.ModifyNetworkOutputs(n, outputs=["score"]), "no tensor 'score'.*Did you mean 'scores'"),
        (lambda n: back.ModifyNetworkOutputs(n, exclude_outputs=["scores"]), "without outputs"),
        (lambda n: back.ModifyNetworkOutputs(n, mark_layer_types=["CONV"]), "no layer type 'CONV'"),
        (lambda n: back.SetLayerPrecisions(n, {"conv7": "float16"}), "no node 'conv7'"),
        (lambda n: back.SetTensorFormats(n, {"*": ["CHW3"]}), "TensorFormat has no 'CHW3'"),
        (lambda n: configured(n, profiling_verbosity="detail"), "no 'DETAIL' in this release. Did you mean 'DETAILED'"),
        (lambda n: configured(n, memory_pool_limits={"workspac": 1}), "Did you mean 'WORKSPACE'"),
        (lambda n: back.MarkDebug(n, ["c9"]), "no tensor 'c9'"),
        (lambda n: profiled(n, "imag", *[(1, 3, 8, 8)] * 3), "no input. Did you mean 'image'"),
        (lambda n: profiled(n, "image", *[(1, 4, 8, 8)] * 3), r"\(-1, 3, 8, 8\)"),
        (lambda n: profiled(n, "image", (4, 3, 8, 8), (2, 3, 8, 8), (8, 3, 8, 8)), "min <= opt <= max"),
    ],
)
def test_unknown_names_suggest_known_ones(network, make, words):
    with pytest.raises(errors.ConfigError, match=words):
        make(network)()


def test_profiles_are_filled_from_the_network(network):
    parts = network()

    assert back.Profile().fill_defaults(parts[1])["image"].opt == (1, 3, 8, 8)
    assert back.Profile().fill_defaults(parts[1], 5)["image"].max == (5, 3, 8, 8)
    assert list(back.Profile().add("im*", (1, 3, 8, 8), (1, 3, 8, 8), (1, 3, 8, 8)).fill_defaults(parts[1])) == ["im*"]


def test_a_network_is_described_with_attributes_and_weights(network):
    parts = network()
    description = back.describe_network(parts[1])

    text = description.text(show=("layers", "attrs", "weights"))

    assert "Strongly Typed Network" in text
    assert "{image [dtype=float32, shape=(-1, 3, 8, 8)]}" in text
    assert "conv1.stride_nd = (2, 2)" in text
    assert "| relu0 [Op: ActivationType.RELU]" in text
    assert "conv0.kernel = float32 (216,), min=-0.813386" in text
    assert "conv1.stride_nd" not in description.text(show=("layers",))
    assert type(description).from_json(description.to_json()) == description
    drawn = back.OnnxLikeFromNetwork(network)()
    assert [node.name for node in drawn.graph.node][:2] == ["conv0", "bn0"]
    assert {a.name for a in drawn.graph.node[0].attribute} >= {"stride_nd", "num_groups"}
    assert drawn.graph.input[0].name == "image"


def test_models_that_do_not_parse_are_named(tmp_path):
    path = tmp_path / "junk.onnx"
    path.write_bytes(b"junk" * 100)

    with pytest.raises(errors.EngineBuildError, match=r"junk\.onnx"):
        back.network_from_onnx_path(path)
    with pytest.raises(errors.InvalidModelError, match="does not exist"):
        back.network_from_onnx_path(tmp_path / "none.onnx")
    with pytest.raises(errors.EngineBuildError, match="Frobnicate"):
        back.network_from_onnx_bytes(models.no_kernel().proto.SerializeToString())


def test_loading_an_engine_needs_a_gpu(network):
    if memory.device_count():
        pytest.skip("there is a GPU")
    with pytest.raises(errors.BackendUnavailableError, match="needs a GPU to load engines"):
        back.EngineFromNetwork(network)()


@pytest.mark.parametrize("fp16", [False, True])
def test_external_weights_are_found(tmp_path, conv_net, fp16):
    network = back.NetworkFromOnnxPath(models.write_external(conv_net, tmp_path))

    assert back.engine_bytes_from_network(network, back.CreateConfig(fp16=fp16)).nbytes > 1000


PROFILE = OptimizationProfile.fixed(image=(2, 3, 8, 8))
CONFIG = BuildConfig(precision="fp16", profiles=(PROFILE,), options=TensorRTOptions())


def test_the_engine_back_end_builds(conv_net, caplog):
    caplog.set_level(logging.INFO, "trtops.tensorrt")

    build = back.TensorRTBackend().build(BuildRequest(Model.from_proto(conv_net.proto, "conv_net"), CONFIG))

    assert len(build.engine.plan) > 1000 and build.engine.options["outputs"] == ["scores"]
    assert build.engine.environment.backend == "tensorrt-rtx"
    assert build.tactics.mechanism == "inspector" and build.timing_cache is None
    assert build.spec.config == CONFIG
    assert "[INFO]" in build.log
    assert logging.INFO in {record.levelno for record in caplog.records if record.name == "trtops.tensorrt"}


def test_layer_precisions_are_part_of_the_spec(conv_net):
    model = Model.from_proto(conv_net.proto, "conv_net")

    def build(*precisions):
        options = TensorRTOptions(layer_precisions=precisions)
        return back.TensorRTBackend().build(BuildRequest(model, replace(CONFIG, options=options)))

    assert build(("conv0", "float32")).spec.digest != build().spec.digest
    with pytest.raises(errors.ConfigError, match="no node 'nowhere'"):
        build(("nowhere", "float32"))


def test_a_build_in_a_child_process(conv_net, monkeypatch):
    assert not worker.may_crash(CONFIG)
    monkeypatch.setattr(worker, "needs_child", lambda: True)  # a flow or a script
    assert worker.may_crash(CONFIG)
    isolated = IsolatedBackend("tensorrt", timeout=600)

    with isolated.worker:
        build = isolated.build(BuildRequest(Model.from_proto(conv_net.proto, "conv_net"), CONFIG))
        refused = Model.from_proto(models.no_kernel().proto, "no_kernel")
        with pytest.raises(errors.EngineBuildError, match="Frobnicate"):
            isolated.build(BuildRequest(refused, BuildConfig(options=TensorRTOptions())))

    assert len(build.engine.plan) > 1000
    assert isolated.worker.starts == 1


def test_tensorrt_is_loaded_on_first_use():
    code = "import trtops.backend.trt as t; t.CreateConfig(), t.NetworkFromOnnxPath('m.onnx'); t.create_network()"
    environment = {k: v for k, v in os.environ.items() if k != "TRTOPS_USE_TENSORRT_RTX"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)

    last = done.stderr.splitlines()[-1]
    assert "BackendUnavailableError" in last and "trtops[trt]" in done.stderr, done.stderr
    code = "from trtops.backend.trt import library as l; print(l.load_for_device() is l.load() is l.load_for_device())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "True"


@pytest.fixture
def parts(network):
    return network()


def test_utilities_describe_networks(parts):
    builder, network, _ = parts
    names, metadata = util.get_network_input_names_meta(network)
    conv = network.get_layer(0)

    assert names == ["image"] and metadata["image"].dtype is DataType.FLOAT32
    assert {"image", "scores"} < set(util.get_all_tensors(network))
    assert util.get_layer_class_mapping()[conv.type] is library.load().IConvolutionLayer
    assert util.str_from_network(network, show_layers=True).startswith("Name: ")
    util.mark_outputs(network, ["r*"])
    assert util.get_network_output_names_meta(network)[0] == ["r0", "r1"]
    back.ModifyNetworkOutputs((None, network), mark_layer_types=["convolution"]).change(network)
    assert util.get_network_output_names_meta(network)[0] == ["c0", "c1"]
    text = util.str_from_config(back.create_config(builder, network), network)
    titles = [line.partition(" | ")[0].strip() for line in text.splitlines()]
    assert titles[:4] == ["Flags", "Engine Capability", "Memory Pools", "Tactic Sources"]
    assert "Profiling Verbosity" in titles


def refused(load=back.engine_from_bytes, plan: Any = b"plan", allowed=False, **options: Any) -> tuple[bool, str]:
    # A runtime that only records what is set; TensorRT-RTX itself loads nothing without a GPU.
    runtime = SimpleNamespace(engine_host_code_allowed=allowed, deserialize_cuda_engine=lambda plan: None)
    with pytest.raises(errors.EngineLoadError) as raised:
        load(plan, runtime, **options)
    return runtime.engine_host_code_allowed, str(raised.value)


def test_host_code_is_refused_unless_allowed(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    allowed, message = refused()
    assert not allowed and "TRTOPS_ALLOW_HOST_CODE=1" in message
    assert refused(allowed=True)[0]  # a runtime that allows it keeps its word
    allowed, message = refused(allow_host_code=True)
    assert allowed and "HOST_CODE" not in message

    monkeypatch.setenv("TRTOPS_ALLOW_HOST_CODE", "1")
    assert refused()[0] and not refused(allow_host_code=False)[0]
    (tmp_path / "x.plan").write_bytes(b"plan")
    assert refused(back.engine_from_path, tmp_path / "x.plan")[0]


def test_plugin_library_outside_allowed_folders_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("TRTOPS_ALLOWED_SCRIPTS", str(tmp_path / "allowed"))

    with pytest.raises(errors.ConfigError, match=r"plugin library .*libplugin\.so may not be run"):
        back.load_plugins([tmp_path / "libplugin.so"])
    with pytest.raises(errors.BackendUnavailableError, match="cannot be loaded"):
        back.load_plugins([tmp_path / "allowed" / "libplugin.so"])


def test_function_of_a_script_is_a_network(tmp_path, monkeypatch, caplog):
    """For other runners than TensorRT's, ``script.py:function`` is a PyTorch module."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(
        "from trtops import func\nfrom trtops.backend.trt import CreateNetwork\n\n\n"
        "@func.extend(CreateNetwork())\ndef load(builder, network):\n"
        "    from trtops.backend.trt.library import load as tensorrt\n\n"
        "    x = network.add_input('x', tensorrt().float32, (1, 2))\n"
        "    network.mark_output(network.add_identity(x).get_output(0))\n"
    )
    assert main(["run", "net.py:load", "--trt"]) == 3
    assert "needs a GPU to load engines" in caplog.text
