"""Commands of Polygraphy's documentation and examples that need no TensorRT, and what it says to them.

The table of what it says is ``tests/data/polygraphy_commands.json``. Made again, with the Polygraphy of the test
extra, by::

    python -m tests.cli.polygraphy_commands
"""

from __future__ import annotations

import json
import logging
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

COMMANDS = (
    "--version",
    # run
    "run identity.onnx",
    "run identity.onnx --onnxrt",
    "run identity.onnx --onnxrt --onnxrt",
    "run dynamic.onnx --onnxrt --onnxrt --input-shapes X:[1,2,4,4]",
    "run identity.onnx --onnxrt --save-inputs inputs.json --save-outputs golden.json",
    "run identity.onnx --onnxrt --load-inputs inputs.json --load-outputs golden.json",
    "run identity.onnx --onnxrt --load-inputs inputs.json --load-outputs golden.json --rtol 1e-3 --atol 1e-2",
    "run identity.onnx --onnxrt --load-outputs golden.json --seed 3",
    "run identity.onnx --onnxrt --load-outputs golden.json --seed 3 --check-error-stat mean median --atol 2",
    "run identity.onnx --onnxrt --load-outputs golden.json --seed 3 --compare l2 psnr",
    "run identity.onnx --onnxrt --load-inputs inputs.json --load-outputs golden.json --compare l2 "
    "cosine_similarity --save-accuracy-results acc.json",
    "run identity.onnx --onnxrt --load-inputs inputs.json --load-outputs golden.json --compare indices "
    "--postprocess top-1",
    "run identity.onnx --onnxrt --iterations 3 --save-inputs many --save-outputs many_golden",
    "run identity.onnx --onnxrt --load-inputs many --load-outputs many_golden --fail-fast",
    "run identity.onnx --onnxrt --onnxrt --iterations 2 --check-average --check-error-stat max",
    "run identity.onnx --onnxrt --data-loader-script data_loader.py",
    "run identity.onnx --onnxrt --data-loader-script data_loader.py:other --save-outputs other.json",
    "run identity.onnx --onnxrt --validate",
    "run infinite.onnx --onnxrt --validate",
    "run conv_net.onnx --onnxrt --onnx-outputs mark all --save-outputs layerwise.json --save-inputs conv_inputs.json",
    "run conv_net.onnx --onnxrt --onnx-outputs r0 --onnx-exclude-outputs scores --save-onnx marked.onnx",
    "run identity.onnx --onnxrt --onnxrt --gen-script compare.py",
    "run identity.onnx --onnxrt -q",
    "run identity.onnx --onnxrt --onnxrt --silent",
    "run no_such_option.onnx --no-such-option",
    # inspect
    "inspect model identity.onnx",
    "inspect model conv_net.onnx --show layers",
    "inspect model conv_net.onnx --show layers attrs weights",
    "inspect model branch.onnx --show layers attrs",
    "inspect model dynamic.onnx --show weights",
    "inspect model unbounded.onnx --list-unbounded-dds",
    "inspect data golden.json",
    "inspect data golden.json --show-values --histogram",
    "inspect data inputs.json --show-values",
    "inspect data many -a",
    "inspect data many_golden --all --num-items 1 --line-width 40 -s",
    "inspect data acc.json",
    "inspect sparsity conv_net.onnx",
    # check
    "check lint conv_net.onnx",
    "check lint twice_named.onnx -o report.json",
    "check lint broken.onnx",
    "check lint empty.onnx",
    "check accuracy acc.json --compare l2 --l2-threshold 1e-3",
    "check accuracy acc.json --compare cosine_similarity --cosine-similarity-threshold 2",
    # surgeon
    "surgeon extract conv_net.onnx --inputs r0:auto:auto --outputs logits:auto -o part.onnx",
    "surgeon extract conv_net.onnx --inputs c0:[1,8,8,8]:float32 --outputs r1:float32 -o part2.onnx",
    "surgeon -v sanitize foldable.onnx --fold-constants -o folded.onnx",
    "surgeon sanitize foldable.onnx --fold-constants --no-fold-shapes --num-passes 1 -o folded1.onnx",
    "surgeon sanitize conv_net.onnx --override-input-shapes image:[1,3,8,8] -o static.onnx",
    "surgeon sanitize conv_net.onnx --outputs r1 --cleanup --toposort -o cut.onnx",
    "surgeon insert identity.onnx --op Relu --inputs x --outputs x --name before -o inserted.onnx",
    "surgeon prune conv_net.onnx -o pruned.onnx",
    "surgeon weight-strip conv_net.onnx -o stripped.onnx",
    "surgeon weight-reconstruct stripped.onnx -o whole.onnx",
    # convert, template, data
    "convert conv_net.onnx --convert-to onnx --onnx-outputs r0 -o converted.onnx",
    "template onnx-gs conv_net.onnx -o change.py",
    "template trt-network -o network.py",
    "data merge conv_inputs.json layerwise.json -o all_inputs.json",
    "data concat golden.json other.json -o both.json",
    # debug
    "debug reduce conv_net.onnx -o reduced.onnx --mode bisect --fail-regex AveragePool --check {tool} inspect "
    "model {debug}.onnx --show layers",
    "debug reduce conv_net.onnx -o reduced2.onnx --mode linear --no-reduce-inputs --check true",
    "debug repeat --until 2 --check true",
    "debug repeat --until bad --artifacts left.txt --art-dir sorted --check false",
)  # fmt: skip
"""In order: some read what others before them wrote."""

VERDICTS = r"PASSED|FAILED|RUNNING \| Command|Accuracy |Finished \d+ iteration|L2 Norm|PSNR|Cosine Similarity"
RUN = (
    r".*Validating output: |mean=|Output Validation|.* \| Comparing Output: |Tolerance: |Error Metrics: "
    r"|Minimum Required Tolerance: |.* \| Stats: |---- (Values|Histogram)|Bin Range |\(.* \|"
)
INSPECT = (
    r"==== |---- |Name: |Node |Initializer \||\{|-- Iteration|.* \| Stats: |.*iteration\(s\) matched|.*unbounded DDS"
)
SURGEON = r"(Original|New) Model:|Saving ONNX model to: |Folding Constants|Total Nodes \||---- |Name: "
"""Lines that people and scripts look for: of all commands, and of some."""


def kept_lines(command: str, printed: str, more: str = "") -> list[str]:
    """The lines that are compared, without what differs from run to run: times, runners' names and the tool's.

    Args:
        command: The command's words, the tool's name left out.
        printed: What it printed.
        more: A pattern of further lines that are compared.
    """
    of_command = {"run": RUN, "inspect": INSPECT, "surgeon": SURGEON}.get(command.split()[0])
    wanted = re.compile("|".join(pattern for pattern in (VERDICTS, of_command, more) if pattern))
    found = []
    for line in printed.splitlines():
        text = re.sub(r"^\[[A-Z!]\] ", "", line).strip()
        text = re.sub(r"(onnxrt|trt)-runner-N\d+(-\d\d/\d\d/\d\d-\d\d:\d\d:\d\d)?\s*", "RUNNER ", text)
        text = re.sub(r"Runtime: [\d.]+s", "Runtime: T", text)
        text = re.sub(r"Duration [\d.e-]+s", "Duration T", text)
        text = re.sub(r"Command: .*", "Command: C", text)
        if wanted.match(text):
            found.append(text)
    return found


def prepare(folder: Path) -> None:
    """Write the models and scripts that the commands name."""
    for make, name in (
        (models.identity, "identity"),
        (models.dynamic_identity, "dynamic"),
        (models.conv_net, "conv_net"),
        (models.branch, "branch"),
        (models.foldable, "foldable"),
    ):
        make().write(folder, name)
    identity = models.identity()
    [spec] = identity.proto.graph.input
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
    shape = tuple(dim.dim_value for dim in spec.type.tensor_type.shape.dim)
    (folder / "data_loader.py").write_text(
        "import numpy as np\ndef load_data():\n    for i in range(2):\n"
        f"        yield {{{spec.name!r}: np.full({shape}, i, np.float32)}}\nother = load_data\n"
    )
    (folder / "left.txt").write_text("left")


def missing_lines(wanted: Iterable[str], said: list[str], differences: Iterable[str]) -> list[str]:
    """Lines that are wanted and not said, in this order, but for those that a pattern of ``differences`` describes."""
    missing, place = [], 0
    for line in wanted:
        if line in said[place:]:
            place = said.index(line, place) + 1
        elif not any(re.match(pattern, line) for pattern in differences):
            missing.append(line)
    return missing


class OnStdout(logging.Handler):
    """Prints what the log would print to standard output, where a test runner takes all messages."""

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "on_stdout", False):
            print(record.getMessage())


def words(command: str, tool: Iterable[str], debug: str) -> list[str]:
    """The words of a command after the tool's name."""
    made: list[str] = []
    for word in command.split():
        made += list(tool) if word == "{tool}" else [word.replace("{debug}", debug)]
    return made


def main() -> None:
    """Run Polygraphy on every command, and write the table."""
    import polygraphy

    table = {}
    tool = [sys.executable, "-c", "from polygraphy.tools import main; import sys; sys.exit(main())"]
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        for command in COMMANDS:
            done = subprocess.run(
                [*tool, *words(command, ["polygraphy"], "polygraphy_debug")], cwd=folder, capture_output=True, text=True
            )
            table[command] = {"exit": done.returncode, "lines": kept_lines(command, done.stdout)}
            print(done.returncode, command, flush=True)
    TABLE.write_text(json.dumps({"polygraphy": polygraphy.__version__, "commands": table}, indent=1) + "\n")


if __name__ == "__main__":
    main()
