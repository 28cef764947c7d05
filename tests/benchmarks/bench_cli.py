"""The command line and the first lines of a script against Polygraphy's: help, imports, a run of a tiny model.

Processor time of whole processes, user and system together, the least of several runs that take turns. A tracked run is
compared with an untracked one and with the import of MLflow alone: that import may be added, nothing more. With ``--full``
each is run nine times and not four.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import onnx
from onnx import parser

ROUNDS = 9 if "--full" in sys.argv else 6
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


def least_times(commands: dict[str, list[str]], folder: str) -> dict[str, float]:
    """Least processor time of each command, run in turns after one round that is not counted.

    The least, because whatever else the machine does only adds to it.
    """
    times: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(ROUNDS + 1):
        for name, command in commands.items():
            seconds = cpu_seconds(command, folder)
            if number:
                times[name].append(seconds)
    return {name: min(seconds) for name, seconds in times.items()}


IMPORTS = "import {0}.comparator; import {0}.backend.onnxrt"
SCRIPT = """from {0}.backend.onnxrt import OnnxrtRunner, SessionFromOnnx
from {0}.comparator import Comparator
Comparator.run([OnnxrtRunner(SessionFromOnnx("tiny.onnx"))])"""


def compare_scripts(title: str, script: str, folder: str, target: float) -> bool:
    """Measure a script with ``{0}`` for the package, as :func:`compare` does."""
    ours, theirs = ([sys.executable, "-c", script.format(name)] for name in ("trtops", "polygraphy"))
    return compare(title, ours, theirs, folder, target)


def compare(title: str, ours: list[str], theirs: list[str], folder: str, target: float) -> bool:
    """Measure one pair of commands, print the ratio, and say whether it is small enough."""
    found = least_times({"ours": ours, "theirs": theirs}, folder)
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
        commands = [(["-h"], 0.5), (["run", "-h"], 0.5), (run, 0.8), (["inspect", "model", "tiny.onnx"], 0.8)]
        good = [
            *[compare(" ".join(c), [*OURS, *c], [*THEIRS, *c], folder, target) for c, target in commands],
            compare_scripts("import", IMPORTS, folder, 1.0),
            compare_scripts("Comparator.run", SCRIPT, folder, 1.0),
        ]
        tracked = {
            "untracked": [*OURS, *run],
            "tracked": [*OURS, *run, "--experiment", "bench"],
            "memory": [sys.executable, "-c", "from trtops.tracking.store import open_tracker; open_tracker()"],
            "nothing": [sys.executable, "-c", "import trtops.tracking.store"],
        }
        found = least_times(tracked, folder)
        added = found["tracked"] - found["untracked"]
        memory = found["memory"] - found["nothing"]
        print(f"a tracked run adds {added:.2f} s; opening the memory alone takes {memory:.2f} s")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
