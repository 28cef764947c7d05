"""Reads ONNX Runtime's own model format: the nodes of an engine with their execution providers.

The format is a flatbuffer (schema: ``onnxruntime/core/flatbuffers/schema/ort.fbs`` in ONNX Runtime's repository; layout
of flatbuffers: https://flatbuffers.dev/internals/).
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from mmap import mmap
from typing import Any

import onnx

from trtops.backend.onnx import walk
from trtops.extras import require
from trtops.record import JSONValue

require("flatbuffers")

from flatbuffers import number_types as N  # noqa: E402
from flatbuffers.table import Table  # noqa: E402


@dataclass(frozen=True, kw_only=True)
class Node:
    """One node of an optimized graph, with its execution provider.

    ``attributes`` has those that are numbers, strings or lists of them. ``scope`` is the place of its graph: empty for
    the main graph, otherwise ``<outer layer>/<attribute>/`` and so on. Omitted optional inputs have empty names.
    """

    name: str
    op: str
    domain: str
    since_version: int
    provider: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: tuple[tuple[str, JSONValue], ...] = ()
    scope: str = ""
    index: int = 0  # in its graph, as in profiles

    @property
    def kernel(self) -> str:
        """The kernel, such as ``com.microsoft.nchwc.Conv[activation=Relu]@CPUExecutionProvider``."""
        fused = [f"[{key}={value}]" for key, value in self.attributes if key == "activation" and value]
        return f"{self.domain or 'ai.onnx'}.{self.op}{''.join(fused)}@{self.provider}"


@dataclass
class Scope:
    """The names defined by one graph of a model; a body also reads those of the graph around it."""

    name: str  # as in :attr:`Node.scope`
    outer: "Scope | None" = None
    owner: int = -1  # index of the node that has this body
    attribute: str = ""  # of the owner
    producers: dict[str, int] = field(default_factory=dict)  # by tensor, the index of the node that makes it
    sources: frozenset[str] = frozenset()  # inputs and weights, which no node makes
    types: dict[str, str] = field(default_factory=dict)  # element types in lower case, as ONNX names them
    outputs: tuple[str, ...] = ()

    def producer(self, tensor: str) -> int | None:
        """Return the index of the producer of a tensor visible in this graph; None without one."""
        scope: Scope | None = self
        while scope is not None and tensor not in scope.producers:
            scope = None if tensor in scope.sources else scope.outer
        return None if scope is None else scope.producers[tensor]


@dataclass(frozen=True)
class Graph:
    """An optimized graph: its nodes in the order of the file, with those of control flow bodies, and its interface."""

    nodes: list[Node]
    scopes: dict[str, Scope]  # of the graph and its bodies, by name
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


def read_graph(content: bytes | mmap) -> Graph:
    """Return the graph of an engine. The content must come from ONNX Runtime: it is not checked."""
    root = _Table(content, int.from_bytes(content[:4], "little"))
    optimized = Graph([], {})
    model = root.table(_SESSION_MODEL)
    graph = None if model is None else model.table(_MODEL_GRAPH)
    if graph is None:
        return optimized
    _read_graph(graph, Scope(""), optimized)
    return replace(optimized, inputs=tuple(graph.texts(_GRAPH_INPUTS)), outputs=tuple(graph.texts(_GRAPH_OUTPUTS)))


# The onnxruntime package has a generated reader, but importing it sets the root logger to debug level and changes
# ``sys.path``, and it is slow; so the few fields needed here are read by their places. A field keeps its place in its
# table in all releases. Places are from the schema: counted from 0 in the order of declaration. A union takes two
# places, its type and then its value.
_SESSION_MODEL = 1
_MODEL_GRAPH = 7
_GRAPH_WEIGHTS, _GRAPH_NODE_ARGS, _GRAPH_NODES, _GRAPH_INPUTS, _GRAPH_OUTPUTS, _GRAPH_SPARSE = 0, 1, 2, 5, 6, 7
_WEIGHT_NAME, _SPARSE_VALUES = 0, 0
_NODE_NAME, _NODE_DOMAIN, _NODE_SINCE, _NODE_INDEX, _NODE_OP, _NODE_PROVIDER = 0, 2, 3, 4, 5, 7
_NODE_INPUTS, _NODE_OUTPUTS, _NODE_ATTRIBUTES = 8, 9, 10
_ATTRIBUTE_NAME, _ATTRIBUTE_TYPE, _ATTRIBUTE_GRAPH = 0, 2, 7
_VALUE_NAME, _VALUE_TYPE = 0, 2
_TYPE_KIND, _TYPE_VALUE = 1, 2
_TENSOR_ELEMENT = 0

_KIND_TENSOR, _ATTRIBUTE_IS_GRAPH = 1, 5


class _Table:
    """One table of a flatbuffer, with fields read by slot; omitted fields read as zero or empty."""

    __slots__ = ("_table",)

    def __init__(self, content: bytes | mmap, position: int) -> None:
        self._table = Table(content, position)

    def _field(self, slot: int) -> int | None:
        offset = self._table.Offset(4 + 2 * slot)
        return self._table.Pos + offset if offset else None

    def text(self, slot: int) -> str:
        field = self._field(slot)
        return "" if field is None else str(self._table.String(field), "utf-8")

    def number(self, slot: int, kind: Any) -> Any:
        field = self._field(slot)
        return 0 if field is None else self._table.Get(kind, field)

    def table(self, slot: int) -> "_Table | None":
        field = self._field(slot)
        return None if field is None else _Table(self._table.Bytes, self._table.Indirect(field))

    def _elements(self, slot: int, size: int) -> range:
        """Positions of a vector's elements."""
        offset = self._table.Offset(4 + 2 * slot)
        if not offset:
            return range(0)
        start = self._table.Vector(offset)
        return range(start, start + size * self._table.VectorLen(offset), size)

    def tables(self, slot: int) -> "list[_Table]":
        positions = self._elements(slot, 4)
        return [_Table(self._table.Bytes, self._table.Indirect(position)) for position in positions]

    def texts(self, slot: int) -> list[str]:
        return [str(self._table.String(position), "utf-8") for position in self._elements(slot, 4)]

    def numbers(self, slot: int, kind: Any) -> list[Any]:
        return [self._table.Get(kind, position) for position in self._elements(slot, kind.bytewidth)]


# Readers of values by attribute type. Types that hold tensors or graphs have none.
_PLAIN_ATTRIBUTES: dict[int, Callable[[_Table], JSONValue]] = {
    1: lambda attribute: attribute.number(3, N.Float32Flags),
    2: lambda attribute: attribute.number(4, N.Int64Flags),
    3: lambda attribute: attribute.text(5),
    6: lambda attribute: attribute.numbers(8, N.Float32Flags),
    7: lambda attribute: attribute.numbers(9, N.Int64Flags),
    8: lambda attribute: list(attribute.texts(10)),
}


def _read_graph(graph: _Table, scope: Scope, optimized: Graph) -> None:
    """Add a graph's nodes, each followed by those of its bodies, and its scope."""
    optimized.scopes[scope.name] = scope
    sparse = (tensor.table(_SPARSE_VALUES) for tensor in graph.tables(_GRAPH_SPARSE))
    weights = (*graph.tables(_GRAPH_WEIGHTS), *filter(None, sparse))
    scope.sources = frozenset((*graph.texts(_GRAPH_INPUTS), *(weight.text(_WEIGHT_NAME) for weight in weights)))
    scope.outputs = tuple(graph.texts(_GRAPH_OUTPUTS))
    for value in graph.tables(_GRAPH_NODE_ARGS):
        info = value.table(_VALUE_TYPE)
        if info is not None and info.number(_TYPE_KIND, N.Uint8Flags) == _KIND_TENSOR:
            tensor = info.table(_TYPE_VALUE)
            if tensor is not None:
                element = onnx.TensorProto.DataType.Name(tensor.number(_TENSOR_ELEMENT, N.Int32Flags))
                scope.types[value.text(_VALUE_NAME)] = element.lower()
    for table in graph.tables(_GRAPH_NODES):
        attributes = table.tables(_NODE_ATTRIBUTES)
        node = Node(
            name=table.text(_NODE_NAME),
            op=table.text(_NODE_OP),
            domain=table.text(_NODE_DOMAIN),
            since_version=table.number(_NODE_SINCE, N.Int32Flags),
            provider=table.text(_NODE_PROVIDER),
            inputs=tuple(table.texts(_NODE_INPUTS)),
            outputs=tuple(table.texts(_NODE_OUTPUTS)),
            attributes=tuple(
                sorted(
                    (attribute.text(_ATTRIBUTE_NAME), _PLAIN_ATTRIBUTES[kind](attribute))
                    for attribute in attributes
                    if (kind := attribute.number(_ATTRIBUTE_TYPE, N.Int32Flags)) in _PLAIN_ATTRIBUTES
                )
            ),
            scope=scope.name,
            index=table.number(_NODE_INDEX, N.Uint32Flags),
        )
        index = len(optimized.nodes)
        optimized.nodes.append(node)
        scope.producers.update((name, index) for name in node.outputs if name)
        for attribute in attributes:
            body = attribute.table(_ATTRIBUTE_GRAPH)
            if attribute.number(_ATTRIBUTE_TYPE, N.Int32Flags) == _ATTRIBUTE_IS_GRAPH and body is not None:
                name = attribute.text(_ATTRIBUTE_NAME)
                inner = walk.body_scope(scope.name, node.name, node.outputs, name)
                _read_graph(body, Scope(inner, scope, index, name), optimized)
