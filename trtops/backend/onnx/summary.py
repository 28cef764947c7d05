"""What is in a model: as a record for programs, as text for people."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import onnx
from onnx import helper, numpy_helper

from trtops.backend.onnx import external, shapes, walk
from trtops.backend.onnx.model import Model, data_type, tensor_spec
from trtops.metadata import TensorSpec
from trtops.record import Record

Show: TypeAlias = Literal["layers", "attrs", "weights"]


@dataclass(frozen=True, kw_only=True)
class NodeSummary(Record):
    """One node.

    Attributes:
        name: Its name; may be empty.
        op: Its type, with the domain before it unless that is ONNX's own.
        inputs: What it reads; an input that is left out has an empty name.
        outputs: What it makes.
        attributes: Its attributes as text, by name; a sub-graph as its number of nodes.
    """

    name: str
    op: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    attributes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class GraphSummary(Record):
    """One graph.

    Attributes:
        name: The graph's name; for a body, the node and attribute that hold it.
        inputs: Its inputs, without initializers.
        outputs: Its outputs.
        initializers: Its weights.
        nodes: Its nodes, in order.
        bodies: The graphs that its nodes hold, in order.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    initializers: tuple[TensorSpec, ...]
    nodes: tuple[NodeSummary, ...]
    bodies: tuple[GraphSummary, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ModelSummary(Record):
    """One model.

    Attributes:
        opsets: Operator sets by domain; ONNX's own domain is empty.
        ir_version: Version of the file format.
        producer: What made the file, with its version.
        weight_bytes: Size of all weights, those outside the file included.
        graph: The main graph.
    """

    opsets: tuple[tuple[str, int], ...]
    ir_version: int
    producer: str
    weight_bytes: int
    graph: GraphSummary


def describe(model: onnx.ModelProto | Model, *, infer_shapes: bool = False) -> ModelSummary:
    """Sum up a model. Weights are not read.

    Args:
        model: The model; not changed. External data need not be loaded.
        infer_shapes: Whether to fill in dtypes and shapes that the model does not declare.

    Raises:
        InvalidModelError: If shapes are to be inferred and contradict each other.
    """
    proto = _proto(model, infer_shapes)
    return ModelSummary(
        opsets=tuple((o.domain, o.version) for o in proto.opset_import),
        ir_version=proto.ir_version,
        producer=f"{proto.producer_name} {proto.producer_version}".strip(),
        weight_bytes=sum(external.expected_bytes(tensor) or 0 for tensor in walk.tensors(proto)),
        graph=_graph(proto.graph, proto.graph.name, {}),
    )


def summary(model: onnx.ModelProto | Model, show: Collection[Show] = (), *, infer_shapes: bool = False) -> str:
    """A model as text, laid out as the field's tool does it.

    Args:
        model: The model; not changed.
        show: ``"layers"`` lists the nodes, ``"attrs"`` their attributes as well, ``"weights"`` the values of weights.
        infer_shapes: As for :func:`describe`.
    """
    proto = _proto(model, infer_shapes)
    graph = _graph(proto.graph, proto.graph.name, {}, attributes="attrs" in show)
    opsets = ", ".join(f"{o.domain} {o.version}" if o.domain else str(o.version) for o in proto.opset_import)
    weights = list(_weights(proto.graph)) if "weights" in show else None
    head = ["==== ONNX Model ====", f"    Name: {graph.name} | ONNX Opset: {opsets}", ""]
    return "\n".join(head + [f"    {line}" if line else "" for line in _text(graph, "Graph", show, weights)])


def _proto(model: onnx.ModelProto | Model, infer_shapes: bool) -> onnx.ModelProto:
    proto = model.proto() if isinstance(model, Model) else model
    if not infer_shapes:
        return proto
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    shapes.infer_shapes(copy)
    return copy


def _graph(graph: onnx.GraphProto, name: str, outer: Mapping[str, TensorSpec], attributes: bool = True) -> GraphSummary:
    constants = walk.initializer_names(graph)
    initializers = tuple(TensorSpec(t.name, data_type(t.data_type), tuple(t.dims)) for t in graph.initializer)
    initializers += tuple(
        TensorSpec(s.values.name, data_type(s.values.data_type), tuple(s.dims)) for s in graph.sparse_initializer
    )
    known = {**outer, **{spec.name: spec for spec in initializers}}
    for value in (*graph.value_info, *graph.input, *graph.output):
        known[value.name] = tensor_spec(value)
    return GraphSummary(
        name=name,
        inputs=tuple(known[value.name] for value in graph.input if value.name not in constants),
        outputs=tuple(known[value.name] for value in graph.output),
        initializers=initializers,
        nodes=tuple(_node(node, known, attributes) for node in graph.node),
        bodies=tuple(
            _graph(body, f"{node.name or next(filter(None, node.output), '')}.{name}", known, attributes)
            for node in graph.node
            for name, body in _bodies(node)
        ),
    )


def _bodies(node: onnx.NodeProto) -> Iterator[tuple[str, onnx.GraphProto]]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.name, attribute.g
        for i, body in enumerate(attribute.graphs):
            yield f"{attribute.name}[{i}]", body


def _node(node: onnx.NodeProto, known: dict[str, TensorSpec], attributes: bool) -> NodeSummary:
    for name in (*node.input, *node.output):
        if name not in known:
            known[name] = TensorSpec(name)
    return NodeSummary(
        name=node.name,
        op=f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type,
        inputs=tuple([known[name] for name in node.input]),
        outputs=tuple([known[name] for name in node.output]),
        attributes=tuple((a.name, _attribute(a)) for a in node.attribute) if attributes else (),
    )


def _attribute(attribute: onnx.AttributeProto) -> str:
    kinds = onnx.AttributeProto.AttributeType
    if attribute.type == kinds.TENSOR:
        return str(TensorSpec("tensor", data_type(attribute.t.data_type), tuple(attribute.t.dims)))
    if attribute.type == kinds.GRAPH:
        return f"graph of {len(attribute.g.node)} nodes"
    if attribute.type in (kinds.INT, kinds.INTS, kinds.FLOAT, kinds.FLOATS, kinds.STRING, kinds.STRINGS):
        value: Any = helper.get_attribute_value(attribute)
        if isinstance(value, bytes):
            return repr(value.decode(errors="replace"))
        values = (
            [v.decode(errors="replace") if isinstance(v, bytes) else v for v in value]
            if attribute.type > kinds.GRAPH
            else value
        )
        return f"{values:g}" if isinstance(values, float) else str(values)
    return str(kinds.Name(attribute.type)).lower()


def _weights(graph: onnx.GraphProto) -> Iterator[tuple[str, str]]:
    """Names and values of a graph's weights, the values shortened as numpy does it."""
    for tensor in graph.initializer:
        if external.is_external(tensor):
            yield tensor.name, "(in another file, not loaded)"
            continue
        try:
            array = numpy_helper.to_array(tensor)
        except (ValueError, TypeError, KeyError) as exc:
            yield tensor.name, f"(cannot be read: {exc})"
        else:
            yield tensor.name, np.array2string(array, threshold=100, edgeitems=2)


def _text(
    graph: GraphSummary, kind: str, show: Collection[Show], weights: list[tuple[str, str]] | None
) -> Iterator[str]:
    """The lines that tell of a graph."""
    yield from _tensors(f"{kind} Input(s)", graph.inputs)
    yield from _tensors(f"{kind} Output(s)", graph.outputs)
    if weights is None:
        yield from _tensors("Initializer(s)", graph.initializers)
    else:
        yield f"---- {len(weights)} Initializer(s) ----"
        values = dict(weights)
        for spec in graph.initializers:
            yield f"Initializer | {spec} | Values:"
            yield from (f"    {line}" for line in values.get(spec.name, "(sparse)").splitlines())
        yield ""
    yield f"---- {len(graph.nodes)} Node(s) ----"
    if not {"layers", "attrs", "weights"}.isdisjoint(show):
        constants = {spec.name for spec in graph.initializers}
        bodies = {body.name: body for body in graph.bodies}
        for i, node in enumerate(graph.nodes):
            yield from _node_text(i, node, constants, bodies, show)


def _tensors(title: str, specs: Collection[TensorSpec]) -> Iterator[str]:
    yield f"---- {len(specs)} {title} ----"
    if specs:
        yield from ("{" + ",\n ".join(map(str, specs)) + "}").splitlines()
    yield ""


def _node_text(
    i: int, node: NodeSummary, constants: set[str], bodies: Mapping[str, GraphSummary], show: Collection[Show]
) -> Iterator[str]:
    yield f"Node {i:<4} | {node.name} [Op: {node.op}]"
    inputs = [f"Initializer | {spec}" if spec.name in constants else str(spec) for spec in node.inputs if spec.name]
    outputs = [str(spec) for spec in node.outputs if spec.name]
    yield from (f"    {line}" for line in ("{" + ",\n ".join(inputs) + "}").splitlines())
    yield from (f"     {line}" for line in ("-> {" + ",\n    ".join(outputs) + "}").splitlines())
    if "attrs" in show and node.attributes:
        yield "    ---- Attributes ----"
        prefix = node.name or next((spec.name for spec in node.outputs if spec.name), "")
        for name, value in node.attributes:
            yield f"    {prefix}.{name} = {value}"
            body = bodies.get(f"{prefix}.{name}")
            if body is not None:
                yield from (f"        {line}" if line else "" for line in _text(body, "Subgraph", show, None))
    yield ""
