"""A model beyond 2 GiB on TensorRT and a GPU: converted and evaluated in each precision."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tests.real import export
from trtops.comparator.report import Tolerances
from trtops.json import save_json
from trtops.ops.engines.convert import ConvertConfig, convert
from trtops.ops.evaluation.check import CheckConfig
from trtops.spec import BuildConfig, Precision, TensorRTOptions
from trtops.tracking.mlflow import MlflowTracker

WIDTH = 10_000  # of six square weights: 2.4 GB

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "perceptron.onnx"
    export.perceptron(path, width=WIDTH)
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
    assert result.engine_bytes > {"fp32": 4, "fp16": 2, "int8": 1}[precision] * 6 * WIDTH**2 * 0.9
