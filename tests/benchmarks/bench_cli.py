"""The command line and the first lines of a script, as shares of Polygraphy's CPU time of whole processes."""

import functools
import sys

import onnx
from onnx import parser

from tests.benchmarks.harness import benchmark, in_turns, run_quietly

OURS = ["-m", "trtops.cli"]
THEIRS = ["-c", "import sys; from polygraphy.tools._main import main; sys.argv[0] = 'polygraphy'; sys.exit(main())"]
RUN = ["run", "tiny.onnx", "--onnxrt"]
COMMANDS = ((["-h"], 0.25), (["run", "-h"], 0.5), (["inspect", "model", "tiny.onnx"], 0.8))
# A run takes 0.55 to 0.6 of Polygraphy's time for these lines alone, which import numpy and ONNX Runtime.
BARE = """import numpy as np, onnxruntime as ort
session = ort.InferenceSession("tiny.onnx", providers=["CPUExecutionProvider"])
session.run(None, {"x": np.random.default_rng(1).random((1, 4), np.float32)})"""
SCRIPTS = {
    "import": "import {0}.comparator; import {0}.backend.onnxrt",
    "Comparator.run": """from {0}.backend.onnxrt import OnnxrtRunner, SessionFromOnnx
from {0}.comparator import Comparator
Comparator.run([OnnxrtRunner(SessionFromOnnx("tiny.onnx"))])""",
}


def main() -> None:
    with benchmark() as (goals, folder):
        text = '<ir_version: 8, opset_import: ["" : 17]> g (float[1,4] x) => (float[1,4] y) { y = Relu(x) }'
        onnx.save(parser.parse_model(text), folder / "tiny.onnx")

        def least(**commands: list[str]) -> dict[str, float]:
            calls = {n: functools.partial(run_quietly, [sys.executable, *c], folder) for n, c in commands.items()}
            return in_turns(calls, 6)

        pairs = [(" ".join(words), [*OURS, *words], [*THEIRS, *words], limit) for words, limit in COMMANDS]
        for title, script in SCRIPTS.items():
            pairs.append((title, ["-c", script.format("trtops")], ["-c", script.format("polygraphy")], 1.0))
        for title, ours, theirs, limit in pairs:
            seconds = least(ours=ours, theirs=theirs)
            note = f"{seconds['ours']:.3f} s, Polygraphy {seconds['theirs']:.3f} s"
            goals.at_most(title, seconds["ours"] / seconds["theirs"], limit, "times", note)
        seconds = least(ours=[*OURS, *RUN], theirs=[*THEIRS, *RUN], bare=["-c", BARE])
        note = f"{seconds['ours']:.3f} s, Polygraphy {seconds['theirs']:.3f} s, a bare session {seconds['bare']:.3f} s"
        goals.at_most(" ".join(RUN), seconds["ours"] / seconds["theirs"], 0.6, "times", note)


if __name__ == "__main__":
    main()
