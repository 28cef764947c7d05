"""Describes an engine: its kernels, in which layers, made from which nodes of the model."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter

import onnx

from trtops.backend.onnx import walk
from trtops.backend.onnxrt.ort_format import Node, read_graph
from trtops.record import digest
from trtops.spec import Layer
from trtops.tactics.record import TacticChoice, TensorFormat

# The NCHWc transformer renames every tensor it touches, but names its nodes after the tensors they replace.
_NCHWC_NODE = re.compile(r"_nchwc(_token_\d+)?$")

# ONNX Runtime appends this to names that it has used already.
_NUMBER = re.compile(r"_token_\d+(?=$|/)")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The optimized graph of an engine."""

    # Optimizing a model twice the same way gives the same graph, but with nodes in another order and other numbers in
    # generated names. Both are normalized here.

    nodes: tuple[Node, ...]  # its nodes, including those of control flow bodies, each after its inputs' nodes
    depths: tuple[int, ...]  # for each node, the number of nodes on the longest path to it
    signature: str  # SHA-256 over kernels, attributes and connections: equal for engines that run the same code
    # Element types by tensor name, in lower case as ONNX names them (``float``, ``int64``).
    types: dict[str, str] = field(repr=False)


def read_plan(plan: bytes) -> Plan:
    """Read an engine's graph. The bytes must come from ONNX Runtime: the reader does not check them."""
    graph = read_graph(plan)
    made: dict[str, tuple[int, str]] = {}  # depth and label by tensor
    ranked = []
    makers = {name: index for index, node in enumerate(graph.nodes) for name in node.outputs if name}
    waits_for = {i: {makers[n] for n in node.inputs if n in makers} - {i} for i, node in enumerate(graph.nodes)}
    for node in map(graph.nodes.__getitem__, TopologicalSorter(waits_for).static_order()):
        # A label is a digest over the node and the labels of its inputs, so it covers everything before it: graphs with
        # equal labels are equal. Numbers in generated names are ignored.
        sources = [made.get(name, (0, _NUMBER.sub("", name))) for name in node.inputs]
        depth = 1 + max((depth for depth, _ in sources), default=0)
        outputs = [_NUMBER.sub("", name) for name in node.outputs]
        identity = [_NUMBER.sub("", node.scope), node.kernel, node.since_version, list(node.attributes)]
        label = digest([*identity, [label for _, label in sources], outputs])
        made.update((name, (depth, f"{label}:{index}")) for index, name in enumerate(node.outputs))
        ranked.append((depth, label, node))
    # By depth and label: both are independent of the order in the file.
    ranked.sort(key=lambda entry: entry[:2])
    return Plan(
        nodes=tuple(node for _, _, node in ranked),
        depths=tuple(depth for depth, _, _ in ranked),
        signature=digest([label for _, label, _ in ranked]),
        types=graph.types,
    )


def describe(plan: Plan, model: onnx.ModelProto) -> tuple[tuple[Layer, ...], tuple[TacticChoice, ...]]:
    """Return an engine's layers and the tactic of each, both in the model's order.

    A layer is named after its first output tensor, since fused nodes lose their names. Where an optimizer generated
    that tensor, the layer is named after the tensor of the model that an NCHWc kernel replaces, or ``<next tensor of
    the model>~<op>``. So a layer has the same name in every build.

    A tactic is replayable if the layer runs on ONNX Runtime's own CPU kernels, which follow from the model, the
    settings, the release and the processor alone. Other execution providers choose again internally.
    """
    origins = _Origins(plan, model)
    placed = sorted(
        zip(map(origins.position, plan.nodes), plan.depths, map(origins.layer_name, plan.nodes), plan.nodes),
        key=lambda place: place[:2],
    )
    layers, choices = [], []
    used: Counter[str] = Counter()
    for _, _, name, node in placed:
        used[name] += 1
        inputs, outputs = tuple(filter(None, node.inputs)), tuple(filter(None, node.outputs))
        layer = Layer(
            name=name if used[name] == 1 else f"{name}#{used[name]}",
            op=f"{node.domain}.{node.op}" if node.domain else node.op,
            tactic=node.kernel,
            precision=next((plan.types[t] for t in node.outputs if t in plan.types), ""),
            inputs=inputs,
            outputs=outputs,
            onnx_nodes=origins.onnx_nodes(node),
        )
        layers.append(layer)
        choices.append(
            TacticChoice(
                layer=layer.name,
                op=layer.op,
                tactic=layer.tactic,
                inputs=tuple(TensorFormat(dtype=plan.types.get(tensor, "")) for tensor in inputs),
                outputs=tuple(TensorFormat(dtype=plan.types.get(tensor, "")) for tensor in outputs),
                replayable=node.provider == "CPUExecutionProvider",
            )
        )
    return tuple(layers), tuple(choices)


class _Origins:
    """Maps an optimized graph's nodes to the model's nodes.

    A node's *anchor* is the model's tensor that identifies it: names of tensors survive optimization, names of nodes do
    not.
    """

    def __init__(self, plan: Plan, model: onnx.ModelProto) -> None:
        self._producers = {out: node for node in _nodes_with_bodies(model.graph) for out in node.output if out}
        self._positions = {name: index for index, name in enumerate(self._producers)}
        # The NHWC transformer names tensors after the nodes of the model that make them, or begin to: an integer kernel
        # computes the activation function and the rounding as well.
        self._named = {node.name: node.output[0] for node in self._producers.values() if node.output[0]}
        readers: dict[str, list[onnx.NodeProto]] = {}
        for each in self._producers.values():
            for name in each.input:
                readers.setdefault(name, []).append(each)
        self._rounded = {name: _rounded(output, readers) for name, output in self._named.items()}
        self._readers: dict[str, Node] = {}
        for node in plan.nodes:
            for name in node.inputs:
                self._readers.setdefault(name, node)
        self._followers: dict[str, str | None] = {}  # the model's tensor that follows from one of the plan's
        self._anchors = {tensor for node in plan.nodes for tensor in self._anchors_of(node)}

    def layer_name(self, node: Node) -> str:
        anchor = self._anchor(node)
        if anchor is None:
            return node.scope + next(filter(None, node.outputs), node.name)
        # A reordering into blocked channels may have the name of the tensor that it reorders, which is the kernel's
        # name.
        is_anchored = anchor in node.outputs or _NCHWC_NODE.sub("", node.name) == anchor
        stands_alone = is_anchored and not node.op.startswith("Reorder")
        return f"{node.scope}{anchor}" if stands_alone else f"{node.scope}{anchor}~{node.op}"

    def position(self, node: Node) -> int:
        """Return a layer's place in the model's order."""
        anchor = self._anchor(node)
        return len(self._positions) if anchor is None else self._positions[anchor]

    def onnx_nodes(self, node: Node) -> tuple[str, ...]:
        """Return names of the model's nodes between a layer's outputs and its inputs, or other layers' outputs.

        A layer that only precedes its anchor has the node of the anchor: a long chain of such layers has one anchor.
        """
        own = self._anchors_of(node)
        if own and not self._makes(node):
            end = self._producers[own[0]]
            return (end.name or end.output[0],)
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
        """The model's tensors among a layer's outputs; without any, its anchor."""
        named = self._rounded if node.op.startswith("QLinear") else self._named
        names = map(_before_cast, node.outputs)
        real = tuple(name if name in self._producers else named.get(name, "") for name in names)
        real = tuple(filter(None, real))
        anchor = self._anchor(node)
        return real or (() if anchor is None else (anchor,))

    def _makes(self, node: Node) -> bool:
        """Whether a layer makes or replaces a tensor of the model."""
        names = (*map(_before_cast, node.outputs), _before_cast(_NCHWC_NODE.sub("", node.name)))
        return any(name in self._producers or name in self._named for name in names)

    def _anchor(self, node: Node) -> str | None:
        """The model's tensor that a layer makes first, or that it replaces, or that follows from its output."""
        first = next(filter(None, node.outputs), "")
        replaced = _before_cast(_NCHWC_NODE.sub("", node.name))
        if _before_cast(first) not in self._producers and replaced in self._producers:
            return replaced
        passed = []
        while _before_cast(first) not in self._producers and first not in self._followers:
            passed.append(first)
            reader = self._readers.get(first)
            if reader is None or not reader.outputs:
                break
            first = reader.outputs[0]
        own = _before_cast(first)
        found = own if own in self._producers else self._followers.get(first)
        self._followers.update(dict.fromkeys(passed, found))
        return found


def _rounded(name: str, readers: Mapping[str, Sequence[onnx.NodeProto]]) -> str:
    """The 8-bit tensor that follows from a tensor directly or after an activation function; else the tensor itself."""
    end = name
    while len(readers.get(end, ())) == 1 and readers[end][0].op_type in ("Relu", "Clip", "QuantizeLinear"):
        [node] = readers[end]
        end = str(node.output[0])
        if node.op_type == "QuantizeLinear":
            return end
    return name


def _before_cast(name: str) -> str:
    """The tensor whose FP32 value a tensor of an optimized FP16 model is, or the tensor itself."""
    return name.removeprefix("InsertedPrecisionFreeCast_")


def _nodes_with_bodies(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield a graph's nodes, each followed by the nodes of its subgraphs: the order of the layers."""
    for node in graph.node:
        yield node
        for body in walk.subgraphs(node):
            yield from _nodes_with_bodies(body)
