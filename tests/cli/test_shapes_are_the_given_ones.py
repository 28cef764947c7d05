"""Every command that takes shapes, profiles or data evaluates at the given ones, on a model with dynamic inputs."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.given_shapes import GIVEN, OF_DATA, OF_PROFILE, Shape, evaluated, seen_shapes, write_net
from tests.stores import copy_store
from trtops.cli import jobs, registry
from trtops.cli.command_line import load
from trtops.cli.main import main
from trtops.ops.gate.measurement import Measurement
from trtops.tracking.memory import MemoryTracker

# One line for each command, which takes the options of a way at its end.
LINES = {
    "run": "run net.onnx --onnxrt",
    "convert": "convert net.onnx --convert-to ort -o net.ort",
    "calibrate": "calibrate net.onnx",
    "choose": "choose net.onnx --precisions fp32 --minutes 0",
    "compare": "compare net.onnx net.onnx",
    "inspect diff": "inspect diff net.onnx net.onnx",
    "evaluate": "evaluate net.onnx --model net.onnx",
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
NOT_EVALUATING = {"inspect capability": "reports which nodes TensorRT has", "template trt-config": "writes a script"}
# Destinations of options.
SHAPES, DATA, PROFILES = "input_shapes", "load_inputs", "trt_opt_shapes"
PROFILE = "--trt-min-shapes x:[1,5,4] --trt-opt-shapes x:[3,5,4] --trt-max-shapes x:[6,5,4]"


def options_of(command: str) -> dict[str, str]:
    """The options of a command that have an effect, by destination, in their first spelling."""
    groups = load(tuple(command.split())).groups
    flags = [flag for group in groups for flag in group.flags if not flag.idle and not flag.refuse]
    return {flag.dest: flag.names[0] for flag in flags}


def ways() -> Iterator[Any]:
    for command in LINES:
        options = options_of(command)
        data, needs_data = "--load-inputs data.json", command == "calibrate"
        if SHAPES in options and not needs_data:
            yield pytest.param(command, f"{options[SHAPES]} x:[3,5,4]", GIVEN, id=f"{command}, shapes")
        if DATA in options:
            yield pytest.param(command, data, OF_DATA, id=f"{command}, data")
        if PROFILES in options:
            # As in Polygraphy, `run` has one shape: that which the first profile is optimized for.
            shapes = GIVEN if command == "run" else OF_PROFILE
            data_option = f" {data}" if needs_data else ""
            yield pytest.param(command, f"{PROFILE}{data_option}", shapes, id=f"{command}, profile")


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRTOPS_HOME", str(tmp_path / "mlruns"))
    return write_net(tmp_path)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Shape]]:
    # A gate runs the model in a child process, whose shapes are not seen here.
    monkeypatch.setattr(Measurement, "_reference", lambda self, function, *args: function(*args))
    with seen_shapes() as shapes:
        yield shapes


@pytest.fixture
def tracker(monkeypatch: pytest.MonkeyPatch) -> MemoryTracker:
    """The tracking store of all ops."""
    memory = MemoryTracker()
    monkeypatch.setattr(jobs, "tracker", lambda *_: memory)
    return memory


BUILD_LIST = """
defaults: {policy: {isolated: false}}
models:
  - {model: net.onnx, input_shapes: {x: [3, 5, 4]}}
  - {model: net.onnx, data: data.json}
  - {model: net.onnx, profiles: [{shapes: [{name: x, min: [1, 5, 4], opt: [3, 5, 4], max: [6, 5, 4]}]}]}
"""


def test_every_command_with_shapes_is_listed() -> None:
    paths = (" ".join(path) for path in registry.COMMANDS if path not in {("data", "to-input")})
    taking = {path for path in paths if {SHAPES, DATA, PROFILES} & options_of(path).keys()}
    assert taking == {*LINES, *NOT_EVALUATING}


@pytest.mark.parametrize(("command", "options", "expected"), list(ways()))
def test_commands_evaluate_the_given_shapes(command, options, expected, net, seen, tracker) -> None:
    main([*LINES[command].split(), *options.split()])

    assert expected <= set(seen) and {shape[1:] for shape in seen} == {(5, 4)}
    assert all(shapes == expected for shapes in evaluated(tracker))
    assert evaluated(tracker) or command not in ("convert", "calibrate", "compare", "gate", "debug build")


def test_model_lists_evaluate_the_given_shapes(net, seen, tracker) -> None:
    Path("list.yaml").write_text(BUILD_LIST)
    assert main(["build-list", "list.yaml"]) == 0
    assert evaluated(tracker)[::-1] == [GIVEN, OF_DATA, OF_PROFILE]


@pytest.mark.parametrize(
    ("options", "expected"),
    [("--input-shapes x:[3,5,4]", GIVEN), ("--load-inputs data.json", OF_DATA), (PROFILE, OF_PROFILE)],
)
def test_stored_runs_are_evaluated_at_their_shapes(options, expected, net, seen, tracker) -> None:
    main(["convert", "net.onnx", "--convert-to", "ort", "--experiment", "stored", *options.split()])
    [converted] = tracker.find("stored")
    assert main(["runs", "promote", converted.id]) == 0
    assert evaluated(tracker) == [expected, expected]
    seen.clear()
    main(["runs", "bundle", converted.id, "-o", "case.zip"])
    assert set(seen) == expected


@pytest.mark.parametrize(
    ("options", "expected", "commands"),
    [
        ("--fp16 --input-shapes x:[3,5,4]", GIVEN, ["debug accuracy", "debug precision", "convert mixed.onnx"]),
        (f"{PROFILE} --fp16", GIVEN, ["debug accuracy", "debug precision"]),
        ("--load-inputs data.json --int8", OF_DATA, ["triage net.onnx"]),
    ],
)
def test_next_commands_evaluate_the_same_shapes(options, expected, commands, net, seen, template, capsys) -> None:
    copy_store(template, net.parent / "mlruns")
    line = f"convert net.onnx --convert-to ort --atol 1e-9 --rtol 0 --experiment nets {options}"
    main(line.split())
    for command in commands:
        line = capsys.readouterr().out.partition("next:")[2].replace("\\\n", "").split("\n")[0]
        assert command in line
        seen.clear()
        main(shlex.split(line)[1:])
        assert set(seen) == expected
