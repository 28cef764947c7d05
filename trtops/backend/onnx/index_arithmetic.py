"""Floating-point tensors of indices, lengths or positions, not to be rounded to 16 bit.

FP16 holds whole numbers up to 2,048 and BF16 up to 256. Exporters compute sizes in floating point, such as
``Cast -> Div -> Floor -> Cast``, and rounding there changes a shape, the element that is read, or a mask.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

import onnx
from onnx import TensorProto

from trtops.backend.onnx import shapes, walk
from trtops.backend.onnx.operators import CASTS, PASS_ON

# Their results are whole numbers, whatever they read.
_ROUNDING = frozenset({"Floor", "Ceil", "Round"})
# Their results hold indices if all that they read does, apart from constants.
_CARRIERS = PASS_ON | CASTS | {
    "Abs", "Add", "Ceil", "Clip", "CumSum", "Div", "Floor", "Max", "Mean", "Min", "Mod", "Mul", "Neg", "Pad", "Pow",
    "Range", "Reciprocal", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "Round", "Sign", "Sqrt",
    "Sub", "Sum", "Where",
}  # fmt: skip
# Of a large number, a rounded one has another result altogether.
_PERIODIC = frozenset({"Sin", "Cos"})


ScopedName: TypeAlias = tuple[str, str]
"""A tensor: the graph that defines it, as :func:`walk.body_scope` calls it, and its name."""


class _Step(NamedTuple):
    """One node as far as floating-point tensors are concerned, or the way of a value into or out of a body."""

    op: str
    reads: tuple[ScopedName, ...]
    makes: tuple[ScopedName, ...]
    starts: bool = False  # whether the results hold whole numbers by themselves
    ends: bool = False  # whether a rounding error of what it reads has other consequences than a rounding error


def index_tensors(model: onnx.ModelProto) -> frozenset[ScopedName]:
    """Return the floating-point tensors with an effect on integers, truth values or positions if rounded.

    They are computed from integers and rounded values only, and reach a Cast to integers, a comparison, a sine, or any
    other node with integer or boolean results. ``model`` has declared types and no functions. Bodies are included.
    """
    constants: set[ScopedName] = set()
    steps = list(_steps(model.graph, "", {}, {}, constants))
    integer_valued: set[ScopedName] = set()
    grows = True
    while grows:  # once more for each level of loops
        before = len(integer_valued)
        for step in steps:
            read = [name for name in step.reads if name not in constants]
            carried = step.op in _CARRIERS and bool(read) and integer_valued.issuperset(read)
            if step.starts or carried or (not step.op and not integer_valued.isdisjoint(read)):
                integer_valued.update(step.makes)
        grows = len(integer_valued) > before
    rounding_sensitive: set[ScopedName] = set()
    grows = True
    while grows:
        before = len(rounding_sensitive)
        for step in reversed(steps):
            if step.ends or not rounding_sensitive.isdisjoint(step.makes):
                rounding_sensitive.update(integer_valued.intersection(step.reads))
            if step.op in _PERIODIC and integer_valued.issuperset(step.reads):
                rounding_sensitive.update(step.makes)  # the node itself stays as well
        grows = len(rounding_sensitive) > before
    return frozenset(rounding_sensitive)


def _steps(
    graph: onnx.GraphProto,
    scope: str,
    outer_types: Mapping[str, int],
    outer_scopes: Mapping[str, str],
    constants: set[ScopedName],
) -> Iterator[_Step]:
    """Yield the steps of a graph and its bodies in order of execution, and add their constants."""
    types = walk.visible(outer_types, graph, shapes.element_types(graph))
    scopes = walk.visible(outer_scopes, graph, dict.fromkeys(walk.defined(graph), scope))
    constants.update((scope, name) for name in walk.initializer_names(graph))

    def floating(names: Iterable[str]) -> tuple[ScopedName, ...]:
        is_floating = (name for name in names if name and types.get(name, TensorProto.FLOAT) in walk.FLOATING)
        return tuple((scopes.get(name, ""), name) for name in is_floating)

    for node in walk.in_order(graph.node):
        reads, makes = floating(node.input), floating(node.output)
        if walk.is_onnx_op(node, "Constant", "ConstantOfShape"):
            constants.update(makes)
        integral = len(makes) < sum(map(bool, node.output))
        is_standard = walk.is_onnx_op(node)
        cast = is_standard and node.op_type == "Cast" and not reads
        starts = bool(makes) and (cast or (is_standard and node.op_type in _ROUNDING))
        ends = bool(reads) and (integral or (is_standard and node.op_type in _PERIODIC))
        bodies = list(walk.named_bodies(node))
        if not bodies:
            yield _Step(node.op_type if is_standard else "custom", reads, makes, starts, ends)
        for attribute, body in bodies:
            inner = walk.body_scope(scope, node.name, node.output, attribute)
            first = 2 if node.op_type == "Loop" else 0
            if node.op_type != "If":
                for value, name in zip(body.input[first:], node.input[first:]):
                    yield _Step("", ((scopes.get(name, ""), name),), ((inner, value.name),))
            yield from _steps(body, inner, types, scopes, constants)
            inner_scopes = walk.visible(scopes, body, dict.fromkeys(walk.defined(body), inner))
            for value, name in zip(body.output[1 if node.op_type == "Loop" else 0 :], node.output):
                yield _Step("", ((inner_scopes.get(value.name, ""), value.name),), ((scope, name),))
