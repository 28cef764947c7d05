"""Further loaders, config parameters and refusals that need real TensorRT."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from tests import models
from trtops import errors
from trtops.backend.trt import (
    CreateConfig,
    NetworkFromOnnxBytes,
    TrtRunner,
    create_config,
    create_config_rtx,
    create_network,
    current_gpu,
    engine_bytes_from_network,
    engine_from_network,
    engine_from_path,
    library,
    load_plugins,
    load_runtime,
    mark_debug,
    modify_network_outputs,
    network_from_onnx_bytes,
    network_from_onnx_path,
    set_decomposable_attentions,
    set_layer_precisions,
    set_tensor_datatypes,
    set_tensor_formats,
)
from trtops.backend.trt.library import load
from trtops.backend.trt.lines import Feature
from trtops.backend.trt.lines.support import CAPABILITIES
from trtops.cuda import DeviceArray

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

QUICK = {"builder_optimization_level": 1}  # at 0 TensorRT 8.6 has no convolution without cuDNN


@pytest.fixture(scope="module")
def trt():
    return load()


@pytest.fixture(scope="module")
def line():
    return library.line()


def config_of(**options):
    """The builder config that parameters make, with what must live as long."""
    builder, network, parser = network_from_onnx_bytes(models.identity().proto.SerializeToString())
    return create_config(builder, network, **options), (builder, network, parser)


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
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_features_of_later_releases_are_refused_by_title(line, options, feature):
    if line.supports(Feature[feature]):
        pytest.skip("this release has it")
    with pytest.raises(errors.UnsupportedFeatureError) as caught:
        config_of(**options)
    assert Feature[feature].title in str(caught.value) and Feature[feature].releases in str(caught.value)


def test_missing_dla_cores_are_reported(trt):
    builder, _network = create_network()
    if builder.num_DLA_cores:
        pytest.skip("this device has DLA cores")
    with pytest.raises(errors.UnsupportedFeatureError, match="no DLA core"):
        config_of(use_dla=True)


def test_rtx_config_is_refused_on_tensorrt():
    with pytest.raises(errors.UnsupportedFeatureError, match="RTX"):
        create_config_rtx(*create_network(), compute_capabilities=["SM89"])


def test_functions_change_outputs_types_and_formats(trt):
    proto = models.model("(float[2,8,4,6] x) => (float[2,8,4,6] y) { [a] a = Relu(x) [b] b = Neg(a) [c] y = Exp(b) }")
    parts = network_from_onnx_bytes(proto.SerializeToString())
    parts = modify_network_outputs(parts, outputs=["a"])
    parts = set_tensor_datatypes(parts, {"x": "float16", "a": np.float16})
    parts = set_tensor_formats(parts, {"a": ["CHW2"]})
    parts = set_layer_precisions(parts, {"a": "float16"})
    x = models.random(2, 8, 4, 6).astype(np.float16)

    with TrtRunner(
        engine_from_network(parts, CreateConfig(fp16=True, precision_constraints="obey", **QUICK))
    ) as runner:
        found = runner.infer({"x": x})
        assert list(found) == ["a"]
        np.testing.assert_array_equal(found["a"].linear(), np.maximum(x, 0))


def test_networks_are_refused_what_came_with_later_releases(line):
    if line.supports(Feature.DEBUG_TENSORS):
        pytest.skip("this release has debug tensors")
    data = models.identity().proto.SerializeToString()
    with pytest.raises(errors.UnsupportedFeatureError, match="debug tensors"):
        mark_debug(network_from_onnx_bytes(data), ["y"])
    with pytest.raises(errors.UnsupportedFeatureError, match="attention"):
        set_decomposable_attentions(network_from_onnx_bytes(data))
    with pytest.raises(errors.UnsupportedFeatureError, match="parser"):
        network_from_onnx_bytes(data, flags=["NATIVE_INSTANCENORM"])
    with pytest.raises(errors.InvalidModelError, match=r"absent\.onnx"):
        network_from_onnx_path("absent.onnx")


def test_missing_libraries_are_refused_by_name(tmp_path: Path):
    with pytest.raises(errors.BackendUnavailableError, match=r"absent\.so"):
        load_plugins([tmp_path / "absent.so"])
    with pytest.raises(errors.BackendUnavailableError, match=r"absent_lean\.so"):
        load_runtime(tmp_path / "absent_lean.so")
    with pytest.raises(errors.TrtopsError, match=r"absent\.engine"):
        engine_from_path(tmp_path / "absent.engine")


def test_what_tensorrt_says_goes_to_logging(caplog):
    with caplog.at_level(logging.INFO, "trtops.tensorrt"):
        engine_bytes_from_network(network_from_onnx_bytes(models.identity().proto.SerializeToString()))

    said = [record for record in caplog.records if record.name == "trtops.tensorrt"]
    assert {record.levelno for record in said} >= {logging.INFO}


def test_inference_works_after_running_out_of_memory():
    with pytest.raises(errors.BackendError, match=r"(?i)memory"):
        DeviceArray((current_gpu().memory_bytes,), np.float32)
    case = models.identity()
    network = NetworkFromOnnxBytes(case.proto.SerializeToString())
    with TrtRunner(engine_from_network(network, CreateConfig(**QUICK))) as runner:
        case.check(runner.infer)


def test_support_table_agrees_with_the_installed_release(line):
    major, minor = (int(part) for part in line.version.split(".")[:2])
    release = (f"{major}.{minor}", (major, minor), False)

    assert {f.name for f in Feature if f.is_in((major, minor), rtx=False)} == {f.name for f in line.features}
    for row in CAPABILITIES:
        assert (row.cell(release) != "-") == (row.feature is None or line.supports(row.feature))
