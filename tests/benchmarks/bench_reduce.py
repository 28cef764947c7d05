"""Reducing a failing model: CPU time and size of the result, compared with Polygraphy in the same run.

The failure is an accuracy failure: a back end that computes one node wrongly. Theirs is checked as its users do, by
``polygraphy debug reduce ... --check polygraphy run``; ours by the same command of trtops, and by a ComparisonCheck.
Goals: a fifth of its CPU time, a tenth for a linear search with a ComparisonCheck, and no more nodes.
"""

import functools
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.benchmarks.harness import benchmark, run_quietly, timed
from tests.benchmarks.networks import Graph

NONLINEAR = ("Relu", "Sigmoid", "Tanh", "Elu", "Softmax")


def cnn(nodes: int) -> onnx.ModelProto:
    """Convolutions and activations in a row, each pair with a residual."""
    b, x = Graph(), "x"
    while len(b.nodes) < nodes - 3:
        y = b.op("Sigmoid", b.conv(b.op("Relu", b.conv(x, 16, 16, 3)), 16, 16, 3))
        x = b.op("Add", x, y)
    return b.model({"x": (1, 16, 16, 16)}, b.op("Flatten", b.op("GlobalAveragePool", x)))


def transformer(nodes: int) -> onnx.ModelProto:
    b, x, width = Graph(), "x", 32
    ones = b.weight(width)
    while len(b.nodes) < nodes - 6:
        q, k, v = (b.op("MatMul", x, b.weight(width, width)) for _ in range(3))
        scores = b.op("Softmax", b.op("MatMul", q, b.op("Transpose", k, perm=[0, 2, 1])), axis=-1)
        attended = b.op("MatMul", b.op("MatMul", scores, v), b.weight(width, width))
        x = b.op("LayerNormalization", b.op("Add", x, attended), ones)
        y = b.op("MatMul", b.op("Tanh", b.op("MatMul", x, b.weight(width, 2 * width))), b.weight(2 * width, width))
        x = b.op("LayerNormalization", b.op("Add", x, y), ones)
    return b.model({"x": (1, 12, width)}, x)


def branchy(nodes: int) -> onnx.ModelProto:
    """Four parallel branches, joined again and again."""
    b, x = Graph(), "x"
    while len(b.nodes) < nodes - 8:
        kinds = ("Relu", "Sigmoid", "Tanh", "Elu")
        first, second, third, fourth = (
            b.op(kind, b.op("Add", b.op("MatMul", x, b.weight(32, 32)), b.weight(32))) for kind in kinds
        )
        x = b.op("Add", b.op("Add", first, second), b.op("Add", third, fourth))
    return b.model({"x": (4, 32)}, b.op("Identity", x))


def with_error(model: onnx.ModelProto, culprit: str) -> onnx.ModelProto:
    """The model as the wrong back end computes it: the culprit's output is off by a hundredth."""
    wrong = onnx.ModelProto()
    wrong.CopyFrom(model)
    for node in [node for node in wrong.graph.node if node.name == culprit]:
        right = node.output[0]
        node.output[0] = right + "_right"
        wrong.graph.initializer.append(numpy_helper.from_array(np.float32(0.01), right + "_error"))
        wrong.graph.node.append(helper.make_node("Add", [right + "_right", right + "_error"], [right]))
    return wrong


COMPARE = '''
import numpy as np
import onnx
from polygraphy.comparator import CompareFunc, IterationResult

def compare_outputs(right, other):
    """The other runner's outputs are off where the model holds the culprit."""
    model = onnx.load("polygraphy_debug.onnx")
    if any(node.name == {culprit!r} for node in model.graph.node):
        outputs = {{name: other[name] + 0.01 for name in other.keys()}}
        other = IterationResult(outputs, runtime=other.runtime, runner_name=other.runner_name)
    return CompareFunc.simple()(right, other)
'''


def reduce_by_command(tool: str, model: Path, culprit: str, mode: str, folder: Path) -> int:
    """Reduce on the command line of ``trtops`` or ``polygraphy``; the check is a command of the same tool."""
    script, output, program = f"compare_{tool}.py", f"{tool}.onnx", str(Path(sys.executable).with_name(tool))
    (folder / script).write_text(COMPARE.format(culprit=culprit).replace("polygraphy", tool))
    check = [program, "run", f"{tool}_debug.onnx", "--onnxrt", "--onnxrt", "--compare-func-script", script]
    run_quietly([program, "debug", "reduce", str(model), "-o", output, "--mode", mode, "--check", *check], folder)
    return len(onnx.load(folder / output).graph.node)


HERE = "import sys; from tests.benchmarks.bench_reduce import reduce_here; reduce_here(*sys.argv[1:])"


def reduce_in_process(model: Path, culprit: str, mode: str, folder: Path) -> int:
    run_quietly([sys.executable, "-c", HERE, str(model), culprit, mode, str(folder / "ours.onnx")], folder)
    return len(onnx.load(folder / "ours.onnx").graph.node)


def reduce_here(model: str, culprit: str, mode: str, output: str) -> None:
    """Reduce as a user of ours does."""
    from trtops.comparator.report import Tolerances
    from trtops.ops.search.reduce import ReduceConfig, reduce
    from trtops.ops.search.submodel import ComparisonCheck, onnxruntime_runner

    # Rounding differs between an optimized and a plain session, which theirs does not compare.
    tolerances = Tolerances(atol=5e-5, rtol=5e-5)
    check = ComparisonCheck(runner=lambda part: onnxruntime_runner(with_error(part, culprit)), tolerances=tolerances)
    result = reduce(model, check, ReduceConfig(mode=mode, output=output))  # type: ignore[arg-type]
    assert [node.name for node in result.culprit.nodes] == [culprit], result


CASES = (
    (cnn, 60, "bisect", 0),
    (cnn, 120, "bisect", 1),
    (transformer, 200, "bisect", 3),
    (branchy, 60, "bisect", 0),
    (branchy, 24, "linear", 0),
)
"""Each network, its nodes, the mode, and how far before two thirds of the nonlinear nodes the culprit is."""


def main() -> None:
    with benchmark() as (goals, whole):
        for make, nodes, mode, before in CASES:
            model, title = make(nodes), f"{mode} {make.__name__} {nodes}"
            names = [node.name for node in model.graph.node if node.op_type in NONLINEAR]
            folder = whole / title.replace(" ", "_")
            folder.mkdir()
            onnx.save(onnx.shape_inference.infer_shapes(model), folder / "model.onnx")
            arguments = folder / "model.onnx", names[len(names) * 2 // 3 - before], mode, folder
            their_seconds, their_left = timed(functools.partial(reduce_by_command, "polygraphy", *arguments))
            for way, limit, reduce_ours in (
                ("by a command", 1 / 5, functools.partial(reduce_by_command, "trtops", *arguments)),
                ("here", 1 / 5 if mode == "bisect" else 1 / 10, functools.partial(reduce_in_process, *arguments)),
            ):
                seconds, left = min(timed(reduce_ours) for _ in range(2))
                note = f"{seconds:.2f} s, Polygraphy {their_seconds:.2f} s"
                goals.at_most(f"{title} {way}", seconds / their_seconds, limit, "times", note)
                goals.at_most(f"{title} {way}: result", left, their_left, "nodes")


if __name__ == "__main__":
    main()
