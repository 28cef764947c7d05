"""Reading ONNX Runtime's own model format: the nodes of an engine, with the execution provider that each was given to.

The format is a flatbuffer (schema: ``onnxruntime/core/flatbuffers/schema/ort.fbs`` in ONNX Runtime's repository; layout
of flatbuffers: https://flatbuffers.dev/internals/). A field keeps its place in its table from release to release, or old
files could not be read. The onnxruntime package has a generated reader, but importing it sets the root logger to debug
level and adds to ``sys.path``, and it is slow; the few fields needed here are read by their places instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Any

import onnx

from trtops.record import JSONValue


@dataclass(frozen=True, kw_only=True)
class Node:
    """One node of an optimized graph.

    Attributes:
        name: Its name, as ONNX Runtime made it up.
        op: Its type.
        domain: Domain of the type; empty for ONNX's own.
        since_version: Version of the operator set since which the type is as it is.
        provider: Execution provider that runs it.
        inputs: Names of its inputs; empty where an optional one is left out.
        outputs: Names of its outputs.
        attributes: Attributes that are numbers, texts or lists of them, sorted by name.
        scope: Where its graph is: empty for the main graph, else ``<outer layer>/<attribute>/`` and so on.
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

    @property
    def kernel(self) -> str:
        """The kernel, spelled alike in every build: ``com.microsoft.nchwc.Conv[activation=Relu]@CPUExecutionProvider``."""
        fused = [f"[{key}={value}]" for key, value in self.attributes if key == "activation" and value]
        return f"{self.domain or 'ai.onnx'}.{self.op}{''.join(fused)}@{self.provider}"


def read(content: bytes) -> tuple[list[Node], dict[str, str]]:
    """Read the nodes of a model in ONNX Runtime's format, those in bodies of control flow included.

    Args:
        content: The file's content, which must come from ONNX Runtime: the reader trusts it.

    Returns:
        The nodes in the order of the file, and element types by tensor name, in lower case as ONNX names them.
    """
    root = _Table(content, _unpack_at(_UINT32, content, 0))
    nodes: list[Node] = []
    types: dict[str, str] = {}
    model = root.table(_SESSION_MODEL)
    graph = None if model is None else model.table(_MODEL_GRAPH)
    if graph is not None:
        _read_graph(graph, "", nodes, types)
    return nodes, types


# Places of the fields in their tables, from the schema: a field's index in its table, counted from 0 in the order of
# declaration, where a union takes two (its type and then its value).
_SESSION_MODEL = 1
_MODEL_GRAPH = 7
_GRAPH_NODE_ARGS, _GRAPH_NODES = 1, 2
_NODE_NAME, _NODE_DOMAIN, _NODE_SINCE, _NODE_OP, _NODE_PROVIDER = 0, 2, 3, 5, 7
_NODE_INPUTS, _NODE_OUTPUTS, _NODE_ATTRIBUTES = 8, 9, 10
_ATTRIBUTE_NAME, _ATTRIBUTE_TYPE, _ATTRIBUTE_GRAPH = 0, 2, 7
_VALUE_NAME, _VALUE_TYPE = 0, 2
_TYPE_KIND, _TYPE_VALUE = 1, 2
_TENSOR_ELEMENT = 0

_KIND_TENSOR = 1
_ATTRIBUTE_IS_GRAPH = 5

_UINT8, _UINT16, _UINT32 = Struct("<B"), Struct("<H"), Struct("<I")
_INT32, _INT64, _FLOAT32 = Struct("<i"), Struct("<q"), Struct("<f")


def _unpack_at(kind: Struct, content: bytes, position: int) -> Any:
    return kind.unpack_from(content, position)[0]


class _Table:
    """One table of a flatbuffer, whose fields are read by place; a field left out reads as zero or empty."""

    __slots__ = ("_content", "_index", "_index_end", "_start")

    def __init__(self, content: bytes, start: int) -> None:
        self._content = content
        self._start = start
        # A table begins with the distance back to its index of fields, which begins with its own size in bytes; that of
        # the table follows, and then one offset from the table's start for each place, 0 for a field left out.
        self._index = start - _unpack_at(_INT32, content, start)
        self._index_end = self._index + _unpack_at(_UINT16, content, self._index)

    def _field(self, place: int) -> int | None:
        """Where a field's value is, or None if it was left out."""
        entry = self._index + 4 + 2 * place
        offset = _unpack_at(_UINT16, self._content, entry) if entry < self._index_end else 0
        return self._start + offset if offset else None

    def _follow(self, position: int) -> int:
        """Where an offset points, which counts from where it stands itself."""
        target: int = position + _unpack_at(_UINT32, self._content, position)
        return target

    def _text_at(self, position: int) -> str:
        start = self._follow(position)
        return self._content[start + 4 : start + 4 + _unpack_at(_UINT32, self._content, start)].decode()

    def _elements(self, place: int, size: int) -> range:
        """Positions of a vector's elements, which follow their number."""
        field = self._field(place)
        if field is None:
            return range(0)
        start = self._follow(field)
        return range(start + 4, start + 4 + size * _unpack_at(_UINT32, self._content, start), size)

    def text(self, place: int) -> str:
        field = self._field(place)
        return "" if field is None else self._text_at(field)

    def number(self, place: int, kind: Struct) -> Any:
        field = self._field(place)
        return 0 if field is None else _unpack_at(kind, self._content, field)

    def table(self, place: int) -> _Table | None:
        field = self._field(place)
        return None if field is None else _Table(self._content, self._follow(field))

    def tables(self, place: int) -> list[_Table]:
        return [_Table(self._content, self._follow(position)) for position in self._elements(place, 4)]

    def texts(self, place: int) -> list[str]:
        return [self._text_at(position) for position in self._elements(place, 4)]

    def numbers(self, place: int, kind: Struct) -> list[Any]:
        return [_unpack_at(kind, self._content, position) for position in self._elements(place, kind.size)]


# By attribute type: how its value is read. Types that hold tensors or graphs are not among them.
_PLAIN_ATTRIBUTES: dict[int, Callable[[_Table], JSONValue]] = {
    1: lambda attribute: attribute.number(3, _FLOAT32),
    2: lambda attribute: attribute.number(4, _INT64),
    3: lambda attribute: attribute.text(5),
    6: lambda attribute: attribute.numbers(8, _FLOAT32),
    7: lambda attribute: attribute.numbers(9, _INT64),
    8: lambda attribute: list(attribute.texts(10)),
}


def _read_graph(graph: _Table, scope: str, nodes: list[Node], types: dict[str, str]) -> None:
    """Add a graph's nodes, with those of its bodies behind each, and the element types that it declares."""
    for value in graph.tables(_GRAPH_NODE_ARGS):
        if (element := _element_type(value)) is not None:
            types[value.text(_VALUE_NAME)] = element
    for table in graph.tables(_GRAPH_NODES):
        attributes = table.tables(_NODE_ATTRIBUTES)
        node = Node(
            name=table.text(_NODE_NAME),
            op=table.text(_NODE_OP),
            domain=table.text(_NODE_DOMAIN),
            since_version=table.number(_NODE_SINCE, _INT32),
            provider=table.text(_NODE_PROVIDER),
            inputs=tuple(table.texts(_NODE_INPUTS)),
            outputs=tuple(table.texts(_NODE_OUTPUTS)),
            attributes=tuple(sorted(_plain_attributes(attributes), key=lambda pair: pair[0])),
            scope=scope,
        )
        nodes.append(node)
        for attribute in attributes:
            body = attribute.table(_ATTRIBUTE_GRAPH)
            if attribute.number(_ATTRIBUTE_TYPE, _INT32) == _ATTRIBUTE_IS_GRAPH and body is not None:
                inner = f"{scope}{node.outputs[0]}/{attribute.text(_ATTRIBUTE_NAME)}/"
                _read_graph(body, inner, nodes, types)


def _plain_attributes(attributes: list[_Table]) -> Iterator[tuple[str, JSONValue]]:
    for attribute in attributes:
        read_value = _PLAIN_ATTRIBUTES.get(attribute.number(_ATTRIBUTE_TYPE, _INT32))
        if read_value is not None:
            yield attribute.text(_ATTRIBUTE_NAME), read_value(attribute)


def _element_type(value: _Table) -> str | None:
    info = value.table(_VALUE_TYPE)
    if info is None or info.number(_TYPE_KIND, _UINT8) != _KIND_TENSOR:
        return None
    tensor = info.table(_TYPE_VALUE)
    if tensor is None:
        return None
    name: str = onnx.TensorProto.DataType.Name(tensor.number(_TENSOR_ELEMENT, _INT32))
    return name.lower()
