"""What Polygraphy says to commands of its documentation and examples that need no TensorRT.

The commands, in an order in which later ones read what others wrote, and its lines are in
``tests/data/polygraphy_commands.json``. ``python -m tests.cli.polygraphy_commands`` runs the Polygraphy of the test
extra on the file's commands, and writes the lines again.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx

from tests import models

TABLE = Path(__file__).parents[1] / "data" / "polygraphy_commands.json"

VERDICTS = r"PASSED|FAILED|RUNNING \| Command|Accuracy |Finished \d+ iteration|L2 Norm|PSNR|Cosine Similarity"
RUN = (
    r".*Validating output: |mean=|Output Validation|.* \| Comparing Output: |Tolerance: |Error Metrics: "
    r"|Minimum Required Tolerance: |.* \| Stats: |---- (Values|Histogram)|Bin Range |\(.* \|"
)
INSPECT = (
    r"(\[I\] )?==== |---- |Found: |Name: |Node |Initializer \||\{|-- Iteration|.* \| Stats: "
    r"|.*iteration\(s\) matched|.*unbounded DDS"
)
SURGEON = r"(Original|New) Model:|Saving ONNX model to: |Folding Constants|Total Nodes \||---- |Name: "
"""Lines that people and scripts look for: of all commands, and of some."""


def kept_lines(command: str, printed: str, extra_pattern: str = "") -> list[str]:
    """Compared lines (also those of ``extra_pattern``), without times, runners' names and the tool's."""
    of_command = {"run": RUN, "inspect": INSPECT, "surgeon": SURGEON}.get(command.split()[0])
    line_pattern = re.compile("|".join(pattern for pattern in (VERDICTS, of_command, extra_pattern) if pattern))
    lines = []
    for line in printed.splitlines():
        text = re.sub(r"^\[[A-Z!]\] (?!====)", "", line).strip()
        text = re.sub(r"(onnxrt|trt)-runner-N\d+(-\d\d/\d\d/\d\d-\d\d:\d\d:\d\d)?\s*", "RUNNER ", text)
        text = re.sub(r"Runtime: [\d.]+s", "Runtime: T", text)
        text = re.sub(r"Duration [\d.e-]+s", "Duration T", text)
        text = re.sub(r"Command: .*", "Command: C", text)
        if line_pattern.match(text):
            lines.append(text)
    return lines


def prepare(folder: Path) -> None:
    """Write the models and scripts that the commands name."""
    for make in (models.identity, models.conv_net, models.branch, models.foldable):
        make().write(folder)
    models.dynamic_identity().write(folder, "dynamic")
    infinite = models.model("(float[4] x) => (float[4] y) { y = Div(x, zero) }", {"zero": np.zeros(4, np.float32)})
    onnx.save(infinite, folder / "infinite.onnx")
    unbounded = models.model("(float[4] x) => (int64[1,n] y) { i = NonZero(x)\n y = Identity(i) }")
    onnx.save(unbounded, folder / "unbounded.onnx")
    twice = models.conv_net().proto
    twice.graph.node[1].name = twice.graph.node[0].name
    onnx.save(twice, folder / "twice_named.onnx")
    (folder / "broken.onnx").write_bytes(b"no model")
    empty = models.identity().proto
    del empty.graph.node[:]
    onnx.save(empty, folder / "empty.onnx")
    (folder / "data_loader.py").write_text(
        "import numpy as np\ndef load_data():\n    for i in range(2):\n"
        "        yield {'x': np.full((1, 1, 2, 2), i, np.float32)}\nother = load_data\n"
    )
    (folder / "left.txt").write_text("left")


def missing_lines(expected: Iterable[str], printed: list[str], differences: Iterable[str]) -> list[str]:
    """Expected lines that were not printed in this order, without those that a pattern of ``differences`` matches."""
    missing, position = [], 0
    for line in expected:
        if line in printed[position:]:
            position = printed.index(line, position) + 1
        elif not any(re.match(pattern, line) for pattern in differences):
            missing.append(line)
    return missing


def words(command: str, tool: Iterable[str], debug: str) -> list[str]:
    """The words of a command after the tool's name."""
    return command.replace("{tool}", " ".join(tool)).replace("{debug}", debug).split()


def main() -> None:
    """Run Polygraphy on every command, and write the table."""
    import polygraphy

    table = json.loads(TABLE.read_text())["commands"]
    tool = [sys.executable, "-c", "from polygraphy.tools import main; import sys; sys.exit(main())"]
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        for command in table:
            done = subprocess.run(
                [*tool, *words(command, ["polygraphy"], "polygraphy_debug")], cwd=folder, capture_output=True, text=True
            )
            table[command] = {"exit": done.returncode, "lines": kept_lines(command, done.stdout)}
            print(done.returncode, command, flush=True)
    TABLE.write_text(json.dumps({"polygraphy": polygraphy.__version__, "commands": table}, indent=1) + "\n")


if __name__ == "__main__":
    main()
