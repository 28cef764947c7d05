"""Tools on the model: CPU time, memory and nodes left, beside Polygraphy in the same run.

Each side works in a process of its own that does nothing else, in turns. The least of two rounds counts, with ``--full`` of
six: whatever else the machine does, compiling in the first round among it, only adds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ROUNDS = 6 if "--full" in sys.argv else 2
WEIGHTS_MIB = 200


class Builder:
    """Collects nodes and weights."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, *shape: int) -> str:
        scale = 1 / np.sqrt(max(int(np.prod(shape[1:])), 1))
        return self.constant(self.random.standard_normal(shape, np.float32) * np.float32(scale))

    def constant(self, value: object) -> str:
        array = np.asarray(value)
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def op(self, kind: str, *inputs: str, **attributes: object) -> str:
        name = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name + "_out"], name=name, **attributes))
        return name + "_out"

    def model(self, inputs: dict[str, Sequence[int | str]], outputs: Sequence[str]) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "bench",
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
            self.weights,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def size_of(b: Builder, x: str, axis: int) -> str:
    """One dimension of a tensor as a vector, as exporters spell it."""
    index = b.op("Constant", value_int=axis)
    return b.op("Unsqueeze", b.op("Gather", b.op("Shape", x), index, axis=0), b.op("Constant", value_ints=[0]))


def split_heads(b: Builder, x: str, heads: int) -> str:
    """To (batch, heads, sequence, size), with the shape worked out at run time."""
    shape = [
        size_of(b, x, 0),
        size_of(b, x, 1),
        b.op("Constant", value_ints=[heads]),
        b.op("Constant", value_ints=[-1]),
    ]
    return b.op("Transpose", b.op("Reshape", x, b.op("Concat", *shape, axis=0)), perm=[0, 2, 1, 3])


def transformer(nodes: int, *, width: int = 32, dynamic: bool = True) -> onnx.ModelProto:
    """Attention and feed-forward blocks as PyTorch exports them: each Reshape behind a chain of Shape and Gather."""
    b, x, heads = Builder(), "x", 4
    while len(b.nodes) < nodes - 60:
        q, k, v = (
            split_heads(b, b.op("Add", b.op("MatMul", x, b.weight(width, width)), b.weight(width)), heads)
            for _ in range(3)
        )
        scores = b.op("MatMul", q, b.op("Transpose", k, perm=[0, 1, 3, 2]))
        scale = b.op("Sqrt", b.op("Cast", b.op("Constant", value_int=width // heads), to=TensorProto.FLOAT))
        mixed = b.op("MatMul", b.op("Softmax", b.op("Div", scores, scale), axis=-1), v)
        mixed = b.op("Transpose", mixed, perm=[0, 2, 1, 3])
        shape = [size_of(b, mixed, 0), size_of(b, mixed, 1), b.op("Constant", value_ints=[width])]
        mixed = b.op("Reshape", mixed, b.op("Concat", *shape, axis=0))
        x = b.op("Add", x, b.op("MatMul", mixed, b.weight(width, width)))
        y = b.op("MatMul", x, b.weight(width, 2 * width))
        half = b.op("Constant", value_float=0.5)
        y = b.op("Mul", b.op("Mul", y, half), b.op("Add", b.op("Erf", y), b.op("Constant", value_float=1.0)))
        x = b.op("Add", x, b.op("MatMul", y, b.weight(2 * width, width)))
    return b.model({"x": ("batch", "sequence", width) if dynamic else (1, 16, width)}, [x])


def densenet() -> onnx.ModelProto:
    """DenseNet-121: 120 convolutions in four dense blocks, each behind BatchNormalization and Relu."""
    b, x, channels, growth = Builder(), "x", 64, 32

    def convolution(x: str, before: int, after: int, kernel: int, **attributes: object) -> str:
        scale, shift, mean = b.weight(before), b.weight(before), b.weight(before)
        variance = b.constant(np.abs(b.random.standard_normal(before, np.float32)) + 1)
        x = b.op("Relu", b.op("BatchNormalization", x, scale, shift, mean, variance))
        return b.op("Conv", x, b.weight(after, before, kernel, kernel), **attributes)

    x = b.op("Conv", x, b.weight(64, 3, 7, 7), pads=[3, 3, 3, 3], strides=[2, 2])
    x = b.op("MaxPool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])
    for layers in (6, 12, 24, 16):
        for _ in range(layers):
            y = convolution(convolution(x, channels, 4 * growth, 1), 4 * growth, growth, 3, pads=[1, 1, 1, 1])
            x, channels = b.op("Concat", x, y, axis=1), channels + growth
        if layers != 16:
            x, channels = convolution(x, channels, channels // 2, 1), channels // 2
            x = b.op("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = b.op("Flatten", b.op("GlobalAveragePool", b.op("Relu", x)))
    return b.model({"x": (1, 3, 224, 224)}, [b.op("Gemm", x, b.weight(channels, 1000))])


def resnet() -> onnx.ModelProto:
    """ResNet-50: 53 convolutions in sixteen bottlenecks, each with a BatchNormalization."""
    b = Builder()

    def convolution(x: str, before: int, after: int, kernel: int, stride: int = 1, relu: bool = True) -> str:
        pad = kernel // 2
        x = b.op("Conv", x, b.weight(after, before, kernel, kernel), pads=[pad] * 4, strides=[stride, stride])
        variance = b.constant(np.abs(b.random.standard_normal(after, np.float32)) + 1)
        x = b.op("BatchNormalization", x, b.weight(after), b.weight(after), b.weight(after), variance)
        return b.op("Relu", x) if relu else x

    x, channels = convolution("x", 3, 64, 7, 2), 64
    x = b.op("MaxPool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for i in range(blocks):
            stride = 2 if i == 0 and width > 64 else 1
            y = convolution(convolution(x, channels, width, 1), width, width, 3, stride)
            y = convolution(y, width, 4 * width, 1, relu=False)
            x = x if i else convolution(x, channels, 4 * width, 1, stride, relu=False)
            x, channels = b.op("Relu", b.op("Add", x, y)), 4 * width
    x = b.op("Flatten", b.op("GlobalAveragePool", x))
    return b.model({"x": (1, 3, 224, 224)}, [b.op("Gemm", x, b.weight(channels, 1000))])


def with_faults(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with two convolutions that no back end takes."""
    faulty = onnx.ModelProto()
    faulty.CopyFrom(model)
    convolutions = [node for node in faulty.graph.node if node.op_type == "Conv"]
    for node in (convolutions[20], convolutions[40]):
        next(a for a in node.attribute if a.name == "strides").ints.append(1)
    return faulty


def save(model: onnx.ModelProto, path: Path) -> Path:
    onnx.save(model, path)
    return path


# What each side runs in a process of its own. Small, since what it imports beside the tool counts for both.
TOOLS = {
    "ours": """
from trtops.cli.main import main
assert main(sys.argv[1:]) in (0, 1)
""",
    "layers": """
from trtops.comparator.report import Tolerances
from trtops.ops.evaluation.submodel import onnxruntime_runner
from trtops.ops.search.accuracy import AccuracyConfig
from trtops.ops.search.accuracy import accuracy
assert len(accuracy(sys.argv[1], onnxruntime_runner, AccuracyConfig(tolerances=Tolerances())).tensors) > 400
""",
    "floor": """
import onnx
import onnxruntime
""",
    "theirs": """
from polygraphy.tools import main
sys.argv[0] = "polygraphy"
try:
    main()
except SystemExit as exc:
    assert exc.code in (0, None, 1), exc
""",
}
# What getrusage says of memory counts what the parent held when it started this process.
HEAD, TAIL = (
    "import sys",
    """
import resource
usage = resource.getrusage(resource.RUSAGE_SELF)
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print("USED", usage.ru_utime + usage.ru_stime, int(peak) / 1024, flush=True)
""",
)


def in_child(folder: Path, tool: str, *arguments: str) -> tuple[float, float]:
    """Run one tool in a new process: its seconds of CPU, imports included, and its peak memory in MiB."""
    code = HEAD + TOOLS[tool] + TAIL
    command = [sys.executable, "-W", "ignore", "-c", code, *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(folder / "pycache")  # both compiled once, as after an installation
    process = subprocess.run(command, capture_output=True, text=True, env=environment)
    line = next((text for text in process.stdout.splitlines() if text.startswith("USED")), None)
    if process.returncode or line is None:
        raise SystemExit(f"{tool} {arguments} failed: {process.stderr[-2000:]}")
    return float(line.split()[1]), float(line.split()[2])


def measure(
    folder: Path, name: str, limit: float, ours: Sequence[str], their: Sequence[str], *, imports: bool = True
) -> dict[str, object]:
    """One comparison: least CPU times, and the larger peaks of memory.

    The ratio is of whole processes. That of what each takes beyond importing onnx and onnxruntime is given too, and counts
    where ``imports`` is false: where these imports alone are more than the limit. It is below zero where our side does all
    its work in less time than these imports take.
    """
    sides = {"ours": ours, "theirs": ("theirs", *their), "imports": ("floor",)}
    rounds = [{side: in_child(folder, *command) for side, command in sides.items()} for _ in range(ROUNDS)]
    seconds = {side: min(found[side][0] for found in rounds) for side in sides}
    peaks = {side: max(found[side][1] for found in rounds) for side in sides}
    ratio = seconds["ours"] / seconds["theirs"]
    beyond = (seconds["ours"] - seconds["imports"]) / (seconds["theirs"] - seconds["imports"])
    return {
        "case": name,
        **{f"{side}_cpu_s": round(cpu, 3) for side, cpu in seconds.items()},
        "ratio": round(ratio, 3),
        "ratio_beyond_imports": round(beyond, 3),
        "limit": limit,
        "ours_peak_mib": round(peaks["ours"]),
        "theirs_peak_mib": round(peaks["theirs"]),
        "ok": (ratio if imports else beyond) <= limit,
    }


def sanitize(folder: Path, name: str, model: onnx.ModelProto) -> dict[str, object]:
    """Folding, with the nodes left by each."""
    path, mine, other = save(model, folder / "model.onnx"), folder / "ours.onnx", folder / "theirs.onnx"
    found = measure(
        folder,
        f"sanitize {name}",
        0.4,
        ["ours", "surgeon", "sanitize", "--fold-constants", str(path), "-o", str(mine)],
        ["surgeon", "sanitize", "--fold-constants", str(path), "-o", str(other)],
    )
    left = {"nodes": len(model.graph.node), "ours_left": _nodes(mine), "theirs_left": _nodes(other)}
    return {**found, **left, "ok": found["ok"] and left["ours_left"] <= left["theirs_left"]}


def _nodes(path: Path) -> int:
    return len(onnx.load(path).graph.node)


def cases(folder: Path, chosen: str) -> Iterator[dict[str, object]]:
    """Every comparison whose name begins with what was chosen."""
    if "sanitize".startswith(chosen):
        for nodes in (500, 2000, 7000):
            yield sanitize(folder, f"transformer {nodes}", transformer(nodes))
        yield sanitize(folder, "static transformer 2000", transformer(2000, dynamic=False))
        yield sanitize(folder, f"{WEIGHTS_MIB} MiB of weights", transformer(600, width=1024))
    if "lint".startswith(chosen):
        model = resnet()
        path = str(save(model, folder / "resnet.onnx"))
        command = ["check", "lint", path]
        yield measure(folder, "lint ResNet-50", 0.15, ["ours", *command], command, imports=False)
        path = str(save(with_faults(model), folder / "faulty.onnx"))
        command = ["check", "lint", path]
        yield measure(folder, "lint ResNet-50 with two faults", 0.15, ["ours", *command], command, imports=False)
    if "inspect".startswith(chosen):
        path = str(save(transformer(7000), folder / "large.onnx"))
        command = ["inspect", "model", path, "--show", "layers"]
        yield measure(folder, "inspect 7000 nodes", 0.7, ["ours", *command], command)
    if "layers".startswith(chosen):
        path = str(save(densenet(), folder / "densenet.onnx"))
        command = ["run", path, "--onnxrt", "--onnxrt", "--onnx-outputs", "mark", "all"]
        yield measure(folder, "layers DenseNet-121", 0.5, ["layers", path], command)


def main() -> int:
    """Measure, and print one JSON line for each comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="?", default="", help="sanitize, lint, inspect or layers")
    parser.add_argument("--full", action="store_true", help="six rounds and not two")
    arguments = parser.parse_args()
    missed = False
    with tempfile.TemporaryDirectory() as name:
        for found in cases(Path(name), arguments.only):
            missed |= not found["ok"]
            print(json.dumps(found), flush=True)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
