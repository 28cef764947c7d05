from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnxruntime as ort
import pytest

from tests import models, zoo
from tests.contracts.engine_backend import EngineBackendContract
from trtops import errors
from trtops.backend.base import Caches
from trtops.backend.engines import BACKENDS, backend_of_suffix, engine_backend, reference_runner
from trtops.backend.onnx.model import Model
from trtops.backend.onnxrt.builder import OnnxRuntimeBackend
from trtops.backend.onnxrt.timing_cache import TimingCache, merge
from trtops.spec import BuildConfig, OnnxRuntimeOptions, OptimizationProfile
from trtops.tactics.record import TacticRecord

FAST_GELU = "com.microsoft.FastGelu@CPUExecutionProvider"


def config(precision="fp32", profiles=(), **options) -> BuildConfig:
    return BuildConfig(precision=precision, profiles=profiles, options=OnnxRuntimeOptions(**options))


def pinned(backend, **settings: str) -> TacticRecord:
    """A record that pins settings and says nothing of layers."""
    here = backend.environment()
    return TacticRecord(
        mechanism="onnxruntime",
        backend_version=here.backend_version,
        device_sha256=here.device_sha256,
        settings=tuple(sorted(settings.items())),
    )


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
    with reference_runner(model) as runner:
        golden = runner.infer(case.feed)

    def measure(build) -> float:
        with backend.runner(build.engine) as runner:
            outputs = runner.infer(case.feed)
        return max(float(np.abs(outputs[name] - array).max()) for name, array in golden.items())

    return measure


class TestOnnxRuntimeBackend(EngineBackendContract):
    @pytest.fixture
    def backend(self):
        return OnnxRuntimeBackend()

    @pytest.fixture
    def config(self):
        return config(timing_iterations=2)


def test_gelu_approximation_costs_a_thousandfold_of_the_exact_choices_error(backend, model, error):
    approximate = config(allow_approximation=True)

    exact = backend.build(model, approximate, caches=Caches(replay=pinned(backend, GeluApproximation="off")))
    fast = backend.build(model, approximate, caches=Caches(replay=pinned(backend, GeluApproximation="on")))

    assert error(exact) < 1e-5
    assert 1e-4 < error(fast) < 5e-3
    # Four layers of the model differ in nothing else: the GELU, keyed by the tensor it makes.
    assert exact.tactics.differing_layers(fast.tactics) == ("e4",)
    assert {c.layer: c.tactic for c in fast.tactics.choices}["e4"] == FAST_GELU


def test_approximations_are_never_chosen_unless_allowed(backend, model, error):
    builds = [backend.build(model, config(timing_iterations=1)) for _ in range(3)]

    for build in builds:
        assert FAST_GELU not in {choice.tactic for choice in build.tactics.choices}
        assert "GeluApproximation" not in dict(build.tactics.settings)
        assert error(build) < 1e-5


def test_a_build_picks_the_candidate_that_its_timing_cache_calls_fastest(backend, model, error):
    allowed = config(tactics=("GeluApproximation",), allow_approximation=True)
    timed = backend.build(model, allowed)
    text = timed.timing_cache.decode()

    chosen = {}
    for favourite in ("default", "+GeluApproximation"):
        cache = TimingCache.from_bytes(text.encode())
        for key, entry in cache._timings.items():
            seconds = 1e-6 if entry.key.candidate == favourite else 1e-3
            cache._timings[key] = replace(entry, timing=replace(entry.timing, median_seconds=seconds))
        chosen[favourite] = backend.build(model, allowed, caches=Caches(timing=cache.to_bytes()))

    assert dict(chosen["default"].tactics.settings) == {"GeluApproximation": "off"}
    assert dict(chosen["+GeluApproximation"].tactics.settings) == {"GeluApproximation": "on"}
    assert error(chosen["default"]) < 1e-4 < error(chosen["+GeluApproximation"])


def test_a_full_timing_cache_makes_a_build_time_nothing_and_remember_the_same(backend, model):
    first = backend.build(model, config())
    again = backend.build(model, config(), caches=Caches(timing=first.timing_cache))

    assert (first.timing_cache_use.hits, again.timing_cache_use.misses) == (0, 0)
    assert again.timing_cache_use.hits == first.timing_cache_use.misses > 1
    assert again.timing_cache_use.saved_seconds > 0
    assert again.timing_cache == first.timing_cache
    assert again.tactics == first.tactics


def as_if_disturbed(timing_cache: bytes, keep: int | None = None) -> bytes:
    """A cache as releases wrote it whose timings disturbed one another, or only its first few timings."""
    content = json.loads(timing_cache)
    content["timings"] = content["timings"][:keep]
    for entry in content["timings"]:
        del entry["timing"]["undisturbed"]
    return json.dumps(content).encode()


def test_disturbed_timings_are_compared_with_one_another_alone(backend, model):
    first = backend.build(model, config())
    timed = first.timing_cache_use.misses

    old = backend.build(model, config(), caches=Caches(timing=as_if_disturbed(first.timing_cache)))
    mixed = backend.build(model, config(), caches=Caches(timing=as_if_disturbed(first.timing_cache, timed - 1)))

    assert (old.timing_cache_use.misses, old.timing_cache_use.hits) == (0, timed)
    assert mixed.timing_cache_use.misses == timed
    cache = TimingCache.from_bytes(mixed.timing_cache)
    assert all(entry.timing.undisturbed for entry in cache._timings.values())


def test_engines_that_take_turns_leave_the_processor_to_one_another(backend):
    weights = {"w": np.ones((512, 512), np.float32)}
    proto = models.model("(float[256,512] x) => (float[256,512] y) { y = MatMul(x, w) }", weights)
    feed = {"x": np.ones((256, 512), np.float32)}
    model = Model.from_proto(proto, "product")
    build = backend.build(model, config(intra_op_threads=2, timing_iterations=1))

    def spent_when_idle(runner) -> float:
        """CPU seconds of the tenth of a second after an inference, half of which a thread would spin; the least of some."""
        with runner:
            return min(_spent_after(lambda: runner.infer(feed)) for _ in range(5))

    assert spent_when_idle(backend.runner(build.engine, interleaved=True)) < 0.01
    assert spent_when_idle(reference_runner(model)) < 0.01


def _spent_after(call: Callable[[], object]) -> float:
    call()
    before = time.process_time()
    time.sleep(0.1)
    return time.process_time() - before


def test_a_timing_cache_of_other_shapes_helps_with_none_of_the_timings(backend, model):
    first = backend.build(model, config())
    profile = OptimizationProfile.fixed(x=(2, 5, 16))

    other = backend.build(model, config(profiles=(profile,)), caches=Caches(timing=first.timing_cache))

    assert other.timing_cache_use.hits == 0
    assert len(TimingCache.from_bytes(other.timing_cache)) == 2 * len(TimingCache.from_bytes(first.timing_cache))


def test_each_profile_is_timed(backend, model):
    profiles = tuple(OptimizationProfile.fixed(x=(batch, 5, 16)) for batch in (1, 2))

    one = backend.build(model, config(profiles=profiles[:1]))
    both = backend.build(model, config(profiles=profiles))

    assert both.timing_cache_use.misses == 2 * one.timing_cache_use.misses


def test_without_tactics_nothing_is_timed_and_onnx_runtimes_defaults_are_built(backend, model):
    build = backend.build(model, config(tactics=()))

    assert build.timing_cache_use.misses == 0
    assert build.tactics.settings == ()
    assert build.engine.options["built_with"]["disabled_optimizers"] == []


def test_a_model_whose_random_inputs_do_not_run_is_built_with_the_defaults_and_the_log_says_why(backend):
    proto = models.model(
        "(float[2,6] x, int64[2] shape) => (float[a,b] y) { m = MatMul(x, w)\n n = Add(m, c)\n y = Reshape(n, shape) }",
        {"w": models.random(6, 6), "c": models.random(6)},
    )
    proto.graph.node.add(op_type="Gather", input=["y", "far"], output=["z"])
    proto.graph.output[0].CopyFrom(models.model("() => (float[k, l] z) { z = Identity(z) }").graph.output[0])
    proto.graph.initializer.append(models.numpy_helper.from_array(np.array([3]), "far"))

    build = backend.build(Model.from_proto(proto), config())

    assert "nothing was timed" in build.log
    assert build.engine.options["built_with"]["disabled_optimizers"] == []


def test_a_replay_of_settings_alone_pins_them_without_timing(backend, model):
    build = backend.build(model, config(), caches=Caches(replay=pinned(backend, MatMulScaleFusion="off")))

    assert dict(build.tactics.settings) == {"MatMulScaleFusion": "off"}
    assert build.timing_cache_use.misses == 0
    assert "s1" in {choice.layer for choice in build.tactics.choices}


def test_a_replay_whose_layers_come_out_otherwise_names_them(backend, model):
    record = backend.build(model, config(tactics=())).tactics
    first, *rest = record.choices
    forged = replace(record, choices=(replace(first, tactic="com.example.Other@CPUExecutionProvider"), *rest))

    with pytest.raises(errors.TacticMismatchError, match=r"com\.example\.Other") as caught:
        backend.build(model, config(), caches=Caches(replay=forged))

    assert caught.value.layers == (first.layer,)


def test_a_replay_of_another_model_is_not_followed(backend, model):
    other = models.conv_net()
    record = backend.build(Model.from_proto(other.proto), config(tactics=())).tactics

    with pytest.raises(errors.TacticMismatchError):
        backend.build(model, config(), caches=Caches(replay=record))


def test_a_replay_from_another_release_mechanism_or_with_unknown_settings_is_refused(backend, model):
    record = pinned(backend)
    for forged in (
        replace(record, backend_version="0.0.1"),
        replace(record, mechanism="algorithm_selector"),
        replace(record, settings=(("NoSuchTactic", "on"),)),
    ):
        with pytest.raises(errors.TacticMismatchError):
            backend.build(model, config(), caches=Caches(replay=forged))


def test_a_replay_that_approximates_although_that_is_not_allowed_is_a_contradiction(backend, model):
    with pytest.raises(errors.ConfigError, match="allow_approximation"):
        backend.build(model, config(), caches=Caches(replay=pinned(backend, GeluApproximation="on")))


def test_builds_of_one_candidate_agree_in_layers_though_onnx_runtime_orders_them_at_random(backend):
    case = models.conv_net()
    model = Model.from_proto(case.proto)

    builds = [backend.build(model, config(tactics=())) for _ in range(8)]

    assert len({build.tactics.digest for build in builds}) == 1
    assert len({tuple(layer.name for layer in build.layers) for build in builds}) == 1


def test_layers_are_named_after_the_models_tensors_and_know_the_nodes_they_were_made_from(backend):
    model = Model.from_proto(models.conv_net().proto)

    plain = backend.build(model, config(), caches=Caches(replay=pinned(backend, NchwcTransformer="off")))
    layers = {layer.name: layer for layer in plain.layers}

    assert layers["r0"].op == "com.microsoft.FusedConv"
    assert layers["r0"].tactic == "com.microsoft.FusedConv[activation=Relu]@CPUExecutionProvider"
    assert layers["r0"].onnx_nodes == ("conv0", "bn0", "relu0")
    assert layers["scores"].onnx_nodes == ("softmax",)
    assert layers["scores"].precision == "float"


def test_bodies_of_control_flow_are_layers_too(backend):
    build = backend.build(Model.from_proto(models.branch().proto), config(tactics=()))

    assert {"b", "b/then_branch/p", "b/else_branch/q"} <= {layer.name for layer in build.layers}


@pytest.mark.parametrize("make", [models.transformer, models.conv_net])
def test_fp16_keeps_inputs_and_outputs_and_stays_near_the_reference(backend, make):
    case = make()
    model = Model.from_proto(case.proto)
    with reference_runner(model) as runner:
        golden = runner.infer(case.feed)

    build = backend.build(model, config("fp16"))
    with backend.runner(build.engine) as runner:
        outputs = runner.infer(case.feed)

    for name, array in golden.items():
        assert 0 < np.abs(outputs[name] - array).max() < 2e-2
    assert all(array.dtype == np.float32 for array in outputs.values())


def feeds(count: int):
    for seed in range(count):
        yield {"image": models.random(2, 3, 8, 8, seed=seed)}


@pytest.fixture
def conv_model():
    return Model.from_proto(models.conv_net().proto)


def test_int8_runs_integer_kernels_near_the_reference_and_repeats_from_its_calibration_cache(backend, conv_model):
    case = models.conv_net()
    build = backend.build(conv_model, config("int8"), calibration_data=feeds(8))
    again = backend.build(
        conv_model, config("int8"), caches=Caches(calibration=build.calibration_cache, replay=build.tactics)
    )

    with (
        reference_runner(conv_model) as golden,
        backend.runner(build.engine) as first,
        backend.runner(again.engine) as second,
    ):
        expected, outputs = golden.infer(case.feed)["scores"], first.infer(case.feed)["scores"]
        np.testing.assert_array_equal(second.infer(case.feed)["scores"], outputs)
    assert 0 < np.abs(outputs - expected).max() < 0.05
    assert any("QLinearConv" in layer.op for layer in build.layers)
    assert build.spec.calibration_sha256 and again.spec.calibration_sha256 != build.spec.calibration_sha256


def test_calibration_takes_no_more_feeds_than_it_was_told_to(backend, conv_model):
    taken = []

    def counting():
        for feed in feeds(100):
            taken.append(True)
            yield feed

    backend.build(conv_model, replace(config("int8"), calibration_samples=3), calibration_data=counting())

    assert len(taken) == 3


def test_calibration_data_that_does_not_fit_is_refused_with_the_feeds_number(backend, conv_model):
    good = next(feeds(1))
    spoilt = good["image"].copy()
    spoilt[0, 0, 0, 0] = np.nan
    for bad, reason in (
        ([], "at least one feed"),
        ([good, {"picture": good["image"]}], "feed 2: .*'picture'"),
        ([good, good, {"image": spoilt}], "feed 3: .*NaN"),
        ([{"image": good["image"].astype(np.float64)}], "feed 1: .*float64"),
    ):
        with pytest.raises(errors.CalibrationError, match=reason):
            backend.build(conv_model, config("int8"), calibration_data=iter(bad))


def test_calibration_that_overflows_names_the_tensor(backend):
    proto = models.model(
        "(float[4,4] x) => (float[4,4] y) { a = Mul(x, x)\n y = MatMul(a, w) }", {"w": models.random(4, 4)}
    )

    with pytest.raises(errors.CalibrationError, match=r"NaN or infinity occurred in 'a'"):
        backend.build(
            Model.from_proto(proto), config("int8"), calibration_data=[{"x": np.full((4, 4), 1e30, np.float32)}]
        )


@pytest.mark.parametrize("cache", [b"", b"{}", b'{"format": "trtops onnxruntime calibration cache", "version": 99}'])
def test_a_calibration_cache_that_is_none_is_refused(backend, conv_model, cache):
    with pytest.raises(errors.CalibrationError):
        backend.build(conv_model, config("int8"), caches=Caches(calibration=cache))


def test_a_calibration_cache_of_another_model_is_refused_with_the_tensors_it_lacks(backend, model, conv_model):
    cache = backend.build(conv_model, config("int8"), calibration_data=feeds(1)).calibration_cache

    with pytest.raises(errors.CalibrationError, match="another model") as caught:
        backend.build(model, config("int8"), caches=Caches(calibration=cache))
    assert caught.value.missing


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_precisions_without_kernels_are_refused_with_what_to_take_instead(backend, model, precision):
    with pytest.raises(errors.UnsupportedFeatureError, match=rf"{precision}.*fp16.*TensorRT"):
        backend.build(model, config(precision))


@pytest.mark.parametrize(
    "options",
    [
        {"timing_iterations": 0},
        {"intra_op_threads": -1},
        {"intra_op_threads": 1 << 40},
        {"tactics": ("Nchwc",)},
        {"tactics": ("GeluApproximation",)},
    ],
)
def test_options_that_cannot_be_meant_are_refused(backend, model, options):
    with pytest.raises(errors.ConfigError):
        backend.build(model, config(**options))


@pytest.mark.parametrize("threads", [-1, 1 << 20, 1 << 40, "2"])
def test_an_engine_whose_options_ask_for_impossible_threads_does_not_load(backend, model, threads):
    engine = backend.build(model, config(tactics=())).engine
    damaged = replace(engine, options={**engine.options, "intra_op_threads": threads})
    with pytest.raises(errors.EngineLoadError, match="intra_op_threads"), backend.runner(damaged):
        pass


def test_an_execution_provider_that_is_not_there_is_refused(backend, model):
    with pytest.raises(errors.BackendUnavailableError, match="CUDAExecutionProvider"):
        backend.build(model, config(providers=("CUDAExecutionProvider",)))


def test_a_kernel_that_does_not_exist_is_named_by_op_and_output_where_the_node_has_no_name(backend):
    proto = models.model('(uint16[4] x) => (uint16[4] y) { y = BitShift<direction = "LEFT">(x, x) }')

    with pytest.raises(errors.EngineBuildError, match=r"Op 'BitShift' of node 'y' has no kernel"):
        backend.build(Model.from_proto(proto), config())


def test_onnx_runtimes_warnings_are_in_the_build_log_and_not_on_standard_error(backend, model, capfd):
    build = backend.build(model, config())

    assert "[W] Serializing optimized model" in build.log
    assert "onnxruntime" not in capfd.readouterr().err


def test_lines_of_others_still_reach_standard_error_during_a_build(backend, model, capfd, monkeypatch):
    create = ort.InferenceSession

    def talk(*args, **kwargs):
        os.write(2, b"somebody else\n")
        return create(*args, **kwargs)

    monkeypatch.setattr(ort, "InferenceSession", talk)
    build = backend.build(model, config(tactics=()))

    assert "somebody else" in capfd.readouterr().err
    assert "somebody else" not in build.log


def test_merged_timing_caches_know_what_each_knew(backend, model):
    other = Model.from_proto(models.conv_net().proto)
    caches = [backend.build(m, config()).timing_cache for m in (model, other)]

    merged = merge(caches)

    for m in (model, other):
        assert backend.build(m, config(), caches=Caches(timing=merged)).timing_cache_use.misses == 0
    assert merge([merged, *caches]) == merged


def test_an_engine_is_not_optimized_again_when_it_is_loaded(backend, model, case):
    build = backend.build(model, config(), caches=Caches(replay=pinned(backend, GeluFusionL2="off")))

    with backend.runner(build.engine) as runner:
        options = runner._session.get_session_options()

    assert options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    assert "Erf" in {layer.op for layer in build.layers}


def test_a_bare_engine_file_loads_without_its_options_and_cut_short_is_refused(backend, model, case):
    build = backend.build(model, config())
    bare = replace(build.engine, options={})

    with backend.runner(build.engine) as full, backend.runner(bare) as runner:
        np.testing.assert_array_equal(runner.infer(case.feed)["y"], full.infer(case.feed)["y"])
    with pytest.raises(errors.EngineLoadError, match="verification failed"):
        backend.runner(replace(bare, plan=bare.plan[:1000])).activate()


def test_options_of_a_newer_format_are_refused(backend, model):
    build = backend.build(model, config(tactics=()))

    with pytest.raises(errors.EngineLoadError, match="version 99"):
        backend.runner(replace(build.engine, options={**build.engine.options, "version": 99})).activate()


def test_back_ends_are_found_by_name_and_by_the_ending_of_their_engines():
    assert isinstance(engine_backend("onnxruntime"), OnnxRuntimeBackend)
    assert set(BACKENDS) == {"onnxruntime", "tensorrt"}
    found = [backend_of_suffix(suffix) for suffix in (".ort", ".engine", ".plan", ".onnx")]
    assert found == ["onnxruntime", "tensorrt", "tensorrt", None]
    with pytest.raises(errors.ConfigError, match="Did you mean 'onnxruntime'"):
        engine_backend("onnxrt")


def test_int8_is_built_with_integer_kernels_even_where_fp32_is_faster() -> None:
    case = zoo.boxes()
    feed = dict(case.feed)
    build = OnnxRuntimeBackend().build(
        Model.from_proto(case.proto), BuildConfig(precision="int8"), calibration_data=[feed, feed]
    )
    assert all(name != "QDQSelectorActionTransformer" for name, _ in build.tactics.settings)
    assert any("Integer" in layer.op or "QLinear" in layer.op for layer in build.layers)
