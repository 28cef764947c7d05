"""The calibrate and sensitivity flows, on a real Prefect server, a real MLflow store and real ONNX Runtime."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from flows.calibrate import calibrate
from flows.sensitivity import sensitivity
from tests import models
from trtops.calibration import CalibrationCache
from trtops.ops.engines.calibrate import CalibrateConfig
from trtops.ops.evaluation.check import CheckConfig
from trtops.spec import BuildConfig, OnnxRuntimeOptions
from trtops.tracking import schema
from trtops.tracking.store import default_tracker

CONFIG = CalibrateConfig(
    build=BuildConfig(precision="int8", options=OnnxRuntimeOptions(tactics=(), timing_iterations=1)),
    check=CheckConfig(latency_runs=0, plots="never"),
    compare_with=(),
    pictures=4,
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return models.conv_net().write(tmp_path)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    path = tmp_path / "images.npz"
    np.savez(path, image=np.concatenate([models.random(4, 3, 8, 8, seed=seed) for seed in range(4)]))
    return path


def test_sensitivity_reads_cache_of_calibration(store: Path, model: Path, images: Path, tmp_path: Path) -> None:
    output = tmp_path / "conv_net.cache"
    result = calibrate(model, CONFIG, data=str(images), algorithm="minmax", batch=8, keep=("fc",), output=str(output))
    measured = sensitivity(model, f"run:{result.run_id}", data=str(images), budget=0.5)

    tracker = default_tracker()
    stored = tracker.load(result.run_id)
    assert result.feeds == 2 and result.algorithm == "minmax" and result.verdict == "good"
    assert stored.info.tags[schema.Tag.KIND] == "calibrate" and stored.info.tags[schema.Tag.PREFECT_FLOW_RUN]
    assert CalibrationCache.from_bytes(output.read_bytes()).samples == 0  # TensorRT's text has no place for it
    assert {"caches/calibration.cache", "caches/calibration.json", "calibration/histograms_00.png"} <= {
        entry.path for entry in stored.manifest.artifacts
    }
    assert "1 kept in FP32: fc" in tracker.load(result.engines[-1].run_id).read_bytes("build.log").decode()
    assert measured.keep == () and len(measured.layers) == 3
    table = json.loads(tracker.load(measured.run_id).read_bytes("sensitivity/layers.json"))
    assert [row[0] for row in table["data"]] == [layer.layer for layer in measured.layers]
