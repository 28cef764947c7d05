import itertools
import re
import time
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tests import bombs, cuda_double, models
from tests.contracts.engine_backend import EngineBackendContract
from trtops import errors
from trtops.backend.base import BuildRequest, Caches
from trtops.backend.engines import BACKENDS, backend_of_suffix, engine_backend
from trtops.backend.onnx.model import Model
from trtops.backend.onnx.precision import convert_to_fp16
from trtops.backend.onnxrt import search
from trtops.backend.onnxrt.builder import OnnxRuntimeBackend
from trtops.backend.onnxrt.engine import open_plan, provider_settings
from trtops.backend.onnxrt.runner import reference_runner
from trtops.backend.onnxrt.tactics import CUDA_TACTICS, Candidate
from trtops.backend.onnxrt.timing_cache import TimingCache
from trtops.backend.worker import IsolatedBackend
from trtops.ops.evaluation.precision_check import check_precision
from trtops.spec import BuildConfig, OnnxRuntimeOptions, OptimizationProfile
from trtops.tactics.record import TacticRecord, carried_over


def config(precision="fp32", profiles=(), **options) -> BuildConfig:
    return BuildConfig(precision=precision, profiles=profiles, options=OnnxRuntimeOptions(**options))


def pinned(backend, **settings: str) -> TacticRecord:
    """A record that pins settings, without layers."""
    environment = backend.environment()
    return TacticRecord(
        mechanism="onnxruntime",
        backend_version=environment.backend_version,
        device_sha256=environment.device_sha256,
        settings=tuple(sorted(settings.items())),
    )


def outputs(runner, feed):
    with runner:
        return runner.infer(feed)


@pytest.fixture
def backend():
    return OnnxRuntimeBackend()


@pytest.fixture
def case():
    return models.transformer()


@pytest.fixture
def model(case):
    return Model.from_proto(case.proto, case.name)


@pytest.fixture
def error(backend, model, case):
    """``error(build)`` is the largest difference of a build's outputs from the reference's."""
    golden = outputs(reference_runner(model), case.feed)

    def measure(build) -> float:
        actual = outputs(backend.runner(build.engine), case.feed)
        return max(float(np.abs(actual[name] - array).max()) for name, array in golden.items())

    return measure


class TestOnnxRuntimeBackend(EngineBackendContract):
    @pytest.fixture
    def backend(self):
        return OnnxRuntimeBackend()

    @pytest.fixture
    def config(self):
        return config(timing_iterations=2)


@pytest.mark.gpu_ort
class TestOnnxRuntimeBackendOnCuda(TestOnnxRuntimeBackend):
    @pytest.fixture
    def config(self):
        return config(timing_iterations=2, providers=("cuda",))


@pytest.mark.gpu_ort
@pytest.mark.parametrize("tactic", [tactic.name for tactic in CUDA_TACTICS])
def test_cuda_settings_give_the_models_outputs(backend, tactic):
    case = models.conv_net()
    model, options = Model.from_proto(case.proto), config(providers=("cuda",), tactics=())
    record = replace(pinned(backend, **{tactic: "on"}), device_sha256=backend.environment(options).device_sha256)

    build = backend.build(BuildRequest(model, options, caches=Caches(replay=record)))

    golden = outputs(reference_runner(model), case.feed)
    with backend.runner(build.engine) as runner:
        for _ in range(3):  # a CUDA graph is captured and replayed
            for name, array in runner.infer(case.feed).items():
                np.testing.assert_allclose(array, golden[name], rtol=1e-4, atol=1e-5)
            assert runner.last_inference_time() > 0


@pytest.mark.gpu_ort
def test_tf32_is_coarser_only_when_allowed(backend):
    text = "(float[64,256] x) => (float[64,256] y) { y = MatMul(x, w) }"
    model = Model.from_proto(models.model(text, {"w": models.random(256, 256, seed=1)}))
    feed = {"x": models.random(64, 256)}
    golden = outputs(reference_runner(model), feed)["y"]

    errors_of = []
    for tf32 in (False, True):
        build = backend.build(BuildRequest(model, config(providers=("cuda",), tactics=(), tf32=tf32)))
        actual = outputs(backend.runner(build.engine), feed)["y"]
        errors_of.append(float(np.abs(actual - golden).max() / np.abs(golden).max()))
        assert check_precision(build).name == ("TF32" if tf32 else "FP32")

    assert errors_of[0] < 2e-6 < 5e-5 < errors_of[1]


@pytest.fixture
def cuda(monkeypatch):
    cuda_double.install(monkeypatch)


@pytest.mark.usefixtures("cuda")
class TestOnnxRuntimeBackendOnDouble(TestOnnxRuntimeBackend):
    test_engine_runs_in_another_process = None  # which has no double

    @pytest.fixture
    def config(self):
        return config(timing_iterations=2, providers=("cuda",))


def test_device_of_a_build_is_what_runs_it(backend, model, monkeypatch, capsys):
    plain, engine = backend.environment(), backend.build(BuildRequest(model, config(tactics=()))).engine
    cuda_double.install(monkeypatch, starts=False)
    environment = backend.environment(config(providers=("cuda", "cpu")))

    assert (environment.device, environment.compute_capability, environment.cuda, environment.cudnn) == (
        "NVIDIA H100",
        "9.0",
        "13.2",
        "9.13.1",
    )
    assert environment.device_key.endswith(f"_onnxruntime_{ort.__version__}_cuda-13.2_cudnn-9.13.1")
    assert environment.device_sha256 != plain.device_sha256 and backend.environment(config()) == plain
    assert ort.preload_dlls.call_count == 1 and capsys.readouterr().out == ""
    # ONNX Runtime would use the CPU instead, without an error.
    with pytest.raises(errors.BackendUnavailableError, match="CUDAExecutionProvider does not start"):
        open_plan(engine.plan, OnnxRuntimeOptions(providers=("cuda",)))


@pytest.mark.usefixtures("cuda")
def test_settings_of_cuda_are_timed_and_may_fail(backend, monkeypatch):
    monkeypatch.setattr(cuda_double.Session, "refused", ("prefer_nhwc",))
    model = Model.from_proto(models.conv_net().proto)

    build = backend.build(BuildRequest(model, config(providers=("cuda",), timing_iterations=2, timing_seconds=60.0)))

    settings = dict(build.tactics.settings)
    for name in ("CudnnHeuristicSearch", "CudnnDefaultSearch"):
        assert name in settings and f" ms  +{name}  " in build.log
    assert "+PreferNhwc does not run: " in build.log and settings["PreferNhwc"] == "off"
    assert "FlashAttention" not in settings and "CudaGraph" not in settings  # which it has no nodes for
    chosen = provider_settings(build.spec.config.options, Candidate.from_settings(build.tactics.settings))
    assert build.engine.options["provider_settings"] == chosen and chosen["use_tf32"] == "0"


def test_providers_settings_are_recorded_and_replayed():
    options = OnnxRuntimeOptions(providers=("CUDA",), tf32=True)
    candidate = Candidate.from_settings(
        [("CudnnHeuristicSearch", "on"), ("PreferNhwc", "off"), ("NchwcTransformer", "off")]
    )

    assert options == OnnxRuntimeOptions(providers=("CUDAExecutionProvider",), tf32=True) and options.on_gpu
    assert candidate.id == "-NchwcTransformer+CudnnHeuristicSearch"
    assert provider_settings(options, candidate) == {"use_tf32": "1", "cudnn_conv_algo_search": "HEURISTIC"}
    assert provider_settings(OnnxRuntimeOptions(tf32=True), candidate) == {}
    assert candidate.without_provider_settings() == Candidate.toggling(["NchwcTransformer"])
    assert Candidate.from_settings(candidate.settings(["PreferNhwc"])) == candidate


@pytest.mark.usefixtures("cuda")
def test_nodes_on_the_cpu_are_named_and_refused(backend, model):
    build = backend.build(BuildRequest(model, config(providers=("cuda",), tactics=())))

    count, first = len(build.layers), build.layers[0]
    assert build.fallback.startswith(f"{count} of {count} nodes (100%) run on the CPU: {first.op} `{first.name}`, ")
    with pytest.raises(errors.EngineBuildError, match=rf"{count} of {count} nodes .*cpu_fallback"):
        backend.build(BuildRequest(model, config(providers=("cuda",), tactics=(), cpu_fallback=False)))
    assert backend.build(BuildRequest(model, config(tactics=(), cpu_fallback=False))).fallback == ""


def test_fastest_candidate_of_timing_cache_is_built(backend, model, error):
    allowed = config(tactics=("GeluApproximation",), allow_approximation=True)
    timed = backend.build(BuildRequest(model, allowed))

    chosen = {}
    for favourite in ("default", "+GeluApproximation"):
        cache = TimingCache.from_bytes(timed.timing_cache)
        for key, timing in cache.timings.items():
            is_default, is_favourite = (key.split(" | ")[1] == name for name in ("default", favourite))
            ratios = () if is_default else 8 * (-1.0 if is_favourite else 1.0,)
            cache.timings[key] = replace(timing, log_ratios=ratios)
        chosen[favourite] = backend.build(BuildRequest(model, allowed, caches=Caches(timing=cache.to_bytes())))

    assert dict(chosen["default"].tactics.settings) == {"GeluApproximation": "off"}
    assert dict(chosen["+GeluApproximation"].tactics.settings) == {"GeluApproximation": "on"}
    assert error(chosen["default"]) < 1e-4 < error(chosen["+GeluApproximation"])


def test_full_timing_cache_replaces_timing(backend, model):
    first = backend.build(BuildRequest(model, config()))
    again = backend.build(BuildRequest(model, config(), caches=Caches(timing=first.timing_cache)))

    assert (first.timing_cache_use.hits, again.timing_cache_use.misses) == (0, 0)
    assert again.timing_cache_use.hits == first.timing_cache_use.misses > 1
    assert again.timing_cache_use.saved_seconds > 0
    assert again.timing_cache == first.timing_cache
    assert again.tactics == first.tactics


def test_interleaved_sessions_do_not_spin(backend):
    text = "(float[512,512] x) => (float[512,512] y) { y = MatMul(x, x) }"
    feed = {"x": np.ones((512, 512), np.float32)}
    model = Model.from_proto(models.model(text))
    build = backend.build(BuildRequest(model, config(intra_op_threads=2, timing_iterations=1)))

    def spent_when_idle(runner) -> float:
        """The smallest CPU time in the 0.1 s after an inference; a spinning thread would take 0.05 s of it."""
        spent = []
        with runner:
            for _ in range(5):
                runner.infer(feed)
                before = time.process_time()
                time.sleep(0.1)
                spent.append(time.process_time() - before)
        return min(spent)

    assert spent_when_idle(backend.runner(build.engine, interleaved=True)) < 0.01
    assert spent_when_idle(reference_runner(model)) < 0.01


def shapes_of(timing_cache: bytes) -> set[str]:
    """The shapes in the keys of a timing cache."""
    return {key.split(" | ")[-1] for key in TimingCache.from_bytes(timing_cache).timings}


def test_tactics_are_timed_at_given_shapes(backend, model):
    small, large = ({"x": models.random(batch, 5, 16)} for batch in (2, 3))
    profile = OptimizationProfile.fixed(x=(4, 5, 16))

    first = backend.build(BuildRequest(model, config(), timing_feed=small))
    again = backend.build(BuildRequest(model, config(), caches=Caches(timing=first.timing_cache), timing_feed=small))
    other = backend.build(BuildRequest(model, config(), caches=Caches(timing=first.timing_cache), timing_feed=large))
    profiled = backend.build(BuildRequest(model, config(profiles=(profile,)), timing_feed=large))

    assert shapes_of(first.timing_cache) == {"{'x': (2, 5, 16)}"}
    assert (again.timing_cache_use.misses, other.timing_cache_use.hits) == (0, 0)
    assert shapes_of(other.timing_cache) == {"{'x': (2, 5, 16)}", "{'x': (3, 5, 16)}"}
    assert shapes_of(profiled.timing_cache) == {"{'x': (4, 5, 16)}"}
    assert first.spec.timed_shapes == (("x", (2, 5, 16)),) and profiled.spec.timed_shapes == ()
    assert first.spec.digest != other.spec.digest


def test_skipped_candidates_are_tried_at_other_shapes(backend, model):
    small, large = ({"x": models.random(batch, 5, 16)} for batch in (2, 3))
    short = backend.build(BuildRequest(model, config(timing_seconds=0.0), timing_feed=small))

    same, other = (
        backend.build(BuildRequest(model, config(), caches=Caches(timing=short.timing_cache), timing_feed=feed))
        for feed in (small, large)
    )

    assert same.skipped == short.skipped != () and not other.skipped
    assert same.timing_cache_use.misses == 0 < other.timing_cache_use.misses


def test_timing_needs_data_that_the_model_accepts(backend, capfd):
    proto = models.model(
        """(float[n,16] x, int64[1] step) => (float[m,16] y) {
            p0 = Pad<mode = "reflect">(x, pads)
            p1 = Slice(p0, begin, end, axis, step)
            e0 = Div(p1, sqrt2)
            e1 = Erf(e0)
            e2 = Add(e1, one)
            e3 = Mul(p1, e2)
            y = Mul(e3, half)
        }""",
        {
            "pads": np.array([2, 0, 2, 0]),
            "begin": np.array([0]), "end": np.array([9]), "axis": np.array([0]),
            "sqrt2": np.float32(np.sqrt(2)), "one": np.float32(1), "half": np.float32(0.5),
        },
    )  # fmt: skip
    model = Model.from_proto(proto)
    feed = {"x": models.random(8, 16), "step": np.array([1])}
    profile = OptimizationProfile.fixed(x=(6, 16), step=(1,))

    blind = backend.build(BuildRequest(model, config()))
    printed = capfd.readouterr().err
    timed = backend.build(BuildRequest(model, config(), timing_feed=feed))
    profiled = backend.build(BuildRequest(model, config(profiles=(profile,)), timing_feed=feed))

    assert "nothing was timed" in blind.log and "Pad" in blind.log and printed == ""
    assert "nothing was timed" not in timed.log and timed.timing_cache_use.misses > 1
    assert profiled.timing_cache_use.misses > 1  # with the feed's step, since a random one is 0


def test_unsuitable_replays_are_refused(backend, model):
    record = backend.build(BuildRequest(model, config(tactics=()))).tactics
    first, *rest = record.choices
    other_layer = replace(record, choices=(replace(first, tactic="com.example.Other@CPUExecutionProvider"), *rest))
    foreign = backend.build(BuildRequest(Model.from_proto(models.conv_net().proto), config(tactics=()))).tactics

    with pytest.raises(errors.TacticMismatchError, match=r"com\.example\.Other") as caught:
        backend.build(BuildRequest(model, config(), caches=Caches(replay=other_layer)))
    assert caught.value.layers == (first.layer,)
    for forged in (
        foreign,
        replace(pinned(backend), backend_version="0.0.1"),
        replace(pinned(backend), mechanism="algorithm_selector"),
        pinned(backend, NoSuchTactic="on"),
    ):
        with pytest.raises(errors.TacticMismatchError):
            backend.build(BuildRequest(model, config(), caches=Caches(replay=forged)))
    with pytest.raises(errors.ConfigError, match="allow_approximation"):
        backend.build(BuildRequest(model, config(), caches=Caches(replay=pinned(backend, GeluApproximation="on"))))


def test_changes_since_another_release_are_named(backend, model):
    off = pinned(backend, GeluFusionL2="off", NoSuchTactic="on")
    other_release = backend.build(
        BuildRequest(model, config(), caches=Caches(replay=replace(off, settings=off.settings[:1])))
    ).tactics
    first, *rest = other_release.choices
    other = replace(first, tactic="com.example.Other@CPUExecutionProvider")
    record = replace(other_release, backend_version="0.0.1", settings=off.settings, choices=(other, *rest))

    with pytest.raises(errors.TacticMismatchError, match="or set carry_over"):
        backend.build(BuildRequest(model, config(), caches=Caches(replay=record)))
    build = backend.build(BuildRequest(model, config(), caches=Caches(replay=record, carry_over=True)))
    sentence = carried_over(record, build.tactics)

    assert dict(build.tactics.settings)["GeluFusionL2"] == "off"
    assert "NoSuchTactic (on became none)" in sentence
    assert f"{first.layer} ({other.tactic} became {first.tactic})" in sentence
    layers, carried = map(int, re.match(r"Of (\d+) choices recorded by 0\.0\.1 on \w+, (\d+) were", sentence).groups())
    assert layers - carried == len(record.differing_layers(build.tactics))
    assert sentence in build.log


def test_layers_are_named_after_tensors(backend):
    model = Model.from_proto(models.conv_net().proto)

    plain = backend.build(BuildRequest(model, config(), caches=Caches(replay=pinned(backend, NchwcTransformer="off"))))
    layers = {layer.name: layer for layer in plain.layers}

    assert layers["r0"].op == "com.microsoft.FusedConv"
    assert layers["r0"].tactic == "com.microsoft.FusedConv[activation=Relu]@CPUExecutionProvider"
    assert layers["r0"].onnx_nodes == ("conv0", "bn0", "relu0")
    assert layers["scores"].onnx_nodes == ("softmax",)
    assert layers["scores"].precision == "float"


def test_fp16_layers_have_names_of_their_tensors(backend) -> None:
    build = backend.build(BuildRequest(Model.from_proto(models.conv_net().proto), config("fp16")))
    nodes = {layer.name.partition("~")[0]: layer.onnx_nodes for layer in build.layers}
    assert {"f": ("flatten",), "logits": ("fc",)}.items() <= nodes.items()
    assert len({layer.name for layer in build.layers}) == len(build.layers)

    chain = backend.build(BuildRequest(Model.from_proto(bombs.doubling_functions(8)), config("fp16"))).layers
    assert len(chain) > 250 and sum(len(layer.onnx_nodes) for layer in chain) < 2 * len(chain)


def feeds(count: int):
    for seed in range(count):
        yield {"image": models.random(2, 3, 8, 8, seed=seed)}


@pytest.fixture
def conv_model():
    return Model.from_proto(models.conv_net().proto)


def test_int8_keeps_products_fused_with_their_bias(backend):
    nodes = "[mm] a = MatMul(x, w) [bias] b = Add(a, v) [relu] c = Relu(b) [last] y = MatMul(c, u)"
    weights = {"w": models.random(8, 16), "v": models.random(16, seed=1), "u": models.random(16, 4, seed=2)}
    model = Model.from_proto(models.model(f"(float[n,8] x) => (float[n,4] y) {{ {nodes} }}", weights))
    data = [{"x": models.random(4, 8, seed=seed)} for seed in range(3)]
    every = backend.build(BuildRequest(model, config("int8"), calibration_data=data)).quantization
    partial_quantization = backend.build(
        BuildRequest(model, replace(config("int8"), keep=("mm",)), calibration_data=data)
    ).quantization
    assert (
        {"mm", "last"} <= set(every.layers)
        and "mm" not in partial_quantization.layers
        and partial_quantization.kept_layers == ("mm",)
    )


def test_int8_repeats_from_its_calibration_cache(backend, conv_model):
    build = backend.build(BuildRequest(conv_model, config("int8"), calibration_data=feeds(8)))
    caches = Caches(calibration=build.calibration_cache, replay=build.tactics)
    again = backend.build(BuildRequest(conv_model, config("int8"), caches=caches))

    runners = reference_runner(conv_model), backend.runner(build.engine), backend.runner(again.engine)
    golden, first, second = (outputs(runner, models.conv_net().feed)["scores"] for runner in runners)
    np.testing.assert_array_equal(second, first)
    assert 0 < np.abs(first - golden).max() < 0.05
    # Each integer kernel has its own nodes of the model, also on channels last, whose tensors have other names.
    model_nodes = models.conv_net().proto.graph.node
    kernels = [
        {n for n in x.onnx_nodes if n in {node.name for node in model_nodes}} for x in build.layers if "QLinear" in x.op
    ]
    assert {"conv1", "relu1"} in kernels and sum(map(len, kernels)) == len(set().union(*kernels))
    assert build.spec.calibration_sha256 and again.spec.calibration_sha256 != build.spec.calibration_sha256


@pytest.mark.parametrize(("seconds", "gain"), [(0.5, "0.50 times the time of FP32"), (1.3, "does not pay: 1.30 times")])
def test_int8_is_timed_in_turns_with_fp32(backend, conv_model, monkeypatch, seconds, gain):
    def timed(lanes, *_):
        for lane, duration in zip(lanes, (1.0, seconds)):
            lane.samples, lane.rounds = [duration], [duration] * 8

    monkeypatch.setattr(search, "successive_halving", timed)
    build = backend.build(BuildRequest(conv_model, config("int8"), calibration_data=feeds(2)))
    assert build.gain.startswith(gain)
    cached = Caches(calibration=build.calibration_cache, timing=build.timing_cache)
    assert not backend.build(BuildRequest(conv_model, config("int8"), caches=cached)).gain


def test_calibration_samples_limits_the_feeds(backend, conv_model):
    taken, endless = itertools.count(), itertools.repeat(models.conv_net().feed)
    three = replace(config("int8"), calibration_samples=3)

    backend.build(BuildRequest(conv_model, three, calibration_data=(feed for feed in endless if next(taken) >= 0)))
    assert next(taken) == 3

    isolated = IsolatedBackend("onnxruntime", timeout=120)
    try:
        assert isolated.build(BuildRequest(conv_model, three, calibration_data=endless)).calibration_cache is not None
    finally:
        isolated.worker.close()


def test_unusable_caches_and_fp16_models_are_refused(backend, model, conv_model):
    for cache in (b"", b"{}", b'{"version": 99, "ranges": []}'):
        with pytest.raises(errors.CalibrationError):
            backend.build(BuildRequest(conv_model, config("int8"), caches=Caches(calibration=cache)))
    foreign = backend.build(BuildRequest(conv_model, config("int8"), calibration_data=feeds(1))).calibration_cache
    with pytest.raises(errors.CalibrationError, match="another model"):
        backend.build(BuildRequest(model, config("int8"), caches=Caches(calibration=foreign)))
    half = Model.from_proto(convert_to_fp16(models.conv_net().proto))
    with pytest.raises(errors.CalibrationError, match="The model computes in FP16"):
        backend.build(BuildRequest(half, config("int8"), calibration_data=feeds(2)))


def test_impossible_options_are_refused(backend, model, monkeypatch):
    for options in (
        {"timing_iterations": 0},
        {"timing_seconds": -1.0},
        {"intra_op_threads": -1},
        {"intra_op_threads": 1 << 40},
        {"tactics": ("Nchwc",)},
        {"tactics": ("GeluApproximation",)},
    ):
        with pytest.raises(errors.ConfigError):
            backend.build(BuildRequest(model, config(**options)))
    for precision in ("bf16", "fp8"):
        with pytest.raises(errors.UnsupportedFeatureError, match=rf"{precision}.*fp16.*TensorRT"):
            backend.build(BuildRequest(model, config(precision)))
    with pytest.raises(errors.BackendUnavailableError, match="CUDAExecutionProvider"):
        backend.build(BuildRequest(model, config(providers=("CUDAExecutionProvider",))))
    monkeypatch.setattr("trtops.backend.onnx.model._LARGE_BYTES", -1)
    with pytest.raises(errors.EngineBuildError, match=r"2 GiB.*TensorRT"):
        backend.build(BuildRequest(model, config()))


def test_engines_with_invalid_options_do_not_load(backend, model):
    engine = backend.build(BuildRequest(model, config(tactics=()))).engine

    for name, value in (("version", 99), *(("intra_op_threads", threads) for threads in (-1, 1 << 20, 1 << 40, "2"))):
        with pytest.raises(errors.EngineLoadError, match=name):
            backend.runner(replace(engine, options={**engine.options, name: value})).activate()


def test_engine_of_an_earlier_release_loads(backend, model, case):
    """It states its digest under another name."""
    engine = backend.build(BuildRequest(model, config(tactics=()))).engine
    digest = engine.options["sha256"]
    options = {name: value for name, value in engine.options.items() if name != "sha256"}

    assert outputs(backend.runner(replace(engine, options={**options, "plan_sha256": digest})), case.feed)
    for earlier in ({}, {"plan_sha256": "0" * 64}):
        with pytest.raises(errors.EngineLoadError, match="damaged"):
            backend.runner(replace(engine, options={**options, **earlier})).activate()


def test_warnings_go_to_the_build_log(backend, model, capfd):
    build = backend.build(BuildRequest(model, config()))

    assert "[W] Serializing optimized model" in build.log
    assert "onnxruntime" not in capfd.readouterr().err


def test_bare_engine_file_loads(backend, model, case):
    build = backend.build(BuildRequest(model, config()))
    bare = replace(build.engine, options={})

    full_output, bare_output = (outputs(backend.runner(engine), case.feed)["y"] for engine in (build.engine, bare))
    np.testing.assert_array_equal(bare_output, full_output)
    with pytest.raises(errors.EngineLoadError, match="verification failed"):
        backend.runner(replace(bare, plan=bare.plan[:1000])).activate()


def test_back_ends_by_name_and_suffix():
    assert isinstance(engine_backend("onnxruntime"), OnnxRuntimeBackend)
    assert set(BACKENDS) == {"onnxruntime", "tensorrt"}
    backends = [backend_of_suffix(suffix) for suffix in (".ort", ".engine", ".plan", ".trt", ".onnx")]
    assert backends == ["onnxruntime", *["tensorrt"] * 3, None]
    with pytest.raises(errors.ConfigError, match="Did you mean 'onnxruntime'"):
        engine_backend("onnxrt")


def test_engine_of_few_of_many_nodes_loads(backend) -> None:
    proto = models.identity().proto
    shape = [dim.dim_value or 1 for dim in proto.graph.input[0].type.tensor_type.shape.dim]
    name = "zero"
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(1, np.float32), name))
    for index in range(1500):  # all of them are folded
        proto.graph.node.add(op_type="Abs", input=[name], output=[f"zero{index}"])
        name = f"zero{index}"
    proto.graph.node.add(op_type="Add", input=[proto.graph.input[0].name, name], output=["sum"])
    proto.graph.output.add().CopyFrom(onnx.helper.make_tensor_value_info("sum", onnx.TensorProto.FLOAT, None))
    build = backend.build(BuildRequest(Model.from_proto(proto, "many"), config()))
    feed = {proto.graph.input[0].name: np.ones(shape, np.float32)}
    assert np.array_equal(outputs(backend.runner(build.engine), feed)["sum"], np.ones(shape, np.float32))
