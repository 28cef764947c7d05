"""Capability: find the nodes supported by a back end, the reasons against the others, and the supported parts."""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from trtops import errors
from trtops.backend.onnx import lint as linting
from trtops.backend.onnx.save import save_model, serialize
from trtops.backend.onnx.submodel import Cutter, Declared, Values
from trtops.backend.onnx.walk import node_name
from trtops.backend.trt.building.network import ask_parser
from trtops.metadata import Shape, TensorMetadata
from trtops.ops.arguments import checked_arguments
from trtops.ops.model.model_files import SaveConfig, Source, inputs_with_shapes, open_model
from trtops.record import Record
from trtops.spec import BackendName

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Refusal(Record):
    """Nodes of one type refused for one reason."""

    op: str  # with its domain
    reason: str  # the back end's message; may be empty
    nodes: tuple[str, ...]
    positions: tuple[int, ...]  # of the nodes in the model


@dataclass(frozen=True, kw_only=True)
class Part(Record):
    """A part of the model, supported or refused as a whole, and its file; parts run one after the other."""

    supported: bool
    nodes: tuple[str, ...]
    path: str | None = None


@dataclass(frozen=True, kw_only=True)
class CapabilityReport(Record):
    """The result of a capability check; ``parts`` are empty if they were not requested."""

    backend: BackendName
    nodes: int
    refused: tuple[Refusal, ...] = ()
    parts: tuple[Part, ...] = ()

    @property
    def supported(self) -> bool:
        """Whether the whole model is supported."""
        return not self.refused

    def text(self) -> str:
        """The report, for a terminal: Polygraphy's summary, then what it does not print."""
        name = "TensorRT" if self.backend == "tensorrt" else "ONNX Runtime"
        if self.supported:
            omitted = "generate subgraphs" if self.parts else "report errors"
            return f"Graph is fully supported by {name}; Will not {omitted}.\n{name} supports all {self.nodes} nodes."
        count = sum(len(refusal.nodes) for refusal in self.refused)
        lines = ["===== Summary =====", *self._summary(), "", f"{name} refuses {count} of {self.nodes} nodes."]
        if self.parts:
            lines += ["", f"{len(self.parts)} parts, {sum(part.supported for part in self.parts)} of them supported."]
        for part in self.parts:
            outcome = "supported" if part.supported else "refused"
            lines.append(f"- {outcome}, {len(part.nodes)} nodes: {part.path or part.nodes[0]}")
        return "\n".join(lines)

    def _summary(self) -> Iterator[str]:
        """Polygraphy's table: by type and reason with ranges of nodes, or without parts by node."""
        reasons = [" ".join(refusal.reason.split()) or "UNKNOWN ERROR" for refusal in self.refused]
        op_width = max(len("Operator "), *(len(refusal.op) for refusal in self.refused))
        reason_width = max(map(len, reasons))
        if self.parts:
            header = f"{'Operator':{op_width}}| {'Count':7} | {'Reason':{reason_width}} | Nodes"
            yield from (header, "-" * (len(header) + 1))
            for refusal, reason in zip(self.refused, reasons):
                ranges = [[position, position + 1] for position in refusal.positions]
                yield f"{refusal.op:{op_width}}| {len(ranges):7} | {reason:{reason_width}} | {ranges}"
            return
        node_width = max(len("Node "), *(len(node) for refusal in self.refused for node in refusal.nodes))
        header = f"{'Operator':{op_width}} | {'Node':{node_width}} | {'Reason':{reason_width}}"
        yield from (f"Stack trace  | {header}", "-" * (len(header) + 16))
        for refusal, reason in zip(self.refused, reasons):
            for node in refusal.nodes:
                yield f"{'':12} | {refusal.op:{op_width}} | {node:{node_width}} | {reason:{reason_width}}"


@checked_arguments
def capability(
    model: Source,
    backend: BackendName = "tensorrt",
    *,
    input_shapes: Mapping[str, Shape] | None = None,
    partition: bool = True,
    output_dir: str | Path | None = None,
    save_as: SaveConfig | None = None,
) -> CapabilityReport:
    """Check the support of a model's nodes by a back end. TensorRT's parser needs no GPU.

    ``partition`` divides the model into supported and refused parts, which are written to ``output_dir`` as ONNX models
    if it is given and some nodes are refused. Shapes of inputs, by name, are needed to infer those of the parts.
    BackendUnavailableError if the back end's library is not installed; ConfigError if there is no input with the name
    of a shape.

    >>> print(capability("model.onnx", "onnxruntime").text())
    Graph is fully supported by ONNX Runtime; Will not generate subgraphs.
    ONNX Runtime supports all 9 nodes.
    """
    opened = open_model(model)
    proto = opened.proto()
    nodes = proto.graph.node
    inputs = inputs_with_shapes(TensorMetadata.of(opened.info.inputs), input_shapes or {})
    if backend == "tensorrt":
        refused = dict(sorted(_refused_by_parser(Cutter(proto), None, Declared(proto, inputs)).items()))
    else:
        reasons = dict[str, str]()
        for entry in linting.lint(proto).entries:
            # A node that fails while running on random values is supported. Warnings without a type of nodes are about
            # those that were not checked.
            if entry.source == "onnxruntime" and (entry.level == "error" or (entry.level == "warning" and entry.op)):
                reasons |= dict.fromkeys(entry.nodes, entry.message)
        refused = {i: reasons[node_name(node)] for i, node in enumerate(nodes) if node_name(node) in reasons}
    groups: dict[tuple[str, str], list[int]] = {}
    for index, reason in refused.items():
        node = nodes[index]
        op = f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
        groups.setdefault((op, reason), []).append(index)
    parts = []
    if partition:
        cutter = Cutter(proto)
        values = Declared(proto, inputs) if output_dir is not None and refused else None
        for members in segments(cutter, refused):
            supported, path = refused.keys().isdisjoint(members), None
            if values is not None and output_dir is not None:
                kind, first, last = "supported" if supported else "unsupported", min(members), max(members)
                path = Path(output_dir, f"{kind}_subgraph-nodes-{first}-{last}.onnx")
                try:
                    part = cutter.cut(members, values).proto
                except errors.InvalidModelError as exc:
                    log.warning("%s is not written: %s", path, exc)
                    path = None
                else:
                    save_model(part, path, **(save_as or SaveConfig()).for_another())
            names = tuple(node_name(nodes[index]) for index in members)
            parts.append(Part(supported=supported, nodes=names, path=None if path is None else str(path)))
    refusals = []
    for (op, reason), indices in groups.items():
        names = tuple(node_name(nodes[index]) for index in indices)
        refusals.append(Refusal(op=op, reason=reason, nodes=names, positions=tuple(indices)))
    return CapabilityReport(
        backend=backend,
        nodes=len(nodes),
        refused=tuple(refusals),
        parts=tuple(parts),
    )


def _refused_by_parser(cutter: Cutter, nodes: Collection[int] | None, values: Values) -> dict[int, str]:
    """The parser's messages about refused nodes, by index; for some nodes by themselves, or for all."""
    part = cutter.model if nodes is None else cutter.cut(nodes, values).proto
    asked_nodes = frozenset(cutter.order if nodes is None else nodes)
    supported, subgraphs, messages = ask_parser(serialize(part))
    if supported:
        return {}
    # The nodes of the part are in another place than in the whole model.
    makers = _makers(cutter, asked_nodes)
    original_index = {}
    for number, node in enumerate(part.graph.node):
        if node.output and node.output[0] in makers:
            original_index[number] = makers[node.output[0]]
    reasons = {original_index[number]: reason for number, reason in messages.items() if number in original_index}
    groups = []
    for numbers, certain in subgraphs:
        groups.append((frozenset(map(original_index.__getitem__, original_index.keys() & numbers)), certain))
    grouped_nodes = frozenset().union(*(group for group, _ in groups))
    refused = {index: reasons.get(index, "") for index in asked_nodes - grouped_nodes}
    # Groups about which the parser is not certain are cut out and checked again, until it is or nothing gets smaller.
    for group, certain in groups:
        if certain or not group:
            continue
        if group == asked_nodes:
            for index in group:
                refused[index] = reasons.get(index, "")
            continue
        try:
            refused |= _refused_by_parser(cutter, group, values)
        except errors.InvalidModelError as exc:
            # After an unknown plug-in no tensor has a type, but the parser has the operators all the same.
            log.info("%d nodes could not be checked by themselves: %s", len(group), exc)
    return refused


def _makers(cutter: Cutter, nodes: Iterable[int]) -> dict[str, int]:
    makers: dict[str, int] = {}
    for index in nodes:
        makers |= dict.fromkeys(cutter.makes(index), index)
    return makers


def segments(cutter: Cutter, refused: Collection[int]) -> list[list[int]]:
    """The nodes in few parts in order of execution, each entirely refused or entirely supported."""
    makers = _makers(cutter, cutter.order)
    waits: dict[int, set[int]] = {}
    for index in cutter.order:
        waits[index] = {makers[name] for name in cutter.reads(index) if name in makers}
    together: dict[int, frozenset[int]] = {}
    bad: set[int] = set()
    for part in cutter.parts:
        together |= dict.fromkeys(part, part)
        if not part.isdisjoint(refused):
            bad |= part
    done: set[int] = set()
    complete: list[list[int]] = []
    remaining = list(cutter.order)
    # Greedy: all ready nodes of the present kind go into a part before the other kind follows.
    while remaining:
        kind = remaining[0] in bad
        segment: list[int] = []
        for index in remaining:
            if (index in bad) is kind and waits[index] <= done:
                segment.append(index)
                done.add(index)
        # The segment ends before the first node whose part is incomplete.
        whole = next((i for i, index in enumerate(segment) if not together[index] <= set(segment)), len(segment))
        done -= set(segment[whole:])
        segment = segment[:whole]
        if not segment:
            return [*complete, remaining]
        complete.append(segment)
        remaining = [index for index in remaining if index not in set(segment)]
    return complete
