"""Code of Polygraphy's documentation of its TensorRT back end gives equal results with both tools.

Each piece of code is executed twice in this process: as it is written for Polygraphy, and with the name replaced.
"""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests import models
from trtops.backend.trt import CreateConfig, EngineBytesFromNetwork, NetworkFromOnnxPath
from trtops.backend.trt.library import load

pytest.importorskip("polygraphy")

pytestmark = [pytest.mark.gpu, pytest.mark.parity, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]

X = models.random(1, 1, 2, 2)

IMPORTS = """
from polygraphy import constants, cuda, func
from polygraphy.backend.common import bytes_from_path
from polygraphy.backend.onnxrt import OnnxrtRunner, SessionFromOnnx
from polygraphy.backend.trt import (
    Algorithm, Calibrator, CreateConfig, EngineBytesFromNetwork, EngineFromNetwork, ModifyNetworkOutputs,
    NetworkFromOnnxPath, OnnxLikeFromNetwork, Profile, SaveEngine, TacticRecorder, TacticReplayData, TacticReplayer,
    TensorInfo, TrtRunner, buffer_from_engine, bytes_from_engine, create_config, engine_bytes_from_network,
    engine_from_bytes, engine_from_network, load_plugins, network_from_onnx_bytes, network_from_onnx_path, save_engine,
    util as trt_util,
)
from polygraphy.backend.trt.util import str_from_config
from polygraphy.comparator import Comparator, CompareFunc, DataLoader, RunResults
"""

# Code by what it shows; each piece leaves ``result`` and sees ``np``, ``trt``, ``X`` and ``cached()``.
USAGE: dict[str, str] = {}
USAGE["an engine is built, saved and run"] = """
build_engine = EngineFromNetwork(NetworkFromOnnxPath("identity.onnx"), config=CreateConfig(fp16=True))
build_engine = SaveEngine(build_engine, path="identity.engine")
with TrtRunner(build_engine) as runner:
    outputs = runner.infer(feed_dict={"x": X})
    dtype, shape = runner.get_input_metadata()["x"]
    result = [outputs["y"].shape, str(dtype), tuple(shape), runner.is_active, runner.last_inference_time() > 0]
result += [runner.is_active, np.allclose(outputs["y"], X, atol=1e-2)]
"""
USAGE["inputs have numpy's types, and a time follows an inference"] = """
with TrtRunner(EngineFromNetwork(NetworkFromOnnxPath("identity.onnx"))) as runner:
    dtype = runner.get_input_metadata()["x"].dtype
    result = [runner.last_inference_time(), dtype, dtype in [np.float32], str(runner.get_input_metadata())]
    result += [str(runner.get_input_metadata(use_numpy_dtypes=False)["x"].dtype)]
"""
USAGE["a freed array is empty"] = """
array = cuda.DeviceArray(X.shape, X.dtype)
result = [array.shape, array.allocated_nbytes]
array.free()
result += [array.shape, array.allocated_nbytes, int(array.ptr)]
array.resize(X.shape)
array.copy_from(X)
result += [array.numpy()]
array.free()
"""
USAGE["a tool builds an engine"] = """
from polygraphy.tools import Tool
from polygraphy.tools import args as groups
class Build(Tool):
    "Build."
    def get_subscriptions_impl(self):
        return [
            groups.ModelArgs(model_opt_required=True, input_shapes_opt_name=False), groups.OnnxInferShapesArgs(),
            groups.OnnxLoadArgs(outputs_opt_prefix=False), groups.DataLoaderArgs(), groups.TrtConfigArgs(),
            groups.TrtLoadPluginsArgs(), groups.TrtOnnxFlagArgs(), groups.TrtLoadNetworkArgs(),
            groups.TrtLoadEngineBytesArgs(), groups.TrtLoadEngineArgs(), groups.TrtSaveEngineBytesArgs(),
            groups.TrtSaveEngineArgs(),
        ]
    def run_impl(self, args):
        builder, network, *_ = self.arg_groups[groups.TrtLoadNetworkArgs].load_network()
        config = self.arg_groups[groups.TrtConfigArgs].create_config(builder, network)
        result.append([network.num_layers, config.get_flag(trt.BuilderFlag.FP16)])
        plan = self.arg_groups[groups.TrtLoadEngineBytesArgs].load_engine_bytes()
        self.arg_groups[groups.TrtSaveEngineBytesArgs].save_engine_bytes(plan)
        engine = engine_from_bytes(bytes_from_path("tool.engine"))
        result.append([engine.num_layers, self.arg_groups[groups.TrtLoadEngineArgs].load_engine().num_layers])
        return 3
result = []
tool = Build("build")
parser = tool.setup_parser()
args = parser.parse_args(["identity.onnx", "--fp16", "-o", "tool.engine"])
tool.parse(args)
result.append(tool.run(args))
"""
USAGE["frameworks are compared"] = """
build_onnxrt_session = SessionFromOnnx("identity.onnx")
build_engine = EngineFromNetwork(NetworkFromOnnxPath("identity.onnx"))
runners = [TrtRunner(build_engine), OnnxrtRunner(build_onnxrt_session)]
run_results = Comparator.run(runners)
run_results.save("inference_results.json")
found = Comparator.compare_accuracy(run_results, compare_func=CompareFunc.simple(atol=1e-8))
result = [bool(found), len(run_results), [it["y"].copy() for name, its in run_results.items() for it in its]]
again = RunResults.load("inference_results.json")
result += [len(again), again[0][1][0]["y"], Comparator.validate(again), [name.split("-N")[0] for name in again.keys()]]
"""
USAGE["networks and configs are extended"] = """
seen = []

@func.extend(NetworkFromOnnxPath("identity.onnx"))
def load_network(builder, network, parser):
    network.name = "MyIdentity"
    seen.append((type(builder).__name__, type(network).__name__, type(parser).__name__))

@func.extend(CreateConfig())
def load_config(builder, network, config):
    config.set_flag(trt.BuilderFlag.REFIT)
    seen.append(network.name)

with TrtRunner(EngineFromNetwork(load_network, load_config)) as runner:
    result = [seen, runner.engine.name, runner.engine.refittable, runner.infer({"x": X})["y"].copy()]
"""
USAGE["everything at once, without loaders"] = """
builder, network, parser = network_from_onnx_path("identity.onnx")
network.get_input(0).name = "renamed"
config = create_config(builder, network, fp16=False, tf32=True)
engine = engine_from_network((builder, network), config)
save_engine(engine, path="immediate.engine")
serialized = engine_bytes_from_network(network_from_onnx_bytes(bytes_from_path("identity.onnx")))
again = engine_from_bytes(bytes_from_engine(engine))
by_buffer = engine_from_bytes(buffer_from_engine(engine))
loaded = engine_from_bytes(bytes_from_path("immediate.engine"))
result = [load_plugins(obj=lambda: 7) , bytes(serialized)[:4]]
for each in (engine, again, by_buffer, loaded):
    with TrtRunner(each) as runner:
        result.append(runner.infer({"renamed": X})["y"].copy())
"""
USAGE["device memory goes in and out"] = """
with TrtRunner(EngineFromNetwork(NetworkFromOnnxPath("identity.onnx"))) as runner, cuda.Stream() as stream:
    array = cuda.DeviceArray(shape=X.shape, dtype=X.dtype).copy_from(X, stream)
    stream.synchronize()
    on_host = runner.infer({"x": array})["y"].copy()
    view = cuda.DeviceView(ptr=array.ptr, shape=array.shape, dtype=array.dtype)
    outputs = runner.infer({"x": view}, copy_outputs_to_host=False)
    device = outputs["y"]
    result = [on_host, device.numpy(), tuple(device.shape), np.dtype(device.dtype).name, device.nbytes, device.itemsize]
    result += [isinstance(device, cuda.DeviceView), device.ptr != 0, view.numpy(), array.view(shape=(4,)).numpy()]
    result += [array.resize((1, 1, 1, 2)) is array, tuple(array.shape), array.nbytes, tuple(cuda.DeviceArray().shape)]
    array.free()
    raw = cuda.DeviceArray.raw((16,))
    cuda.wrapper().memcpy(raw.ptr, X.ctypes.data, X.nbytes, cuda.MemcpyKind.HostToDevice)
    back = np.zeros_like(X)
    raw.copy_to(back.view(np.uint8).reshape(-1))
    result += [back, tuple(raw.shape)]
    raw.free()
"""
USAGE["every parameter of a config"] = """
FLAGS = ("tf32", "fp16", "int8", "fp8", "sparse_weights", "refittable", "direct_io", "restricted", "version_compatible")
given = [{name: True} for name in FLAGS] + [
    {"precision_constraints": "obey"}, {"precision_constraints": "prefer"}, {"precision_constraints": None},
    {"version_compatible": True, "exclude_lean_runtime": True},
    {"tactic_sources": []}, {"tactic_sources": [trt.TacticSource.JIT_CONVOLUTIONS]},
    {"profiling_verbosity": trt.ProfilingVerbosity.NONE},
    {"memory_pool_limits": {trt.MemoryPoolType.WORKSPACE: 1 << 20}},
    {"preview_features": []}, {"preview_features": [trt.PreviewFeature.PROFILE_SHARING_0806]},
    {"engine_capability": trt.EngineCapability.STANDARD}, {"builder_optimization_level": 2},
    {"hardware_compatibility_level": trt.HardwareCompatibilityLevel.AMPERE_PLUS}, {"max_aux_streams": 2},
    {"quantization_flags": [trt.QuantizationFlag.CALIBRATE_BEFORE_FUSION]}, {"quantization_flags": []},
    {"allow_gpu_fallback": True}, {"profiles": [Profile().add("X", (1, 2, 1, 1), (1, 2, 2, 2), (1, 2, 3, 3))] * 2}, {},
]
result = []
for options in given:
    builder, network, parser = network_from_onnx_path("dynamic.onnx")
    config = CreateConfig(**options)(builder, network)
    result.append((
        sorted(options), str_from_config(config, network), config.builder_optimization_level, config.max_aux_streams,
        str(config.hardware_compatibility_level), config.num_optimization_profiles, str(config.default_device_type),
    ))
"""
USAGE["a calibrator tells a data loader its metadata"] = """
import os
loader = DataLoader(iterations=2)
made = Calibrator(loader, cache="loader.cache")
profile = Profile().add("X", (1, 2, 1, 1), (1, 2, 3, 3), (1, 2, 4, 4))
config = CreateConfig(int8=True, calibrator=made, profiles=[profile])
EngineBytesFromNetwork(NetworkFromOnnxPath("dynamic.onnx"), config)()
dtype, shape = loader.input_metadata["X"]
result = [str(dtype), tuple(shape), tuple(made.input_metadata["X"].shape), made.num_batches]
result.append(os.path.getsize("loader.cache") > 0)
"""
USAGE["a calibrator serves TensorRT's own API"] = """
import os

def batches(count):
    for number in range(count):
        x = np.full(X.shape, number, np.float32)
        array = cuda.DeviceArray(X.shape, np.float32).copy_from(x)
        yield {"host": x, "array": array, "address": cuda.DeviceArray(X.shape, np.float32).copy_from(x).ptr}

result = []
with Calibrator(batches(3)) as made:
    for _ in range(3):
        addresses = made.get_batch(["host", "array", "address"])
        result += [cuda.DeviceView(address, X.shape, np.float32).numpy() for address in addresses]
for mode in ("wb+", "wb", "rb"):
    with open("open.cache", mode) as cache:
        made = Calibrator([{"x": X}] * 2, cache=cache)
        EngineBytesFromNetwork(NetworkFromOnnxPath("identity.onnx"), CreateConfig(int8=True, calibrator=made))()
        result += [mode, made.num_batches, os.path.getsize("open.cache") > 0]
builder, network, parser = network_from_onnx_path("identity.onnx")
for data in ([{"x": X}] * 3, DataLoader(iterations=2)):
    config = builder.create_builder_config()
    config.set_flag(trt.BuilderFlag.INT8)
    config.int8_calibrator = made = Calibrator(data)
    config.set_calibration_profile(Profile().fill_defaults(network).to_trt(builder, network))
    engine_from_network((builder, network), config)
    result += [made.num_batches, tuple(made.input_metadata["x"].shape)]
"""
USAGE["outputs depend on the data"] = """
result = []
engine = engine_from_network(NetworkFromOnnxPath("nonzero.onnx"))
for values in ([1, 0, 1, 1], [0, 0, 0, 1], [1, 1, 1, 1]):
    with TrtRunner(engine) as runner:
        result.append(runner.infer({"x": np.array(values, np.int32)})["y"].copy())
"""
USAGE["tactics are recorded and replayed"] = """
import json
network, recorded, again = NetworkFromOnnxPath("conv_net.onnx"), TacticReplayData(), TacticReplayData()
options = {"load_timing_cache": cached(), "builder_optimization_level": 1}
EngineBytesFromNetwork(network, CreateConfig(algorithm_selector=TacticRecorder(recorded), **options))()
recorded.save("replay.json")
EngineBytesFromNetwork(network, CreateConfig(algorithm_selector=TacticReplayer("replay.json"), **options))()
EngineBytesFromNetwork(network, CreateConfig(algorithm_selector=TacticReplayer(recorded), **options))()
loaded = TacticReplayData.load("replay.json")
EngineBytesFromNetwork(network, CreateConfig(algorithm_selector=TacticRecorder("again.json"), **options))()
algorithm = recorded[next(iter(recorded.keys()))]
content = json.load(open("replay.json"))
entry = next(iter(content["replay"].values()))
result = [
    loaded == recorded, sorted(entry), sorted(entry["inputs"][0]), entry["inputs"][0]["dtype"],
    sorted(TacticReplayData.load("again.json").keys()) == sorted(recorded.keys()),
    str(algorithm).startswith("(Implementation: "),
    type(algorithm.tactic).__name__, algorithm.inputs[0].dtype == trt.float32, str(recorded).startswith("Layer: "),
    Algorithm(1, 2, algorithm.inputs, algorithm.outputs) == Algorithm(1, 2, algorithm.inputs, algorithm.outputs),
    TensorInfo(trt.float32, (1, 2), -1, 1) == TensorInfo(trt.float32, (1, 2), -1, 1),
    hash(algorithm) == hash(algorithm),
    str(Algorithm(1, 2, [TensorInfo(trt.float32, (1, 2), -1, 1)], [])),
]
"""
USAGE["outputs of networks"] = """
def outputs(**options):
    network = ModifyNetworkOutputs(NetworkFromOnnxPath("conv_net.onnx"), **options)()[1]
    names = [network.get_output(i).name for i in range(network.num_outputs)]
    return sorted(name for name in names if "Unnamed" not in name)  # Polygraphy takes the * in them for a pattern

result = [
    outputs(outputs=["r0", "logits"]), outputs(outputs=constants.MARK_ALL),
    outputs(outputs=["r0", "scores"], exclude_outputs=["r0"]),
    outputs(outputs=["c*"]), outputs(mark_layer_types=["CONVOLUTION"]), outputs(),
]
"""
USAGE["a network drawn as ONNX"] = """
drawn = OnnxLikeFromNetwork(NetworkFromOnnxPath("conv_net.onnx"))()
nodes = [(n.op_type, n.name, list(n.input), list(n.output)) for n in drawn.graph.node]
result = [nodes, [v.name for v in drawn.graph.input]]
"""
USAGE["networks in words"] = """
builder, network, parser = network_from_onnx_path("three_layers.onnx")
text = trt_util.str_from_network(network, show_layers=True, show_attrs=True)
result = [
    sorted(trt_util.get_all_tensors(network)),
    trt_util.get_layer_class_mapping()[trt.LayerType.SHUFFLE] is trt.IShuffleLayer,
    [line.strip() for line in text.splitlines() if line.strip()],
    trt_util.get_network_input_names_meta(network)[0], trt_util.get_trt_logger() is trt_util.get_trt_logger(),
]
"""
USAGE["engines in words"] = """
engine = EngineFromNetwork(NetworkFromOnnxPath("identity.onnx"))()
context = engine.create_execution_context()
text = trt_util.str_from_engine(engine, context, show_layers=True)
result = [line.strip() for line in text.splitlines() if line.strip()]
result = [line for line in result if line.startswith(("Name", "----", "{", "- Profile", "Tensor", "->"))]
meta = trt_util.get_metadata_from_engine(engine, context, mode=trt.TensorIOMode.INPUT)
result.append(str(meta))
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder for each tool, with the models that the code names."""
    tool_folders = {}
    three_layers = "(float[1,8,4,4] x) => (float[1,8,4,4] y) { [relu] a = Relu(x) [neg] b = Neg(a) [exp] y = Exp(b) }"
    for tool in ("polygraphy", "trtops"):
        tool_folders[tool] = tmp_path_factory.mktemp(tool)
        models.identity().write(tool_folders[tool], "identity")
        models.dynamic_identity().write(tool_folders[tool], "dynamic")
        models.conv_net().write(tool_folders[tool], "conv_net")
        onnx.save(models.model(three_layers), tool_folders[tool] / "three_layers.onnx")
        nonzero = "(int64[4] x) => (int64[1,n] y) { y = NonZero(x) }"
        onnx.save(models.model(nonzero), tool_folders[tool] / "nonzero.onnx")
    return tool_folders


@pytest.fixture(scope="module")
def timing_cache(folders: dict[str, Path]) -> str:
    """A timing cache of the model with convolutions, for both tools."""
    path = str(folders["trtops"] / "conv.cache")
    network = NetworkFromOnnxPath(str(folders["trtops"] / "conv_net.onnx"))
    EngineBytesFromNetwork(network, CreateConfig(builder_optimization_level=1), save_timing_cache=path)()
    return path


def executed(code: str, tool: str, folder: Path, cached: Any) -> Any:
    """What a piece of code leaves, with one tool or the other."""
    names = {"np": np, "trt": load(), "X": X, "cached": cached}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exec(compile((IMPORTS + code).replace("polygraphy", tool), f"<{tool}>", "exec"), names)
    return names["result"]


def assert_equal(theirs: Any, ours: Any, where: str = "result") -> None:
    """Arrays bit for bit, sequences and mappings entry by entry, the rest by ``==``."""
    if isinstance(theirs, np.ndarray):
        np.testing.assert_array_equal(np.asarray(ours), theirs, err_msg=where)
        assert np.asarray(ours).dtype == theirs.dtype, where
    elif isinstance(theirs, Mapping):
        assert_equal(list(theirs.items()), list(ours.items()), where)
    elif isinstance(theirs, Sequence) and not isinstance(theirs, (str, bytes)):
        assert len(theirs) == len(ours), f"{where}: {theirs} != {ours}"
        for index, (their_element, our_element) in enumerate(zip(theirs, ours, strict=True)):
            assert_equal(their_element, our_element, f"{where}[{index}]")
    else:
        assert theirs == ours, f"{where}: {theirs!r} != {ours!r}"


@pytest.mark.parametrize("name", USAGE)
def test_documented_code_gives_equal_results(name, folders, request):
    cached = functools.partial(request.getfixturevalue, "timing_cache")
    theirs, ours = (executed(USAGE[name], tool, folders[tool], cached) for tool in ("polygraphy", "trtops"))

    assert_equal(theirs, ours)
