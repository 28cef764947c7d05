"""What it costs to find a planted fault by single commands, in the order of the guides that come with Polygraphy.

The person of this walk is a lucky one: never turns wrong, reads in no time, and stops at the command whose output shows the
fault. So what is counted is the least that it costs by hand.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.triage.planted import Planted
from trtops.ops.engines.convert import ConvertConfig
from trtops.ops.triaging.result import TriageConfig

Line = tuple[str, int]
"""A command line after ``trtops``, and how many engines it builds; -1 where it says so itself."""


@dataclass(frozen=True)
class HandCost:
    """What the single commands cost.

    Attributes:
        commands: How many were run.
        builds: Engines that they built.
        seconds: Their wall time, processes included.
    """

    commands: int
    builds: int
    seconds: float


def cost_by_hand(fault: Planted, path: Path, asked: TriageConfig) -> HandCost:
    """Run the commands one after the other, each in a process of its own as a terminal does.

    Raises:
        AssertionError: If one did not do its work; a bad verdict is work done.
    """
    convert = ConvertConfig(build=asked.build, check=asked.check, calibration_cache=asked.calibration_cache)
    (path.parent / "asked.json").write_text(convert.to_json())
    tool, builds, started = Path(sys.executable).with_name("trtops"), 0, time.perf_counter()
    # Searches run their check by its name, and so need it on the path, whether the environment is activated or not.
    env = os.environ | {"PATH": os.pathsep.join((str(tool.parent), os.environ.get("PATH", "")))}
    lines = list(_commands(fault, path, asked))
    for line, made in lines:
        command = [str(tool), *line.split()]
        done = subprocess.run(command, cwd=path.parent, capture_output=True, text=True, check=False, env=env)
        may_fail = "shape" in fault.kinds and line.startswith(("run", "check"))  # that it does not run is the finding
        assert done.returncode in (0, 1) or may_fail, f"trtops {line}: {done.returncode}: {done.stderr[-300:]}"
        builds += made if made >= 0 else _said_builds(done.stdout + done.stderr)
    return HandCost(len(lines), builds, time.perf_counter() - started)


def _said_builds(text: str) -> int:
    """The builds that a search says it made, or the sub-models that it checked by building them."""
    found = re.findall(r"(\d+) (?:builds|checks)\b", text)
    assert found, f"it says no number of builds: {text[-500:]}"
    return int(found[-1])


def _commands(fault: Planted, path: Path, asked: TriageConfig) -> Iterator[Line]:
    """The commands up to the one that shows the fault."""
    data = f"--load-inputs {Path(str(asked.check.data)).name}"
    model = path.name
    yield f"inspect data {Path(str(asked.check.data)).name}", 0
    yield f"check lint {model} {data}", 0
    for profile in asked.build.profiles:
        for which in ("min", "opt", "max"):
            shapes = " ".join(f"{s.name}:[{','.join(map(str, getattr(s, which)))}]" for s in profile.shapes)
            yield f"run {model} --onnxrt --input-shapes {shapes}", 0
    if "shape" in fault.kinds:
        return
    yield f"run {model} --onnxrt --onnxrt {data} --validate", 0
    if "not repeatable" in fault.kinds or (fault.kinds == ("nan",)):
        yield f"run {model} --onnxrt --onnxrt {data} --onnx-outputs mark all --validate", 0
        return
    if asked.golden_model is not None:
        golden = Path(asked.golden_model).name
        for mark in ("", "--onnx-outputs mark all"):
            yield f"run {golden} --onnxrt {data} --save-outputs golden.json {mark}", 0
            yield f"run {model} --onnxrt {data} --load-outputs golden.json {mark}", 0
        return
    yield f"convert {model} -o engine.ort --config asked.json --experiment hand", 1
    for _ in range(asked.rebuilds):
        yield f"convert {model} -o engine.ort --config asked.json --experiment hand --rebuild", 1
    yield from _of_engine(asked, model, data)


def _of_engine(asked: TriageConfig, model: str, data: str) -> Iterator[Line]:
    """What follows where the model is right and the engine is bad every time."""
    if asked.build.precision == "fp16":
        yield f"debug accuracy {model} --emulate fp16 {data}", 0
        yield f"debug precision {model} {data}", 0
        yield (
            f"debug reduce {model} {data} -o small.onnx --check trtops debug accuracy trtops_debug.onnx --emulate fp16",
            0,
        )
    elif asked.build.precision == "int8":
        yield f"convert {model} -o fp32.ort {data} --experiment hand", 1
        yield f"sensitivity {model} --calibration-cache {Path(str(asked.calibration_cache)).name} {data}", 0
        yield f"calibrate {model} {data} -o seen.json", 1
        yield f"inspect calibration {Path(str(asked.calibration_cache)).name} seen.json", 0
    else:
        # Other commands build with the fastest tactics, which are not the bad one's: mixtures of builds are what is left.
        yield (
            f"debug build {model} --onnxrt --allow-approximation {data} --random-tactics --max-builds 40 --experiment hand",
            -1,
        )
