"""Tools on the model, as shares of Polygraphy's CPU time of whole processes, with memory and the nodes left."""

import time
from collections.abc import Sequence
from pathlib import Path

import onnx

from tests.benchmarks.harness import Goals, benchmark, measured_child
from tests.benchmarks.networks import densenet, exported_transformer, resnet50, shape_chain

# As the command's own process, whose native code needs no child to run in first, and which collects garbage seldom.
WATCHED = """
import gc
from trtops.system.activity import Page
Page().publish_here()
gc.set_threshold(1_000_000)
"""
OURS = f"""{WATCHED}
from trtops.cli.main import main
assert main(sys.argv[1:]) in (0, 1)
"""
LAYERS = f"""{WATCHED}
from trtops.comparator.report import Tolerances
from trtops.ops.search.submodel import onnxruntime_runner
from trtops.ops.search.accuracy import AccuracyConfig, accuracy
config = AccuracyConfig(tolerances=Tolerances(), iterations=1)
assert len(accuracy(sys.argv[1], onnxruntime_runner, config).tensors) > 400
"""
IMPORTS = "import onnx, onnxruntime"
COPY = f"{IMPORTS}; onnx.save(onnx.load(sys.argv[1]), sys.argv[2])"
# What `run --onnxrt --onnxrt --onnx-outputs mark all` needs at least: a serialized model, two sessions and inferences.
BARE = """
import numpy as np, onnx, onnxruntime
model = onnx.load(sys.argv[1])
names = {name for node in model.graph.node for name in node.output} - {each.name for each in model.graph.output}
model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
data, feed = model.SerializeToString(), {model.graph.input[0].name: np.zeros((1, 3, 224, 224), np.float32)}
for _ in range(2):
    onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, feed)
"""
THEIRS = """
from polygraphy.tools import main
sys.argv[0] = "polygraphy"
try:
    main()
except SystemExit as exc:
    assert exc.code in (0, None, 1), exc
"""


class Bench:
    """Measures pairs of commands in one folder."""

    def __init__(self, folder: Path, goals: Goals) -> None:
        self.folder, self.goals = folder, goals

    def save(self, model: onnx.ModelProto) -> str:
        onnx.save(model, self.folder / "model.onnx")
        return str(self.folder / "model.onnx")

    def compare(
        self,
        title: str,
        limit: float,
        command: Sequence[str],
        *,
        our_code: str = OURS,
        ours: Sequence[str] | None = None,
        imports: bool = True,
        floor: tuple[str, ...] = ("bare imports", IMPORTS),
    ) -> None:
        """Compare whole processes; without ``imports`` what each takes beyond importing onnx and onnxruntime.

        ``floor`` is what to call the time of some code, that code, and its arguments.
        """
        sides = {
            "ours": (our_code, command if ours is None else ours),
            "theirs": (THEIRS, command),
            "floor": (floor[1], floor[2:]),
        }
        rounds: list[dict[str, dict[str, float]]] = []
        end = time.monotonic() + 15.0  # short commands are repeated more often: they differ more
        while len(rounds) < 2 or (len(rounds) < 6 and time.monotonic() < end):
            rounds.append({side: measured_child(self.folder, c, *words) for side, (c, words) in sides.items()})
        mine, other, floor_seconds = (min(measurement[side]["seconds"] for measurement in rounds) for side in sides)
        memory, their_memory = (max(measurement[side]["peak"] for measurement in rounds) for side in ("ours", "theirs"))
        base = 0.0 if imports else floor_seconds
        note = f"{mine:.2f} s and {memory:.0f} MiB, Polygraphy {other:.2f} s and {their_memory:.0f} MiB"
        note += f", {floor[0]} {floor_seconds:.2f} s"
        self.goals.at_most(title, (mine - base) / (other - base), limit, "times", note)

    def sanitize(
        self, title: str, model: onnx.ModelProto, limit: float = 0.25, *, imports: bool = True, floor_code: str = COPY
    ) -> None:
        command = ["surgeon", "sanitize", "--fold-constants", self.save(model), "-o"]
        mine, other = (str(self.folder / f"{side}.onnx") for side in ("ours", "theirs"))
        copy = ("loading and saving alone", floor_code, command[-2], str(self.folder / "copy.onnx"))
        floor = copy if imports else ("bare imports", IMPORTS)
        self.compare(title, limit, [*command, other], ours=[*command, mine], imports=imports, floor=floor)
        left, their_left = (len(onnx.load(path).graph.node) for path in (mine, other))
        self.goals.at_most(f"{title}: result", left, their_left, "nodes", f"of {len(model.graph.node)}")

    def lint(self, title: str, model: onnx.ModelProto) -> None:
        # Most of it is the start of the child process, which a crash of ONNX Runtime ends instead of the command.
        self.compare(title, 0.5, ["check", "lint", self.save(model)], imports=False)


def with_faults(model: onnx.ModelProto) -> onnx.ModelProto:
    """Two convolutions get strides that no back end accepts."""
    convolutions = [node for node in model.graph.node if node.op_type == "Conv"]
    for node in (convolutions[20], convolutions[40]):
        next(a for a in node.attribute if a.name == "strides").ints.append(1)
    return model


def main() -> None:
    with benchmark() as (goals, folder):
        bench = Bench(folder, goals)
        for nodes in (500, 2000, 7000):
            bench.sanitize(f"sanitize transformer {nodes}", exported_transformer(nodes))
        # 12 layers and a dimension that only symbolic inference finds, with sympy.
        flattened = exported_transformer(1000, flattened=True)
        bench.sanitize("sanitize transformer 1000, symbolic", flattened, 0.4, floor_code=f"import sympy; {COPY}")
        bench.sanitize("sanitize shape chain 1000", shape_chain(1000), 0.1, imports=False)
        bench.sanitize("sanitize static transformer 2000", exported_transformer(2000, dynamic=False))
        bench.sanitize("sanitize 200 MiB of weights", exported_transformer(600, width=1024))
        bench.lint("lint ResNet-50", resnet50())
        bench.lint("lint ResNet-50 with two faults", with_faults(resnet50()))
        path = bench.save(exported_transformer(7000))
        bench.compare("inspect 7000 nodes", 0.7, ["inspect", "model", path, "--show", "layers"])
        for title, model in (("ResNet-50", resnet50()), ("DenseNet-121", densenet())):
            path = bench.save(model)
            command = ["run", path, "--onnxrt", "--onnxrt", "--onnx-outputs", "mark", "all"]
            bench.compare(f"run, mark all, {title}", 0.25, command, floor=("bare sessions", BARE, path))
        bench.compare(
            "layers DenseNet-121", 0.5, command, our_code=LAYERS, ours=[path], floor=("bare sessions", BARE, path)
        )


if __name__ == "__main__":
    main()
