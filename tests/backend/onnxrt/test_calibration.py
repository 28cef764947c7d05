"""Collects ranges over data: their values, memory use, and bad data."""

import tracemalloc
from dataclasses import replace

import numpy as np
import onnx
import pytest

from tests import models
from trtops import errors
from trtops.backend.base import BuildRequest, Caches
from trtops.backend.onnx.model import Model
from trtops.backend.onnxrt import calibration
from trtops.backend.onnxrt.builder import OnnxRuntimeBackend
from trtops.backend.onnxrt.calibration import Collected, Quantizer, collect, compare
from trtops.backend.onnxrt.inference import Inference
from trtops.backend.onnxrt.log import SessionLog
from trtops.backend.onnxrt.runner import reference_outputs
from trtops.calibration import CalibrationCache
from trtops.calibration.choice import relative_error
from trtops.calibration.histogram import ALGORITHMS
from trtops.metadata import TensorMetadata
from trtops.spec import BuildConfig, OnnxRuntimeOptions, TensorRTOptions

CASE = models.conv_net()
INPUTS = TensorMetadata().add("image", "float32", (None, 3, 8, 8))
INT8 = BuildConfig(precision="int8", options=OnnxRuntimeOptions(tactics=(), timing_iterations=1))


def images(count: int, batch: int = 4):
    for seed in range(count):
        yield {"image": models.random(batch, 3, 8, 8, seed=seed)}


def test_minmax_equals_onnx_runtimes_calibrator(tmp_path) -> None:
    from onnxruntime.quantization.calibrate import CalibrationMethod, create_calibrator

    augmented = str(tmp_path / "a.onnx")
    method = CalibrationMethod.MinMax
    theirs = create_calibrator(CASE.write(tmp_path), augmented_model_path=augmented, calibrate_method=method)
    source = images(4)
    reader = type("Reader", (), {"get_next": lambda self: next(source, None)})()
    theirs.collect_data(reader)

    calibration = collect(CASE.proto, images(4), inputs=INPUTS).cache()
    ours = calibration.by_name()

    assert ours.keys() == {"image", *(name for node in CASE.proto.graph.node for name in node.output)}
    for name, data in theirs.compute_data().items():
        assert (ours[name].low, ours[name].high) == (np.asarray(data.lowest).item(), np.asarray(data.highest).item())
    assert all(entry.amax == max(-entry.low, entry.high) and entry.clipped == 0 for entry in ours.values())
    assert (calibration.feeds, calibration.samples, calibration.complete) == (4, 16, True)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_ranges_do_not_depend_on_batching(algorithm) -> None:
    whole = {"image": np.concatenate([feed["image"] for feed in images(6)])}
    cut = collect(CASE.proto, images(6), inputs=INPUTS).cache(algorithm)
    together = collect(CASE.proto, [whole], inputs=INPUTS).cache(algorithm)

    for a, b in zip(cut.ranges, together.ranges):
        assert a.name == b.name and a.amax == pytest.approx(b.amax, rel=2e-3)
    assert cut.samples == together.samples == 24 and cut.data_sha256 != together.data_sha256


def test_memory_does_not_grow_with_feeds() -> None:
    def peak(count: int) -> int:
        tracemalloc.start()
        collect(CASE.proto, images(count, batch=64), inputs=INPUTS).cache("entropy")
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    assert peak(40) < peak(3) * 1.1


def spoilt(value: float) -> dict[str, np.ndarray]:
    feed = next(images(1))
    feed["image"][1, 2, 3, 4] = value
    return feed


def test_feed_too_large_for_memory_is_run_in_parts(monkeypatch) -> None:
    class Limited(Inference):
        def __call__(self, feed):
            if len(self._output_names) > 3:
                raise errors.InferenceError("too much") from MemoryError()
            return super().__call__(feed)

    whole = collect(CASE.proto, images(3), inputs=INPUTS, hold_out=True)
    monkeypatch.setattr(calibration, "Inference", Limited)
    parts = collect(CASE.proto, images(3), inputs=INPUTS, hold_out=True)
    assert parts.cache("entropy") == whole.cache("entropy")
    assert [list(golden) for _, golden in parts.held_out] == [list(golden) for _, golden in whole.held_out] != [[]]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (spoilt(np.nan), r"feed 3: input 'image' has 1 values .* \(nan\) at \(1, 2, 3, 4\)"),
        (spoilt(-np.inf), r"feed 3: .*\(-inf\) at"),
        ({"image": np.zeros((4, 3, 9, 8), np.float32)}, r"feed 3: .*shape: \(4, 3, 9, 8\)"),
        ({"image": np.zeros((4, 3, 8, 8))}, r"feed 3: .*float64"),
        ({"picture": np.zeros((4, 3, 8, 8), np.float32)}, r"feed 3: .*'picture'"),
    ],
)
def test_bad_feed_keeps_earlier_ranges(bad, message) -> None:
    good = collect(CASE.proto, images(2), inputs=INPUTS).cache()

    with pytest.raises(errors.CalibrationError, match=message) as caught:
        collect(CASE.proto, [*images(2), bad, *images(9)], inputs=INPUTS)

    partial = caught.value.partial
    assert isinstance(partial, Collected) and not partial.complete
    assert partial.cache().ranges == good.ranges and (partial.feeds, partial.samples) == (2, 8)
    assert "2 feeds before it (8 samples) are kept" in str(caught.value)


def test_failing_loaders_and_models_name_the_feed() -> None:
    def load():
        yield from images(3)
        raise OSError("disk gone")

    with pytest.raises(errors.CalibrationError, match=r"failed at feed 4: OSError: disk gone") as caught:
        collect(CASE.proto, load(), inputs=INPUTS)
    assert isinstance(caught.value.__cause__.__cause__, OSError)
    assert caught.value.partial.feeds == 3 and not caught.value.partial.complete  # type: ignore[attr-defined]

    proto = models.model("(float[n,4] x, int64[k] i) => (float[k,4] y) { y = Gather(x, i) }")
    feeds = [{"x": models.random(3, 4), "i": np.array([index])} for index in (0, 7)]
    with pytest.raises(errors.CalibrationError, match="feed 2: the model fails on it"):
        collect(proto, feeds, inputs=TensorMetadata.from_feed_dict(feeds[0]))


def test_overflowing_tensors_are_excluded_and_named() -> None:
    proto = models.model(
        """(float[n,4] x) => (float[n,4] y) {
            [scores] s = MatMul(x, w)
            big = Mul(s, huge)
            masked = Mul(big, huge)
            p = Softmax(masked)
            [last] y = MatMul(masked, w)
        }""",
        {"w": models.random(4, 4), "huge": np.float32(1e30)},
    )
    inputs = TensorMetadata().add("x", "float32", ("n", 4))
    cache = collect(proto, [{"x": models.random(8, 4)}], inputs=inputs).cache()

    assert {"masked"} <= set(cache.excluded) and "masked" not in cache.by_name() and "big" in cache.by_name()
    with pytest.raises(errors.CalibrationError, match=r"NaN or infinity occurred in 'masked'"):
        OnnxRuntimeBackend().build(
            BuildRequest(Model.from_proto(proto), INT8, caches=Caches(calibration=cache.to_bytes()))
        )


def test_partial_fit_uses_available_ranges() -> None:
    cache = models.without(collect(CASE.proto, images(4), inputs=INPUTS).cache(), "r0").to_bytes()
    model, backend = Model.from_proto(CASE.proto), OnnxRuntimeBackend()

    build = backend.build(
        BuildRequest(model, replace(INT8, calibration_fit="partial"), caches=Caches(calibration=cache))
    )

    assert "no ranges for r0" in build.log
    assert sum("QLinearConv" in layer.op for layer in build.layers) == 1


@pytest.mark.parametrize("keep", [(), ("conv0", "conv1", "fc")])
def test_int8_engine_needs_an_int8_layer(keep) -> None:
    case = models.conv_net() if keep else models.identity()
    model, feeds = Model.from_proto(case.proto), [dict(case.feed)] * 2
    with pytest.raises(errors.CalibrationError, match="kept: conv0, conv1, fc" if keep else "kept: none"):
        OnnxRuntimeBackend().build(BuildRequest(model, replace(INT8, keep=keep), calibration_data=feeds))


SCORES = models.model(
    """(float[n,64] x) => (float[n,32] y) {
        [layer] s = MatMul(x, w)
        y = Tanh(s)
    }""",
    {"w": 0.2 * models.random(64, 32)},
)
SCORES_INPUTS = TensorMetadata().add("x", "float32", ("n", 64))


def values(kind: str, count: int = 8):
    """Feeds of 16,384 values: ``uniform``, or normal with ``spikes`` of 0.006 % or a ``tail`` of 0.3 %."""
    for seed in range(count):
        random = np.random.default_rng(seed)
        x = random.normal(0, 1, (256, 64))
        if kind == "uniform":
            x = random.uniform(-1, 1, x.shape)
        elif kind == "spikes":
            x[random.integers(256), random.integers(64)] = 1000
        else:
            x[random.random(x.shape) < 0.003] *= 12
        yield {"x": x.astype(np.float32)}


@pytest.mark.parametrize(
    ("kind", "percentile", "best", "others"),
    [
        # Uniform values use all of INT8's levels; entropy clips none of them either.
        ("uniform", 95.0, "minmax", {"percentile": 1.5, "entropy": 1.0}),
        ("spikes", 99.99, "percentile", {"minmax": 5, "entropy": 5}),
        ("tail", 99.99, "entropy", {"minmax": 1.2, "percentile": 1.1}),
    ],
)
def test_best_algorithm_follows_the_data(kind, percentile, best, others) -> None:
    collected = collect(SCORES, values(kind), inputs=SCORES_INPUTS, hold_out=True)
    comparison = compare(collected, Quantizer(SCORES, SessionLog(), INT8), percentile)

    assert comparison.chosen == best and comparison.feeds == 4
    error = {algorithm_error.algorithm: algorithm_error.error for algorithm_error in comparison.errors}
    assert all(error[name] >= factor * error[best] for name, factor in others.items())
    assert comparison.sentence().startswith(f"Best algorithm: {best}, relative error {error[best]:.3g}, ")


def test_compared_errors_are_those_of_held_out_feeds() -> None:
    feeds = list(values("tail"))
    trained, held_out = feeds[::2], slice(1, None, 2)
    collected = collect(SCORES, feeds, inputs=SCORES_INPUTS, hold_out=True)
    quantized = Quantizer(SCORES, SessionLog(), INT8)

    comparison = compare(collected, quantized)

    golden = reference_outputs(SCORES, feeds)
    for algorithm_error in comparison.errors:
        apart = collect(SCORES, trained, inputs=SCORES_INPUTS).cache(algorithm_error.algorithm)
        actual = reference_outputs(quantized(apart)[0], feeds[held_out])
        assert algorithm_error.error == relative_error(actual, golden[held_out])
    # The ranges are of all the data, as if no feed was held out.
    for algorithm in ALGORITHMS:
        assert collected.cache(algorithm) == collect(SCORES, feeds, inputs=SCORES_INPUTS).cache(algorithm)


def test_builds_calibrate_with_the_best_algorithm() -> None:
    model = Model.from_proto(SCORES)
    build = OnnxRuntimeBackend().build(BuildRequest(model, INT8, calibration_data=values("spikes")))

    assert build.calibration_cache is not None
    cache = CalibrationCache.from_bytes(build.calibration_cache)
    named = collect(SCORES, values("spikes"), inputs=SCORES_INPUTS, model_sha256=model.info.sha256)
    assert cache == named.cache("percentile")
    assert "[trtops] Best algorithm: percentile" in build.log
    again = OnnxRuntimeBackend().build(BuildRequest(model, INT8, caches=Caches(calibration=build.calibration_cache)))
    assert again.calibration_cache == build.calibration_cache and "Best" not in again.log


@pytest.mark.parametrize("options", [OnnxRuntimeOptions(), TensorRTOptions()])
def test_layers_in_functions_are_quantized(options) -> None:
    proto = models.model("(float[n,8] x) => (float[n,8] y) { h = MatMul(x, w) y = own.twice(h, w) }", opset=17)
    call = onnx.parser.parse_function(
        """<domain: "own", opset_import: ["" : 17]> twice (x, m) => (r) { h = MatMul(x, m) r = MatMul(h, m) }"""
    )
    proto.functions.append(call)
    proto.opset_import.add(domain="own", version=1)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(models.random(8, 8, scale=0.4), "w"))
    feeds = [{"x": models.random(4, 8, seed=seed)} for seed in range(4)]
    config = BuildConfig(precision="int8", qdq_rules=(), options=options)

    collected = collect(proto, feeds, inputs=TensorMetadata().add("x", np.float32, (None, 8)))
    quantized, done = Quantizer(proto, SessionLog(), config)(collected.cache())

    assert len(done.layers) == 3
    actual, expected = reference_outputs(quantized, feeds), reference_outputs(proto, feeds)
    assert 0 < relative_error(actual, expected) < 0.05
