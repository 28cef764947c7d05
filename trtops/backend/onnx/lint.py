"""What is wrong with a model, node by node, all roots in one go.

A model that ONNX's checker has nothing against, and that ONNX Runtime loads and runs whole, is fine. One that it does not is run node by node: each node gets the
values that the nodes before it made. Nodes behind one that fails have no values to run on. They are run on zeros where
the shapes of what they read are known and no value can make them fail, and loaded with what is known of types and shapes
elsewhere: what the model declares, what can be inferred, and what nodes imply. So roots behind other roots are found, and
no node is blamed for what another did.
"""

from __future__ import annotations

import logging
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from trtops import errors
from trtops.backend.onnx import checker, external, implied, stand_ins, walk, with_onnxruntime
from trtops.backend.onnx.bare import Bare
from trtops.backend.onnx.copying import copy_of
from trtops.backend.onnx.messages import GraphProto, TensorProto, ValueInfoProto
from trtops.backend.onnx.model import Model, data_type, raw_bytes
from trtops.backend.onnx.rewriting import set_shape
from trtops.record import JSONValue, Record

if TYPE_CHECKING:
    import onnx

log = logging.getLogger(__name__)

_SHAPE_BYTES = 1024
_MOST_ELEMENTS = 1 << 26
_WEIGHTS_ALONE = 4  # the IR version from which on weights need not be inputs too
_MOST_BYTES = (1 << 31) - (1 << 20)  # a larger message is no protobuf

Level: TypeAlias = Literal["exception", "error", "warning"]
Source: TypeAlias = Literal["onnx_checker", "onnx_loader", "onnx_graphsurgeon", "onnxruntime"]
"""Who says so, by Polygraphy's words: ``onnx_graphsurgeon`` is what shows in the graph itself."""

_FOR_ACCELERATORS = {
    TensorProto.BFLOAT16: "bfloat16",
    TensorProto.FLOAT8E4M3FN: "float8e4m3fn",
    TensorProto.FLOAT8E5M2: "float8e5m2",
}
"""Types for which ONNX Runtime has hardly a kernel on a processor: a model in them is none the worse for it."""

_KNOWN_DOMAINS = frozenset(
    {"", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training", "com.microsoft"}
)


@dataclass(frozen=True, kw_only=True)
class LintEntry(Record):
    """One finding.

    Attributes:
        level: ``error`` for what is wrong with the model or cannot be loaded, ``exception`` for what fails when it
            runs, ``warning`` for what may be intended.
        source: Who says so.
        message: What was found.
        nodes: Names of the nodes that it is about; empty if it is about the model.
        op: The type of the node, if it is about one.
    """

    level: Level
    source: Source
    message: str
    nodes: tuple[str, ...] = ()
    op: str = ""


@dataclass(frozen=True, kw_only=True)
class LintReport(Record):
    """All findings of one model.

    Attributes:
        passing: Names of the nodes that ran, or loaded where there was nothing to run them on.
        failing: Names of the nodes that did not, each for a reason of its own.
        unchecked: Names of the nodes that could not be tried: custom operators, and nodes whose inputs nobody knows.
        entries: The findings, first about the model, then in order of execution.
    """

    passing: tuple[str, ...]
    failing: tuple[str, ...]
    unchecked: tuple[str, ...]
    entries: tuple[LintEntry, ...]

    @property
    def ok(self) -> bool:
        """Whether there is nothing worse than a warning."""
        return all(entry.level == "warning" for entry in self.entries)

    def to_lint_json(self) -> dict[str, JSONValue]:
        """The report as Polygraphy writes it, with further fields: ``unchecked``, and of each entry ``kind`` and ``op``.

        Polygraphy has no level ``error``, which is ``exception`` there; ``kind`` tells them apart. A node of an operator
        that ONNX Runtime does not know is a warning, and counts as passing.
        """
        custom = {name for entry in self.entries if entry.level == "warning" and entry.op for name in entry.nodes}
        passing = dict.fromkeys([*self.passing, *(name for name in self.unchecked if name in custom)])
        return {
            "summary": {
                "passing": list(passing),
                "failing": list(self.failing),
                "unchecked": list(self.unchecked),
            },
            "lint_entries": [
                {
                    "level": "warning" if entry.level == "warning" else "exception",
                    "source": entry.source,
                    "message": entry.message,
                    **({"nodes": list(entry.nodes)} if entry.nodes else {}),
                    "kind": entry.level,
                    **({"op": entry.op} if entry.op else {}),
                }
                for entry in self.entries
            ],
        }


def lint(
    model: onnx.ModelProto | Model | Bare, feed: Mapping[str, Any] | None = None, *, path: str | Path | None = None
) -> LintReport:
    """Check a model.

    Args:
        model: The model, with all its weights, or without those whose values cannot matter to what is found
            (:func:`trtops.backend.onnx.stand_ins.suffice`); not changed. It need not be valid.
        feed: Arrays by input name, for inputs whose values matter; random numbers in [0, 1), ones and True are made
            up for others, with 1 for each dynamic dimension.
        path: The file that the model is in, for ONNX Runtime to read by itself; saves time, and lets it run models
            beyond 2 GiB.

    Raises:
        ExternalDataError: If a :class:`Model` is given and its external data is gone.
    """
    bare = model if isinstance(model, Bare) else Bare(model.proto() if isinstance(model, Model) else model)
    proto = bare.model
    if not proto.graph.node:
        empty = LintEntry(level="warning", source="onnx_loader", message="ONNX model has no nodes")
        return LintReport(passing=(), failing=(), unchecked=(), entries=(empty,))
    names = _node_names(proto.graph)
    fatal = [*_circle_entries(proto.graph), *_weight_entries(bare)]
    wrong = [*_duplicate_entries(proto.graph), *_checker_entries(bare, fatal)]
    entries = [*fatal, *wrong, *_name_entries(proto.graph), *_unused_entries(proto.graph, proto.ir_version)]
    if fatal:
        return LintReport(passing=(), failing=(), unchecked=tuple(names), entries=tuple(entries))
    broken = {name for entry in entries if entry.level == "error" and entry not in wrong for name in entry.nodes}
    run = _Run(bare, dict(feed or {}), names, path)
    if any(entry.level == "error" for entry in entries) or not run.whole():
        run.node_by_node(broken)
    if run.refusal and not any(entry.level == "error" for entry in entries) and not run.entries:
        # Each node is fine by itself, and the model is refused all the same.
        entries.append(LintEntry(level="error", source="onnxruntime", message=run.refusal))
    untried = run.unchecked | run.custom
    found = (*wrong, *run.entries)
    failing = broken | {name for entry in found if entry.level != "warning" for name in entry.nodes}
    return LintReport(
        passing=tuple(name for name in dict.fromkeys(names) if name not in failing and name not in untried),
        failing=tuple(name for name in dict.fromkeys(names) if name in failing),
        unchecked=tuple(name for name in dict.fromkeys(names) if name in untried and name not in failing),
        entries=(*entries, *run.entries),
    )


def _node_names(graph: onnx.GraphProto) -> list[str]:
    """A name for each node, in order: its own, or its first output's, or its number."""
    return [walk.node_name(node) or f"node {i}" for i, node in enumerate(graph.node)]


def _duplicate_entries(graph: onnx.GraphProto) -> Iterator[LintEntry]:
    """Names that several nodes have."""
    places: dict[str, list[int]] = {}
    for place, node in enumerate(graph.node):
        places.setdefault(node.name, []).append(place)
    for name, found in places.items():
        if name and len(found) > 1:
            message = f"Duplicate node name: '{name}' for nodes with topological IDs: {found} found."
            yield LintEntry(level="error", source="onnx_graphsurgeon", message=message, nodes=(name,))


def _checker_entries(bare: Bare, fatal: list[LintEntry]) -> Iterator[LintEntry]:
    """What ONNX's checker has against the model as a whole; it is not asked where that is known to be wrong already."""
    if fatal or bare.model.ByteSize() >= _MOST_BYTES:
        return
    if message := checker.complaint(bare.model, bare.left_out):
        yield LintEntry(level="error", source="onnx_checker", message=message)


def _circle_entries(graph: onnx.GraphProto) -> Iterator[LintEntry]:
    try:
        walk.execution_order(graph.node)
    except errors.InvalidModelError as exc:
        yield LintEntry(level="error", source="onnx_graphsurgeon", message=str(exc))


def _weight_entries(bare: Bare) -> Iterator[LintEntry]:
    for tensor in bare.tensors():
        if external.is_external(tensor):
            message = f"Tensor {tensor.name!r} has its data in another file, which is not loaded."
            yield LintEntry(level="error", source="onnx_loader", message=message)
            continue
        try:
            if tensor.data_type != TensorProto.STRING:
                raw_bytes(tensor)
        except errors.InvalidModelError as exc:
            yield LintEntry(level="error", source="onnx_loader", message=str(exc))


def _name_entries(graph: onnx.GraphProto) -> Iterator[LintEntry]:
    """Names that are defined twice, or not at all."""
    if not graph.output:
        yield LintEntry(level="error", source="onnx_graphsurgeon", message="The model has no outputs.")
    names = _node_names(graph)
    defined = Counter(value.name for value in graph.input)
    constants = [t.name for t in graph.initializer] + [s.values.name for s in graph.sparse_initializer]
    defined.update(name for name in dict.fromkeys(constants) if name not in defined)  # in order: messages show some
    defined.update(name for node in graph.node for name in node.output if name)
    for name, node in zip(names, graph.node):
        for output in filter(None, node.output):
            if defined[output] > 1:
                message = f"{walk.label(node)} makes {output!r}, which is defined {defined[output]} times."
                yield LintEntry(level="error", source="onnx_graphsurgeon", message=message, nodes=(name,))
        for used in dict.fromkeys(walk.uses(node)):
            if used not in defined:
                message = f"{walk.label(node)} reads {used!r}, which nothing makes. {errors.near(used, defined)}"
                yield LintEntry(level="error", source="onnx_graphsurgeon", message=message.rstrip(), nodes=(name,))
    for value in graph.output:
        if value.name not in defined:
            yield LintEntry(
                level="error", source="onnx_graphsurgeon", message=f"Output {value.name!r} is made by nothing."
            )


def _unused_entries(graph: onnx.GraphProto, ir_version: int) -> Iterator[LintEntry]:
    """What no output needs, also by way of others; it costs space, and may be a mistake."""
    used = _needed_names(graph)
    constants = walk.initializer_names(graph)
    for value in graph.input:
        if value.name not in used and value.name not in constants:
            message = f"Input: '{value.name}' does not affect outputs, can be removed."
            yield LintEntry(level="warning", source="onnx_graphsurgeon", message=message)
    known = {*(value.name for value in graph.input), *(name for node in graph.node for name in walk.uses(node))}
    for name in sorted(constants - used):
        message = f"Weight: '{name}' does not affect outputs, can be removed."
        yield LintEntry(level="warning", source="onnx_graphsurgeon", message=message)
        if ir_version < _WEIGHTS_ALONE and name not in known:
            message = f"Weight '{name}' is neither used nor an input; ONNX Runtime refuses such models of IR version {ir_version}."
            yield LintEntry(level="error", source="onnxruntime", message=message)
    message = "Does not affect outputs, can be removed."
    for name, node in zip(_node_names(graph), graph.node):
        if used.isdisjoint(filter(None, node.output)):
            yield LintEntry(level="warning", source="onnx_graphsurgeon", message=message, nodes=(name,))


def _needed_names(graph: onnx.GraphProto) -> set[str]:
    """Names of all tensors that some output depends on, outputs included."""
    makers = {output: node for node in graph.node for output in node.output if output}
    needed: set[str] = set()
    waiting = [value.name for value in graph.output]
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting.extend(walk.uses(makers[name]) if name in makers else ())
    return needed


def _weight_values(tensor: onnx.TensorProto) -> Any:
    """A weight's values; None if its type is unknown."""
    from onnx import numpy_helper

    try:
        return numpy_helper.to_array(tensor)
    except (ValueError, TypeError, KeyError):
        return None


def _with_inputs(model: onnx.ModelProto, weights: Mapping[str, Any]) -> onnx.ModelProto:
    """A model whose initializers of these names are inputs."""
    copy = copy_of(model)
    del copy.graph.initializer[:]
    declared = {value.name for value in model.graph.input}
    for tensor in model.graph.initializer:
        if tensor.name not in weights:
            copy.graph.initializer.append(tensor)
        elif tensor.name not in declared:
            tensor_type = copy.graph.input.add(name=tensor.name).type.tensor_type
            tensor_type.elem_type = tensor.data_type
            set_shape(tensor_type, tensor.dims)
    return copy


_STATUS = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")
_LOADING = re.compile(r"Load model from .*? failed:")  # of a file, and not of a model handed over in memory
_PREFIXES = ("This is an invalid model. ", "Error: ", "Failed to load model with error: ", "Exception caught: ", "Exception during loading: ")  # fmt: skip


def _pruned(text: str) -> str:
    """What ONNX Runtime complains of, in one line, without what all its complaints begin with."""
    if not _STATUS.match(text):
        return text
    text = _LOADING.sub("", _STATUS.sub("", text), count=1).replace('"', "`")
    for prefix in _PREFIXES:
        text = text.replace(prefix, "")
    return " ".join(text.split())


class _Run:
    """One model being run, whole or node by node."""

    def __init__(self, bare: Bare, feed: dict[str, Any], names: list[str], path: str | Path | None = None) -> None:
        self.model = bare.model
        self.left_out = stand_ins.zeros([t for t in bare.model.graph.initializer if t.name in bare.left_out])
        self.path = path
        self.feed = feed
        self.names = names
        self.entries: list[LintEntry] = []
        self.unchecked: set[str] = set()
        self.custom: set[str] = set()
        self.refusal = ""  # what ONNX Runtime has against the whole model
        self.declared: dict[str, onnx.ValueInfoProto] = {}
        self.sparse = {sparse.values.name: sparse for sparse in bare.model.graph.sparse_initializer}
        self.made_up: set[str] = set()  # tensors whose values depend on zeros in place of what a node did not make
        self.opsets = walk.opsets(bare.model)

    def whole(self) -> bool:
        """Run the whole model; True if that worked."""
        source = self._whole_source()
        if source is None:
            return False
        constants = walk.initializer_names(self.model.graph)
        inputs = {v.name: self._input_array(v) for v in self.model.graph.input if v.name not in constants}
        if any(array is None for array in inputs.values()):
            return False
        try:
            with_onnxruntime.evaluate(source, [v.name for v in self.model.graph.output], {**inputs, **self.left_out})
        except errors.InferenceError as exc:
            log.info("The model does not run whole: %s", exc)
            self.refusal = _pruned(str(exc.__cause__ or exc)) if "cannot load" in str(exc) else ""
            return False
        return True

    def _whole_source(self) -> onnx.ModelProto | str | None:
        """What ONNX Runtime is to load; None if it cannot.

        Weights that were left out are inputs: it copies other weights, even those that are handed to it in memory.
        """
        if self.left_out:
            return _with_inputs(self.model, self.left_out)
        if self.path is not None:
            return str(self.path)
        from trtops.backend.onnx.save import PROTOBUF_LIMIT, model_bytes

        return self.model if model_bytes(self.model) < PROTOBUF_LIMIT else None

    def node_by_node(self, broken: set[str]) -> None:
        """Run each node by itself, but those that are known to be broken."""
        from trtops.backend.onnx import shapes

        inferred = copy_of(self.model)
        graph = inferred.graph
        values: dict[str, Any] = {t.name: _weight_values(t) for t in graph.initializer if t.name not in self.left_out}
        values.update(self.left_out)
        values.update((v.name, self._input_array(v)) for v in graph.input if v.name not in values)
        for value in graph.input:
            if isinstance(values[value.name], np.ndarray) and value.type.HasField("tensor_type"):
                set_shape(value.type.tensor_type, values[value.name].shape)
        try:
            shapes.infer_shapes(inferred)
        except errors.InvalidModelError as exc:
            log.info("%s", exc)
        self.declared = shapes.values(graph)
        order = walk.execution_order(graph.node)
        last_reader = {name: i for i in order for name in walk.uses(graph.node[i])}
        for i in order:
            node, name = graph.node[i], self.names[i]
            made = None if name in broken else self._try_node(node, name, values)
            if made is None:
                self._assume_outputs(node, values)
            else:
                values.update(zip(filter(None, node.output), made))
            for used in walk.uses(node):
                if last_reader[used] == i:
                    values.pop(used, None)  # or the values of all tensors would be in memory at once
        behind = tuple(name for name in self.names if name in self.unchecked)
        if behind:
            message = f"{len(behind)} nodes were not checked: nothing is known of what they read. Shapes in the model would help."
            self.entries.append(LintEntry(level="warning", source="onnxruntime", message=message, nodes=behind))

    def _try_node(self, node: onnx.NodeProto, name: str, values: Mapping[str, Any]) -> list[Any] | None:
        """What a node makes, without the outputs that are left out; None if it fails or cannot be run."""
        used = [name for name in dict.fromkeys(walk.uses(node)) if name not in self.sparse]
        if any(values.get(n) is None and not self._is_typed(n) for n in used):
            self.unchecked.add(name)
            return None
        made = [output for output in node.output if output]
        runs = all(values.get(n) is not None for n in used) and all(map(self._is_native, [*used, *made]))
        try:
            if not runs or not self._cannot_fail_by_values(node, used, values):
                self._note_implied(implied.load_node(self._model_of_node(node, used, values, run=False)).graph)
                return None
            feed = {n: values[n] for n in used}
            results = list(with_onnxruntime.evaluate(self._model_of_node(node, used, values, run=True), made, feed))
        except errors.InferenceError as exc:
            self._note_failure(node, name, exc)
            return None
        if not self.made_up.isdisjoint(used) and node.op_type not in stand_ins.ONLY_OF_SHAPES:
            self.made_up.update(made)
        return results

    def _cannot_fail_by_values(self, node: onnx.NodeProto, used: list[str], values: Mapping[str, Any]) -> bool:
        """Whether no values can make a node fail, or those that it reads are all real and not made up."""
        if self.made_up.isdisjoint(used):
            return True
        integers = {name for name in used if values[name].dtype.kind != "f"}
        return stand_ins.own_operators_are_known(self.model) and stand_ins.cannot_fail(node, self.made_up, integers)

    def _note_implied(self, node: onnx.GraphProto) -> None:
        """Take what a node implies of tensors whose rank is not known."""
        for value in (*node.input, *node.output):
            if value.type.tensor_type.HasField("shape") and not self._has_rank(value.name):
                self.declared[value.name] = value

    def _assume_outputs(self, node: onnx.NodeProto, values: dict[str, Any]) -> None:
        """Fill in what a node did not make: types as its operator says, and zeros where the shape is known."""
        made = [output for output in node.output if output and values.get(output) is None]
        if not all(map(self._is_typed, made)):
            known = {n: self.declared[n].type.tensor_type.elem_type for n in node.input if self._is_typed(n)}
            for output, element in implied.output_types(node, self.opsets, known).items():
                if not self._is_typed(output):
                    self.declared[output] = ValueInfoProto(name=output)
                    self.declared[output].type.tensor_type.elem_type = element
        for output in made:
            zeros = self._zeros_for(output)
            if zeros is not None:
                values[output] = zeros
                self.made_up.add(output)

    def _zeros_for(self, name: str) -> Any:
        """Zeros in the shape of a tensor; None if that is not known, or too large."""
        if not self._has_rank(name) or not self._is_native(name):
            return None
        tensor_type = self.declared[name].type.tensor_type
        shape = [d.dim_value if d.HasField("dim_value") else -1 for d in tensor_type.shape.dim]
        element = data_type(tensor_type.elem_type)
        if (
            element is None
            or element.numpy().kind in "OSU"
            or min(shape, default=0) < 0
            or math.prod(shape) > _MOST_ELEMENTS
        ):
            return None
        return np.zeros(shape, element.numpy())

    def _note_failure(self, node: onnx.NodeProto, name: str, exc: errors.InferenceError) -> None:
        if node.domain not in _KNOWN_DOMAINS:
            self.custom.add(name)
            message = f"ONNX Runtime has no kernel for {node.domain}.{node.op_type}; another back end may have one."
            self._add_entry("warning", name, node.op_type, message)
            return
        text = str(exc.__cause__ or exc)
        lacking = "Could not find an implementation" in text and self._type_of_accelerators(node)
        if lacking:
            self.custom.add(name)
            message = f"ONNX Runtime has no {lacking} kernel for {node.op_type} on a processor; another back end may have one."
            self._add_entry("warning", name, node.op_type, message)
            return
        running = "while running" in text or "RUNTIME_EXCEPTION" in text
        self._add_entry("exception" if running else "error", name, node.op_type, _pruned(text))

    def _type_of_accelerators(self, node: onnx.NodeProto) -> str:
        """The type that a node reads or makes and that is there for accelerators; empty if it has none."""
        names = (*node.input, *node.output)
        found = {self.declared[n].type.tensor_type.elem_type for n in names if self._is_typed(n)}
        return next((text for element, text in _FOR_ACCELERATORS.items() if element in found), "")

    def _add_entry(self, level: Level, name: str, op: str, message: str) -> None:
        self.entries.append(LintEntry(level=level, source="onnxruntime", message=message, nodes=(name,), op=op))

    def _model_of_node(
        self, node: onnx.NodeProto, used: list[str], values: Mapping[str, Any], *, run: bool
    ) -> onnx.ModelProto:
        """A model of one node: to be run on values, or to be loaded with what is declared and small constants."""
        from onnx import helper, numpy_helper

        graph = GraphProto(name="node")
        graph.node.append(node)
        for name in used:
            value = values.get(name)
            if value is not None and not run and self._is_constant(name, value):
                graph.initializer.append(numpy_helper.from_array(value, name))
            elif isinstance(value, np.ndarray) and self._is_native(name):
                element = helper.np_dtype_to_tensor_dtype(value.dtype)
                graph.input.append(helper.make_tensor_value_info(name, element, value.shape))
            else:
                graph.input.append(self.declared[name])
        graph.sparse_initializer.extend(
            self.sparse[name] for name in dict.fromkeys(walk.uses(node)) if name in self.sparse
        )
        graph.output.extend(helper.make_empty_tensor_value_info(name) for name in node.output if name)
        model = helper.make_model(
            graph, opset_imports=self.model.opset_import, ir_version=max(self.model.ir_version, 4)
        )
        model.functions.extend(self.model.functions)
        return model

    def _is_constant(self, name: str, value: Any) -> bool:
        """Whether a value decides the shape of what a node makes, as shapes and axes do, and is not made up."""
        is_small = isinstance(value, np.ndarray) and value.dtype.kind == "i" and value.nbytes <= _SHAPE_BYTES
        return is_small and name not in self.made_up

    def _is_typed(self, name: str) -> bool:
        declared = self.declared.get(name)
        return declared is not None and declared.type.WhichOneof("value") is not None

    def _has_rank(self, name: str) -> bool:
        declared = self.declared.get(name)
        return declared is not None and declared.type.tensor_type.HasField("shape")

    def _is_native(self, name: str) -> bool:
        """Whether a tensor's type is one that numpy has itself, as far as declared."""
        declared = self.declared.get(name)
        return declared is None or declared.type.tensor_type.elem_type <= TensorProto.UINT64

    def _input_array(self, value: onnx.ValueInfoProto) -> Any:
        given = self.feed.get(value.name)
        if given is None:
            return self._made_up_input(value)
        element = data_type(value.type.tensor_type.elem_type)
        dtype = getattr(given, "dtype", None)
        if element is None or dtype is None or dtype.kind not in "fiub" or dtype == element.numpy():
            return given
        log.warning("Input %r is cast from %s to %s", value.name, dtype, element)
        return given.astype(element.numpy())

    @staticmethod
    def _made_up_input(value: onnx.ValueInfoProto) -> Any:
        """Made-up values for an input; None if its type or rank is not known, or it would be too large."""
        if not value.type.tensor_type.HasField("shape") or not value.type.tensor_type.elem_type:
            return None
        dims = value.type.tensor_type.shape.dim
        shape = [d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else 1 for d in dims]
        element = data_type(value.type.tensor_type.elem_type)
        if element is None or math.prod(shape) > _MOST_ELEMENTS:
            return None
        dtype = element.numpy()
        if dtype.kind in "OSU":
            return np.full(shape, "", object)
        if dtype.kind == "f":
            return np.random.RandomState(1).random_sample(shape).astype(dtype)
        return np.ones(shape, dtype)
