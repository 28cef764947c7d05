"""Iteration over ONNX graphs: sub-graphs, tensors, and the names that nodes read.

Yielded messages are parts of the model, not copies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

from trtops import errors

if TYPE_CHECKING:
    import onnx


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The bodies that a node has as attributes (If, Loop, Scan), without those nested inside them."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph, then all graphs nested in it at any depth."""
    yield graph
    for node in graph.node:
        if node.attribute:
            for body in subgraphs(node):
                yield from graphs(body)


def nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Every node of a model: the main graph's, its sub-graphs', and the functions'."""
    for graph in graphs(model.graph):
        yield from graph.node
    for function in model.functions:
        for node in function.node:
            yield node
            for body in subgraphs(node):
                for graph in graphs(body):
                    yield from graph.node


def tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor of a model: the main graph's initializers first, then all others, functions included."""
    yield from _graph_tensors(model.graph)
    for function in model.functions:
        for node in function.node:
            yield from _node_tensors(node)
            for body in subgraphs(node):
                yield from _graph_tensors(body)


def _graph_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    for part in graphs(graph):
        yield from part.initializer
        for sparse in part.sparse_initializer:
            yield from (sparse.values, sparse.indices)
        for node in part.node:
            if node.attribute:
                yield from _node_tensors(node)


def _node_tensors(node: onnx.NodeProto) -> Iterator[onnx.TensorProto]:
    """The tensors that a node has as attributes, without those of its sub-graphs."""
    for attribute in node.attribute:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        if attribute.HasField("sparse_tensor"):
            yield from (attribute.sparse_tensor.values, attribute.sparse_tensor.indices)
        for sparse in attribute.sparse_tensors:
            yield from (sparse.values, sparse.indices)


def initializer_names(graph: onnx.GraphProto) -> set[str]:
    """Names of a graph's initializers, dense and sparse."""
    return {t.name for t in graph.initializer} | {s.values.name for s in graph.sparse_initializer}


def captured(graph: onnx.GraphProto) -> set[str]:
    """Names that a sub-graph takes from the graphs around it."""
    defined = {value.name for value in graph.input} | initializer_names(graph)
    defined.update(name for node in graph.node for name in node.output)
    used = {value.name for value in graph.output}
    for node in graph.node:
        used.update(uses(node))
    return used - defined


def uses(node: onnx.NodeProto) -> Iterator[str]:
    """Names that a node reads: its inputs and what its sub-graphs capture; omitted optional inputs are skipped."""
    yield from filter(None, node.input)
    for body in subgraphs(node):
        yield from captured(body)


def node_name(node: onnx.NodeProto) -> str:
    """A node's name, or its first output's where it has none; empty if it has neither."""
    return node.name or next(filter(None, node.output), "")


def label(node: onnx.NodeProto) -> str:
    """A node for messages: its type and :func:`node_name`."""
    name = node_name(node)
    return f"{node.op_type} {name!r}" if name else node.op_type


def domain(node: onnx.NodeProto) -> str:
    """The domain of a node's operator; empty for ONNX's own, which some exporters write as ``ai.onnx``."""
    return "" if node.domain == "ai.onnx" else node.domain


def is_onnx_op(node: onnx.NodeProto, *op_types: str) -> bool:
    """Whether a node's operator is one of ONNX's own, and has one of these types if any are given."""
    return not domain(node) and (not op_types or node.op_type in op_types)


def opsets(model: onnx.ModelProto | onnx.FunctionProto) -> dict[str, int]:
    """The operator set versions that a model imports, by domain as :func:`domain` writes it."""
    versions: dict[str, int] = {}
    for imported in model.opset_import:
        name = "" if imported.domain == "ai.onnx" else imported.domain
        # Damaged models import versions that onnx.defs, with 32 bits, does not accept.
        versions[name] = max(versions.get(name, 0), min(imported.version, (1 << 31) - 1))
    return versions


def opset(model: onnx.ModelProto, domain: str = "") -> int:
    """The version of an operator set that a model imports; 0 if it is not imported."""
    return opsets(model).get("" if domain == "ai.onnx" else domain, 0)


def int_attribute(node: onnx.NodeProto, name: str, default: int) -> int:
    """An integer attribute, or the default where it is omitted."""
    return next((attribute.i for attribute in node.attribute if attribute.name == name), default)


def ints_attribute(node: onnx.NodeProto, name: str) -> list[int] | None:
    """An attribute that is a list of integers; None where it is omitted."""
    return next((list(attribute.ints) for attribute in node.attribute if attribute.name == name), None)


def makers(nodes: Iterable[onnx.NodeProto]) -> dict[str, onnx.NodeProto]:
    """The node that produces each tensor, by the tensor's name."""
    return {name: node for node in nodes for name in node.output if name}


def execution_order(nodes: Sequence[onnx.NodeProto]) -> list[int]:
    """Indices of the nodes in an order of execution; the given order where that is one.

    InvalidModelError lists nodes that form a cycle.
    """
    maker: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in filter(None, node.output):
            maker.setdefault(name, index)
    waits_for = {i: {maker[name] for name in uses(node) if name in maker} for i, node in enumerate(nodes)}
    if all(before < i for i, needed in waits_for.items() for before in needed):
        return list(range(len(nodes)))
    try:
        return list(TopologicalSorter(waits_for).static_order())
    except CycleError as exc:
        circle = " -> ".join(label(nodes[i]) for i in exc.args[1][:6])
        raise errors.InvalidModelError(f"Nodes form a cycle: {circle}.") from None
