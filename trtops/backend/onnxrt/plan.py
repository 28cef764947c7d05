"""Describes an engine: its kernels, their layers, and the model's nodes behind them."""

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from graphlib import TopologicalSorter
from itertools import chain
from mmap import mmap
from typing import TypeAlias

import onnx

from trtops.backend.onnx import walk
from trtops.backend.onnxrt.ort_format import Node, Scope, read_graph
from trtops.record import digest
from trtops.spec import Layer
from trtops.tactics.record import TacticChoice, TensorFormat

# The NCHWc transformer renames every tensor it touches, but names its nodes after the tensors they replace.
_NCHWC_NODE = re.compile(r"_nchwc(_token_\d+)?$")

# ONNX Runtime appends this to names that it has used already.
_NUMBER = re.compile(r"_token_\d+(?=$|/)")
_without_number = partial(_NUMBER.sub, "")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The optimized graph of an engine."""

    # Optimizing a model twice the same way gives the same graph, but with nodes in another order and other numbers in
    # generated names. Both are normalized here.

    nodes: tuple[Node, ...]  # its nodes, including those of control flow bodies, each after its inputs' nodes
    depths: tuple[int, ...]  # for each node, the number of nodes on the longest path to it
    signature: str  # SHA-256 over kernels, attributes and connections: equal for engines that run the same code
    scopes: dict[str, Scope] = field(repr=False)  # what each graph defines; indices in it are those of `nodes`


def read_plan(plan: bytes | mmap) -> Plan:
    """Read an engine's graph. The bytes must come from ONNX Runtime: the reader does not check them."""
    graph = read_graph(plan)
    scopes = graph.scopes
    producers: list[list[int | None]] = []
    waits_for: dict[int, set[int]] = {}
    for index, node in enumerate(graph.nodes):
        producers.append(list(map(scopes[node.scope].producer, node.inputs)))
        waits_for[index] = {producer for producer in producers[index] if producer is not None}
    bodies: dict[int, list[Scope]] = defaultdict(list)
    for scope in scopes.values():
        if scope.owner >= 0:
            bodies[scope.owner].append(scope)
            waits_for[scope.owner].update(scope.producers.values())
    depths: dict[int, int] = {}
    labels: dict[int, str] = {}
    for index in TopologicalSorter(waits_for).static_order():
        # A label is a digest over the node, its bodies and the labels of its inputs, so it covers everything before it:
        # graphs with equal labels are equal. Numbers in generated names are ignored.
        node = graph.nodes[index]

        def label_of(name: str, producer: int | None) -> str:
            if producer is None:
                return _without_number(name)
            return f"{labels[producer]}:{graph.nodes[producer].outputs.index(name)}"

        inputs = list(map(label_of, node.inputs, producers[index]))
        outputs = list(map(_without_number, node.outputs))
        identity = [_without_number(node.scope), node.kernel, node.since_version, list(node.attributes)]
        results = []
        for body in bodies[index]:
            results.append([body.attribute, *map(label_of, body.outputs, map(body.producer, body.outputs))])
        depths[index] = 1 + max(map(depths.__getitem__, waits_for[index]), default=0)
        labels[index] = digest([*identity, inputs, outputs, *results])
    # By depth and label: both are independent of the order in the file.
    order = sorted(labels, key=lambda index: (depths[index], labels[index]))
    positions = dict(zip(order, itertools.count()))
    for scope in scopes.values():
        scope.owner = positions.get(scope.owner, -1)
        scope.producers = {name: positions[index] for name, index in scope.producers.items()}
    return Plan(
        nodes=tuple(map(graph.nodes.__getitem__, order)),
        depths=tuple(map(depths.__getitem__, order)),
        signature=digest(list(map(labels.__getitem__, order))),
        scopes=scopes,
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
        key=lambda row: row[:2],
    )
    layers, choices = [], []
    used: Counter[str] = Counter()
    for _, _, name, node in placed:
        used[name] += 1
        inputs, outputs = tuple(filter(None, node.inputs)), tuple(filter(None, node.outputs))
        types = plan.scopes[node.scope].types
        layer = Layer(
            name=name if used[name] == 1 else f"{name}#{used[name]}",
            op=f"{node.domain}.{node.op}" if node.domain else node.op,
            tactic=node.kernel,
            precision=next((types[tensor] for tensor in outputs if tensor in types), ""),
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
                inputs=tuple(TensorFormat(dtype=types.get(tensor, "")) for tensor in inputs),
                outputs=tuple(TensorFormat(dtype=types.get(tensor, "")) for tensor in outputs),
                replayable=node.provider == "CPUExecutionProvider",
            )
        )
    return tuple(layers), tuple(choices)


@dataclass
class _ModelGraph:
    """One graph of the model, with the names it defines."""

    nodes: Sequence[onnx.NodeProto]
    outer: str  # name of the scope around it
    defined: set[str]


_Tensor: TypeAlias = tuple[str, str]
"""A tensor of the model or the plan: the name of the scope that defines it, and its own."""


class _Origins:
    """Maps an optimized graph's nodes to the model's nodes.

    A node's *anchor* is the model's tensor that identifies it: names of tensors survive optimization, names of nodes do
    not. Bodies have the same scopes in the plan as in the model. A tensor of an inlined body is found if its name is
    unique in the model.
    """

    def __init__(self, plan: Plan, model: onnx.ModelProto) -> None:
        self._plan = plan
        self._graphs: dict[str, _ModelGraph] = {}
        self._producers: dict[_Tensor, onnx.NodeProto] = {}
        # The NHWC transformer names tensors after the nodes of the model that make them, or begin to: an integer kernel
        # computes the activation function and the rounding as well.
        self._named: dict[_Tensor, _Tensor] = {}
        self._unique: dict[str, _Tensor | None] = {}
        self._add_graph(model.graph, "", "")
        self._positions = dict(zip(self._producers, itertools.count()))
        model_readers: dict[_Tensor, list[tuple[str, onnx.NodeProto]]] = defaultdict(list)
        for name, graph in self._graphs.items():
            for node in graph.nodes:
                for tensor in filter(None, map(partial(self._find, name), node.input)):
                    model_readers[tensor].append((name, node))
        self._rounded = {name: _rounded(output, model_readers) for name, output in self._named.items()}
        self._readers: dict[_Tensor, Node] = {}
        for reader in plan.nodes:
            for name in filter(None, reader.inputs):
                self._readers.setdefault(self._plan_tensor(reader.scope, name), reader)
        self._followers: dict[_Tensor, _Tensor | None] = {}  # the model's tensor that follows from one of the plan's
        self._anchors = set(chain.from_iterable(map(self._anchors_of, plan.nodes)))

    def _add_graph(self, graph: onnx.GraphProto, scope: str, outer: str) -> None:
        """Add a graph's tensors, each node's followed by those of its bodies: the order of the layers."""
        self._graphs[scope] = _ModelGraph(graph.node, outer, walk.defined(graph))
        for node in graph.node:
            outputs = [(scope, name) for name in node.output if name]
            self._producers.update(dict.fromkeys(outputs, node))
            if node.name and node.output and node.output[0]:
                self._named[scope, node.name] = (scope, node.output[0])
            for _, name in outputs:
                self._unique[name] = None if name in self._unique else (scope, name)
            for attribute, body in walk.named_bodies(node):
                self._add_graph(body, walk.body_scope(scope, node.name, node.output, attribute), scope)

    def _find(self, scope: str, name: str) -> _Tensor | None:
        """Return the model's tensor for a name in one of its graphs, if a node makes it."""
        while scope and (scope not in self._graphs or name not in self._graphs[scope].defined):
            scope = self._graphs[scope].outer if scope in self._graphs else ""
        if (scope, name) in self._producers:
            return scope, name
        return None if name in self._graphs[scope].defined else self._unique.get(name)

    def _plan_tensor(self, scope: str, name: str) -> _Tensor:
        producer = self._plan.scopes[scope].producer(name)
        return scope if producer is None else self._plan.nodes[producer].scope, name

    def layer_name(self, node: Node) -> str:
        anchor = self._anchor(node)
        if anchor is None:
            return node.scope + next(filter(None, node.outputs), node.name)
        # A reordering into blocked channels may have the name of the tensor that it reorders, which is the kernel's
        # name.
        name = anchor[1]
        is_anchored = name in node.outputs or _NCHWC_NODE.sub("", node.name) == name
        stands_alone = is_anchored and not node.op.startswith("Reorder")
        return f"{node.scope}{name}" if stands_alone else f"{node.scope}{name}~{node.op}"

    def position(self, node: Node) -> int:
        """Return a layer's place in the model's order."""
        anchor = self._anchor(node)
        return len(self._positions) if anchor is None else self._positions[anchor]

    def onnx_nodes(self, node: Node) -> tuple[str, ...]:
        """Return names of the model's nodes between a layer's outputs and its inputs, or other layers' outputs.

        A layer that only precedes its anchor has the node of the anchor: a long chain of such layers has one anchor.
        """
        anchors = self._anchors_of(node)
        if anchors and not self._makes(node):
            return (walk.node_name(self._producers[anchors[0]]),)
        inputs = filter(None, map(partial(self._find, node.scope), node.inputs))
        pending, seen = list(anchors), {*anchors, *inputs}
        names: dict[str, None] = {}
        while pending:
            tensor = pending.pop()
            producer = self._producers[tensor]
            names[walk.node_name(producer)] = None
            sources = filter(None, map(partial(self._find, tensor[0]), producer.input))
            fresh = [source for source in sources if source not in self._anchors and source not in seen]
            pending += fresh
            seen.update(fresh)
        return tuple(reversed(names))

    def _anchors_of(self, node: Node) -> tuple[_Tensor, ...]:
        """The model's tensors among a layer's outputs; without any, its anchor."""
        named = self._rounded if node.op.startswith("QLinear") else self._named
        tensors = []
        for name in map(_before_cast, node.outputs):
            tensor = self._find(node.scope, name) or named.get((node.scope, name))
            if tensor is not None:
                tensors.append(tensor)
        anchor = None if tensors else self._anchor(node)
        return tuple(tensors) if anchor is None else (anchor,)

    def _makes(self, node: Node) -> bool:
        """Whether a layer makes or replaces a tensor of the model."""
        for name in map(_before_cast, (*node.outputs, _NCHWC_NODE.sub("", node.name))):
            if self._find(node.scope, name) or (node.scope, name) in self._named:
                return True
        return False

    def _anchor(self, node: Node) -> _Tensor | None:
        """Return the model's tensor made first by a layer, replaced by it, or following from its output."""
        first = next(filter(None, node.outputs), "")
        anchor = self._find(node.scope, _before_cast(first))
        anchor = anchor or self._find(node.scope, _before_cast(_NCHWC_NODE.sub("", node.name)))
        tensor = self._plan_tensor(node.scope, first)
        passed = []
        while anchor is None and tensor not in self._followers:
            passed.append(tensor)
            self._followers[tensor] = None
            reader = self._readers.get(tensor)
            if reader is None or not reader.outputs:
                break
            tensor = self._plan_tensor(reader.scope, reader.outputs[0])
            anchor = self._find(reader.scope, _before_cast(tensor[1]))
        anchor = anchor or self._followers.get(tensor)
        self._followers.update(dict.fromkeys(passed, anchor))
        return anchor


def _rounded(tensor: _Tensor, readers: Mapping[_Tensor, Sequence[tuple[str, onnx.NodeProto]]]) -> _Tensor:
    """Return the 8-bit tensor after a tensor, possibly behind an activation function; else the tensor itself."""
    end = tensor
    while len(readers.get(end, ())) == 1 and readers[end][0][1].op_type in ("Relu", "Clip", "QuantizeLinear"):
        [(scope, node)] = readers[end]
        end = scope, node.output[0]
        if node.op_type == "QuantizeLinear":
            return end
    return tensor


def _before_cast(name: str) -> str:
    """Return the 16-bit source of an inserted Cast to FP32, or the tensor itself."""
    return name.removeprefix("InsertedPrecisionFreeCast_")
