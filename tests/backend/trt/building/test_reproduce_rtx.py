"""The script of a TensorRT bundle builds by what the spec says; TensorRT-RTX parses and builds without a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests import models
from trtops.backend.onnx.model import Model
from trtops.backend.trt import TensorRTBackend, library, reproduce
from trtops.comparator.report import Tolerances
from trtops.ops.bundling.case import Case, engine_case
from trtops.spec import BuildConfig, OptimizationProfile, ShapeRange, TensorRTOptions

pytestmark = pytest.mark.usefixtures("rtx")

TEXT = "(float[N,8] x) => (float[N,8] y) { [mm] a = MatMul(x, w) [act] b = Relu(a) [twice] y = Add(b, b) }"


def settings_of(folder: Path, config: BuildConfig) -> dict[str, Any]:
    """The settings of a real build that the script reads, next to its model."""
    proto = models.model(TEXT, {"w": models.random(8, 8)}, name="small")
    onnx.save(proto, folder / "model.onnx")
    build = TensorRTBackend().build(Model.load(folder / "model.onnx"), config)
    feed = {"x": models.random(2, 8)}
    case = Case(
        name="small", backend="tensorrt", model=proto, feeds=[feed], golden=[{"y": feed["x"]}], tolerances=Tolerances(),
        verdict="bad", settings={},
    )  # fmt: skip
    found: dict[str, Any] = json.loads(
        json.dumps(engine_case(case, build.spec.config, build.tactics.settings, None).manifest())
    )
    return found


def parsed(trt: Any, folder: Path) -> tuple[Any, Any]:
    """The network of the model, and what holds it."""
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, logger)
    assert parser.parse_from_file(str(folder / "model.onnx"))
    return network, (logger, builder, parser)


def test_script_builds_dynamic_input_without_profile(tmp_path: Path) -> None:
    trt = library.load()
    case = settings_of(tmp_path, BuildConfig(options=TensorRTOptions(workspace_bytes=1 << 28)))
    assert case["profiles"] == [] and case["cleared_flags"] == ["TF32"] and case["workspace_bytes"] == 1 << 28
    assert len(reproduce.build(trt, trt.Logger(trt.Logger.ERROR), tmp_path, case)) > 1000
    network, _held = parsed(trt, tmp_path)
    assert reproduce.dynamic_inputs(network) == {"x": [[1, 8]] * 3}


def test_tensors_that_were_marked_are_marked_again(tmp_path: Path) -> None:
    trt = library.load()
    shapes = ShapeRange(name="x", min=(1, 8), opt=(2, 8), max=(4, 8))
    config = BuildConfig(mark=("b",), profiles=(OptimizationProfile(shapes=(shapes,)),), options=TensorRTOptions())
    case = settings_of(tmp_path, config)
    assert case["profiles"] == [{"x": [[1, 8], [2, 8], [4, 8]]}]
    assert len(reproduce.build(trt, trt.Logger(trt.Logger.ERROR), tmp_path, case)) > 1000
    network, _held = parsed(trt, tmp_path)
    reproduce.change_layers(trt, network, case)
    assert [network.get_output(i).name for i in range(network.num_outputs)] == ["y", "b"]
