"""Every flow that takes shapes, profiles or data evaluates at the given ones, on a model with dynamic inputs."""

import json
from pathlib import Path
from typing import Any

import pytest
from prefect import Flow

from tests.amounts import LONG
from tests.given_shapes import GIVEN, OF_DATA, OF_PROFILE, PROFILE, evaluated, seen_shapes, write_net
from trtops import flows
from trtops.spec import OptimizationProfile, ShapeRange
from trtops.tracking.store import default_tracker

pytestmark = pytest.mark.usefixtures("store", "prefect_home")

PROFILES = (OptimizationProfile(shapes=(ShapeRange(**PROFILE),)),)
WAYS: dict[str, tuple[Any, set[tuple[int, ...]]]] = {
    "input_shapes": ({"x": (3, 5, 4)}, GIVEN),
    "data": ("data.json", OF_DATA),
    "profiles": (PROFILES, OF_PROFILE),
}
# A way and the other arguments of each flow; all options of data come from one config, so one way each is enough.
FLOWS: dict[str, tuple[str, dict[str, Any]]] = {
    "accuracy": ("input_shapes", {"model": "net.onnx"}),
    "calibrate": ("profiles", {"model": "net.onnx", "data": "data.json", "compare_with": []}),
    "compare": ("input_shapes", {"actual": "net.onnx", "golden": "net.onnx"}),
    "convert": ("data", {"model": "net.onnx"}),
    "debug_build": ("profiles", {"model": "net.onnx", "until": 1, "max_iterations": 1, "clean_builds": 1}),
    "gate": ("input_shapes", {"models": ["net.onnx"]}),
    "precision": ("profiles", {"model": "net.onnx"}),
    "reduce": ("input_shapes", {"model": "net.onnx", "output": "small.onnx"}),
    "sensitivity": ("data", {"model": "net.onnx", "calibration_cache": "int8.json"}),
    "triage": ("data", {"model": "net.onnx", "precision": "fp16"}),
    "watch": ("input_shapes", {"folder": ".", "settle_seconds": 0.0}),
}


def test_every_flow_with_shapes_is_listed() -> None:
    names = [name for name in dir(flows) if isinstance(getattr(flows, name), Flow)]
    taking = {name for name in names if getattr(flows, name).parameters.properties.keys() & WAYS.keys()}
    assert taking == FLOWS.keys() and "nightly" in names


QUICK = ("convert", "sensitivity")  # all flows are made in the same way


@pytest.mark.parametrize("name", FLOWS if LONG else QUICK)
def test_flows_evaluate_the_given_shapes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_net(tmp_path)
    way, arguments = FLOWS[name]
    value, expected = WAYS[way]
    with seen_shapes() as seen:
        getattr(flows, name)(**arguments | {way: value})

    shapes = evaluated(default_tracker())
    assert all(each == expected for each in shapes)
    # Listed models are built and evaluated in child processes.
    assert shapes if name == "watch" else expected <= set(seen) and {shape[1:] for shape in seen} == {(5, 4)}


@pytest.mark.skipif(not LONG, reason="TRTOPS_TEST_LONG=1 runs it")
def test_nightly_evaluates_the_shapes_of_its_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_net(tmp_path)
    entries = [{"input_shapes": {"x": [3, 5, 4]}}, {"data": "data.json"}, {"profiles": [{"shapes": [PROFILE]}]}]
    models = [{"model": "net.onnx", "policy": {"isolated": False}, **entry} for entry in entries]
    Path("list.yaml").write_text(json.dumps({"models": models}))  # JSON is YAML

    flows.nightly("list.yaml")

    assert evaluated(default_tracker())[::-1] == [GIVEN, OF_DATA, OF_PROFILE]
