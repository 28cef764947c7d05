"""Compares the layers of two engines, aligned by their ONNX nodes, and the layers inserted by TensorRT.

The nodes of a layer are in the inspector's metadata (``[ONNX Layer: conv0]``). Without metadata they follow from the
layer's name: ``conv0 + relu0`` for fused layers, ``q || k || v`` for merged ones, ``PWN(a, b)`` for point-wise chains
and ``{ForeignNode[a...b]}`` for regions of TensorRT's compiler. Layers of both engines that share a node form one row.

Reformat layers and other layers without a node were inserted. They are at a boundary: between the row whose output they
read and the row that reads their output.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from trtops.backend.trt.describe.inspector import WIDTHS, LayerDescription, TensorDescription
from trtops.record import Record
from trtops.spec import Layer

_REFORMATS = re.compile(r"reformat", re.IGNORECASE)
_NAMED_ALREADY = re.compile(r"\b(FP32|FP16|BF16|INT8|FP8|INT32|INT64|BOOL|Half|Float|format)\b", re.IGNORECASE)
_OF_COPIES = re.compile(r"^Reformatting CopyNode|^Reformat")
# Numbers that TensorRT appends to a node's name, such as ``_myl0_3`` by its compiler.
_NUMBER_AT_THE_END = re.compile(r"(_myl\d+_\d+|_clone_\d+|_\(\d+\)|\.\d+)+$")
_WRAPPED = re.compile(r"^\w+\((.*)\)$")
_FOREIGN = re.compile(r"^\{ForeignNode\[(.*)\]\}$")


@dataclass(frozen=True)
class EngineLayers:
    """An engine's layers and times."""

    layers: tuple[LayerDescription, ...]  # its layers, in order of execution
    times: Mapping[str, float] = field(default_factory=dict)  # milliseconds by layer name; empty without a profile

    @classmethod
    def of(cls, layers: Iterable[Layer], times: Mapping[str, float]) -> EngineLayers:
        """The layers of a build."""
        return cls(tuple(map(LayerDescription.of, layers)), times)

    def time_of(self, layers: Iterable[LayerDescription]) -> float | None:
        """Total milliseconds of some layers; None if no layer was timed."""
        times_ms = [self.times[layer.name] for layer in layers if layer.name in self.times]
        return sum(times_ms) if times_ms else None


@dataclass(frozen=True, kw_only=True)
class LayerSide(Record):
    """The layers of one engine in a row."""

    layers: tuple[str, ...] = ()  # names of its layers
    ops: tuple[str, ...] = ()  # their types
    tactics: tuple[str, ...] = ()  # their kernels with numbers
    precisions: tuple[str, ...] = ()  # their compute precisions
    reads: str = ""  # data type and format of the first layer's first input
    writes: str = ""  # data type and format of the last layer's first output
    ms: float | None = None  # their time in milliseconds; None without a profile


@dataclass(frozen=True, kw_only=True)
class Row(Record):
    """Layers of both engines with the same ONNX nodes."""

    nodes: tuple[str, ...]  # the nodes, in order of execution
    a: LayerSide  # in the first engine; without layers if it has none of these nodes
    b: LayerSide  # in the second engine

    @property
    def aligned(self) -> bool:
        """Whether both engines have layers here."""
        return bool(self.a.layers and self.b.layers)

    @property
    def differs(self) -> bool:
        """Whether one engine lacks these layers, or has other types, kernels, precisions or formats."""
        a, b = ((s.ops, s.tactics, s.precisions, s.reads, s.writes) for s in (self.a, self.b))
        return not self.aligned or a != b

    @property
    def change_ms(self) -> float | None:
        """Time of the second engine minus the first one's, in milliseconds; None unless both were profiled."""
        if not self.aligned or self.a.ms is None or self.b.ms is None:
            return None
        return self.b.ms - self.a.ms


@dataclass(frozen=True, kw_only=True)
class Inserted(Record):
    """Inserted layers of one engine at a boundary."""

    layers: tuple[str, ...] = ()  # names of the layers without an ONNX node
    conversions: tuple[str, ...] = ()  # their conversions: ``fp32 Row major linear -> fp16 Channel major``
    ms: float | None = None  # their time in milliseconds; None without a profile
    bytes: int = 0  # bytes that they read and write, if shapes and data types are known


@dataclass(frozen=True, kw_only=True)
class Boundary(Record):
    """Inserted layers of the engines between two rows."""

    before: tuple[str, ...]  # nodes of the row before; empty at an input of the engine
    after: tuple[str, ...]  # nodes of the row after; empty at an output
    a: Inserted  # layers of the first engine
    b: Inserted  # layers of the second engine

    @property
    def weight(self) -> tuple[float, int, float, int]:
        """Sort key: difference in time and bytes, then the longer time, then the larger number of bytes."""
        times, moved = (self.a.ms or 0.0, self.b.ms or 0.0), (self.a.bytes, self.b.bytes)
        return abs(times[0] - times[1]), abs(moved[0] - moved[1]), max(times), max(moved)


@dataclass(frozen=True, kw_only=True)
class Alignment(Record):
    """Two engines compared."""

    # Their layers; the largest time difference first if both were profiled, else in order of execution.
    rows: tuple[Row, ...]
    boundaries: tuple[Boundary, ...]  # inserted layers; the largest difference first

    def share(self, side: str) -> float:
        """The share of aligned layers in engine ``a`` or ``b``, by time if it was profiled.

        Layers inserted between two aligned rows count as aligned.
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
    """Names of a layer's ONNX nodes; empty for layers inserted by TensorRT."""
    if layer.origin == "REFORMAT" or _REFORMATS.search(layer.op) or _OF_COPIES.match(layer.name):
        return ()
    return tuple(dict.fromkeys(layer.onnx_nodes)) or tuple(dict.fromkeys(_nodes_in(layer.name)))


def _nodes_in(name: str) -> Iterable[str]:
    """The node names in a layer's name."""
    if foreign := _FOREIGN.match(name):
        yield from (part for part in foreign[1].split("...") if part)
        return
    for part in re.split(r" \+ | \|\| ", name):
        part = part.strip()
        if (wrapped := _WRAPPED.match(part)) and not part.startswith("("):
            yield from _nodes_in(wrapped[1].replace(", ", " + "))
        elif part and not part.startswith(("__myl_", "(Unnamed", "[")):
            yield _NUMBER_AT_THE_END.sub("", part)


def align(a: EngineLayers, b: EngineLayers) -> Alignment:
    """Compare two engines of the same model, or of models with the same node names."""
    groups = _groups((*a.layers, *b.layers))
    sides: list[dict[tuple[str, ...], list[LayerDescription]]] = [{}, {}]
    for engine_layers, side in zip((a, b), sides):
        for layer in engine_layers.layers:
            side.setdefault(_group_of(layer, groups), []).append(layer)
    rows = [
        Row(nodes=nodes, a=_layer_side(a, sides[0].get(nodes, [])), b=_layer_side(b, sides[1].get(nodes, [])))
        for nodes in dict.fromkeys(groups.values())
    ]
    if all(row.change_ms is not None for row in rows if row.aligned) and any(row.aligned for row in rows):
        rows.sort(
            key=lambda row: -abs((row.a.ms or 0.0) + (row.b.ms or 0.0) if row.change_ms is None else row.change_ms)
        )
    inserted = [_inserted_by_place(engine, groups) for engine in (a, b)]
    boundaries = [
        Boundary(
            before=before,
            after=after,
            a=_inserted(a, inserted[0].get((before, after), [])),
            b=_inserted(b, inserted[1].get((before, after), [])),
        )
        for before, after in {**inserted[0], **inserted[1]}
    ]
    return Alignment(rows=tuple(rows), boundaries=tuple(sorted(boundaries, key=lambda x: x.weight, reverse=True)))


def losing_in_8_bits(low: EngineLayers, eight: EngineLayers, quantized: Iterable[str]) -> tuple[str, ...]:
    """Return the quantized nodes without gain: no faster in 8 bits than in FP16 or FP32, conversions included.

    Both engines have times of their layers. A node left alone needs a conversion at each neighbour in 8 bits; it takes
    at most as long as the slowest conversion of the engine. Layers without a counterpart, and regions of TensorRT's
    compiler, whose names omit most nodes, are compared as a whole.
    """
    groups = _groups((*low.layers, *eight.layers))
    shared = {_group_of(layer, groups) for layer in low.layers} & {_group_of(layer, groups) for layer in eight.layers}
    for engine_layer in (*low.layers, *eight.layers):
        if _FOREIGN.match(engine_layer.name):
            shared.discard(_group_of(engine_layer, groups))
    groups = {node: group if group in shared else _REST for node, group in groups.items()}
    costs: list[dict[tuple[str, ...], float]] = []
    for side in (low, eight):
        inserted = _inserted_by_place(side, groups)
        costs.append(defaultdict(float))
        for engine_layer in side.layers:
            if nodes_of(engine_layer):
                costs[-1][_group_of(engine_layer, groups)] += side.times.get(engine_layer.name, 0.0)
        for (before, after), layers in inserted.items():
            costs[-1][after or before] += side.time_of(layers) or 0.0
    makers, links = _makers(eight), list(inserted)
    for engine_layer in eight.layers:
        sources = [makers[tensor.name] for tensor in engine_layer.inputs if tensor.name in makers]
        links += [(_group_of(source, groups), _group_of(engine_layer, groups)) for source in sources]
    linked = {pair for pair in links if all(pair)}
    conversions = itertools.chain.from_iterable(inserted.values())
    conversion = max((eight.times.get(engine_layer.name, 0.0) for engine_layer in conversions), default=0.0)
    named = {node: group for node in quantized if (group := groups.get(node, _REST)) in costs[1]}
    remaining, change = set(named.values()), {group: costs[1][group] - costs[0][group] for group in named.values()}

    def gain(group: tuple[str, ...]) -> float:
        """Milliseconds saved by leaving a group alone."""
        neighbours = set(itertools.chain.from_iterable(pair for pair in linked if group in pair)) - {group}
        return change[group] - conversion * len(neighbours & remaining)

    while remaining and gain(best := max(remaining, key=gain)) >= 0:
        remaining.remove(best)
    if sum(map(change.__getitem__, remaining)) >= 0:
        remaining.clear()
    return tuple(node for node, group in named.items() if group not in remaining)


_REST = ("",)  # the group of all nodes without a counterpart
# The group of each ONNX node: nodes that share a layer in either engine are in one group, directly or through others.
_Groups = dict[str, tuple[str, ...]]


def _groups(layers: Iterable[LayerDescription]) -> _Groups:
    """The groups, in order of execution in the first engine."""
    groups: _Groups = {}
    for layer in layers:
        # Joins the groups of all nodes of the layer.
        joined_groups = (groups.get(node, (node,)) for node in nodes_of(layer))
        joined = tuple(dict.fromkeys(itertools.chain.from_iterable(joined_groups)))
        groups.update(dict.fromkeys(joined, joined))
    return groups


def _group_of(layer: LayerDescription, groups: _Groups) -> tuple[str, ...]:
    """The group of a layer; empty without nodes."""
    return next((groups[node] for node in nodes_of(layer)), ())


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


def _makers(engine: EngineLayers) -> dict[str, LayerDescription]:
    """The layer of each tensor written in an engine, by the tensor's name."""
    makers: dict[str, LayerDescription] = {}
    for engine_layer in engine.layers:
        makers.update((tensor.name, engine_layer) for tensor in engine_layer.outputs)
    return makers


def _inserted_by_place(engine: EngineLayers, groups: _Groups) -> dict[_Place, list[LayerDescription]]:
    """Layers without nodes by the groups before and after them, across other layers without nodes."""
    makers = _makers(engine)
    readers: dict[str, list[LayerDescription]] = {}
    for engine_layer in engine.layers:
        for tensor in engine_layer.inputs:
            readers.setdefault(tensor.name, []).append(engine_layer)

    def nearest_group(layer: LayerDescription, upwards: bool) -> tuple[str, ...]:
        """The nearest group in one direction; empty if the engine begins or ends first."""
        seen, waiting = {layer.name}, [layer]
        # A breadth-first search: the list grows in the loop.
        for current in waiting:
            if upwards:
                others = [makers[tensor.name] for tensor in current.inputs if tensor.name in makers]
            else:
                others = list(itertools.chain.from_iterable(readers.get(t.name, ()) for t in current.outputs))
            for other in others:
                if group := _group_of(other, groups):
                    return group
                if other.name not in seen:
                    seen.add(other.name)
                    waiting.append(other)
        return ()

    inserted: dict[_Place, list[LayerDescription]] = {}
    for engine_layer in engine.layers:
        if not nodes_of(engine_layer):
            position = nearest_group(engine_layer, True), nearest_group(engine_layer, False)
            inserted.setdefault(position, []).append(engine_layer)
    return inserted


def _inserted(engine: EngineLayers, layers: Sequence[LayerDescription]) -> Inserted:
    tensors = itertools.chain.from_iterable((*engine_layer.inputs, *engine_layer.outputs) for engine_layer in layers)
    return Inserted(
        layers=tuple(engine_layer.name for engine_layer in layers),
        conversions=tuple(
            f"{_format_text(engine_layer.inputs[0])} -> {_format_text(engine_layer.outputs[0])}"
            for engine_layer in layers
            if engine_layer.inputs and engine_layer.outputs
        ),
        ms=engine.time_of(layers),
        bytes=sum(
            math.prod(tensor.shape) * WIDTHS.get(tensor.dtype, 0)
            for tensor in tensors
            if tensor.shape and min(tensor.shape) >= 0
        ),
    )
