"""The report of lint, and the findings that follow from the graph alone."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Literal, TypeAlias

import onnx
from onnx import TensorProto

from trtops import errors
from trtops.backend.onnx import external, walk
from trtops.backend.onnx.model import raw_bytes
from trtops.record import JSONValue, Record
from trtops.tables import listed, table

# The first IR version in which weights need not be declared as inputs too.
WEIGHTS_NEED_NO_INPUTS = 4

Level: TypeAlias = Literal["exception", "error", "warning"]
# Polygraphy's names of what found a problem; ``onnx_graphsurgeon`` stands for checks of the graph itself.
Source: TypeAlias = Literal["onnx_checker", "onnx_loader", "onnx_graphsurgeon", "onnxruntime"]


@dataclass(frozen=True, kw_only=True)
class LintEntry(Record):
    """One finding."""

    # Errors are problems of the model and nodes that do not load; exceptions are nodes that fail while running.
    level: Level
    source: Source
    message: str
    nodes: tuple[str, ...] = ()  # empty if it concerns the model
    op: str = ""  # the node's type, if it concerns one node


@dataclass(frozen=True, kw_only=True)
class LintReport(Record):
    """All findings about one model, and the names of its nodes by result."""

    passing: tuple[str, ...]  # nodes that ran, or loaded where there were no values to run them on
    failing: tuple[str, ...]
    unchecked: tuple[str, ...]  # custom operators, and nodes whose inputs have unknown types
    entries: tuple[LintEntry, ...]  # first those about the model, then others in order of execution
    unnamed: Mapping[str, int] = field(default_factory=dict)  # places of nodes without a name, by what they are called
    # Shapes of inputs in which the model leaves sizes open, if nodes failed while running on these.
    assumed: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether there are only warnings, and a node was checked if there is one."""
        is_checked = bool(self.passing) or not self.unchecked
        return is_checked and all(entry.level == "warning" for entry in self.entries)

    def text(self) -> str:
        """Return the findings as a table, and the number of passing nodes."""
        counts = f"{len(self.passing)} nodes pass, {len(self.failing)} fail, {len(self.unchecked)} were not checked."
        if not self.entries:
            return counts
        rows = (
            (
                entry.level,
                entry.source,
                (listed(entry.nodes, 3) or "(model)") + (f" ({entry.op})" if entry.op else ""),
                " ".join(entry.message.split()),
            )
            for entry in self.entries
        )
        if self.assumed:
            shapes = ", ".join(f"{name} {shape}" for name, shape in self.assumed.items())
            counts += f"\nThe model leaves sizes open, and nodes ran with 1 for each: {shapes}. Others may pass."
        return f"{table(('level', 'found by', 'nodes', 'finding'), rows)}\n\n{counts}"

    def to_lint_json(self) -> dict[str, JSONValue]:
        """Return the report in Polygraphy's layout, without a level ``error``; both levels are ``exception``.

        A node of an operator that ONNX Runtime does not know is a warning, and counts as passing.
        """
        custom: set[str] = set().union(
            *(entry.nodes for entry in self.entries if entry.level == "warning" and entry.op)
        )

        def named(names: Iterable[str]) -> list[JSONValue]:
            return [f"trtops_unnamed_node_{self.unnamed[n]}" if n in self.unnamed else n for n in names]

        return {
            "summary": {
                "passing": named([*self.passing, *(name for name in self.unchecked if name in custom)]),
                "failing": named(self.failing),
                "unchecked": named(name for name in self.unchecked if name not in custom),
            },
            "lint_entries": [
                {
                    "level": "warning" if entry.level == "warning" else "exception",
                    "source": entry.source,
                    "message": entry.message,
                    **({"nodes": named(entry.nodes)} if entry.nodes else {}),
                }
                for entry in self.entries
            ],
        }


def graph_entry(level: Level, message: str, *nodes: str) -> LintEntry:
    """Return a finding about the graph itself."""
    return LintEntry(level=level, source="onnx_graphsurgeon", message=message, nodes=nodes)


def weight_entries(model: onnx.ModelProto) -> Iterator[LintEntry]:
    """Report weights without data, or with the wrong number of bytes."""
    for tensor in walk.tensors(model):
        message = ""
        if external.is_external(tensor):
            message = f"Tensor {tensor.name!r} has its data in another file, which is not loaded."
        elif external.is_stripped(tensor):
            message = f"Tensor {tensor.name!r} has no data; `trtops surgeon weight-reconstruct` restores it."
        elif tensor.data_type != TensorProto.STRING:
            try:
                raw_bytes(tensor)
            except errors.InvalidModelError as exc:
                message = str(exc)
        if message:
            yield LintEntry(level="error", source="onnx_loader", message=message)


def duplicate_entries(graph: onnx.GraphProto) -> Iterator[LintEntry]:
    """Report nodes that share a name."""
    indices_by_name: dict[str, list[int]] = {}
    for index, node in enumerate(graph.node):
        indices_by_name.setdefault(node.name, []).append(index)
    for name, indices in indices_by_name.items():
        if name and len(indices) > 1:
            yield graph_entry(
                "error", f"Duplicate node name: '{name}' for nodes with topological IDs: {indices} found.", name
            )


def name_entries(graph: onnx.GraphProto, names: list[str]) -> Iterator[LintEntry]:
    """Report tensors defined twice or not at all."""
    if not graph.output:
        yield graph_entry("error", "The model has no outputs.")
    defined = Counter(map(attrgetter("name"), graph.input))
    for tensor in (*graph.initializer, *map(attrgetter("values"), graph.sparse_initializer)):
        defined[tensor.name] = defined[tensor.name] or 1
    defined.update(walk.produced(graph.node))
    for name, node in zip(names, graph.node):
        for output in filter(None, node.output):
            if defined[output] > 1:
                message = f"{walk.label(node)} produces {output!r}, which is defined {defined[output]} times."
                yield graph_entry("error", message, name)
        for used in dict.fromkeys(walk.uses(node)):
            if used not in defined:
                message = f"{walk.label(node)} reads {used!r}, which no node produces. {errors.near(used, defined)}"
                yield graph_entry("error", message.rstrip(), name)
    for value in graph.output:
        if value.name not in defined:
            yield graph_entry("error", f"No node produces output {value.name!r}.")


def unused_entries(
    graph: onnx.GraphProto, names: list[str], weights: Collection[str], ir_version: int
) -> Iterator[LintEntry]:
    """Report inputs, weights and nodes without effect on any output; ``weights`` are inputs by now."""
    makers = walk.makers(graph.node)
    needed: set[str] = set()
    waiting = [*walk.by_name(graph.output)]
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting.extend(walk.uses(makers[name]) if name in makers else ())
    constants = walk.initializer_names(graph).union(weights)
    for value in graph.input:
        if value.name not in needed and value.name not in constants:
            yield graph_entry("warning", f"Input: '{value.name}' does not affect outputs, can be removed.")
    referenced = walk.names_of(graph.input).difference(weights).union(walk.read(graph.node))
    for name in sorted(constants - needed):
        yield graph_entry("warning", f"Weight: '{name}' does not affect outputs, can be removed.")
        if ir_version < WEIGHTS_NEED_NO_INPUTS and name not in referenced:
            message = f"Weight '{name}' is neither used nor an input; ONNX Runtime refuses that before IR version 4."
            yield LintEntry(level="error", source="onnxruntime", message=message)
    for name, node in zip(names, graph.node):
        if needed.isdisjoint(filter(None, node.output)):
            yield graph_entry("warning", "Does not affect outputs, can be removed.", name)
