"""Floating-point tensors that hold indices, lengths or positions, which 16 bit would round to other ones.

FP16 holds whole numbers up to 2,048 and BF16 up to 256. Exporters compute sizes in floating point, such as
``Cast -> Div -> Floor -> Cast``, and rounding there changes a shape, the element that is read, or a mask.
"""

from collections.abc import Iterator
from typing import NamedTuple

import onnx
from onnx import TensorProto

from trtops.backend.onnx import shapes, walk

# Their results are whole numbers, whatever they read.
_ROUNDING = frozenset({"Floor", "Ceil", "Round"})
# Their results hold indices if all that they read does, apart from constants.
_CARRIERS = frozenset((
    "Abs", "Add", "Ceil", "Clip", "Concat", "CumSum", "Div", "Expand", "Flatten", "Floor", "Gather", "GatherElements",
    "GatherND", "Identity", "Max", "Mean", "Min", "Mod", "Mul", "Neg", "Pad", "Pow", "Range", "Reciprocal", "ReduceMax",
    "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "Reshape", "Round", "Sign", "Slice", "Split", "Sqrt",
    "Squeeze", "Sub", "Sum", "Tile", "Transpose", "Unsqueeze", "Where",
))  # fmt: skip
# Of a large number, a rounded one has another result altogether.
_PERIODIC = frozenset({"Sin", "Cos"})


class _Step(NamedTuple):
    """One node as far as floating-point tensors are concerned, or the way of a value into or out of a body."""

    op: str
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    starts: bool  # whether the results hold whole numbers by themselves
    ends: bool  # whether a rounding error of what it reads has other consequences than a rounding error


def index_tensors(model: onnx.ModelProto) -> frozenset[str]:
    """Names of the floating-point tensors whose rounding would change an integer, a truth value or a position.

    They are computed from integers and rounded values only, and reach a Cast to integers, a comparison, a sine, or any
    other node with integer or boolean results. ``model`` has declared types and no functions. Bodies are included;
    names that two bodies share count for both.
    """
    steps = list(_steps(model.graph, {}))
    constants = {name for graph in walk.graphs(model.graph) for name in walk.initializer_names(graph)}
    for node in walk.nodes(model):
        if walk.is_onnx_op(node, "Constant", "ConstantOfShape"):
            constants.update(node.output)
    found: set[str] = set()
    grows = True
    while grows:  # once more for each level of loops
        before = len(found)
        for step in steps:
            read = [name for name in step.reads if name not in constants]
            carried = step.op in _CARRIERS and bool(read) and found.issuperset(read)
            if step.starts or carried or (not step.op and not found.isdisjoint(read)):
                found.update(step.makes)
        grows = len(found) > before
    wanted: set[str] = set()
    grows = True
    while grows:
        before = len(wanted)
        for step in reversed(steps):
            if step.ends or not wanted.isdisjoint(step.makes):
                wanted.update(found.intersection(step.reads))
            if step.op in _PERIODIC and found.issuperset(step.reads):
                wanted.update(step.makes)  # the node itself stays as well
        grows = len(wanted) > before
    return frozenset(wanted)


def _steps(graph: onnx.GraphProto, outer: dict[str, int]) -> Iterator[_Step]:
    types = {**outer, **shapes.element_types(graph)}
    for index in walk.execution_order(graph.node):
        node = graph.node[index]
        reads = tuple(name for name in node.input if name and types.get(name, TensorProto.FLOAT) in walk.FLOATING)
        makes = tuple(name for name in node.output if name and types.get(name, TensorProto.FLOAT) in walk.FLOATING)
        integral = any(types.get(name, TensorProto.FLOAT) not in walk.FLOATING for name in node.output if name)
        known = walk.is_onnx_op(node)
        cast = known and node.op_type == "Cast" and not reads
        starts = bool(makes) and (cast or (known and node.op_type in _ROUNDING))
        ends = bool(reads) and (integral or (known and node.op_type in _PERIODIC))
        if next(walk.subgraphs(node), None) is None:
            yield _Step(node.op_type if known else "custom", reads, makes, starts, ends)
            continue
        for body in walk.subgraphs(node):
            first = 2 if node.op_type == "Loop" else 0
            if node.op_type != "If":
                for value, name in zip(body.input[first:], node.input[first:]):
                    yield _Step("", (name,), (value.name,), False, False)
            yield from _steps(body, types)
            for value, name in zip(body.output[1 if node.op_type == "Loop" else 0 :], node.output):
                yield _Step("", (value.name,), (name,), False, False)
