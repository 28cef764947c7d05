"""Calibration on real TensorRT and a GPU: caches made on the CPU, and TensorRT's made into Q/DQ nodes."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

import examples.digits
import trtops.backend.trt as back
from examples.digits import Digits, make_digits
from tests import models
from trtops.backend.base import BuildRequest, Caches
from trtops.backend.onnx.model import Model
from trtops.backend.onnx.quantize import insert_qdq
from trtops.backend.onnxrt.builder import OnnxRuntimeBackend
from trtops.backend.onnxrt.calibration import collect
from trtops.backend.onnxrt.runner import reference_runner
from trtops.backend.trt import TensorRTBackend, library
from trtops.calibration import CalibrationCache
from trtops.comparator import DataLoader
from trtops.cuda import DeviceArray
from trtops.metadata import TensorMetadata
from trtops.ops.engines.calibrate import CalibrateConfig, calibrate
from trtops.ops.evaluation.check import CheckConfig
from trtops.spec import BuildConfig, OptimizationProfile, ShapeRange, TensorRTOptions
from trtops.tracking.memory import MemoryTracker

pytestmark = pytest.mark.gpu

FILTERS = (64, 128)
"""Layers wide enough that INT8 pays: of the demo's own TensorRT builds most in FP32, which is faster there."""
BATCH = 64
PROFILE = OptimizationProfile(
    shapes=(ShapeRange(name="image", min=(1, 1, 8, 8), opt=(BATCH, 1, 8, 8), max=(599, 1, 8, 8)),)
)
INT8 = BuildConfig(precision="int8", profiles=(PROFILE,), options=TensorRTOptions(optimization_level=1))


@dataclass(frozen=True)
class Demo:
    files: Digits
    model: Model
    images: np.ndarray
    labels: np.ndarray
    golden: np.ndarray

    def batches(self):
        array = np.load(self.files.calibration)["image"]
        return [{"image": array[start : start + BATCH]} for start in range(0, len(array), BATCH)]

    def evaluate(self, build) -> tuple[float, float]:
        """Relative error of the scores of a built engine on the held-out images, and its change in top-1 accuracy."""
        with TensorRTBackend().runner(build.engine) as runner:
            scores = np.array(runner.infer({"image": self.images})["scores"])
        top1, fp32_top1 = ((class_scores.argmax(1) == self.labels).mean() for class_scores in (scores, self.golden))
        return float(np.linalg.norm(scores - self.golden) / np.linalg.norm(self.golden)), float(abs(top1 - fp32_top1))


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(examples.digits, "FILTERS", FILTERS)
        files = make_digits(tmp_path_factory.mktemp("digits"))
    model = Model.load(files.model)
    images = np.load(files.images)["image"]
    with reference_runner(model) as reference:
        golden = np.array(reference.infer({"image": images})["scores"])
    return Demo(files, model, images, np.load(files.labels), golden)


@pytest.fixture(scope="module")
def calibrated_by_tensorrt(demo: Demo):
    return TensorRTBackend().build(BuildRequest(demo.model, INT8, calibration_data=demo.batches()))


def made_on_the_cpu(demo: Demo, algorithm="entropy") -> CalibrationCache:
    inputs = TensorMetadata.of(demo.model.info.inputs)
    return collect(demo.model.proto(), demo.batches(), inputs=inputs).cache(algorithm)


def build(demo: Demo, cache: bytes, config: BuildConfig = INT8, *, timing: bytes | None = None):
    return TensorRTBackend().build(BuildRequest(demo.model, config, caches=Caches(timing=timing, calibration=cache)))


def int8_layers(built) -> list[str]:
    return [layer.name for layer in built.layers if layer.precision == "int8" and "Reformat" not in layer.op]


@pytest.mark.parametrize("form", ["ours", "text"])
@pytest.mark.parametrize("algorithm", ["entropy", "minmax", "percentile"])
def test_cpu_cache_is_as_accurate_as_tensorrts(demo: Demo, calibrated_by_tensorrt, algorithm, form) -> None:
    cache = made_on_the_cpu(demo, algorithm)
    # Without the timing cache TensorRT chooses the INT8 layers again, and three of them err more than two.
    built = build(
        demo, cache.to_bytes() if form == "ours" else cache.to_tensorrt(), timing=calibrated_by_tensorrt.timing_cache
    )

    error, change = demo.evaluate(built)
    theirs, _ = demo.evaluate(calibrated_by_tensorrt)
    assert int8_layers(built) == int8_layers(calibrated_by_tensorrt) != []
    assert theirs / 2 <= error <= 1.2 * theirs
    assert change <= 0.01


def test_calibration_data_has_its_own_batch_size(demo: Demo, calibrated_by_tensorrt) -> None:
    halves = [{"image": batch["image"][start : start + BATCH // 2]} for batch in demo.batches() for start in (0, 32)]
    built = TensorRTBackend().build(BuildRequest(demo.model, INT8, calibration_data=halves))
    assert demo.evaluate(built)[1] <= demo.evaluate(calibrated_by_tensorrt)[1] + 0.02


def test_tensorrt_cache_becomes_quantized_model(demo: Demo, calibrated_by_tensorrt) -> None:
    cache = CalibrationCache.from_bytes(calibrated_by_tensorrt.calibration_cache)
    proto = demo.model.proto()
    done = insert_qdq(proto, cache, replace(INT8, qdq_rules=()), "partial")
    built = TensorRTBackend().build(BuildRequest(Model.from_proto(proto, "digits_qdq"), INT8))
    on_cpu = OnnxRuntimeBackend().build(
        BuildRequest(demo.model, BuildConfig(precision="int8"), caches=Caches(calibration=cache.to_bytes()))
    )

    error, change = demo.evaluate(built)
    theirs, _ = demo.evaluate(calibrated_by_tensorrt)
    assert done.layers == ("conv_0", "conv_1", "head") and int8_layers(built)
    assert error <= 2 * theirs and change <= 0.01
    with OnnxRuntimeBackend().runner(on_cpu.engine) as runner:
        scores = runner.infer({"image": demo.images})["scores"]
    assert float(np.mean(scores.argmax(1) == demo.golden.argmax(1))) > 0.98


def test_kept_layers_are_not_int8(demo: Demo) -> None:
    cache = made_on_the_cpu(demo).to_bytes()

    everything = build(demo, cache, replace(INT8, keep=("head",)))
    fewer = build(demo, cache, replace(INT8, keep=("head", "conv_1")))

    assert any("conv_1" in name for name in int8_layers(everything))
    assert not any("conv_1" in name and "QuantizeLinear" not in name for name in int8_layers(fewer))
    assert demo.evaluate(fewer)[0] < demo.evaluate(everything)[0]


def test_calibrate_op_evaluates_tensorrt_engine(demo: Demo) -> None:
    check = CheckConfig(data=str(demo.files.images), labels=str(demo.files.labels), latency_runs=0, plots="never")
    config = CalibrateConfig(calibration_data=str(demo.files.calibration), batch=BATCH, build=INT8, check=check)

    result = calibrate(demo.files.model, config, tracker=MemoryTracker())

    (top1,) = result.engine.evaluation.tasks
    assert result.samples == 64 and abs(top1.loss) <= 0.01 and result.verdict == "good"


SHAPE = (2, 16, 16, 16)


@pytest.fixture(scope="module")
def convolution():
    """Builder, network and parser of a convolution of static shape, with the input ``x``."""
    weights = {"w": models.random(16, 16, 3, 3, scale=0.1)}
    dims = ",".join(map(str, SHAPE))
    proto = models.model(f"(float[{dims}] x) => (float[{dims}] y) {{ y = Conv<pads = [1,1,1,1]>(x, w) }}", weights)
    return back.network_from_onnx_bytes(proto.SerializeToString())


def raw_config(convolution, calibrator):
    """A config made with TensorRT's API."""
    config = convolution[0].create_builder_config()
    config.set_flag(library.load().BuilderFlag.INT8)
    config.int8_calibrator = calibrator
    return config


def ranges_of(convolution, data) -> dict[str, float]:
    calibrator = back.Calibrator(data)
    plan = convolution[0].build_serialized_network(convolution[1], raw_config(convolution, calibrator))
    assert plan is not None and calibrator.error is None and calibrator.num_batches == 2
    assert not calibrator.device_buffers
    return {
        name: entry.amax for name, entry in CalibrationCache.from_bytes(calibrator.cache_contents).by_name().items()
    }


def test_calibrator_serves_tensorrts_own_api(convolution) -> None:
    batches = [models.random(*SHAPE, seed=seed) for seed in range(2)]
    expected = ranges_of(convolution, [{"x": x} for x in batches])
    assert expected["x"] > 0

    for convert in (
        lambda x: x.astype(np.float64),
        lambda x: DeviceArray(SHAPE).copy_from(x),
        lambda x: DeviceArray(SHAPE).copy_from(x).view(),
        lambda x: DeviceArray(SHAPE).copy_from(x).ptr,
    ):
        # TensorRT sums on the device in any order, so that the last bit of a range may differ.
        assert ranges_of(convolution, ({"x": convert(x)} for x in batches)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("mode", ["rb", "wb", "wb+"])
def test_calibration_caches_may_be_open_files(convolution, tmp_path, mode) -> None:
    path = tmp_path / "calibration.cache"
    path.write_bytes(b"")
    with path.open(mode) as file:
        calibrator = back.Calibrator([{"x": models.random(*SHAPE)}], cache=file)
        config = back.CreateConfig(int8=True, calibrator=calibrator)
        assert back.engine_from_network(convolution, config) and calibrator.num_batches == 1
        assert path.read_bytes() == (b"" if mode == "rb" else calibrator.cache_contents)
    if mode != "rb":
        with path.open("rb") as file:
            again = back.Calibrator([], cache=file)
            config = back.CreateConfig(int8=True, calibrator=again)
            assert back.engine_from_network(convolution, config) and again.num_batches == 0


def test_data_loader_follows_the_network(convolution) -> None:
    for is_raw in (True, False):
        calibrator = back.Calibrator(DataLoader(iterations=2))
        config = raw_config(convolution, calibrator) if is_raw else back.CreateConfig(int8=True, calibrator=calibrator)
        assert back.engine_from_network(convolution, config) and calibrator.num_batches == 2
        assert tuple(calibrator.input_metadata["x"].shape) == SHAPE

    without_inputs = back.Calibrator(DataLoader())
    assert convolution[0].build_serialized_network(convolution[1], raw_config(convolution, without_inputs)) is None
    assert "has no 'x'" in str(without_inputs.error) and "EngineFromNetwork" in str(without_inputs.error)
