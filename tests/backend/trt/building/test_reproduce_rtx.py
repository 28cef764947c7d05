"""The script of a TensorRT bundle builds by what the spec says; TensorRT-RTX parses and builds without a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests import models
from trtops.backend.onnx.model import Model
from trtops.backend.trt import TensorRTBackend, library, network_from_onnx_path, reproduce
from trtops.comparator.report import Tolerances
from trtops.ops.bundling.case import Case, engine_case
from trtops.spec import BuildConfig, OptimizationProfile, ShapeRange, TensorRTOptions

pytestmark = pytest.mark.usefixtures("rtx")

TEXT = "(float[N,8] x) => (float[N,8] y) { [mm] a = MatMul(x, w) [act] b = Relu(a) [twice] y = Add(b, b) }"


def built_by_script(folder: Path, config: BuildConfig) -> tuple[dict[str, Any], Any]:
    """The settings of a real build, from which the script builds, and the network that it makes of the model."""
    proto = models.model(TEXT, {"w": models.random(8, 8)}, name="small")
    onnx.save(proto, folder / "model.onnx")
    build = TensorRTBackend().build(Model.load(folder / "model.onnx"), config)
    feed = {"x": models.random(2, 8)}
    case = Case(
        name="small", backend="tensorrt", model=proto, feeds=[feed], golden=[{"y": feed["x"]}], tolerances=Tolerances(),
        verdict="bad", settings={},
    )  # fmt: skip
    manifest = engine_case(case, build.spec.config, build.tactics.settings, None).manifest()
    settings: dict[str, Any] = json.loads(json.dumps(manifest))
    trt = library.load()
    assert len(reproduce.build(trt, trt.Logger(trt.Logger.ERROR), folder, settings)) > 1000
    return settings, network_from_onnx_path(folder / "model.onnx")


def test_script_builds_dynamic_input_without_profile(tmp_path: Path) -> None:
    case, parts = built_by_script(tmp_path, BuildConfig(options=TensorRTOptions(workspace_bytes=1 << 28)))

    assert case["profiles"] == [] and case["cleared_flags"] == ["TF32"] and case["workspace_bytes"] == 1 << 28
    assert reproduce.dynamic_inputs(parts[1]) == {"x": [[1, 8]] * 3}


def test_tensors_that_were_marked_are_marked_again(tmp_path: Path) -> None:
    shapes = ShapeRange(name="x", min=(1, 8), opt=(2, 8), max=(4, 8))
    config = BuildConfig(mark=("b",), profiles=(OptimizationProfile(shapes=(shapes,)),), options=TensorRTOptions())

    case, parts = built_by_script(tmp_path, config)

    assert case["profiles"] == [{"x": [[1, 8], [2, 8], [4, 8]]}]
    reproduce.change_layers(library.load(), parts[1], case)
    assert [parts[1].get_output(i).name for i in range(parts[1].num_outputs)] == ["y", "b"]
