"""A model beyond 2 GiB on TensorRT and a GPU: converted and evaluated in each precision."""

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests import models
from trtops.comparator.report import Tolerances
from trtops.json import save_json
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.evaluation.check import CheckConfig
from trtops.spec import BuildConfig, Precision, TensorRTOptions
from trtops.tracking.mlflow import MlflowTracker

LAYERS, WIDTH = 6, 10_000  # square weights of 2.4 GB together

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "perceptron.onnx"
    rng = np.random.default_rng(0)
    steps = [f"m{i} = MatMul({'x' if i == 0 else f'r{i - 1}'}, w{i}) r{i} = Relu(m{i})" for i in range(LAYERS)]
    text = f"(float[2,{WIDTH}] x) => (float[2,{WIDTH}] r{LAYERS - 1}) {{ {' '.join(steps)} }}"
    proto = models.model(text, {}, name="perceptron")
    with path.with_suffix(".data").open("wb") as file:
        for i in range(LAYERS):
            weight = proto.graph.initializer.add(name=f"w{i}", data_type=onnx.TensorProto.FLOAT, dims=[WIDTH, WIDTH])
            weight.data_location = onnx.TensorProto.EXTERNAL
            for key, value in (("location", "perceptron.data"), ("offset", file.tell()), ("length", 4 * WIDTH**2)):
                weight.external_data.add(key=key, value=str(value))
            file.write(rng.standard_normal((WIDTH, WIDTH), np.float32) / np.float32(WIDTH**0.5))
    onnx.save(proto, path)
    np.savez(path.with_suffix(".npz"), x=rng.standard_normal((2, WIDTH), np.float32))
    return path


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_model_beyond_2_gib_is_converted(precision: Precision, model: Path, tmp_path: Path) -> None:
    data = model.with_suffix(".npz")
    # Kernels that add 10,000 numbers in FP16 are off by a little more than FP16 itself allows for.
    allowed = {"fp32": None, "fp16": 0.98, "int8": 0.9}[precision]
    tolerances = None if allowed is None else Tolerances(atol=np.inf, rtol=np.inf, min_cosine=allowed)
    build = BuildConfig(precision=precision, options=TensorRTOptions(optimization_level=1))
    check = CheckConfig(data=str(data), tolerances=tolerances, plots="never", latency_runs=5, warm_up=1)
    config = ConvertConfig(build=build, check=check, keep_model=False)
    if precision == "int8":
        images = tmp_path / "images.json"
        save_json([{"x": np.load(data)["x"] + np.float32(i)} for i in range(2)], str(images))
        config = dataclasses.replace(config, calibration_data=str(images))

    result = convert(model, config, tracker=MlflowTracker(tmp_path / "mlruns"))

    assert result.verdict == "good", result.evaluation
    assert result.engine_bytes > {"fp32": 4, "fp16": 2, "int8": 1}[precision] * LAYERS * WIDTH**2 * 0.9
