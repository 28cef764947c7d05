"""Two engines side by side: their layers aligned through the ONNX nodes that they carry, and what was put between them.

A layer carries the nodes that the inspector's metadata names (``[ONNX Layer: conv0]``), and without metadata those
that its own name is made of: TensorRT calls what it fused ``conv0 + relu0``, what it merged ``q || k || v``, a
point-wise chain ``PWN(a, b)`` and a region that its compiler took over ``{ForeignNode[a...b]}``. Layers of two engines
that share a node are one row, however many they are on either side.

Reformats, and other layers that carry no node, were inserted. They lie on a *boundary*: between the row whose output
they read and the row that reads theirs.
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
    """What is known of one engine.

    Attributes:
        layers: Its layers, in order of execution.
        times: Milliseconds by layer name, where the engine was profiled.
    """

    layers: tuple[LayerDescription, ...]
    times: Mapping[str, float] = field(default_factory=dict)

    def time_of(self, layers: Iterable[LayerDescription]) -> float | None:
        """Milliseconds of some layers together; None where none of them was timed."""
        found = [self.times[layer.name] for layer in layers if layer.name in self.times]
        return sum(found) if found else None


@dataclass(frozen=True, kw_only=True)
class LayerSide(Record):
    """What one engine does in a row.

    Attributes:
        layers: Names of its layers.
        ops: Their types.
        tactics: Their kernels, with their numbers.
        precisions: What they compute in.
        reads: Type and format of the first layer's first input.
        writes: Those of the last layer's first output.
        ms: Their time in milliseconds; None where the engine was not profiled.
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
    """Layers of both engines that carry the same ONNX nodes.

    Attributes:
        nodes: The nodes, in order of execution.
        a: In the first engine; no layers if it has none of these nodes.
        b: In the second one.
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
        """Milliseconds that the second engine takes more; None unless both were profiled."""
        if not self.aligned or self.a.ms is None or self.b.ms is None:
            return None
        return self.b.ms - self.a.ms


@dataclass(frozen=True, kw_only=True)
class Inserted(Record):
    """What one engine has on a boundary.

    Attributes:
        layers: Names of the layers that carry no ONNX node.
        conversions: What each of them turns into what: ``fp32 Row major linear -> fp16 Channel major``.
        ms: Their time in milliseconds; None where the engine was not profiled.
        bytes: What they read and write, as far as shapes and types are known.
    """

    layers: tuple[str, ...] = ()
    conversions: tuple[str, ...] = ()
    ms: float | None = None
    bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Boundary(Record):
    """A place between two rows where an engine has layers of its own.

    Attributes:
        before: Nodes of the row whose output is read; empty at an input of the engine.
        after: Nodes of the row that reads; empty at an output.
        a: What the first engine has here.
        b: What the second one has.
    """

    before: tuple[str, ...]
    after: tuple[str, ...]
    a: Inserted
    b: Inserted

    @property
    def weight(self) -> tuple[float, int, float, int]:
        """What boundaries are sorted by: how much time and bytes differ, then the longer time, then what is moved.

        What both engines do alike, such as reading their inputs, stands behind what one of them does in vain.
        """
        times, moved = (self.a.ms or 0.0, self.b.ms or 0.0), (self.a.bytes, self.b.bytes)
        return abs(times[0] - times[1]), abs(moved[0] - moved[1]), max(times), max(moved)


@dataclass(frozen=True, kw_only=True)
class Alignment(Record):
    """Two engines side by side.

    Attributes:
        rows: Their layers; those whose time differs most first where both were profiled, else in order of execution.
        boundaries: What was inserted; where the engines differ most first.
    """

    rows: tuple[Row, ...]
    boundaries: tuple[Boundary, ...]

    def share(self, side: str) -> float:
        """The share of one engine's layers that have a counterpart: of their time where it was profiled, else of their number.

        What was inserted between two rows that have one counts as aligned.

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
    """Names of the ONNX nodes that a layer carries; none for what TensorRT inserted."""
    if _REFORMATS.search(layer.op) or _OF_COPIES.match(layer.name):
        return ()
    return tuple(dict.fromkeys(layer.onnx_nodes)) or tuple(dict.fromkeys(_nodes_in(layer.name)))


def _nodes_in(name: str) -> Iterable[str]:
    """The names that a layer's name is made of."""
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
    """Put two engines side by side.

    Args:
        a: The first engine.
        b: The second one: of the same model, or of one whose nodes have the same names.
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
        rows.sort(key=lambda row: -abs(row.change_ms if row.change_ms is not None else _time(row)))
    boundaries = _boundaries(a, b, groups)
    return Alignment(rows=tuple(rows), boundaries=tuple(sorted(boundaries, key=lambda x: x.weight, reverse=True)))


def _time(row: Row) -> float:
    return (row.a.ms or 0.0) + (row.b.ms or 0.0)


class _Groups:
    """ONNX nodes in groups: those that share a layer in either engine belong together."""

    def __init__(self) -> None:
        self._leader: dict[str, str] = {}
        self._members: dict[str, tuple[str, ...]] | None = None

    def join(self, nodes: Sequence[str]) -> None:
        """Put nodes of one layer into one group."""
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
        """The group of a layer; empty for what carries no node."""
        nodes = nodes_of(layer)
        if not nodes:
            return ()
        self.all()
        assert self._members is not None
        return self._members[self._find(nodes[0])]

    def layers(self, engine: EngineLayers) -> dict[tuple[str, ...], list[LayerDescription]]:
        """An engine's layers by their group, without those that carry no node."""
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
    """A tensor's type and format, in as few words as tell it apart."""
    text = _NAMED_ALREADY.sub("", tensor.format)
    words = " ".join(re.sub(r"^\([\w]+\)\s*", "", text.strip()).split())
    return f"{tensor.dtype} {words}".strip()


def _boundaries(a: EngineLayers, b: EngineLayers, groups: _Groups) -> list[Boundary]:
    sides = [_inserted_by_place(engine, groups) for engine in (a, b)]
    places = list(dict.fromkeys(place for side in sides for place in side))
    found = [[_inserted(engine, side.get(place, [])) for place in places] for engine, side in zip((a, b), sides)]
    return [Boundary(before=p[0], after=p[1], a=one, b=other) for p, one, other in zip(places, *found)]


_Place = tuple[tuple[str, ...], tuple[str, ...]]


def _inserted_by_place(engine: EngineLayers, groups: _Groups) -> dict[_Place, list[LayerDescription]]:
    """Layers without nodes by the groups before and after them, which other layers without nodes may separate them from."""
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
    """The nearest group in one direction; empty where the engine begins or ends first."""
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
    """Size of a tensor; 0 where its shape or its type is not known."""
    known = tensor.shape and all(dim >= 0 for dim in tensor.shape)
    return math.prod(tensor.shape) * WIDTHS.get(tensor.dtype, 0) if known else 0
