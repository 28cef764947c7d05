"""INT8 from a calibration cache: as TensorRT's text, and as Q/DQ nodes on TensorRT-RTX."""

import io
import json
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import onnx
import pytest

from tests import models
from trtops import errors
from trtops.backend.base import BuildRequest, Caches
from trtops.backend.onnx import walk
from trtops.backend.onnx.model import Model
from trtops.backend.onnxrt.calibration import Quantizer, collect, compare
from trtops.backend.onnxrt.log import SessionLog
from trtops.backend.trt import TensorRTBackend
from trtops.backend.trt.building import calibrator, int8
from trtops.backend.trt.building.precision import ModelPrecision, write_into_model
from trtops.backend.trt.library import memory
from trtops.calibration import CalibrationCache
from trtops.calibration.data import FeedDigest
from trtops.comparator import DataLoader
from trtops.metadata import TensorMetadata
from trtops.spec import BuildConfig, OptimizationProfile, ShapeRange, TensorRTOptions
from trtops.tracking.builds import log_build
from trtops.tracking.memory import MemoryTracker

INPUTS = TensorMetadata().add("image", "float32", (None, 3, 8, 8))
PROFILE = OptimizationProfile(shapes=(ShapeRange(name="image", min=(1, 3, 8, 8), opt=(2, 3, 8, 8), max=(4, 3, 8, 8)),))
INT8 = BuildConfig(precision="int8", profiles=(PROFILE,), qdq_rules=(), options=TensorRTOptions())


def images(count: int):
    return [{"image": models.random(2, 3, 8, 8, seed=seed)} for seed in range(count)]


@pytest.fixture
def model() -> Model:
    return Model.from_proto(models.conv_net().proto, "conv_net")


@pytest.fixture(scope="module")
def cache() -> CalibrationCache:
    return collect(models.conv_net().proto, images(4), inputs=INPUTS).cache("entropy")


def test_cache_becomes_text_of_the_release(model, cache) -> None:
    text = int8.tensorrt_text(cache.to_bytes(), model, INT8, release="8.6.0")
    again = int8.tensorrt_text(text, model, INT8, release="10.3.0")

    assert text.startswith(b"TRT-8600-EntropyCalibration2\nimage: ")
    assert again.startswith(b"TRT-100300-EntropyCalibration2\nimage: ")
    assert text.split(b"\n")[1:] == again.split(b"\n")[1:]


def test_incomplete_cache_needs_a_partial_fit(model, cache, caplog) -> None:
    part = models.without(cache, "r0").to_bytes()

    with pytest.raises(errors.CalibrationError, match="'r0'"):
        int8.tensorrt_text(part, model, INT8, release="8.6.0")
    partial = replace(INT8, calibration_fit="partial")
    assert b"r0: " not in int8.tensorrt_text(part, model, partial, release="8.6.0")
    assert "r0" in caplog.text


def test_tensorrt_cache_may_lack_some_tensors(model) -> None:
    header = b"TRT-8600-EntropyCalibration2\n"
    theirs = header + b"image: 3c010204\n(Unnamed Layer* 4) [Shuffle]_output: 3c010204\n"

    assert int8.tensorrt_text(theirs, model, INT8, release="8.6.0") == theirs
    for text, refusal in ((b"input_1: 3c010204\n", "another model"), (b"image: 3c01", "cannot be read")):
        with pytest.raises(errors.CalibrationError, match=refusal):
            int8.tensorrt_text(header + text, model, INT8, release="8.6.0")


@pytest.mark.usefixtures("rtx")
@pytest.mark.parametrize("form", ["ours", "tensorrt", "data"])
def test_int8_without_calibrators_uses_cache_or_data(model, cache, form) -> None:
    cache_bytes = {"ours": cache.to_bytes(), "tensorrt": cache.to_tensorrt(), "data": None}[form]
    data = images(4) if cache_bytes is None else None

    build = TensorRTBackend().build(
        BuildRequest(model, INT8, caches=Caches(calibration=cache_bytes), calibration_data=data)
    )

    assert len(build.engine.plan) > 1000
    used = CalibrationCache.from_bytes(build.calibration_cache)
    if cache_bytes is None:
        proto = models.conv_net().proto
        collected = collect(proto, images(4), inputs=INPUTS, hold_out=True)
        best = compare(collected, Quantizer(proto, SessionLog(), INT8)).chosen
        assert used.digest == collected.cache(best).digest and used.algorithm == best and used.samples == 8
    else:
        assert build.calibration_cache == cache_bytes
    assert build.spec.calibration_sha256


@pytest.mark.usefixtures("rtx")
@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_fp8_is_written_into_the_model(model, cache, precision) -> None:
    """With FP16, DequantizeLinear feeds every quantized operator in FP16."""
    config = replace(INT8, precision=precision, keep=("conv0",), options=TensorRTOptions(also=("fp16",)))

    build = TensorRTBackend().build(BuildRequest(model, config, caches=Caches(calibration=cache.to_bytes())))

    assert len(build.engine.plan) > 1000 and build.quantization.layers == ("conv1", "fc")
    quantized = int8.quantize(model, config, cache.to_bytes(), None).model
    written = write_into_model(quantized, ModelPrecision(precisions=("fp16", precision)))
    onnx.checker.check_model(written, full_check=True)
    scales = [t.data_type for t in written.graph.initializer if t.name.endswith("_scale")]
    assert set(scales) == {onnx.TensorProto.FLOAT16} and walk.opset(written) == 19
    makers = {name: node.op_type for node in written.graph.node for name in node.output}
    for node in written.graph.node:
        if node.name in ("conv1", "fc"):
            assert [makers[name] for name in node.input[:2]] == ["DequantizeLinear"] * 2
    types = {t.data_type for t in written.graph.initializer if t.name.endswith("zero_point")}
    assert types == {onnx.TensorProto.INT8 if precision == "int8" else onnx.TensorProto.FLOAT8E4M3FN}
    with pytest.raises(errors.UnsupportedFeatureError, match="takes FP8 from Q/DQ"):
        write_into_model(model.proto(), ModelPrecision(precisions=("fp8",)))


@pytest.mark.usefixtures("rtx")
def test_runs_list_what_rules_exclude(model, cache) -> None:
    config, tracker = replace(INT8, qdq_rules=("small_matmul",)), MemoryTracker()
    build = TensorRTBackend().build(BuildRequest(model, config, caches=Caches(calibration=cache.to_bytes())))

    run = tracker.start("e", "build", kind="build")
    log_build(run, build, model.info, ".engine")
    run.finish("good")

    stored = tracker.load(run.id)
    assert build.quantization.excluded == (("small_matmul", ("fc",)),)
    assert stored.info.params["excluded_by_small_matmul"] == "1"
    assert json.loads(stored.read_bytes("tactics/quantization.json"))["excluded"] == [["small_matmul", ["fc"]]]
    assert "excluded by rule: small_matmul (fc)" in build.quantization.sentence()


@pytest.mark.usefixtures("rtx")
def test_int8_without_calibration_is_refused(model) -> None:
    with pytest.raises(errors.CalibrationError, match="calibration data or a calibration cache"):
        TensorRTBackend().build(BuildRequest(model, INT8))


def test_kept_layers_are_left_out_of_the_pairs(model, cache) -> None:
    quantized = int8.quantize(model, replace(INT8, keep=("conv0", "Gemm")), cache.to_bytes(), None).model

    readers = [node for node in quantized.graph.node if any(name.endswith("_dequantized") for name in node.input)]
    assert [node.name for node in readers] == ["conv1"]
    onnx.checker.check_model(quantized, full_check=True)
    assert model.proto() == models.conv_net().proto
    assert np.array_equal([i.name for i in quantized.graph.input], ["image"])


@pytest.fixture
def release_86(monkeypatch, runtime):
    """The data types of TensorRT 8.6, which has no INT64."""
    library = SimpleNamespace(DataType=SimpleNamespace(__members__={"FLOAT": 0, "HALF": 1, "INT8": 2, "INT32": 3}))
    monkeypatch.setattr("trtops.backend.trt.library.load", lambda: library)
    monkeypatch.setattr(
        "trtops.backend.trt.library.line", lambda: SimpleNamespace(name="TensorRT 8.6", supports=lambda _: True)
    )


@pytest.mark.usefixtures("release_86")
def test_calibrator_digest_equals_feed_digest():
    feeds = [{"b": np.full((2, 3), i, np.float32), "a": np.arange(i + 1)} for i in range(3)]
    expected = FeedDigest()
    for feed in feeds:
        expected.add(feed)

    def digest_of(feeds):
        batches = calibrator.CalibrationBatches(feeds, None)
        while batches.get_batch(["a", "b"]) is not None:
            pass
        assert batches.error is None and batches.num_batches == len(feeds)
        return batches.data_digest()

    assert digest_of(feeds) == expected.hexdigest()
    view = memory.DeviceView(64, (2, 3), np.float32)  # data on the device has no digest
    assert digest_of([*feeds, {"a": np.arange(1), "b": view}]) is None
    assert digest_of([{"a": 128, "b": 256}]) is None


def read_batch(batches, **inputs):
    """The next batch as TensorRT reads it: ``inputs`` are arrays of the shapes and dtypes that it expects."""
    addresses = batches.get_batch(list(inputs))
    assert batches.error is None, batches.error
    return [memory.DeviceView(a, x.shape, x.dtype).numpy().tolist() for a, x in zip(addresses, inputs.values())]


def test_batches_come_in_order_from_any_memory(runtime) -> None:
    """The arrays of a generator have no other reference than its batch."""
    like = np.zeros((2, 3), np.float32)

    def generate():
        for number in range(3):
            array = np.full_like(like, number)
            yield {
                "host": array,
                "array": memory.DeviceArray(like.shape).copy_from(array),
                "view": memory.DeviceArray(like.shape).copy_from(array).view(),
                "address": memory.DeviceArray(like.shape).copy_from(array).ptr,
            }

    batches = calibrator.CalibrationBatches(generate(), None)
    for number in range(3):
        expected = np.full_like(like, number).tolist()
        assert read_batch(batches, host=like, array=like, view=like, address=like) == [expected] * 4
    assert batches.get_batch(["host"]) is None and batches.error is None
    batches.free()
    assert not runtime.blocks


@pytest.mark.usefixtures("release_86")
def test_calibration_data_is_converted() -> None:
    values = [0.0, 1.0, 3.0]
    inputs = TensorMetadata().add("x", "float32", (3,)).add("rows", "int32", (2,))
    like, rows = np.zeros(3, np.float32), np.zeros(2, np.int32)
    for declared in (None, inputs):
        for x in (np.array(values), np.array(values, np.float16), np.array(values, np.float32)[::1], values):
            batches = calibrator.CalibrationBatches([{"x": x, "rows": np.array([2, 1])}], None)
            if declared is not None:
                batches.set_network_inputs(declared)
            with batches:
                assert read_batch(batches, x=like, rows=rows) == [values, [2, 1]]
    batches = calibrator.CalibrationBatches([{"x": np.array(values, np.uint8), "rows": rows}], None)
    batches.set_network_inputs(inputs)
    with batches:
        assert read_batch(batches, x=like)[0] == values

    for feed, refusal in (
        ({"x": like, "rows": np.array([2**40, 0])}, "int64 values beyond int32"),
        (
            {"x": memory.DeviceView(64, (3,), np.float16), "rows": rows},
            "'x' is float16 in device memory; expected float32",
        ),
        ({"rows": rows}, r"no 'x'; it has \['rows'\].*EngineFromNetwork"),
    ):
        batches = calibrator.CalibrationBatches([feed], None)
        assert batches.get_batch(["x", "rows"]) is None
        with pytest.raises(errors.CalibrationError, match=refusal):
            calibrator.check_calibration(batches)
    strict = calibrator.CalibrationBatches([{"x": np.array(values), "rows": rows}], None)
    strict.set_input_metadata(inputs)
    assert strict.get_batch(["x", "rows"]) is None and "float64" in str(strict.error)


@pytest.mark.parametrize(
    ("mode", "before", "read", "after"),
    [
        ("rb", b"ranges", b"ranges", b"ranges"),
        ("rb", b"", None, b""),
        ("wb", b"ranges", None, b"new"),
        ("wb+", b"ranges", None, b"new"),
        ("rb+", b"old ranges", b"old ranges", b"new"),
        ("r+", b"old ranges", b"old ranges", b"new"),
    ],
)
def test_cache_may_be_an_open_file(tmp_path, caplog, mode, before, read, after) -> None:
    path = tmp_path / "calibration.cache"
    path.write_bytes(before)
    with path.open(mode) as file:
        batches = calibrator.CalibrationBatches([], file)
        assert batches.read_cache() == read
        batches.write_calibration_cache(b"new")
        assert batches.error is None and batches.cache_contents == b"new"
        assert path.read_bytes() == after
        batches.reset()
        assert batches.read_cache() == (None if mode == "wb" else after or None)
    assert ("open for reading only" in caplog.text) == (mode == "rb")


def tensor(name, dtype, shape, is_shape_tensor=False):
    return SimpleNamespace(name=name, dtype=SimpleNamespace(name=dtype), shape=shape, is_shape_tensor=is_shape_tensor)


@pytest.mark.usefixtures("release_86")
def test_data_loader_gets_inputs_of_the_network() -> None:
    tensors = [tensor("x", "HALF", (-1, 3)), tensor("rows", "INT32", (2,)), tensor("sizes", "INT32", (2,), True)]
    network = SimpleNamespace(num_inputs=3, get_input=tensors.__getitem__)
    ranges = {"x": [(1, 3), (4, 3), (9, 3)]}
    for profile, shape in ((None, (-1, 3)), (SimpleNamespace(get_shape=ranges.get), (4, 3))):
        loader = DataLoader()
        batches = calibrator.CalibrationBatches(loader, None)
        batches.is_trtops_calibrator = True
        config = SimpleNamespace(int8_calibrator=batches, get_calibration_profile=lambda profile=profile: profile)

        calibrator.prepare_calibrator_of(config, network)
        loaded = {name: (spec.dtype.value, spec.shape) for name, spec in loader.input_metadata.items()}
        assert loaded == {"x": ("float32", shape), "rows": ("int32", (2,)), "sizes": ("int32", None)}

    user_inputs = TensorMetadata().add("x", "float32", (7, 3))
    batches.set_input_metadata(user_inputs)
    calibrator.prepare_calibrator_of(config, network)
    assert loader.input_metadata == user_inputs
    calibrator.prepare_calibrator_of(SimpleNamespace(int8_calibrator=None), network)


def test_calibration_uses_shapes_of_its_first_batch() -> None:
    feeds = [{"x": np.zeros((4, 3), np.float32)}, {"x": np.ones((4, 3), np.float32)}]
    batches = calibrator.CalibrationBatches(iter(feeds), None)  # an iterator loses no batch
    assert batches.first_shapes() == {"x": (4, 3)}
    assert len(list(batches._iterator or ())) == 2
    assert calibrator.CalibrationBatches(feeds, io.BytesIO(b"ranges")).first_shapes() == {}
    assert calibrator.CalibrationBatches(Mock(input_metadata=None), None).first_shapes() == {}
