"""Models beyond a lowered size limit on releases that take precisions from the model: weights stay in files."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests import models
from trtops.backend.base import BuildRequest
from trtops.backend.onnx.model import Model, is_lean
from trtops.backend.trt import NetworkFromOnnxPath, SetLayerPrecisions, TensorRTBackend, describe_network
from trtops.backend.trt.building import network as parsing
from trtops.backend.trt.describe.network import NetworkLayer
from trtops.spec import BuildConfig, OptimizationProfile, Precision, TensorRTOptions

pytestmark = pytest.mark.usefixtures("rtx")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return models.write_external(models.conv_net(), tmp_path / "model", threshold=1)


@pytest.fixture
def limit(large_models: None, monkeypatch: pytest.MonkeyPatch, temporary_files: Path) -> Mock:
    """Every model is large; records what is handed to parsers."""
    parsed = Mock(wraps=parsing.readable)
    monkeypatch.setattr(parsing, "readable", parsed)
    return parsed


def layers_in_half(path: Path) -> tuple[NetworkLayer, ...]:
    parts = SetLayerPrecisions(NetworkFromOnnxPath(path), {"conv*": "float16"})()
    return describe_network(parts[1]).layers


def test_layer_precisions_leave_weights_in_files(path: Path, request: pytest.FixtureRequest) -> None:
    expected = layers_in_half(path)
    parsed = request.getfixturevalue("limit")

    actual = layers_in_half(path)

    assert actual == expected and any(layer.weights for layer in actual)
    assert "float16" in {tensor.dtype.value for layer in actual for tensor in layer.outputs}
    largest = max(len(call.args[0]) for call in parsed.call_args_list)
    assert 0 < largest < sum(file.stat().st_size for file in path.parent.iterdir()) / 2


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_large_model_gives_the_same_engine(precision: Precision, path: Path, request: pytest.FixtureRequest) -> None:
    feed = models.conv_net().feed
    profile = OptimizationProfile.fixed(image=feed["image"].shape)
    config = BuildConfig(precision=precision, profiles=(profile,), options=TensorRTOptions(optimization_level=1))
    calibration: dict[str, Any] = {"calibration_data": [dict(feed)] * 2} if precision == "int8" else {}
    expected = TensorRTBackend().build(BuildRequest(Model.load(path), config, **calibration))
    request.getfixturevalue("limit")
    model = Model.load(path)
    assert is_lean(model.proto(lean=True))

    actual = TensorRTBackend().build(BuildRequest(model, config, **calibration))

    assert len(actual.engine.plan) == len(expected.engine.plan)
    assert actual.calibration_cache == expected.calibration_cache
