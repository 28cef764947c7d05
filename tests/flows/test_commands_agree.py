"""What a command with ``--experiment`` remembers is what the flow remembers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flows.compare import compare
from flows.convert import convert
from flows.precision import precision
from flows.reduce import reduce
from flows.triage import triage
from tests import models
from trtops.cli.main import main
from trtops.tracking import schema
from trtops.tracking.base import RunInfo
from trtops.tracking.store import open_tracker

pytestmark = pytest.mark.xdist_group("prefect")

OWN = {schema.Tag.PREFECT_FLOW_RUN}
"""Tags that runs of flows alone have."""
PATHS = {"output", "save_replay", "check"}
"""Params that name files, or say in other words what was asked for."""

CASES: dict[str, tuple[str, Callable[[], object]]] = {
    "build": ("convert conv_net.onnx --convert-to ort --rebuild", lambda: convert("conv_net.onnx", rebuild=True)),
    "reduce": (
        "debug reduce conv_net.onnx -o a.onnx --check false {model}",
        lambda: reduce(Path("conv_net.onnx"), command="false {model}", output="b.onnx"),
    ),
    "precision": (
        "debug precision conv_net.onnx -o a.onnx",
        lambda: precision(Path("conv_net.onnx"), output="b.onnx"),
    ),
    "triage": ("debug accuracy conv_net.onnx --onnxrt", lambda: triage(Path("conv_net.onnx"))),
    "compare": ("compare conv_net.onnx out.json", lambda: compare("conv_net.onnx", "out.json", experiment="conv_net")),
}


@pytest.mark.parametrize("kind", CASES)
def test_a_command_remembers_what_the_flow_remembers(kind: str, store: Path, tmp_path: Path, monkeypatch) -> None:
    models.conv_net().write(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["run", "conv_net.onnx", "--onnxrt", "--save-outputs", "out.json"]) == 0
    line, flow = CASES[kind]

    assert main(line.replace("conv_net.onnx", "conv_net.onnx --experiment conv_net", 1).split()) in (0, 1)
    by_command = newest(kind)
    flow()
    by_flow = newest(kind)

    assert by_command.id != by_flow.id
    assert (by_command.name, by_command.verdict) == (by_flow.name, by_flow.verdict)
    assert {k: v for k, v in by_command.params.items() if k not in PATHS} == {
        k: v for k, v in by_flow.params.items() if k not in PATHS
    }
    assert numbers(by_command) == numbers(by_flow)
    assert set(by_command.tags) == set(by_flow.tags) - OWN
    assert artifacts(by_command) == artifacts(by_flow)


def newest(kind: str) -> RunInfo:
    found = open_tracker().find("conv_net", tags={schema.Tag.KIND: kind})
    return max(found, key=lambda info: info.start_time)


def numbers(info: RunInfo) -> set[object]:
    """Names of numbers; those of logarithms are there where an error is not 0, which differs from build to build."""
    return {name for name in info.metrics if name[0] != "error_log10"}


def artifacts(info: RunInfo) -> set[str]:
    return {entry.path for entry in open_tracker().load(info.id).manifest.artifacts}
