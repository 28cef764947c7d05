"""Compares the layers of two engines, aligned by their ONNX nodes, and the layers that TensorRT inserted.

The nodes of a layer are in the inspector's metadata (``[ONNX Layer: conv0]``). Without metadata they follow from the
layer's name: ``conv0 + relu0`` for fused layers, ``q || k || v`` for merged ones, ``PWN(a, b)`` for point-wise chains
and ``{ForeignNode[a...b]}`` for regions of TensorRT's compiler. Layers of both engines that share a node form one row.

Reformat layers and other layers without a node were inserted. They are at a boundary: between the row whose output they
read and the row that reads their output.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from trtops.backend.trt.describe.inspector import WIDTHS, LayerDescription, TensorDescription
from trtops.record import Record

_REFORMATS = re.compile(r"reformat", re.IGNORECASE)
_NAMED_ALREADY = re.compile(r"\b(FP32|FP16|BF16|INT8|FP8|INT32|INT64|BOOL|Half|Float|format)\b", re.IGNORECASE)
_OF_COPIES = re.compile(r"^Reformatting CopyNode|^Reformat")
_NUMBER_AT_THE_END = re.compile(r"(_myl\d+_\d+|_clone_\d+|_\(\d+\)|\.\d+)+$")
_WRAPPED = re.compile(r"^\w+\((.*)\)$")
_FOREIGN = re.compile(r"^\{ForeignNode\[(.*)\]\}$")


@dataclass(frozen=True)
class EngineLayers:
    """An engine's layers and times.

    Attributes:
        layers: Its layers, in order of execution.
        times: Milliseconds by layer name; empty without a profile.
    """

    layers: tuple[LayerDescription, ...]
    times: Mapping[str, float] = field(default_factory=dict)

    def time_of(self, layers: Iterable[LayerDescription]) -> float | None:
        """Total milliseconds of some layers; None if no layer was timed."""
        found = [self.times[layer.name] for layer in layers if layer.name in self.times]
        return sum(found) if found else None


@dataclass(frozen=True, kw_only=True)
class LayerSide(Record):
    """The layers of one engine in a row.

    Attributes:
        layers: Names of its layers.
        ops: Their types.
        tactics: Their kernels with numbers.
        precisions: Their compute precisions.
        reads: Data type and format of the first layer's first input.
        writes: Data type and format of the last layer's first output.
        ms: Their time in milliseconds; None without a profile.
    """

    layers: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    tactics: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()
    reads: str = ""
    writes: str = ""
    ms: float | None = None


@dataclass(frozen=True, kw_only=True)
class Row(Record):
    """Layers of both engines with the same ONNX nodes.

    Attributes:
        nodes: The nodes, in order of execution.
        a: In the first engine; without layers if it has none of these nodes.
        b: In the second engine.
    """

    nodes: tuple[str, ...]
    a: LayerSide
    b: LayerSide

    @property
    def aligned(self) -> bool:
        """Whether both engines have layers here."""
        return bool(self.a.layers and self.b.layers)

    @property
    def change_ms(self) -> float | None:
        """Time of the second engine minus that of the first, in milliseconds; None unless both were profiled."""
        if not self.aligned or self.a.ms is None or self.b.ms is None:
            return None
        return self.b.ms - self.a.ms


@dataclass(frozen=True, kw_only=True)
class Inserted(Record):
    """Inserted layers of one engine at a boundary.

    Attributes:
        layers: Names of the layers without an ONNX node.
        conversions: Their conversions: ``fp32 Row major linear -> fp16 Channel major``.
        ms: Their time in milliseconds; None without a profile.
        bytes: Bytes that they read and write, if shapes and data types are known.
    """

    layers: tuple[str, ...] = ()
    conversions: tuple[str, ...] = ()
    ms: float | None = None
    bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Boundary(Record):
    """A place between two rows where an engine has inserted layers.

    Attributes:
        before: Nodes of the row before; empty at an input of the engine.
        after: Nodes of the row after; empty at an output.
        a: Layers of the first engine.
        b: Layers of the second engine.
    """

    before: tuple[str, ...]
    after: tuple[str, ...]
    a: Inserted
    b: Inserted

    @property
    def weight(self) -> tuple[float, int, float, int]:
        """Sort key: difference in time and bytes, then the longer time, then the larger number of bytes."""
        times, moved = (self.a.ms or 0.0, self.b.ms or 0.0), (self.a.bytes, self.b.bytes)
        return abs(times[0] - times[1]), abs(moved[0] - moved[1]), max(times), max(moved)


@dataclass(frozen=True, kw_only=True)
class Alignment(Record):
    """Two engines compared.

    Attributes:
        rows: Their layers; the largest time difference first if both were profiled, else in order of execution.
        boundaries: Inserted layers; the largest difference first.
    """

    rows: tuple[Row, ...]
    boundaries: tuple[Boundary, ...]

    def share(self, side: str) -> float:
        """The share of one engine's layers that are aligned: of its time if it was profiled, else of their number.

        Layers inserted between two aligned rows count as aligned.

        Args:
            side: ``a`` or ``b``.
        """
        unpaired = {row.nodes for row in self.rows if not row.aligned}
        pieces = [(getattr(row, side), row.aligned) for row in self.rows]
        pieces += [(getattr(b, side), not {b.before, b.after} & unpaired) for b in self.boundaries]
        by_time = any(piece.ms is not None for piece, _ in pieces)

        def size(piece: LayerSide | Inserted) -> float:
            return (piece.ms or 0.0) if by_time else float(len(piece.layers))

        whole = math.fsum(size(piece) for piece, _ in pieces)
        return math.fsum(size(piece) for piece, paired in pieces if paired) / whole if whole else 0.0


def nodes_of(layer: LayerDescription) -> tuple[str, ...]:
    """Names of a layer's ONNX nodes; empty for layers that TensorRT inserted."""
    if _REFORMATS.search(layer.op) or _OF_COPIES.match(layer.name):
        return ()
    return tuple(dict.fromkeys(layer.onnx_nodes)) or tuple(dict.fromkeys(_nodes_in(layer.name)))


def _nodes_in(name: str) -> Iterable[str]:
    """The node names in a layer's name."""
    if found := _FOREIGN.match(name):
        yield from (part for part in found[1].split("...") if part)
        return
    for part in re.split(r" \+ | \|\| ", name):
        part = part.strip()
        if (wrapped := _WRAPPED.match(part)) and not part.startswith("("):
            yield from _nodes_in(wrapped[1].replace(", ", " + "))
        elif part and not part.startswith(("__myl_", "(Unnamed", "[")):
            yield _NUMBER_AT_THE_END.sub("", part)


def align(a: EngineLayers, b: EngineLayers) -> Alignment:
    """Compare two engines.

    Args:
        a: The first engine.
        b: The second engine, of the same model or one with the same node names.
    """
    groups = _Groups()
    for found in (*a.layers, *b.layers):
        groups.join(nodes_of(found))
    mine, theirs = groups.layers(a), groups.layers(b)
    rows = [
        Row(nodes=nodes, a=_layer_side(a, mine.get(nodes, [])), b=_layer_side(b, theirs.get(nodes, [])))
        for nodes in groups.all()
    ]
    if all(row.change_ms is not None for row in rows if row.aligned) and any(row.aligned for row in rows):
        rows.sort(
            key=lambda row: -abs((row.a.ms or 0.0) + (row.b.ms or 0.0) if row.change_ms is None else row.change_ms)
        )
    sides = [_inserted_by_place(engine, groups) for engine in (a, b)]
    boundaries = [
        Boundary(
            before=place[0],
            after=place[1],
            a=_inserted(a, sides[0].get(place, [])),
            b=_inserted(b, sides[1].get(place, [])),
        )
        for place in dict.fromkeys(place for side in sides for place in side)
    ]
    return Alignment(rows=tuple(rows), boundaries=tuple(sorted(boundaries, key=lambda x: x.weight, reverse=True)))


class _Groups:
    """Groups of ONNX nodes: nodes that share a layer in either engine are in one group."""

    def __init__(self) -> None:
        self._leader: dict[str, str] = {}
        self._members: dict[str, tuple[str, ...]] | None = None

    def join(self, nodes: Sequence[str]) -> None:
        """Put the nodes of one layer into one group."""
        self._members = None
        for node in nodes:
            self._leader.setdefault(node, node)
            self._leader[self._find(node)] = self._find(nodes[0])

    def _find(self, node: str) -> str:
        while self._leader[node] != node:
            self._leader[node] = self._leader[self._leader[node]]
            node = self._leader[node]
        return node

    def all(self) -> tuple[tuple[str, ...], ...]:
        """The groups, in order of execution in the first engine."""
        if self._members is None:
            found: dict[str, list[str]] = {}
            for node in self._leader:
                found.setdefault(self._find(node), []).append(node)
            self._members = {leader: tuple(members) for leader, members in found.items()}
        return tuple(self._members.values())

    def of(self, layer: LayerDescription) -> tuple[str, ...]:
        """The group of a layer; empty without nodes."""
        nodes = nodes_of(layer)
        if not nodes:
            return ()
        self.all()
        assert self._members is not None
        return self._members[self._find(nodes[0])]

    def layers(self, engine: EngineLayers) -> dict[tuple[str, ...], list[LayerDescription]]:
        """An engine's layers by group, except layers without nodes."""
        found: dict[tuple[str, ...], list[LayerDescription]] = {}
        for layer in engine.layers:
            if group := self.of(layer):
                found.setdefault(group, []).append(layer)
        return found


def _layer_side(engine: EngineLayers, layers: Sequence[LayerDescription]) -> LayerSide:
    if not layers:
        return LayerSide()
    return LayerSide(
        layers=tuple(x.name for x in layers),
        ops=tuple(dict.fromkeys(x.op for x in layers)),
        tactics=tuple(tactic for x in layers if (tactic := x.to_layer().tactic)),
        precisions=tuple(dict.fromkeys(x.precision for x in layers if x.precision)),
        reads=next((_format_text(tensor) for tensor in layers[0].inputs), ""),
        writes=next((_format_text(tensor) for tensor in layers[-1].outputs), ""),
        ms=engine.time_of(layers),
    )


def _format_text(tensor: TensorDescription) -> str:
    """A tensor's data type and format, without redundant words."""
    text = _NAMED_ALREADY.sub("", tensor.format)
    words = " ".join(re.sub(r"^\([\w]+\)\s*", "", text.strip()).split())
    return f"{tensor.dtype} {words}".strip()


_Place = tuple[tuple[str, ...], tuple[str, ...]]


def _inserted_by_place(engine: EngineLayers, groups: _Groups) -> dict[_Place, list[LayerDescription]]:
    """Layers without nodes by the groups before and after them, across other layers without nodes."""
    makers = {tensor.name: one for one in engine.layers for tensor in one.outputs}
    readers: dict[str, list[LayerDescription]] = {}
    for one in engine.layers:
        for tensor in one.inputs:
            readers.setdefault(tensor.name, []).append(one)

    def upwards(one: LayerDescription) -> Iterable[LayerDescription]:
        return (makers[tensor.name] for tensor in one.inputs if tensor.name in makers)

    def downwards(one: LayerDescription) -> Iterable[LayerDescription]:
        return (reader for tensor in one.outputs for reader in readers.get(tensor.name, ()))

    found: dict[_Place, list[LayerDescription]] = {}
    for one in engine.layers:
        if nodes_of(one):
            continue
        sides = [_first_group(one, step, groups) for step in (upwards, downwards)]
        found.setdefault((sides[0], sides[1]), []).append(one)
    return found


def _first_group(
    one: LayerDescription, step: Callable[[LayerDescription], Iterable[LayerDescription]], groups: _Groups
) -> tuple[str, ...]:
    """The nearest group in one direction; empty if the engine begins or ends first."""
    seen, waiting = {one.name}, [one]
    while waiting:
        for other in step(waiting.pop(0)):
            if group := groups.of(other):
                return group
            if other.name not in seen:
                seen.add(other.name)
                waiting.append(other)
    return ()


def _inserted(engine: EngineLayers, layers: Sequence[LayerDescription]) -> Inserted:
    return Inserted(
        layers=tuple(one.name for one in layers),
        conversions=tuple(
            f"{_format_text(one.inputs[0])} -> {_format_text(one.outputs[0])}"
            for one in layers
            if one.inputs and one.outputs
        ),
        ms=engine.time_of(layers),
        bytes=sum(_bytes_of(tensor) for one in layers for tensor in (*one.inputs, *one.outputs)),
    )


def _bytes_of(tensor: TensorDescription) -> int:
    """Size of a tensor in bytes; 0 if its shape or data type is unknown."""
    known = tensor.shape and all(dim >= 0 for dim in tensor.shape)
    return math.prod(tensor.shape) * WIDTHS.get(tensor.dtype, 0) if known else 0
