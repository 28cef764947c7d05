"""The command line against the field's tool: help, and a run of a tiny model with ONNX Runtime.

Processor time of whole processes, user and system together, medians of several runs that take turns. A tracked run is
compared with an untracked one and with the import of MLflow alone: that import may be added, nothing more.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import onnx
from onnx import parser

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "9"))
OURS = [sys.executable, "-m", "trtops.cli"]
THEIRS = [
    sys.executable,
    "-c",
    "import sys; from polygraphy.tools._main import main; sys.argv[0] = 'polygraphy'; sys.exit(main())",
]


def cpu_seconds(command: list[str], folder: str) -> float:
    """Processor time of one process and its children."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = f"{folder}/pycache"  # both compiled once, as after an installation
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)


def medians(commands: dict[str, list[str]], folder: str) -> dict[str, float]:
    """Median processor time of each command, run in turns after one round that is not counted."""
    times: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(ROUNDS + 1):
        for name, command in commands.items():
            seconds = cpu_seconds(command, folder)
            if number:
                times[name].append(seconds)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def compare(title: str, ours: list[str], theirs: list[str], folder: str, target: float) -> bool:
    """Measure one pair, print the ratio, and say whether it is small enough."""
    found = medians({"ours": [*OURS, *ours], "theirs": [*THEIRS, *theirs]}, folder)
    ratio = found["ours"] / found["theirs"]
    good = ratio <= target
    print(
        f"{title:28} ours {found['ours']:.3f} s  theirs {found['theirs']:.3f} s  ratio {ratio:.2f} "
        f"(target {target:g}) {'ok' if good else 'MISSED'}"
    )
    return good


def main() -> int:
    """Measure all."""
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[1,4] x) => (float[1,4] y) { y = Relu(x) }'
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(parser.parse_model(text), Path(folder, "tiny.onnx"))
        run = ["run", "tiny.onnx", "--onnxrt"]
        good = [
            compare("-h", ["-h"], ["-h"], folder, 0.5),
            compare("run -h", ["run", "-h"], ["run", "-h"], folder, 0.5),
            compare("run --onnxrt", run, run, folder, 0.8),
            compare("inspect model", ["inspect", "model", "tiny.onnx"], ["inspect", "model", "tiny.onnx"], folder, 0.8),
        ]
        tracked = {
            "untracked": [*OURS, *run],
            "tracked": [*OURS, *run, "--experiment", "bench"],
            "memory": [sys.executable, "-c", "from trtops.tracking.store import open_tracker; open_tracker()"],
            "nothing": [sys.executable, "-c", "import trtops.tracking.store"],
        }
        found = medians(tracked, folder)
        added = found["tracked"] - found["untracked"]
        memory = found["memory"] - found["nothing"]
        print(f"a tracked run adds {added:.2f} s; opening the memory alone takes {memory:.2f} s")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
