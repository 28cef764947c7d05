"""Capability: which nodes of a model a back end takes, why not the others, and the model in parts that it does take."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from trtops import errors
from trtops.backend.onnx import lint as linting
from trtops.backend.onnx.save import serialize
from trtops.backend.onnx.submodel import Cutter, Declared, Values
from trtops.backend.onnx.walk import node_name
from trtops.backend.trt.build.capability import ask_parser
from trtops.metadata import Shape, TensorMetadata
from trtops.ops.model.opening import Source, Subject, inputs_with_shapes, open_model
from trtops.ops.model.saving import SaveConfig
from trtops.ops.result import OpResult
from trtops.record import Record
from trtops.spec import BackendName
from trtops.tables import table
from trtops.verdict import Verdict

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class CapabilityConfig(Record):
    """What to ask.

    Attributes:
        backend: Who is asked. TensorRT's parser needs no GPU for it.
        partition: Whether to part the model where support ends.
        output_dir: Where to write the parts, as ONNX models; None does not.
        save_as: Where the parts' weights go; files of weights are named after the parts.
        input_shapes: Shapes of inputs, by name, to infer the parts' shapes from.
    """

    backend: BackendName = "tensorrt"
    partition: bool = True
    output_dir: str | None = None
    save_as: SaveConfig = field(default_factory=SaveConfig)
    input_shapes: Mapping[str, Shape] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Refusal(Record):
    """Nodes of one type that are refused for one reason.

    Attributes:
        op: Their type, with its domain.
        reason: What the back end says; empty if it says nothing.
        nodes: Their names.
    """

    op: str
    reason: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Part(Record):
    """A part of the model that is supported, or is not, as a whole; parts run one after the other.

    Attributes:
        supported: Whether it is.
        nodes: Names of its nodes.
        inputs: Tensors that come from parts before it, or are the model's inputs; empty if the parts were not cut.
        outputs: Tensors that it makes for others.
        path: Where it was written.
    """

    supported: bool
    nodes: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    path: str | None = None


@dataclass(frozen=True, kw_only=True)
class CapabilityReport(OpResult):
    """What a back end takes of a model.

    Attributes:
        backend: The back end.
        supported: Whether it takes the whole model.
        nodes: Nodes in the model.
        refused: What it does not take, by type and reason.
        parts: The model in parts; one if it is taken whole, none if that was not asked for.
    """

    backend: BackendName
    supported: bool
    nodes: int
    refused: tuple[Refusal, ...] = ()
    parts: tuple[Part, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """``good`` if the whole model is taken."""
        return "good" if self.supported else "bad"

    def body(self) -> Iterator[str]:
        """The report, as it is in a terminal."""
        yield from ("```", self.text(), "```")

    def text(self) -> str:
        """The report for people."""
        if self.supported:
            return f"{self.backend} takes all {self.nodes} nodes."
        count = sum(len(refusal.nodes) for refusal in self.refused)
        rows = (
            (r.op, str(len(r.nodes)), " ".join(r.reason.split()) or "-", ", ".join(r.nodes[:3])) for r in self.refused
        )
        lines = [
            f"{self.backend} refuses {count} of {self.nodes} nodes.",
            "",
            table(("op", "nodes", "reason", "such as"), rows),
        ]
        if self.parts:
            kept = [part for part in self.parts if part.supported]
            lines += ["", f"{len(self.parts)} parts, {len(kept)} of them supported."]
            lines += [
                f"- {'supported' if p.supported else 'refused'}, {len(p.nodes)} nodes: {p.path or p.nodes[0]}"
                for p in self.parts
            ]
        return "\n".join(lines)


def capability(model: Source, config: CapabilityConfig | None = None) -> CapabilityReport:
    """Ask a back end which nodes of a model it takes.

    Args:
        model: The model, or its path; not changed.
        config: Whom to ask, and what to write.

    Raises:
        ModelError: If the model cannot be used at all.
        BackendUnavailableError: If the back end's library is not installed.
        ConfigError: If a shape is given for no input.
    """
    config = CapabilityConfig() if config is None else config
    opened = open_model(model)
    proto = opened.proto()
    inputs = inputs_with_shapes(TensorMetadata.of(opened.info.inputs), config.input_shapes)
    refused = _refused_nodes(proto, config.backend, inputs)
    parts: tuple[Part, ...] = ()
    if config.partition:
        parts = _cut_parts(proto, refused, config, inputs)
    return CapabilityReport(
        title=f"capability {Subject.of(model)}",
        backend=config.backend,
        supported=not refused,
        nodes=len(proto.graph.node),
        refused=_refusals_by_reason(proto, refused),
        parts=parts,
    )


def _refused_nodes(proto: onnx.ModelProto, backend: BackendName, inputs: TensorMetadata) -> dict[int, str]:
    """What the back end says of the nodes that it does not take, by place in the graph."""
    if backend == "tensorrt":
        cutter = Cutter(proto)
        refused = _refused_by_parser(cutter, None, Declared(proto, inputs))
        return {index: refused[index] for index in sorted(refused)}
    found = [entry for entry in linting.lint(proto).entries if entry.source == "onnxruntime" and len(entry.nodes) == 1]
    # What fails while running on made-up values is no matter of support.
    reasons = {entry.nodes[0]: entry.message for entry in found if entry.level != "exception"}
    return {i: reasons[node_name(node)] for i, node in enumerate(proto.graph.node) if node_name(node) in reasons}


def _refused_by_parser(cutter: Cutter, nodes: Collection[int] | None, values: Values) -> dict[int, str]:
    """As above, of some nodes of a model by themselves, or of all.

    Groups that the parser is not sure of are cut out and asked about, until it is, or nothing gets smaller.
    """
    part = cutter.model if nodes is None else cutter.cut(nodes, values).proto
    wanted = frozenset(cutter.order if nodes is None else nodes)
    answer = ask_parser(serialize(part))
    if answer.supported:
        return {}
    # Cutting keeps the order of nodes, and puts none before them but Constants.
    places = {name: index for index in wanted for name in cutter.makes(index)}
    place = {
        i: places[node.output[0]] for i, node in enumerate(part.graph.node) if node.output and node.output[0] in places
    }
    reasons = {place[i]: reason for i, reason in answer.said.items() if i in place}
    groups = [(frozenset(place[i] for i in group if i in place), certain) for group, certain in answer.subgraphs]
    known = frozenset().union(*(group for group, _ in groups))
    refused = {index: reasons.get(index, "") for index in wanted - known}
    for group, certain in groups:
        if certain or not group:
            continue
        if group == wanted:
            refused.update({index: reasons.get(index, "") for index in group})
            continue
        try:
            refused |= _refused_by_parser(cutter, group, values)
        except errors.InvalidModelError as exc:
            # Behind a plug-in that nobody knows nothing has a type; the parser has its operators all the same.
            log.info("%d nodes could not be asked about by themselves: %s", len(group), exc)
    return refused


def _refusals_by_reason(proto: onnx.ModelProto, refused: Mapping[int, str]) -> tuple[Refusal, ...]:
    groups: dict[tuple[str, str], list[str]] = {}
    for index, reason in refused.items():
        node = proto.graph.node[index]
        op = f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
        groups.setdefault((op, reason), []).append(node_name(node))
    return tuple(Refusal(op=op, reason=reason, nodes=tuple(names)) for (op, reason), names in groups.items())


def _cut_parts(
    proto: onnx.ModelProto, refused: Collection[int], config: CapabilityConfig, inputs: TensorMetadata
) -> tuple[Part, ...]:
    cutter = Cutter(proto)
    values = Declared(proto, inputs) if config.output_dir is not None else None
    parts = []
    for number, nodes in enumerate(segments(cutter, refused)):
        supported = not set(nodes) & set(refused)
        names = tuple(node_name(proto.graph.node[index]) for index in nodes)
        if values is None or config.output_dir is None:
            parts.append(Part(supported=supported, nodes=names))
            continue
        try:
            cut = cutter.cut(nodes, values)
        except errors.InvalidModelError as exc:
            log.warning("Part %d is not written: %s", number, exc)
            parts.append(Part(supported=supported, nodes=names))
            continue
        path = Path(config.output_dir, f"{number:03}_{'supported' if supported else 'refused'}.onnx")
        path.parent.mkdir(parents=True, exist_ok=True)
        cut.save(path, **config.save_as.for_another())
        parts.append(Part(supported=supported, nodes=names, inputs=cut.inputs, outputs=cut.outputs, path=str(path)))
    return tuple(parts)


def segments(cutter: Cutter, refused: Collection[int]) -> list[list[int]]:
    """The nodes in as few parts as a greedy order gives, each all refused or all not, none waiting for one behind it.

    Of the nodes that are ready, all of the kind at hand go into the part before the other kind's turn comes.
    """
    makers = {name: index for index in cutter.order for name in cutter.makes(index)}
    waits = {index: {makers[name] for name in cutter.reads(index) if name in makers} for index in cutter.order}
    together = {index: part for part in cutter.parts for index in part}
    bad = {index for part in cutter.parts if part & set(refused) for index in part}
    done: set[int] = set()
    found: list[list[int]] = []
    remaining = list(cutter.order)
    while remaining:
        kind = remaining[0] in bad
        segment: list[int] = []
        for index in remaining:
            ready = (index in bad) is kind and waits[index] <= done
            if ready:
                segment.append(index)
                done.add(index)
        segment, returned = _whole_sets(segment, together)
        done -= returned
        if not segment:
            return [*found, remaining]
        found.append(segment)
        placed = set(segment)
        remaining = [index for index in remaining if index not in placed]
    return found


def _whole_sets(segment: Sequence[int], together: Mapping[int, frozenset[int]]) -> tuple[list[int], set[int]]:
    """A segment without sets of nodes that are only partly in it, and what was taken out, with what may need it."""
    inside = set(segment)
    for position, index in enumerate(segment):
        if not together[index] <= inside:
            return list(segment[:position]), set(segment[position:])
    return list(segment), set()
