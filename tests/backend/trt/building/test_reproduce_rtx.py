"""The script of a TensorRT bundle builds by what the spec says; TensorRT-RTX parses and builds without a GPU."""

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests import models
from trtops.backend import environment as environments
from trtops.backend.base import BuildRequest, Caches
from trtops.backend.onnx.model import Model
from trtops.backend.trt import TensorRTBackend, library, network_from_onnx_path, reproduce
from trtops.calibration.cache import CalibrationCache, TensorRange
from trtops.comparator.report import Tolerances
from trtops.ops.bundling.case import Case, engine_case
from trtops.spec import BuildConfig, OptimizationProfile, Precision, ShapeRange, TensorRTOptions

pytestmark = pytest.mark.usefixtures("rtx")

TEXT = "(float[N,8] x) => (float[N,8] y) { [mm] a = MatMul(x, w) [act] b = Relu(a) [twice] y = Add(b, b) }"


def built_by_script(folder: Path, config: BuildConfig, ranges: bytes | None = None) -> tuple[dict[str, Any], Any]:
    """The settings of a real build, from which the script builds, and the network that it makes of the model."""
    proto = models.model(TEXT, {"w": models.random(8, 8)}, name="small")
    onnx.save(proto, folder / "model.onnx")
    build = TensorRTBackend().build(
        BuildRequest(Model.load(folder / "model.onnx"), config, caches=Caches(calibration=ranges))
    )
    feed = {"x": models.random(2, 8)}
    case = Case(
        name="small", backend="tensorrt", model=proto, feeds=[feed], golden=[{"y": feed["x"]}], tolerances=Tolerances(),
        verdict="bad", settings={},
    )  # fmt: skip
    case = engine_case(case, build.spec.config, build.tactics, ranges, build.engine.environment)
    onnx.save(case.model, folder / "model.onnx")
    settings: dict[str, Any] = json.loads(json.dumps(case.manifest()))
    assert settings["module"] == "tensorrt_rtx"
    trt = library.load()
    plan = reproduce.build(trt, trt.Logger(trt.Logger.ERROR), folder, settings)
    assert abs(len(plan) - len(build.engine.plan)) < 0.02 * len(plan)
    return settings, network_from_onnx_path(folder / "model.onnx")


def test_script_builds_dynamic_input_without_profile(tmp_path: Path) -> None:
    case, parts = built_by_script(tmp_path, BuildConfig(options=TensorRTOptions(workspace_bytes=1 << 28)))

    assert case["profiles"] == [] and case["cleared_flags"] == ["TF32"] and case["workspace_bytes"] == 1 << 28
    assert reproduce.dynamic_inputs(parts[1]) == {"x": [[1, 8]] * 3}


def test_dimensions_of_one_name_may_have_different_sizes(tmp_path: Path) -> None:
    proto = models.model("(float[n,n] x) => (float[n,n] y) { y = Relu(x) }")
    onnx.save(proto, tmp_path / "model.onnx")
    network = network_from_onnx_path(tmp_path / "model.onnx")[1]
    reproduce.rename_dimensions(network, {"x": [[1, 8], [2, 8], [4, 8]]})
    assert [network.get_input(0).get_dimension_name(axis) for axis in range(2)] == ["n", "x 1"]


def test_tensors_that_were_marked_are_marked_again(tmp_path: Path) -> None:
    shapes = ShapeRange(name="x", min=(1, 8), opt=(2, 8), max=(4, 8))
    config = BuildConfig(mark=("b",), profiles=(OptimizationProfile(shapes=(shapes,)),), options=TensorRTOptions())

    case, _ = built_by_script(tmp_path, config)

    assert case["profiles"] == [{"x": [[1, 8], [2, 8], [4, 8]]}]
    assert case["mark"] == ["b"]


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_precision_is_in_the_models(tmp_path: Path, precision: Precision) -> None:
    options = TensorRTOptions(max_num_tactics=2, avg_timing_iterations=3)
    config = BuildConfig(
        precision=precision, keep=("act",) if precision == "fp16" else (), qdq_rules=(), options=options
    )
    tensor_ranges = tuple(TensorRange(name=name, amax=4.0) for name in ("x", "a"))
    ranges = CalibrationCache(algorithm="min-max", ranges=tensor_ranges).to_bytes() if precision == "int8" else None

    case, _ = built_by_script(tmp_path, config, ranges)

    assert case["flags"] == [] and not case["calibrates"]
    assert case["properties"] == {"max_num_tactics": 2, "avg_timing_iterations": 3}
    kinds = {node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node}
    assert ("Cast" in kinds, "QuantizeLinear" in kinds) == (precision == "fp16", precision == "int8")


def test_weakly_typed_releases_get_flags() -> None:
    conv_net = models.conv_net()
    case = Case(
        name="c", backend="tensorrt", model=conv_net.proto, feeds=[conv_net.feed], golden=[{}], tolerances=Tolerances(),
        verdict="bad", settings={},
    )  # fmt: skip
    environment = environments.environment(
        backend="tensorrt", backend_version="10.8.0", device="H100", device_sha256="d", packages=()
    )
    options = TensorRTOptions(refittable=True, version_compatible=True, layer_precisions=(("fc", "float16"),))
    config = BuildConfig(precision="fp16", keep=("conv*",), options=options)

    manifest = engine_case(case, config, None, None, environment).manifest()

    assert manifest["flags"] == ["FP16", "OBEY_PRECISION_CONSTRAINTS", "REFIT", "VERSION_COMPATIBLE"]
    assert (
        manifest["layers"] == [["conv0", "float32"], ["conv1", "float32"], ["fc", "float16"]]
        and manifest["module"] == "tensorrt"
    )
