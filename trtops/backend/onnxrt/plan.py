"""What stands in an engine: which kernels, in which layers, made from which nodes of the model."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import onnx

from trtops.backend.onnx import walk
from trtops.backend.onnxrt.ort_format import Node, read
from trtops.record import digest
from trtops.spec import Layer
from trtops.tactics.record import TacticChoice, TensorFormat

# The NCHWc transformer renames every tensor it touches, but names its nodes after the tensors they replace.
_NCHWC_NODE = re.compile(r"_nchwc(_token_\d+)?$")

# What ONNX Runtime puts behind a name that it has given already.
_NUMBER = re.compile(r"_token_\d+(?=$|/)")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The optimized graph of an engine.

    Optimizing a model twice the same way gives the same graph, but neither the same order of nodes nor the same numbers
    in the names of tensors made up. Here both are evened out.

    Attributes:
        nodes: Its nodes, bodies of control flow included, each after what it depends on.
        depths: For each node, the number of nodes on the longest way to it.
        signature: SHA-256 over kernels, attributes and connections: engines of one model with equal signatures run the
            same code.
        types: Element types by tensor name, in lower case as ONNX names them (``float``, ``int64``).
    """

    nodes: tuple[Node, ...]
    depths: tuple[int, ...]
    signature: str
    types: dict[str, str] = field(repr=False)


def read_plan(plan: bytes) -> Plan:
    """Read an engine's graph. The bytes must come from ONNX Runtime: the reader does not check them."""
    nodes, types = read(plan)
    placed: dict[str, tuple[int, str]] = {}
    # By depth and label, neither of which depends on the order of the file.
    ranked = sorted(((*_place_node(node, placed), node) for node in _dependency_order(nodes)), key=lambda r: r[:2])
    return Plan(
        nodes=tuple(node for _, _, node in ranked),
        depths=tuple(depth for depth, _, _ in ranked),
        signature=digest([label for _, label, _ in ranked]),
        types=types,
    )


def _place_node(node: Node, placed: dict[str, tuple[int, str]]) -> tuple[int, str]:
    """Depth of a node, and a label that equal nodes in equal places have in every build; both are noted for its outputs.

    The label is a digest over what the node is and the labels of what it reads, so it covers everything before it: two
    graphs with the same labels are the same. Names count without the numbers that ONNX Runtime makes up.
    """
    sources = [placed.get(name, (0, _NUMBER.sub("", name))) for name in node.inputs]
    depth = 1 + max((depth for depth, _ in sources), default=0)
    outputs = [_NUMBER.sub("", name) for name in node.outputs]
    scope = _NUMBER.sub("", node.scope)
    made_from = [label for _, label in sources]
    label = digest([scope, node.kernel, node.since_version, list(node.attributes), made_from, outputs])
    placed.update((name, (depth, f"{label}:{index}")) for index, name in enumerate(node.outputs))
    return depth, label


def _dependency_order(nodes: Sequence[Node]) -> Iterator[Node]:
    """The nodes, each after those that make its inputs."""
    makers = {name: index for index, node in enumerate(nodes) for name in node.outputs if name}
    waiting_for = [{makers[name] for name in node.inputs if name in makers} - {i} for i, node in enumerate(nodes)]
    readers = defaultdict(list)
    for index, makers_of in enumerate(waiting_for):
        for maker in makers_of:
            readers[maker].append(index)
    ready = [index for index, makers_of in enumerate(waiting_for) if not makers_of]
    while ready:
        index = ready.pop()
        yield nodes[index]
        for reader in readers[index]:
            waiting_for[reader].discard(index)
            if not waiting_for[reader]:
                ready.append(reader)


def describe(plan: Plan, model: onnx.ModelProto) -> tuple[tuple[Layer, ...], tuple[TacticChoice, ...]]:
    """An engine's layers and the tactic each got, both in the model's order.

    A layer is named after its first output tensor, since fused nodes lose their names. Where an optimizer made that
    tensor up, the layer is named after what it leads to: the tensor of the model that an NCHWc kernel replaces, or
    ``<next tensor of the model>~<op>``. So a layer has the same name in every build.

    A tactic is replayable if the layer runs on ONNX Runtime's own CPU kernels: which one follows from the model, the
    settings, the release and the processor alone. Other execution providers choose again inside, and do not say what.

    Args:
        plan: The engine's graph.
        model: The model that was optimized.
    """
    origins = _Origins(plan, model)
    placed = zip(map(origins.position, plan.nodes), plan.depths, plan.nodes)
    nodes = [node for _, _, node in sorted(placed, key=lambda place: place[:2])]
    names = _unique_names(origins.layer_name(node) for node in nodes)
    layers = tuple(_describe_layer(name, node, plan, origins) for name, node in zip(names, nodes))
    return layers, tuple(_tactic_choice(layer, node, plan) for layer, node in zip(layers, nodes))


def _describe_layer(name: str, node: Node, plan: Plan, origins: _Origins) -> Layer:
    return Layer(
        name=name,
        op=f"{node.domain}.{node.op}" if node.domain else node.op,
        tactic=node.kernel,
        precision=next((plan.types[t] for t in node.outputs if t in plan.types), ""),
        inputs=tuple(filter(None, node.inputs)),
        outputs=tuple(filter(None, node.outputs)),
        onnx_nodes=origins.onnx_nodes(node),
    )


def _tactic_choice(layer: Layer, node: Node, plan: Plan) -> TacticChoice:
    return TacticChoice(
        layer=layer.name,
        op=layer.op,
        tactic=layer.tactic,
        inputs=tuple(TensorFormat(dtype=plan.types.get(name, "")) for name in layer.inputs),
        outputs=tuple(TensorFormat(dtype=plan.types.get(name, "")) for name in layer.outputs),
        replayable=node.provider == "CPUExecutionProvider",
    )


class _Origins:
    """Where an optimized graph's nodes come from in the model.

    A node's *anchor* is the tensor of the model that tells its place: names of tensors survive optimization where names
    of nodes do not.
    """

    def __init__(self, plan: Plan, model: onnx.ModelProto) -> None:
        self._producers = {out: node for node in _nodes_with_bodies(model.graph) for out in node.output if out}
        self._positions = {name: index for index, name in enumerate(self._producers)}
        self._readers: dict[str, Node] = {}
        for node in plan.nodes:
            for name in node.inputs:
                self._readers.setdefault(name, node)
        self._anchors = {tensor for node in plan.nodes for tensor in self._anchors_of(node)}

    def layer_name(self, node: Node) -> str:
        anchor = self._anchor(node)
        if anchor is None:
            return node.scope + next(filter(None, node.outputs), node.name)
        # A reordering into blocked channels may bear the name of the tensor it reorders; the kernel owns that name.
        is_anchored = anchor in node.outputs or _NCHWC_NODE.sub("", node.name) == anchor
        stands_alone = is_anchored and not node.op.startswith("Reorder")
        return f"{node.scope}{anchor}" if stands_alone else f"{node.scope}{anchor}~{node.op}"

    def position(self, node: Node) -> int:
        """Where in the model's order a layer belongs."""
        anchor = self._anchor(node)
        return len(self._positions) if anchor is None else self._positions[anchor]

    def onnx_nodes(self, node: Node) -> tuple[str, ...]:
        """Names of the model's nodes between a layer's outputs and its inputs, or other layers' outputs."""
        own = self._anchors_of(node)
        pending, seen = list(own), {*own, *node.inputs}
        found: dict[str, None] = {}
        while pending:
            producer = self._producers.get(pending.pop())
            if producer is None:
                continue
            found[producer.name or producer.output[0]] = None
            fresh = [name for name in producer.input if name not in self._anchors and name not in seen]
            pending += fresh
            seen.update(fresh)
        return tuple(reversed(found))

    def _anchors_of(self, node: Node) -> tuple[str, ...]:
        """The model's tensors that a layer makes; if it makes none, its anchor."""
        real = tuple(name for name in node.outputs if name in self._producers)
        anchor = self._anchor(node)
        return real or (() if anchor is None else (anchor,))

    def _anchor(self, node: Node) -> str | None:
        """The first tensor of the model that a layer makes, or the one that it replaces, or the next that it leads to."""
        first = next(filter(None, node.outputs), "")
        if first in self._producers:
            return first
        replaced = _NCHWC_NODE.sub("", node.name)
        if replaced in self._producers:
            return replaced
        reader = self._readers.get(first)
        while reader is not None and reader.outputs:
            if reader.outputs[0] in self._producers:
                return reader.outputs[0]
            reader = self._readers.get(reader.outputs[0])
        return None


def _nodes_with_bodies(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """A graph's nodes, each with the nodes of its bodies behind it: the order of the layers."""
    for node in graph.node:
        yield node
        for body in walk.subgraphs(node):
            yield from _nodes_with_bodies(body)


def _unique_names(names: Iterator[str]) -> list[str]:
    """The names, with ``#2`` and so on behind those that came before."""
    seen: Counter[str] = Counter()
    unique = []
    for name in names:
        seen[name] += 1
        unique.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return unique
