"""Reducing a failing model: CPU time and size of the result, beside Polygraphy in the same run.

The failure is an accuracy failure: a back end that computes one node wrongly. Theirs is checked as its users do, by
``polygraphy debug reduce ... --check polygraphy run polygraphy_debug.onnx --onnxrt --onnxrt``; ours by a ComparisonCheck. CPU
time is that of whole processes with their children, so imports count for both. With ``--full`` both modes, three graphs of
60 and 200 nodes and two culprits: Polygraphy takes several minutes for a linear search.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HERE = Path(__file__).resolve()
REPEATS = 2


class Builder:
    """Collects nodes and weights."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        scale = 1 / np.sqrt(max(int(np.prod(shape[1:])), 1))
        array = (self.random.standard_normal(shape) * scale).astype(np.float32)
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def op(self, kind: str, *inputs: str, **attributes: object) -> str:
        name = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name + "_out"], name=name, **attributes))
        return name + "_out"

    def model(self, shape: tuple[int, ...], output: str) -> onnx.ModelProto:
        info = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
        graph = helper.make_graph(
            self.nodes, "bench", info, [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)], self.weights
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        return onnx.shape_inference.infer_shapes(model)


def cnn(nodes: int) -> onnx.ModelProto:
    """Convolutions and activations in a row, each pair with a residual."""
    b, x = Builder(), "x"
    while len(b.nodes) < nodes - 3:
        y = b.op("Relu", b.op("Conv", x, b.weight(16, 16, 3, 3), pads=[1, 1, 1, 1]))
        y = b.op("Sigmoid", b.op("Conv", y, b.weight(16, 16, 3, 3), pads=[1, 1, 1, 1]))
        x = b.op("Add", x, y)
    x = b.op("GlobalAveragePool", x)
    return b.model((1, 16, 16, 16), b.op("Flatten", x))


def transformer(nodes: int) -> onnx.ModelProto:
    """Attention and feed-forward blocks."""
    b, x, width = Builder(), "x", 32
    ones = b.weight(width)
    while len(b.nodes) < nodes - 6:
        q, k, v = (b.op("MatMul", x, b.weight(width, width)) for _ in range(3))
        scores = b.op("Softmax", b.op("MatMul", q, b.op("Transpose", k, perm=[0, 2, 1])), axis=-1)
        x = b.op(
            "LayerNormalization",
            b.op("Add", x, b.op("MatMul", b.op("MatMul", scores, v), b.weight(width, width))),
            ones,
        )
        y = b.op("Tanh", b.op("MatMul", x, b.weight(width, 2 * width)))
        x = b.op("LayerNormalization", b.op("Add", x, b.op("MatMul", y, b.weight(2 * width, width))), ones)
    return b.model((1, 12, width), x)


def branchy(nodes: int) -> onnx.ModelProto:
    """Four branches side by side, joined again and again."""
    b, x = Builder(), "x"
    while len(b.nodes) < nodes - 8:
        branches = []
        for kind in ("Relu", "Sigmoid", "Tanh", "Elu"):
            y = b.op("MatMul", x, b.weight(32, 32))
            branches.append(b.op(kind, b.op("Add", y, b.weight(32))))
        x = b.op("Add", b.op("Add", branches[0], branches[1]), b.op("Add", branches[2], branches[3]))
    return b.model((4, 32), b.op("Identity", x))


GRAPHS: dict[str, Callable[[int], onnx.ModelProto]] = {"cnn": cnn, "transformer": transformer, "branchy": branchy}


def culprits_of(model: onnx.ModelProto) -> list[str]:
    """Nodes that the back end computes wrongly, one at a time: nonlinearities around two thirds of the model."""
    kinds = ("Relu", "Sigmoid", "Tanh", "Elu", "Softmax")
    names = [node.name for node in model.graph.node if node.op_type in kinds]
    middle = len(names) * 2 // 3
    return [names[middle], names[middle - 3]]


def with_error(model: onnx.ModelProto, culprit: str) -> onnx.ModelProto:
    """The model as the wrong back end sees it: the culprit's output is off by a hundredth."""
    wrong = onnx.ModelProto()
    wrong.CopyFrom(model)
    for node in wrong.graph.node:
        if node.name == culprit:
            right = node.output[0]
            node.output[0] = right + "_right"
            wrong.graph.initializer.append(numpy_helper.from_array(np.float32(0.01), right + "_error"))
            wrong.graph.node.append(helper.make_node("Add", [right + "_right", right + "_error"], [right]))
            break
    return wrong


COMPARE = '''
import onnx
from polygraphy.comparator import CompareFunc, IterationResult

def compare_outputs(right, other):
    """The same comparison as ever, with the other runner's outputs off where the model holds the culprit."""
    model = onnx.load("polygraphy_debug.onnx")
    if any(node.name == {culprit!r} for node in model.graph.node):
        outputs = {{name: other[name] + 0.01 for name in other.keys()}}
        other = IterationResult(outputs, runtime=other.runtime, runner_name=other.runner_name)
    return CompareFunc.simple()(right, other)
'''


def theirs(model: Path, culprit: str, mode: str, folder: Path) -> int:
    """Run Polygraphy; returns the nodes in its result."""
    (folder / "compare.py").write_text(COMPARE.format(culprit=culprit))
    tool = str(Path(sys.executable).with_name("polygraphy"))
    check = [tool, "run", "polygraphy_debug.onnx", "--onnxrt", "--onnxrt", "--compare-func-script", "compare.py"]
    command = [tool, "debug", "reduce", str(model), "-o", "reduced.onnx", "--mode", mode, "--check", *check]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return len(onnx.load(folder / "reduced.onnx").graph.node)


def ours(model: Path, culprit: str, mode: str, folder: Path) -> int:
    """Run ours, in a new process as well; returns the nodes in its result."""
    command = [sys.executable, str(HERE), "--reduce", str(model), culprit, mode, str(folder / "reduced.onnx")]
    subprocess.run(command, cwd=folder, check=True)
    return len(onnx.load(folder / "reduced.onnx").graph.node)


def reduce_here(model: str, culprit: str, mode: str, output: str) -> None:
    """What a user of ours writes."""
    from trtops.ops.evaluation.submodel import ComparisonCheck, onnxruntime_runner
    from trtops.ops.search.reduce import reduce
    from trtops.ops.search.reduce_search import ReduceConfig

    check = ComparisonCheck(runner=lambda part: onnxruntime_runner(with_error(part, culprit)))
    config = ReduceConfig(mode=mode, output=output)  # type: ignore[arg-type]
    result = reduce(model, check, config)
    assert [node.name for node in result.culprits[0].nodes] == [culprit], result


def cpu_seconds(action: Callable[[], int]) -> tuple[float, int]:
    """CPU time of the processes that an action starts and waits for, and what it returns."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    nodes = action()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime), nodes


def measure(graph: str, nodes: int, mode: str, which: int = 0) -> dict[str, object]:
    """One comparison: least of ours over some repeats, one run of theirs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = GRAPHS[graph](nodes)
        path, culprit = folder / "model.onnx", culprits_of(model)[which]
        onnx.save(model, path)
        mine = []
        for number in range(REPEATS):
            (mine_folder := folder / f"ours{number}").mkdir()
            mine.append(cpu_seconds(lambda folder=mine_folder: ours(path, culprit, mode, folder)))  # type: ignore[misc]
        (their_folder := folder / "theirs").mkdir()
        their_seconds, their_nodes = cpu_seconds(lambda: theirs(path, culprit, mode, their_folder))
    seconds = min(s for s, _ in mine)
    return {
        "graph": graph,
        "nodes": len(model.graph.node),
        "mode": mode,
        "culprit": culprit,
        "ours_cpu_s": round(seconds, 3),
        "theirs_cpu_s": round(their_seconds, 3),
        "ratio": round(seconds / their_seconds, 4),
        "ours_nodes": mine[0][1],
        "theirs_nodes": their_nodes,
    }


QUICK_CASES = [("cnn", 60, "bisect", 0), ("transformer", 200, "bisect", 1), ("branchy", 24, "linear", 0)]


def full_cases() -> Iterator[tuple[str, int, str, int]]:
    """Graph, nodes, mode and which culprit."""
    for nodes in (60, 200):
        yield from ((graph, nodes, "bisect", which) for graph, which in itertools.product(GRAPHS, (0, 1)))
        yield from ((graph, nodes, "linear", 0) for graph in GRAPHS)


def main() -> int:
    """Measure, and print one JSON line for each comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="all graphs, sizes and culprits, which takes an hour")
    parser.add_argument("--reduce", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.reduce:
        reduce_here(*arguments.reduce)
        return 0
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    limits = {"bisect": 1 / 5, "linear": 1 / 10}
    missed = False
    for graph, nodes, mode, which in full_cases() if arguments.full else QUICK_CASES:
        found = measure(graph, nodes, mode, which)
        passed = found["ratio"] <= limits[mode] and found["ours_nodes"] <= found["theirs_nodes"]  # type: ignore[operator]
        missed |= not passed
        print(json.dumps({**found, "limit": limits[mode], "ok": passed}), flush=True)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
