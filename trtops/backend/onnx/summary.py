"""Descriptions of models: records for programs, and text in Polygraphy's layout."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from trtops.backend.onnx import external, walk
from trtops.backend.onnx.messages import AttributeProto
from trtops.backend.onnx.model import data_type, input_specs, tensor_spec
from trtops.metadata import TensorSpec
from trtops.record import Record
from trtops.terminal import one_line

if TYPE_CHECKING:
    import onnx

Show: TypeAlias = Literal["layers", "attrs", "weights"]


@dataclass(frozen=True, kw_only=True)
class NodeSummary(Record):
    """One node; types outside ONNX's domain begin with their domain, and an omitted input has an empty name."""

    name: str
    op: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    attributes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class GraphSummary(Record):
    """One graph and the bodies of its nodes, named after node and attribute."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    initializers: tuple[TensorSpec, ...]
    nodes: tuple[NodeSummary, ...]
    bodies: tuple[GraphSummary, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ModelSummary(Record):
    """One model; ``weight_bytes`` includes external weights."""

    opsets: tuple[tuple[str, int], ...]
    ir_version: int
    producer: str
    weight_bytes: int
    graph: GraphSummary


def describe(proto: onnx.ModelProto) -> ModelSummary:
    """Describe a model. Weights are not read."""
    return ModelSummary(
        opsets=tuple((o.domain, o.version) for o in proto.opset_import),
        ir_version=proto.ir_version,
        producer=f"{proto.producer_name} {proto.producer_version}".strip(),
        weight_bytes=walk.weight_bytes(proto),
        graph=_graph_summary(proto.graph, proto.graph.name, {}),
    )


def summary(proto: onnx.ModelProto, show: Collection[Show] = ()) -> str:
    """A model as text, in Polygraphy's layout.

    ``"layers"`` shows the nodes, ``"attrs"`` their attributes as well, ``"weights"`` the values of weights, and with
    ``"attrs"`` of tensors among attributes.
    """
    others = {imported.domain: imported.version for imported in proto.opset_import}
    opset = others.pop("", "Unknown")
    opsets = f"{opset} | Other Opsets: {others}" if others else opset
    head = ["==== ONNX Model ====", f"    Name: {one_line(proto.graph.name)} | ONNX Opset: {opsets}", ""]
    return "\n".join([*head, *_graph_lines(proto.graph, "Graph", {}, show, "    ")])


class _Known(dict[str, TensorSpec]):
    """Declarations of the tensors readable by a graph; undeclared ones have only a name."""

    def __init__(self, outer: Mapping[str, TensorSpec], graph: onnx.GraphProto) -> None:
        super().__init__(walk.visible(outer, graph, {}))
        weights = [(tensor, tensor.dims) for tensor in graph.initializer]
        weights += [(sparse.values, sparse.dims) for sparse in graph.sparse_initializer]
        for tensor, dims in weights:
            self[tensor.name] = TensorSpec(tensor.name, data_type(tensor.data_type), tuple(dims))
        self.initializers = tuple(self[tensor.name] for tensor, _ in weights)
        for value in (*graph.value_info, *graph.input, *graph.output):
            self[value.name] = tensor_spec(value)

    def __missing__(self, name: str) -> TensorSpec:
        spec = self[name] = TensorSpec(name)
        return spec


def _graph_summary(graph: onnx.GraphProto, name: str, outer: Mapping[str, TensorSpec]) -> GraphSummary:
    specs = _Known(outer, graph)
    bodies: list[GraphSummary] = []
    for node in graph.node:
        for attribute, body in walk.named_bodies(node):
            bodies.append(_graph_summary(body, f"{walk.node_name(node)}.{attribute}", specs))
    return GraphSummary(
        name=name,
        inputs=tuple(input_specs(graph)),
        outputs=tuple(specs[value.name] for value in graph.output),
        initializers=specs.initializers,
        nodes=tuple(
            NodeSummary(
                name=node.name,
                op=node.op_type if walk.is_onnx_op(node) else f"{node.domain}.{node.op_type}",
                inputs=tuple(map(specs.__getitem__, node.input)),
                outputs=tuple(map(specs.__getitem__, node.output)),
                attributes=tuple((a.name, _attribute_text(a)) for a in node.attribute),
            )
            for node in graph.node
        ),
        bodies=tuple(bodies),
    )


# Attributes whose number is a data type.
_DTYPE_ATTRIBUTES = ("to", "dtype", "target_type")

_VALUE_FIELDS = {
    AttributeProto.INT: "i",
    AttributeProto.INTS: "ints",
    AttributeProto.FLOAT: "f",
    AttributeProto.FLOATS: "floats",
    AttributeProto.STRING: "s",
    AttributeProto.STRINGS: "strings",
}


def _attribute_text(attribute: onnx.AttributeProto) -> str:
    kinds = AttributeProto
    if attribute.type == kinds.TENSOR:
        return f"Tensor: [dtype={data_type(attribute.t.data_type)}, shape={list(attribute.t.dims)}]"
    if attribute.type == kinds.GRAPH:
        return f"graph of {len(attribute.g.node)} nodes"
    field = _VALUE_FIELDS.get(attribute.type)
    if field is None:
        return str(kinds.AttributeType.Name(attribute.type)).lower()
    value: Any = getattr(attribute, field)
    if isinstance(value, bytes):
        return one_line(value.decode(errors="replace"))
    if isinstance(value, int) and attribute.name in _DTYPE_ATTRIBUTES:
        return str(data_type(value) or value)
    if isinstance(value, (int, float)):
        return str(value)
    return str([v.decode(errors="replace") if isinstance(v, bytes) else v for v in value])


def _values_text(tensor: onnx.TensorProto) -> str:
    """A tensor's values, abbreviated by numpy."""
    from onnx import numpy_helper

    if external.is_external(tensor):
        return "(in another file, not loaded)"
    try:
        return str(numpy_helper.to_array(tensor))
    except (ValueError, TypeError, KeyError) as exc:
        return f"(cannot be read: {exc})"


def _graph_lines(
    graph: onnx.GraphProto, kind: str, outer: Mapping[str, TensorSpec], show: Collection[Show], indent: str
) -> Iterator[str]:
    """The lines about a graph; from the messages themselves, since creating a record for each node is slower."""
    if graph.doc_string and "attrs" in show:
        yield from (f"{indent}---- Docstring ----", *(f"{indent}{line}" for line in graph.doc_string.splitlines()), "")
    yield from _tensor_lines(f"{kind} Input(s)", input_specs(graph), indent)
    yield from _tensor_lines(f"{kind} Output(s)", list(map(tensor_spec, graph.output)), indent)
    count = len(graph.initializer) + len(graph.sparse_initializer)
    if not show:
        yield from (f"{indent}---- {count} Initializer(s) ----", "", f"{indent}---- {len(graph.node)} Node(s) ----")
        return
    specs = _Known(outer, graph)
    initializers = specs.initializers
    if "weights" in show:
        yield f"{indent}---- {count} Initializer(s) ----"
        values = {tensor.name: _values_text(tensor) for tensor in graph.initializer}
        for spec in initializers:
            declared = f"dtype={spec.dtype}, shape={list(spec.shape or ())}"
            yield f"{indent}Initializer | {one_line(spec.name)} [{declared}] | Values:"
            yield from (f"{indent}    {line}" for line in values.get(spec.name, "(sparse)").splitlines())
            yield ""
        if not initializers:
            yield from (f"{indent}{{}}", "")
    else:
        yield from _tensor_lines("Initializer(s)", initializers, indent)
    yield f"{indent}---- {len(graph.node)} Node(s) ----"
    if "layers" not in show and "attrs" not in show:
        return
    texts = {name: _spec_text(spec) for name, spec in specs.items()}
    read = {**texts, **{spec.name: f"Initializer | {_spec_text(specs[spec.name])}" for spec in initializers}}
    for i, node in enumerate(graph.node):
        inputs = f",\n{indent}     ".join([read.get(name, one_line(name)) for name in node.input if name])
        outputs = f",\n{indent}         ".join([texts.get(name, one_line(name)) for name in node.output if name])
        yield f"{indent}Node {i:<4} | {one_line(node.name)} [Op: {one_line(node.op_type)}]"
        if inputs and outputs:
            yield from (f"{indent}    {{{inputs}}}", f"{indent}     -> {{{outputs}}}")
        else:
            yield f"{indent}    {{{inputs}}} -> {{{outputs}}}"
        if "attrs" in show and (node.attribute or not walk.is_onnx_op(node)):
            yield from _attribute_lines(node, specs, show, indent)
        yield ""


def _spec_text(spec: TensorSpec) -> str:
    """A tensor in a line, with -1 for a dimension without a declaration."""
    if spec.shape is None or None not in spec.shape:
        return str(spec)
    return str(replace(spec, shape=tuple(-1 if dim is None else dim for dim in spec.shape)))


def _tensor_lines(title: str, specs: Collection[TensorSpec], indent: str) -> Iterator[str]:
    yield f"{indent}---- {len(specs)} {title} ----"
    yield f"{indent}{{" + f",\n{indent} ".join(map(_spec_text, specs)) + "}"
    yield ""


def _attribute_lines(
    node: onnx.NodeProto, specs: Mapping[str, TensorSpec], show: Collection[Show], indent: str
) -> Iterator[str]:
    yield f"{indent}    ---- Attributes ----"
    if not walk.is_onnx_op(node):
        yield f"{indent}    Domain = {one_line(node.domain)}"
    prefix = f"{one_line(node.name)}." if node.name else ""
    bodies = dict(walk.named_bodies(node))
    for attribute in node.attribute:
        if attribute.name in bodies:
            yield f"{indent}    {prefix}{attribute.name} = "
            yield from _graph_lines(bodies[attribute.name], "Subgraph", specs, show, indent + " " * 12)
            continue
        with_values = attribute.type == AttributeProto.TENSOR and "weights" in show
        text = f"{_attribute_text(attribute)} | Values:" if with_values else _attribute_text(attribute)
        yield f"{indent}    {prefix}{attribute.name} = {text}"
        if with_values:
            yield from (f"{indent}        {line}" for line in _values_text(attribute.t).splitlines())
