"""The TensorRT back end on the real library and a real GPU."""

import functools
import os
import re
import runpy
import signal
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import trtops.backend.trt as back
from docs.support_table import CAPABILITIES
from tests import models, seeds
from tests.contracts.engine_backend import EngineBackendContract
from tests.contracts.runner import RunnerContract
from trtops import errors
from trtops.backend.base import Build, BuildRequest, Caches
from trtops.backend.onnx.model import Model
from trtops.backend.trt import library
from trtops.backend.trt.building.engine import build_plan
from trtops.backend.trt.building.int8 import best_ranges_of
from trtops.backend.trt.choices import timing_cache as caches
from trtops.backend.trt.choices.timing_cache import TimingCache
from trtops.backend.trt.describe.inspector import EngineDescription, read_layers
from trtops.backend.trt.lines import Feature
from trtops.backend.worker import IsolatedBackend
from trtops.calibration import CalibrationCache
from trtops.cuda import DeviceArray, DeviceView
from trtops.spec import BuildConfig, OptimizationProfile, TensorRTOptions
from trtops.system.worker import Worker
from trtops.tactics.denied import DeniedTactic, DenyList

pytestmark = pytest.mark.gpu

QUICK = {"builder_optimization_level": 1}


def network_of(proto):
    return back.NetworkFromOnnxBytes(proto.SerializeToString())


def engine_of(network, **options):
    return back.engine_from_network(network, back.CreateConfig(**options, **QUICK))


def profile_for(proto):
    profile = back.Profile()
    for value in proto.graph.input:
        dims = [d.dim_value if d.dim_value > 0 else None for d in value.type.tensor_type.shape.dim]
        if value.name == "shape":
            profile.add("shape", (4, 6), (4, 6), (4, 6))
        else:
            profile.add(value.name, *([size if d is None else d for d in dims] for size in (1, 4, 16)))
    return profile


@functools.lru_cache(maxsize=64)
def plan_of(data: bytes) -> bytes:
    config = back.CreateConfig(profiles=[profile_for(onnx.ModelProto.FromString(data))], **QUICK)
    return bytes(back.engine_bytes_from_network(back.network_from_onnx_bytes(data), config))


def load(proto):
    return back.EngineFromBytes(functools.partial(plan_of, proto.SerializeToString()))


@functools.lru_cache(maxsize=1)
def wide_net() -> models.Case:
    """Large enough for tensor cores to pay."""
    return models.three_convolutions(8, 64, 28, 0.06, "wide_net")


@functools.lru_cache(maxsize=1)
def costly_net() -> models.Case:
    """So large that INT8 is many times as fast, and no noise makes the builder choose FP32."""
    return models.three_convolutions(16, 512, 14, 0.02, "costly_net")


@pytest.mark.parametrize("make", [models.conv_net, models.transformer, models.branch], ids=lambda m: m.__name__)
def test_fp32_engine_agrees_with_onnx_runtime(make):
    case = make()
    golden = models.run(case.proto, case.feed)

    with back.TrtRunner(load(case.proto)) as runner:
        outputs = runner.infer(case.feed)

        for name, array in golden.items():
            np.testing.assert_allclose(outputs[name], array, rtol=1e-4, atol=1e-5)


def test_fp16_engine_agrees_with_onnx_runtime():
    case = wide_net()
    golden = models.run(case.proto, case.feed)["y"]
    # Obeyed: without that the builder takes what it times as fastest, and FP32 may well be.
    network = back.SetLayerPrecisions(network_of(case.proto), {"conv[012]": "float16"})

    with back.TrtRunner(engine_of(network, fp16=True, precision_constraints="obey")) as runner:
        output = runner.infer(case.feed)["y"]
        layers = read_layers(runner.engine)

    assert [layer.precision for layer in layers if layer.name.startswith("conv")] == ["fp16"] * 3
    assert np.abs(output - golden).max() < 2e-2 * np.abs(golden).max()


def test_layers_get_the_requested_precisions():
    precisions = {"conv0": "float16", "conv[12]": np.float32}
    network = back.SetLayerPrecisions(network_of(wide_net().proto), precisions)

    layers = read_layers(engine_of(network, fp16=True, precision_constraints="obey"))

    by_layer = {word: x.precision for x in layers for word in ("conv0", "conv1", "conv2") if x.name.startswith(word)}
    assert by_layer == {"conv0": "fp16", "conv1": "fp32", "conv2": "fp32"}


def batches(count, shape):
    return [{"x": models.random(*shape, seed=100 + i)} for i in range(count)]


@pytest.mark.parametrize("name", ["Entropy", "Entropy2", "MinMax", "Legacy"])
def test_each_calibrator_makes_an_int8_engine(name, tmp_path):
    case = costly_net()
    golden = models.run(case.proto, case.feed)["y"].astype(np.float64)
    network = network_of(case.proto)
    cache = tmp_path / "calibration.cache"
    kind = {"Entropy2": "IInt8EntropyCalibrator2"}.get(name, f"IInt8{name}Calibrator")
    base = getattr(library.load(), kind)
    # The legacy algorithm takes a quantile as the range; the largest value serves normally distributed data.
    options = {"quantile": 0.9999, "regression_cutoff": 1.0} if name == "Legacy" else {}
    first = back.Calibrator(batches(4, case.feed["x"].shape), cache=cache, BaseClass=base, **options)

    engine = engine_of(network, int8=True, calibrator=first)
    with back.TrtRunner(engine) as runner:
        output = runner.infer(case.feed)["y"]

    assert first.num_batches == 4 and len(first.data_digest()) == 64
    assert "int8" in {layer.precision for layer in read_layers(engine)}
    assert np.linalg.norm(output - golden) < 0.2 * np.linalg.norm(golden)
    written = CalibrationCache.from_bytes(cache.read_bytes())
    assert "x" in written.by_name() and written.to_tensorrt() == cache.read_bytes()
    assert first.cache_contents == cache.read_bytes()

    again = back.Calibrator([], cache=cache, BaseClass=base, **options)  # by the cache alone
    engine_of(network, int8=True, calibrator=again)
    assert again.num_batches == 0


def test_int8_from_data_uses_ranges_of_best_algorithm():
    case, data = costly_net(), batches(4, costly_net().feed["x"].shape)
    model, config = Model.from_proto(case.proto, case.name), BuildConfig(precision="int8", options=TensorRTOptions())
    best = best_ranges_of(model, config, data, model.proto(lean=True))

    build = back.TensorRTBackend().build(BuildRequest(model, config, calibration_data=data))

    calibration_cache = CalibrationCache.from_bytes(build.calibration_cache)
    assert {name: entry.amax for name, entry in calibration_cache.by_name().items()} == pytest.approx(
        {name: entry.amax for name, entry in best.by_name().items()}, rel=1e-6
    )
    assert build.spec.calibration_sha256 == best.data_sha256
    assert "int8" in {layer.precision for layer in build.layers}


def failing_loader():
    yield from batches(1, (8, 64, 28, 28))
    raise RuntimeError("the disk is gone")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (lambda: [], "returned no batch"),
        (failing_loader, "the disk is gone"),
        (lambda: batches(1, (1, 64, 28, 28)), r"\(1, 64, 28, 28\)"),
        (lambda: [{"y": np.zeros((8, 64, 28, 28), np.float32)}], "'y'"),
    ],
    ids=["no data", "data loader raises", "wrong shape", "wrong name"],
)
def test_calibration_that_fails_says_why(data, words):
    with pytest.raises(errors.CalibrationError, match=words):
        engine_of(network_of(wide_net().proto), int8=True, calibrator=back.Calibrator(data()))


@functools.lru_cache(maxsize=1)
def three_profiles():
    shapes = [((1, 3, 8, 8),) * 3, ((1, 3, 8, 8), (4, 3, 8, 8), (32, 3, 8, 8)), ((128, 3, 8, 8),) * 3]
    profiles = [back.Profile().add("image", *shape) for shape in shapes]
    return engine_of(network_of(models.conv_net().proto), profiles=profiles)


def test_three_profiles_serve_their_shapes_and_refuse_others():
    case = models.conv_net()
    with back.TrtRunner(three_profiles()) as runner:
        for profile, batch in ((0, 1), (1, 1), (1, 32), (1, 7), (2, 128), (0, 1)):
            runner.set_profile(profile)
            feed = {"image": models.random(batch, 3, 8, 8, seed=batch)}
            output = runner.infer(feed)["scores"]
            np.testing.assert_allclose(output, models.run(case.proto, feed)["scores"], rtol=1e-4, atol=1e-5)

        with pytest.raises(errors.InputError, match=r"profile 0 expects min \(1, 3, 8, 8\).*set_profile\(1\)"):
            runner.infer({"image": np.zeros((5, 3, 8, 8), np.float32)})
        with pytest.raises(errors.InputError, match="No profile accepts it"):
            runner.infer({"image": np.zeros((64, 3, 8, 8), np.float32)})
        assert runner.infer({"image": np.zeros((1, 3, 8, 8), np.float32)})["scores"].sum() == pytest.approx(1, rel=1e-4)
        with pytest.raises(errors.ConfigError, match="0 to 2"):
            runner.set_profile(3)


def test_inference_works_after_a_refused_input():
    proto = models.model("(float[n,4] a, float[m,4] b) => (float[k,4] y) { y = Concat<axis = 0>(a, b) }")
    profile = back.Profile().add("a", (1, 4), (2, 4), (8, 4)).add("b", (1, 4), (2, 4), (8, 4))
    feed = {"a": models.random(1, 4), "b": models.random(1, 4, seed=1)}

    with back.TrtRunner(engine_of(network_of(proto), profiles=[profile])) as runner:
        runner.infer(feed)
        larger = models.random(8, 4, seed=2)
        with pytest.raises(errors.InputError, match="'b'"):
            runner.infer({"a": larger, "b": models.random(9, 4)})
        output = runner.infer({"a": larger, "b": feed["b"]})["y"]  # "a" is known by now, and yet the output has grown

        np.testing.assert_array_equal(output, np.concatenate([larger, feed["b"]]))


def test_given_context_keeps_its_profile():
    context = three_profiles().create_execution_context()
    feed = {"image": models.random(128, 3, 8, 8)}

    with back.TrtRunner(context, optimization_profile=2) as runner:
        first = runner.infer(feed)["scores"].copy()
    with back.TrtRunner(context) as again:
        np.testing.assert_array_equal(again.infer(feed)["scores"], first)
    assert context.active_optimization_profile == 2


def test_data_dependent_outputs_have_the_right_shape():
    case = models.data_dependent()
    with back.TrtRunner(load(case.proto)) as runner:
        for seed in range(4):
            x = (models.random(3, 4, seed=seed) > 0).astype(np.float32)
            np.testing.assert_array_equal(runner.infer({"x": x})["where"], np.array(np.nonzero(x)))
        assert runner.infer({"x": np.zeros((3, 4), np.float32)})["where"].shape == (2, 0)


def test_data_dependent_outputs_follow_the_batch():
    proto = models.model("(float[n,4] x) => (int64[2,k] where) { where = NonZero(x) }")
    profile = back.Profile().add("x", (1, 4), (2, 4), (4096, 4))
    with back.TrtRunner(engine_of(network_of(proto), profiles=[profile])) as runner:
        for rows, threshold in ((2, 0.0), (8, -9.0), (1, 0.0), (8, 9.0), (2, -9.0), (2, 0.5), (4096, -9.0), (1, 0.0)):
            x = np.where(models.random(rows, 4, seed=rows) > threshold, 1, 0).astype(np.float32)
            np.testing.assert_array_equal(runner.infer({"x": x})["where"], np.array(np.nonzero(x)))


def test_values_of_shape_tensors_decide_the_outputs_shape():
    proto = models.model("(float[1,4] x, int64[2] shape) => (float[a,b] y) { y = Expand(x, shape) }")
    profile = back.Profile().add("x", (1, 4), (1, 4), (1, 4)).add("shape", (1, 4), (3, 4), (9, 4))
    x = models.random(1, 4)

    with back.TrtRunner(engine_of(network_of(proto), profiles=[profile])) as runner:
        for rows in (3, 9, 1, 3):
            output = runner.infer({"x": x, "shape": np.array([rows, 4])})["y"]
            np.testing.assert_array_equal(output, np.broadcast_to(x, (rows, 4)))
        # 8.6 tells the range of the first value alone.
        with pytest.raises(errors.InputError, match=r"\[10, 4\].*min \(1,.*max \(9,"):
            runner.infer({"x": x, "shape": np.array([10, 4])})
        assert runner.infer({"x": x, "shape": np.array([2, 4])})["y"].shape == (2, 4)


@pytest.mark.parametrize("name", ["CHW2", "HWC8", "CHW32"])
def test_vectorized_formats_are_packed_and_unpacked(name):
    proto = models.model("(float[2,5,4,6] x) => (float[2,5,4,6] y) { y = Relu(x) }")
    network = back.SetTensorDatatypes(network_of(proto), {"x": "float16", "y": "float16"})
    engine = engine_of(back.SetTensorFormats(network, {"*": [name]}), fp16=True)
    x = models.random(2, 5, 4, 6).astype(np.float16)

    with back.TrtRunner(engine) as runner:
        plain = runner.infer({"x": x})["y"]
        np.testing.assert_array_equal(plain.linear(), np.maximum(x, 0))
        raw = runner.infer({"x": plain})["y"]  # what came out may go in again as it is
        np.testing.assert_array_equal(raw.linear(), np.maximum(x, 0))


def test_a_network_with_other_outputs_gives_those():
    case = models.conv_net()

    def outputs_of(marked):
        network = back.ModifyNetworkOutputs(network_of(case.proto), outputs=marked)
        with back.TrtRunner(engine_of(network, profiles=[profile_for(case.proto)])) as runner:
            return {name: array.copy() for name, array in runner.infer(case.feed).items()}

    outputs = outputs_of(["r0", "scores"])
    assert set(outputs) == {"r0", "scores"}
    assert outputs["r0"].min() == 0
    assert {"c0", "n0", "r0", "c1", "scores"} <= set(outputs_of("mark-all"))


def test_a_network_made_with_the_api_adds_one(adding_network):
    x = models.random(64, 64)
    with back.TrtRunner(back.EngineFromNetwork(adding_network)) as runner:
        np.testing.assert_array_equal(runner.infer({"input": x})["output"], x + 1)


def test_a_network_is_described_with_attributes_and_weights():
    parts = network_of(models.conv_net().proto)()

    text = back.describe_network(parts[1]).text(show=("layers", "attrs", "weights"))
    drawn = back.onnx_like_from_network(parts)

    assert "conv0.stride_nd = (1, 1)" in text
    assert re.search(r"conv0\.kernel = float32 .*min=-0\.8", text)
    assert drawn.graph.node[0].op_type == "CONVOLUTION"


def test_inspector_lists_tactics_formats_and_precisions():
    with back.TrtRunner(load(wide_net().proto)) as runner:
        described = back.describe_engine(runner.engine)

    convolutions = [layer for layer in described.layers if layer.name.startswith("conv")]
    assert len(convolutions) == 3
    for layer in convolutions:
        assert layer.tactic and layer.tactic_value and layer.precision == "fp32"
        assert layer.inputs[0].shape == (8, 64, 28, 28) and layer.inputs[0].format
        assert layer.weights == (("fp32", 64 * 64 * 9),)
    assert described.weights_bytes >= 3 * 64 * 64 * 9 * 4
    assert described.inputs[0].name == "x" and described.outputs[0].name == "y"
    assert EngineDescription.from_json(described.to_json()) == described
    assert convolutions[0].tactic in described.text(show=("layers", "attrs", "weights"))


BARE_CONSTANTS = """(float[2,3] x) => (float[3,2] y) {
    shape = Constant<value_ints = [3, -1]>()
    flat = Reshape(x, shape)
    scale = Constant<value_float = 2.5>()
    scaled = Mul(flat, scale)
    row = Constant<value_floats = [1.0, -1.0]>()
    shifted = Add(scaled, row)
    where = Constant<value_int = 1>()
    column = Gather<axis = 1>(shifted, where)
    axis = Constant<value_ints = [1]>()
    wide = Unsqueeze(column, axis)
    both = Add(wide, w)
    y = Add(both, shifted)
}"""


@pytest.mark.parametrize("source", ["bytes", "file", "file with external data"])
def test_constants_that_hold_bare_numbers_have_their_values(source, tmp_path):
    case = models.Case(models.model(BARE_CONSTANTS, {"w": models.random(3, 2, seed=3)}), {"x": models.random(2, 3)})
    golden = models.run(case.proto, case.feed)["y"]
    path = tmp_path / "m.onnx"
    external = source == "file with external data"
    onnx.save(case.proto, path, save_as_external_data=external, location="m.bin", size_threshold=0)
    network = network_of(case.proto) if source == "bytes" else back.NetworkFromOnnxPath(path)
    assert external == (tmp_path / "m.bin").exists()

    with back.TrtRunner(engine_of(network)) as runner:
        np.testing.assert_allclose(runner.infer(case.feed)["y"], golden, rtol=1e-5)


COPY = "Reformatting CopyNode"


def test_a_replay_repeats_every_tactic(tmp_path):
    network = network_of(wide_net().proto)
    path = tmp_path / "replay.json"
    engine = engine_of(network, fp16=True, algorithm_selector=back.TacticRecorder(path))
    recorded = back.TacticReplayData.load(path)
    replayer = back.TacticReplayer(path)

    again = engine_of(network, fp16=True, algorithm_selector=replayer)

    assert len(recorded) >= 3 and replayer.chosen == recorded and replayer.mismatches == {}
    replayed, first = ([(x.name, x.tactic, x.tactic_value) for x in read_layers(e)] for e in (again, engine))
    assert [name for name, _, _ in replayed] == [name for name, _, _ in first]
    # No selector sees the copies between formats: the builder times their kernels again.
    assert [x for x in replayed if not x[0].startswith(COPY)] == [x for x in first if not x[0].startswith(COPY)]
    assert sum(not name.startswith(COPY) for name, _, _ in replayed) >= 3


def test_engine_stays_if_its_tactics_cannot_be_recorded(monkeypatch):
    from trtops.backend.trt.building import build

    def refuse(*args, selector=None):
        if selector is not None:
            raise errors.EngineBuildError("Could not find any implementation for node conv1.")
        return build_plan(*args)

    monkeypatch.setattr(build, "build_plan", refuse)
    built = back.TensorRTBackend().build(
        BuildRequest(Model.from_proto(models.conv_net().proto), BuildConfig(options=TensorRTOptions()))
    )
    assert built.tactics.mechanism == "inspector" and "the tactics were not recorded: Could not find" in built.log


def test_failed_replay_lists_its_layers():
    network = network_of(wide_net().proto)
    recorded = back.TacticReplayData()
    engine_of(network, algorithm_selector=back.TacticRecorder(recorded))
    name = next(name for name in recorded if name.startswith("conv1"))
    old = recorded[name]
    recorded[name] = back.Algorithm(old.implementation, old.tactic ^ 0x55, old.inputs, old.outputs)

    with pytest.raises(errors.TacticMismatchError, match="conv1") as caught:
        engine_of(network, algorithm_selector=back.TacticReplayer(recorded))
    assert caught.value.layers == (name,)


@pytest.fixture(scope="module")
def backend():
    return back.TensorRTBackend()


@functools.lru_cache(maxsize=1)
def wide_build():
    return back.TensorRTBackend().build(BuildRequest(Model.from_proto(wide_net().proto, "wide_net"), FP16))


FP16 = BuildConfig(precision="fp16", options=TensorRTOptions(optimization_level=2))
UNWATCHED = replace(FP16, options=replace(FP16.options, record_tactics=False))


def test_timing_cache_repeats_the_engine(backend):
    model = Model.from_proto(wide_net().proto, "wide_net")
    first = backend.build(BuildRequest(model, UNWATCHED))

    again = backend.build(BuildRequest(model, UNWATCHED, caches=Caches(timing=first.timing_cache)))

    assert again.layers == first.layers
    assert again.tactics == first.tactics
    assert again.tactics.mechanism == "inspector"
    assert again.spec.timing_cache_sha256 is not None
    assert again.timing_cache_use.misses == 0 < again.timing_cache_use.hits
    saved = max(first.seconds - again.seconds, 0)  # how long a build takes is not for a test to say
    assert again.timing_cache_use.saved_seconds == pytest.approx(saved, abs=2e-3)


def test_unread_timing_cache_entries_are_reported(backend):
    """Myelin compiles parts of a transformer, and 8.6 does not read back what it leaves in the cache."""
    case = models.transformer()
    model = Model.from_proto(case.proto, case.name)
    first = transformer_build()

    again = backend.build(BuildRequest(model, CONTRACT, caches=Caches(timing=first.timing_cache)))

    entries = first.timing_cache_use.misses
    assert again.timing_cache_use.hits <= entries
    unread = "myelinCache" in again.log
    assert ("trtops: " in again.log and "did not read the data of its compiler" in again.log) == unread
    assert unread or again.timing_cache_use.hits == entries
    with backend.runner(again.engine) as runner:
        outputs = runner.infer(case.feed)
        np.testing.assert_allclose(outputs["y"], models.run(case.proto, case.feed)["y"], rtol=1e-3, atol=1e-4)


def test_foreign_timing_cache_is_refused(backend):
    cache = TimingCache.from_bytes(wide_build().timing_cache)
    elsewhere = replace(cache, key="nvidia-a2_12345678_tensorrt_8.6.0")
    model = Model.from_proto(wide_net().proto, "wide_net")

    with pytest.raises(errors.TimingCacheError, match="nvidia-a2"):
        backend.build(BuildRequest(model, FP16, caches=Caches(timing=elsewhere.to_bytes())))

    damaged = b"\xff" * 16 + cache.data[16:]
    with pytest.raises(errors.TimingCacheError, match="refuses"):
        back.CreateConfig(load_timing_cache=damaged)(*back.create_network())


def build_with_timing_cache(proto, path):
    """Build from an empty timing cache, and save it to a file; returns it, and what was saved."""
    builder, network, _parser = back.network_from_onnx_bytes(proto.SerializeToString())
    # Several precisions and formats to time, so that there are entries.
    config = back.CreateConfig(profiles=[profile_for(proto)], fp16=True, builder_optimization_level=2)(builder, network)
    build_plan(builder, network, config)
    cache = caches.collect(config, None, None, 0.0)
    return cache, caches.save(config, cache, path, raw=True)


def entries_in(path):
    return caches.held(back.CreateConfig(load_timing_cache=path)(*back.create_network()))


def one_convolution(channels):
    weights = {"w": models.random(channels, channels, 3, 3, scale=0.06)}
    dims = f"8,{channels},28,28"
    return models.model(f"(float[{dims}] x) => (float[{dims}] y) {{ y = Conv<pads = [1,1,1,1]>(x, w) }}", weights)


def test_two_writers_share_a_timing_cache(tmp_path, caplog):
    path = tmp_path / "both.cache"
    nets = [one_convolution(64), one_convolution(96)]

    with ThreadPoolExecutor(len(nets)) as pool:
        built = list(pool.map(functools.partial(build_with_timing_cache, path=path), nets))

    largest = max(cache.entries for cache, _ in built)
    assert 0 < largest <= entries_in(path)
    # The nets have no layer in common.
    assert "could not merge" in caplog.text or entries_in(path) > largest


def test_build_survives_an_unsavable_timing_cache(tmp_path, caplog):
    path = tmp_path / "damaged.cache"
    damaged = b"\xff" * 16 + TimingCache.from_bytes(wide_build().timing_cache).data[16:]
    path.write_bytes(damaged)

    plan = back.engine_bytes_from_network(network_of(models.identity().proto), save_timing_cache=path)

    assert bytes(plan) and path.read_bytes() == damaged
    assert "was not saved" in caplog.text and "refuses" in caplog.text


def test_inputs_and_outputs_may_stay_on_the_device():
    case = models.identity()
    with back.TrtRunner(load(case.proto)) as runner, DeviceArray() as x:
        x.copy_from(case.feed["x"])
        view = runner.infer({"x": x}, copy_outputs_to_host=False)["y"]

        assert isinstance(view, DeviceView)
        np.testing.assert_array_equal(view.numpy(), case.feed["x"])
        other = models.random(1, 1, 2, 2, seed=5)
        np.testing.assert_array_equal(runner.infer({"x": other})["y"], other)
        np.testing.assert_array_equal(runner.infer({"x": x})["y"], case.feed["x"])


def test_device_time_excludes_copies():
    proto = models.model("(float[16,1024,1024] x) => (float[16,1024,1024] y) { y = Relu(x) }")
    with back.TrtRunner(load(proto)) as runner:
        with pytest.raises(errors.InferenceError, match="has not run an inference"):
            runner.last_device_time()
        times = []
        for seed in range(3):
            x = models.random(16, 1024, 1024, seed=seed)
            np.testing.assert_array_equal(runner.infer({"x": x})["y"], np.maximum(x, 0))
            times.append((runner.last_device_time(), runner.last_inference_time()))

    # The least of each: others use the device at the same time.
    assert 0 < min(device for device, _ in times) < min(whole for _, whole in times) / 2


def test_int64_feeds_fit_int32_engines():
    proto = models.model("(float[8,4] x, int64[3] rows) => (float[3,4] y) { y = Gather(x, rows) }")
    x, rows = models.random(8, 4), np.array([7, 0, 2])
    with back.TrtRunner(load(proto)) as runner:
        np.testing.assert_array_equal(runner.infer({"x": x, "rows": rows})["y"], x[rows])
        if runner.get_input_metadata()["rows"].dtype == "int32":
            with pytest.raises(errors.InputError, match="int32"):
                runner.infer({"x": x, "rows": np.array([2**40, 0, 0])})


def test_outputs_belong_to_the_runner_and_are_overwritten():
    with back.TrtRunner(load(models.identity().proto)) as runner:
        first = runner.infer({"x": np.zeros((1, 1, 2, 2), np.float32)})["y"]
        runner.infer({"x": np.ones((1, 1, 2, 2), np.float32)})

        assert first.min() == 1


def test_something_that_is_no_engine_is_refused():
    runner = back.TrtRunner(lambda: b"plan")
    with pytest.raises(errors.ConfigError, match="EngineFromBytes"):
        runner.activate()
    assert not runner.is_active


def test_the_gpu_is_named_with_its_state():
    gpu = back.current_gpu()

    assert gpu.name and re.fullmatch(r"\d+\.\d+", gpu.compute_capability)
    assert gpu.memory_bytes > 1 << 30 and len(gpu.uuid_sha256) == 16
    assert gpu.driver is None or gpu.sm_clock_mhz


def test_build_works_after_a_killed_child():
    case = models.identity()
    slow = BuildConfig(precision="fp16", options=TensorRTOptions(optimization_level=5))
    with Worker() as worker, ThreadPoolExecutor(1) as pool:
        isolated = IsolatedBackend("tensorrt", worker=worker)
        environment = isolated.environment()  # the child is warm now
        starts = worker.starts
        building = pool.submit(isolated.build, BuildRequest(Model.from_proto(wide_net().proto, "wide_net"), slow))
        time.sleep(1.0)
        os.kill(worker.pid, signal.SIGSEGV)
        with pytest.raises(errors.WorkerError, match="Segmentation fault"):
            building.result(30)

        quick = BuildConfig(options=TensorRTOptions(optimization_level=1))
        build = isolated.build(BuildRequest(Model.from_proto(case.proto, case.name), quick))
        assert worker.starts == starts + 1
        assert build.engine.environment.device_sha256 == environment.device_sha256
        case.check(lambda feed: isolated.first_inference(build.engine, feed))


@pytest.mark.parametrize(
    ("options", "feature"),
    [
        ({"bf16": True}, "BF16_FLAG"),
        ({"weight_streaming": True}, "WEIGHT_STREAMING"),
        ({"strip_plan": True}, "STRIP_PLAN"),
        ({"error_on_timing_cache_miss": True}, "TIMING_CACHE_MISS_ERROR"),
        ({"disable_compilation_cache": True}, "COMPILATION_CACHE_SWITCH"),
        ({"progress_monitor": object()}, "PROGRESS_MONITOR"),
        ({"runtime_platform": "WINDOWS_AMD64"}, "RUNTIME_PLATFORM"),
        ({"tiling_optimization_level": "FAST"}, "TILING"),
        ({"edit_timing_cache": True}, "EDITABLE_TIMING_CACHE"),
    ],
)
def test_features_of_later_releases_are_refused_by_title(options, feature):
    if library.line().supports(Feature[feature]):
        pytest.skip("this release has it")
    with pytest.raises(errors.UnsupportedFeatureError) as caught:
        back.create_config(*back.create_network(), **options)
    assert Feature[feature].title in str(caught.value) and Feature[feature].releases in str(caught.value)


def test_missing_dla_cores_are_reported():
    builder, network = back.create_network()
    if builder.num_DLA_cores:
        pytest.skip("this device has DLA cores")
    with pytest.raises(errors.UnsupportedFeatureError, match="no DLA core"):
        back.create_config(builder, network, use_dla=True)


def test_rtx_config_is_refused_on_tensorrt():
    with pytest.raises(errors.UnsupportedFeatureError, match="RTX"):
        back.create_config_rtx(*back.create_network(), compute_capabilities=["SM89"])


def test_missing_libraries_are_refused_by_name(tmp_path: Path):
    with pytest.raises(errors.BackendUnavailableError, match=r"absent\.so"):
        back.load_plugins([tmp_path / "absent.so"])
    assert back.load_plugins(["libnvinfer_plugin.so"], obj=lambda: 7) == 7
    with pytest.raises(errors.BackendUnavailableError, match=r"absent_lean\.so"):
        back.load_runtime(tmp_path / "absent_lean.so")
    with pytest.raises(errors.TrtopsError, match=r"absent\.engine"):
        back.engine_from_path(tmp_path / "absent.engine")


def test_inference_works_after_running_out_of_memory():
    with pytest.raises(errors.BackendError, match=r"(?i)memory"):
        DeviceArray((back.current_gpu().memory_bytes,), np.float32)
    case = models.identity()
    with back.TrtRunner(engine_of(network_of(case.proto))) as runner:
        case.check(runner.infer)


def test_support_table_agrees_with_the_installed_release():
    line = library.line()
    major, minor = (int(part) for part in line.version.split(".")[:2])
    release = (f"{major}.{minor}", (major, minor), False)

    assert {f.name for f in Feature if f.is_in((major, minor), rtx=False)} == {f.name for f in line.features}
    for row in CAPABILITIES:
        assert (row.cell(release) != "-") == (row.feature is None or line.supports(row.feature))


RECORDED = BuildConfig(precision="fp16", options=TensorRTOptions())
REPEATED = "the replay was repeated without its timing cache"


def timed(config: BuildConfig = RECORDED, caches: Caches | None = None) -> tuple[Build, int]:
    """A build, with how many tactics TensorRT timed in it."""
    case = models.three_convolutions(4, 32, 28, 0.06, "replayed")
    with library.collect_log(verbose=True) as log:
        build = back.TensorRTBackend().build(
            BuildRequest(Model.from_proto(case.proto, case.name), config, caches=caches or Caches())
        )
    return build, sum("Time: " in message for _, message in log.lines)


@pytest.fixture(scope="module")
def recorded() -> tuple[Build, int]:
    return timed()


def choices_of(build: Build) -> list[tuple[str, str]]:
    return [(choice.layer, choice.tactic) for choice in build.tactics.choices if choice.replayable]


def test_trial_times_a_fifth_of_the_build(recorded: tuple[Build, int]) -> None:
    build, timings = recorded
    trial = Caches.replaying(build.tactics, build.timing_cache)

    (first, first_timings), (again, _) = timed(caches=trial), timed(caches=trial)
    bare, bare_timings = timed(caches=replace(trial, timing=None))

    assert len(choices_of(build)) >= 3
    for rebuilt in (first, again, bare):
        assert choices_of(rebuilt) == choices_of(build)
        assert REPEATED not in rebuilt.log and rebuilt.timing_cache is None
    assert first_timings * 5 <= timings
    assert bare_timings > first_timings  # nothing but a cache saves it


def test_recorded_build_has_a_whole_timing_cache(recorded: tuple[Build, int]) -> None:
    build, _ = recorded
    unwatched = replace(RECORDED, options=replace(RECORDED.options, record_tactics=False))

    by_cache, _ = timed(unwatched, Caches(timing=build.timing_cache))
    recorded_again, _ = timed(RECORDED, Caches(timing=build.timing_cache))

    assert by_cache.timing_cache_use.misses == recorded_again.timing_cache_use.misses == 0
    assert by_cache.layers == build.layers
    assert choices_of(recorded_again) == choices_of(build)


def test_seed_takes_precedence_over_timing_cache(recorded: tuple[Build, int]) -> None:
    build, timings = recorded
    drawn = replace(RECORDED, options=replace(RECORDED.options, tactic_seed=5))

    seeded, drawn_timings = timed(drawn, Caches(timing=build.timing_cache))

    assert "the timing cache was not used: TensorRT only offers" in seeded.log
    assert drawn_timings * 2 > timings
    repeated, _ = timed(RECORDED, Caches.replaying(seeded.tactics, seeded.timing_cache))
    assert choices_of(repeated) == choices_of(seeded)


def test_deny_list_takes_precedence_over_timing_cache(recorded: tuple[Build, int]) -> None:
    build, _ = recorded
    denied_choice = next(choice for choice in build.tactics.choices if choice.replayable and "conv1" in choice.layer)
    where = {"backend_version": build.tactics.backend_version, "device_sha256": build.tactics.device_sha256}
    entry = DeniedTactic(**where, choices=(denied_choice,))

    denied_build, _ = timed(caches=Caches(timing=build.timing_cache, denied=DenyList(entries=(entry,))))

    assert dict(choices_of(denied_build))[denied_choice.layer] != denied_choice.tactic
    assert "tactics are on the deny-list" in denied_build.log and denied_choice.tactic in denied_build.left_out


class TestTrtRunner(RunnerContract):
    @pytest.fixture
    def make_runner(self):
        # An engine has an order of its own, see below: the model's is given.
        return lambda proto, name=None: back.TrtRunner(
            load(proto), name, output_order=[value.name for value in proto.graph.output]
        )


def test_backend_orders_outputs_as_the_model_does(backend):
    case = models.multi_output()
    names = [value.name for value in case.proto.graph.output]
    with back.TrtRunner(load(case.proto)) as runner:
        outputs = runner.infer(case.feed)
        engine = runner.engine
        order = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        assert list(outputs) == [name for name in order if name in names]
    with back.TrtRunner(load(case.proto), output_order=names[::-1]) as runner:
        assert list(runner.infer(case.feed)) == names[::-1]

    config = BuildConfig(profiles=(OptimizationProfile.fixed(x=(3, 4)),), options=TensorRTOptions(optimization_level=1))
    build = backend.build(BuildRequest(Model.from_proto(case.proto, case.name), config))
    for engine in (build.engine, lambda: build.engine):
        with backend.runner(engine) as runner:
            case.check(runner.infer)


CONTRACT = BuildConfig(
    profiles=(OptimizationProfile.fixed(x=models.transformer().feed["x"].shape),),
    options=TensorRTOptions(optimization_level=1),
)


@functools.lru_cache(maxsize=1)
def transformer_build():
    return back.TensorRTBackend().build(
        BuildRequest(Model.from_proto(models.transformer().proto, "transformer"), CONTRACT)
    )


class TestTensorRTBackend(EngineBackendContract):
    rtol = 1e-3
    atol = 1e-4

    @pytest.fixture
    def config(self):
        return CONTRACT

    @pytest.fixture
    def build(self):
        return transformer_build()

    # 8.6 reads only a part of a transformer's cache; test_timing_cache_repeats_the_engine uses another model.
    test_timing_cache_repeats_the_choices = None


@pytest.mark.seeds
@pytest.mark.skipif(not seeds.FOLDER.is_dir(), reason=f"the documents are not at {seeds.FOLDER}")
def test_polygraphy_scripts_run_with_renamed_imports(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(models.identity().proto, "identity.onnx")
    text = "(float[n,3,28,28] X) => (float[n,3,28,28] Y) { Y = Identity(X) }"
    onnx.save(models.model(text, opset=8, name="g", ir_version=3), "dynamic_identity.onnx")
    scripts = [text for text in seeds.scripts("000") if "backend.trt" in text and "def main" in text]
    failed: list[str] = []

    for number, script in enumerate(scripts):  # some load the engine that the one before saved
        path = tmp_path / f"script_{number}.py"
        path.write_text(script, encoding="utf-8")
        try:
            runpy.run_path(str(path), run_name="__main__")
        except Exception:  # the others are to run all the same
            failed.append(f"{path.name}\n{traceback.format_exc()}")

    assert scripts and not failed, "\n".join(failed)
