"""Every command that takes shapes, profiles or data evaluates at the given ones, on a model with dynamic inputs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnxruntime.capi.onnxruntime_inference_collection import Session

from tests import models
from trtops.backend.runner import BaseRunner
from trtops.calibration import CalibrationCache
from trtops.calibration.cache import TensorRange
from trtops.cli import jobs, registry
from trtops.cli.main import load, main
from trtops.tracking.memory import MemoryTracker

Shape = tuple[int, ...]

# One line for each command, which takes the options of a way at its end.
LINES = {
    "run": "run net.onnx --onnxrt",
    "convert": "convert net.onnx --convert-to ort -o net.ort",
    "calibrate": "calibrate net.onnx",
    "compare": "compare net.onnx net.onnx",
    "inspect diff": "inspect diff net.onnx net.onnx",
    "triage": "triage net.onnx --fp16 -o case",
    "gate": "gate net.onnx",
    "sensitivity": "sensitivity net.onnx --calibration-cache int8.json",
    "check lint": "check lint net.onnx",
    "surgeon extract": "surgeon extract net.onnx --outputs m:float32 --force-fallback-shape-inference",
    "surgeon sanitize": "surgeon sanitize net.onnx -o clean.onnx --force-fallback-shape-inference",
    "debug build": "debug build net.onnx --onnxrt --until 1 --max-builds 1 --clean-builds 1",
    "debug reduce": "debug reduce net.onnx --onnxrt -o small.onnx",
    "debug precision": "debug precision net.onnx",
    "debug accuracy": "debug accuracy net.onnx --onnxrt",
}
NOT_EVALUATING = {
    "inspect capability": "reports which nodes TensorRT has",
    "template trt-config": "writes a script",
}
OF_SHAPES, OF_DATA, OF_PROFILES = "input_shapes", "load_inputs", "trt_opt_shapes"
PROFILE = "--trt-min-shapes x:[1,5,4] --trt-opt-shapes x:[3,5,4] --trt-max-shapes x:[6,5,4]"


def options_of(command: str) -> dict[str, str]:
    """The options of a command that have an effect, by destination, in their first spelling."""
    groups = load(tuple(command.split())).groups
    flags = [flag for group in groups for flag in group.flags if not flag.idle and not flag.refuse]
    return {flag.dest: flag.names[0] for flag in flags}


def ways() -> Iterator[Any]:
    for command in LINES:
        options = options_of(command)
        data = "--load-inputs data.json"
        needs_data = command == "calibrate"
        if OF_SHAPES in options and not needs_data:
            yield pytest.param(command, f"{options[OF_SHAPES]} x:[3,5,4]", {(3, 5, 4)}, id=f"{command}, shapes")
        if OF_DATA in options:
            yield pytest.param(command, data, {(4, 5, 4)}, id=f"{command}, data")
        if OF_PROFILES in options:
            # As in Polygraphy, `run` has one shape: that which the first profile is optimized for.
            shapes = {(3, 5, 4)} if command == "run" else {(1, 5, 4), (3, 5, 4), (4, 5, 4), (6, 5, 4)}
            more = f" {data}" if needs_data else ""
            yield pytest.param(command, f"{PROFILE}{more}", shapes, id=f"{command}, profile")


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRTOPS_HOME", str(tmp_path / "mlruns"))
    return write_net(tmp_path)


def write_net(folder: Path) -> Path:
    """A model whose batch and length are dynamic, one feed of length 5, and a calibration cache."""
    nodes = "[m] m = MatMul(x, w) [r] r = Relu(m) [y] y = Add(r, x)"
    text = f"(float[batch,length,4] x) => (float[batch,length,4] y) {{ {nodes} }}"
    case = models.Case(models.model(text, {"w": models.random(4, 4)}), {"x": models.random(4, 5, 4)}, name="net")
    ranges = tuple(TensorRange(name=name, amax=4.0) for name in ("x", "m", "r", "y"))
    (folder / "int8.json").write_text(CalibrationCache(algorithm="minmax", ranges=ranges).to_json())
    from trtops.json import save_json

    save_json([dict(case.feed)], str(folder / "data.json"), "inputs")
    return case.write(folder)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Shape]:
    """The shapes of the input at every inference of this process."""
    found: list[Shape] = []
    infer = BaseRunner.infer

    def recorded(self: BaseRunner, feed_dict: Any, check_inputs: bool = True) -> dict[str, Any]:
        if "x" in feed_dict:
            found.append(tuple(np.shape(feed_dict["x"])))
        return infer(self, feed_dict, check_inputs)

    monkeypatch.setattr(BaseRunner, "infer", recorded)
    run = Session.run  # what runs without a runner

    def recorded_run(self: Session, names: Any, feed: Any, *rest: Any) -> Any:
        if "x" in feed:
            found.append(tuple(np.shape(feed["x"])))
        return run(self, names, feed, *rest)

    monkeypatch.setattr(Session, "run", recorded_run)
    return found


@pytest.fixture
def tracker(monkeypatch: pytest.MonkeyPatch) -> MemoryTracker:
    """The tracking store of all ops."""
    made = MemoryTracker()
    monkeypatch.setattr(jobs, "tracker", lambda *_: made)
    return made


BUILD_LIST = """
defaults: {policy: {isolated: false}}
models:
  - {model: net.onnx, input_shapes: {x: [3, 5, 4]}}
  - {model: net.onnx, data: data.json}
  - {model: net.onnx, profiles: [{shapes: [{name: x, min: [1, 5, 4], opt: [3, 5, 4], max: [6, 5, 4]}]}]}
"""


def evaluated(tracker: MemoryTracker) -> list[set[Shape]]:
    """The shapes in the evidence of each run, which has those of child processes too."""
    params = [run.params.get("evidence.shapes") for run in tracker.find()]
    words = [[text.split(" (")[0].removeprefix("x ") for text in shapes.split("; ")] for shapes in params if shapes]
    return [{tuple(map(int, word.split("x"))) for word in found} for found in words]


def test_every_command_with_shapes_is_listed() -> None:
    paths = (" ".join(path) for path in registry.COMMANDS if path not in {("data", "to-input")})
    taking = {path for path in paths if {OF_SHAPES, OF_DATA, OF_PROFILES} & options_of(path).keys()}
    assert taking == {*LINES, *NOT_EVALUATING}


@pytest.mark.parametrize(("command", "options", "expected"), list(ways()))
def test_commands_evaluate_the_given_shapes(command, options, expected, net, seen, tracker) -> None:
    main([*LINES[command].split(), *options.split()])

    assert expected <= set(seen) and {shape[1:] for shape in seen} == {(5, 4)}
    assert all(shapes == expected for shapes in evaluated(tracker))
    assert evaluated(tracker) or command not in ("convert", "calibrate", "debug build")


def test_model_lists_evaluate_the_given_shapes(net, seen, tracker) -> None:
    Path("list.yaml").write_text(BUILD_LIST)
    assert main(["build-list", "list.yaml"]) == 0
    assert evaluated(tracker)[::-1] == [{(3, 5, 4)}, {(4, 5, 4)}, {(1, 5, 4), (3, 5, 4), (4, 5, 4), (6, 5, 4)}]
