"""Problems of a model, found node by node."""

import contextlib
import logging
import math
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from trtops import errors
from trtops.backend.onnx import copying, external, shapes, walk, with_onnxruntime
from trtops.backend.onnx.hostile import bad_divisors, can_propagate_values
from trtops.backend.onnx.lint_report import (
    WEIGHTS_NEED_NO_INPUTS,
    Level,
    LintEntry,
    LintReport,
    duplicate_entries,
    graph_entry,
    name_entries,
    unused_entries,
    weight_entries,
)
from trtops.backend.onnx.model import Model, data_type, read_proto
from trtops.backend.onnx.save import PROTOBUF_LIMIT
from trtops.extras import installed, sentence
from trtops.system.activity import Activity
from trtops.system.limits import MAX_DIMENSIONS, limited_time, trial_limit
from trtops.system.worker import warm_worker

log = logging.getLogger(__name__)

_SHAPE_BYTES = 1024
LARGE = 16 << 10  # weights with more bytes are kept apart
# Shape inference and the checks of nodes may need the values of integers.
_WEIGHT_TYPES = frozenset((TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE))
_PLAIN_FIELDS = frozenset(("dims", "data_type", "name", "doc_string", "raw_data", "external_data", "data_location"))
# Larger random inputs are not made: a hostile model may declare any shape.
_MAX_ELEMENTS = 1 << 26
_MAX_DEATHS = 20  # of child processes; replacing one takes a second
# What is run, as messages about crashes call it.
_WHOLE = "the model"
_CHECKING = "checking the model with ONNX's checker"
_ANALYZING = "analyzing the model"

# Types for which ONNX Runtime has few kernels on CPUs, so that a missing one is no error of the model.
_FOR_ACCELERATORS = {
    TensorProto.BFLOAT16: "bfloat16",
    TensorProto.FLOAT8E4M3FN: "float8e4m3fn",
    TensorProto.FLOAT8E5M2: "float8e5m2",
}

_KNOWN_DOMAINS = frozenset(
    {"", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training", "com.microsoft"}
)


def lint(model: onnx.ModelProto | Model | str | Path, feed: Mapping[str, Any] | None = None) -> LintReport:
    """Check a model or a model file, valid or not, without changing it.

    ONNX and ONNX Runtime run in a child process; a node on which they crash is a finding. Half of the time limit is for
    the whole model, and half for its nodes. Inputs without arrays in ``feed`` get random numbers in [0, 1), ones or
    True, with 1 for each dynamic dimension. A file that is not a model, or whose external data is missing, is a finding
    as well.
    """
    source: onnx.ModelProto | Path
    if isinstance(model, (str, Path)):
        source = Path(model).absolute()  # a warm child may have another working folder
    else:
        source = model.proto() if isinstance(model, Model) else model
    arguments, seconds = (dict(feed or {}), LARGE), trial_limit()
    if not isinstance(source, Path) and copying.message_bytes(source) >= PROTOBUF_LIMIT:
        # No message to another process can hold it.
        return _lint(copying.copy_of(source), *arguments, seconds, {})
    deaths: dict[str, str] = {}
    with warm_worker() as worker:
        while True:
            started = time.monotonic()
            try:
                return worker.run(_lint, source, *arguments, seconds, deaths)
            except errors.WorkerError as exc:
                if not exc.doing or exc.doing in deaths or exc.doing == _ANALYZING:
                    raise
                # Half of the time is for the nodes, however long it took to replace the process.
                seconds = (
                    trial_limit() / 2 if exc.doing == f"running {_WHOLE}" else seconds + started - time.monotonic()
                )
                if len(deaths) >= _MAX_DEATHS:
                    seconds = 0.0
                crash = str(exc).removeprefix("The child process ").partition(" while ")[0]
                deaths[exc.doing] = f"ONNX Runtime {crash}."


def failing_nodes(path: str | Path, seconds: float = 20.0) -> Iterator[str]:
    """Describe nodes of a model file with failures of their own; ``seconds`` limits each computation."""
    with limited_time(seconds):
        entries = lint(path).entries
    for entry in entries:
        if entry.level != "warning":
            where = f"{', '.join(entry.nodes[:3]) or path}{entry.op and f' ({entry.op})'}"
            yield f"{where}: {' '.join(entry.message.split())}"


def _load_apart(path: Path, large: int) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Read a model file with its large weights as inputs instead, and the arrays of these.

    No copy of the model, or of a node, then copies weights. Those in other files are mapped into memory.
    """
    model = read_proto(path, need_opset=False)
    # Inputs may declare another shape.
    names = Counter(map(attrgetter("name"), (*model.graph.initializer, *model.graph.input)))
    weights: dict[str, Any] = {}
    for i, tensor in enumerate([*walk.tensors(model)]):  # initializers first
        size, kind = copying.expected_bytes(tensor) or 0, data_type(tensor.data_type)
        if (
            i < len(model.graph.initializer)
            and (tensor.name and names[tensor.name] == 1 and tensor.data_type in _WEIGHT_TYPES and kind)
            and (size > large and min(tensor.dims, default=0) > 0)
            and {field.name for field, _ in tensor.ListFields()} <= _PLAIN_FIELDS
            and (external.is_external(tensor) or len(tensor.raw_data) == size)
        ):
            if external.is_external(tensor):
                location = external.locate(tensor, path.parent)
                next(location.blocks(at_most=1))  # the file can be read
                dims = tuple(tensor.dims)
                weights[tensor.name] = np.memmap(location.path, kind.numpy(), "r", location.offset, dims)
            else:
                weights[tensor.name] = numpy_helper.to_array(tensor)
            model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        elif external.is_external(tensor):
            external.load(tensor, path.parent)
    walk.keep_only(model.graph.initializer, lambda tensor: tensor.name not in weights)
    return model, weights


def _lint(
    source: onnx.ModelProto | Path, feed: dict[str, Any], large: int, seconds: float, deaths: Mapping[str, str]
) -> LintReport:
    """Check a model in this process within a time; activities in ``deaths``, fatal to a process before, are skipped.

    A message is changed.
    """
    # The nodes are run in half of this time; the rest is for what this module does with them.
    with Activity(_ANALYZING, 2 * max(seconds, trial_limit())):
        return _lint_here(source, feed, large, seconds, deaths)


def _lint_here(
    source: onnx.ModelProto | Path, feed: dict[str, Any], large: int, seconds: float, deaths: Mapping[str, str]
) -> LintReport:
    try:
        model, weights = _load_apart(source, large) if isinstance(source, Path) else (source, {})
    except errors.InvalidModelError as exc:
        entry = LintEntry(level="exception", source="onnx_loader", message=str(exc))
        return LintReport(passing=(), failing=(), unchecked=(), entries=(entry,))
    graph = model.graph
    if not graph.node:
        findings = [LintEntry(level="warning", source="onnx_loader", message="ONNX model has no nodes")]
        empty = _Run(model, feed | weights, [], time.monotonic() + seconds, deaths)
        if installed("onnxruntime"):
            empty.load_whole()
        if empty.refusal:
            findings.append(LintEntry(level="error", source="onnxruntime", message=empty.refusal))
        return LintReport(passing=(), failing=(), unchecked=(), entries=tuple(findings))
    names = [walk.node_name(node) or f"node {i}" for i, node in enumerate(graph.node)]
    unnamed = {name: i for i, (name, node) in enumerate(zip(names, graph.node)) if not node.name}
    fatal = list(weight_entries(model))
    try:
        walk.execution_order(graph.node)
    # Nodes form a cycle.
    except errors.InvalidModelError as exc:
        fatal.insert(0, graph_entry("error", str(exc)))
    named = [*name_entries(graph, names), *unused_entries(graph, names, weights, model.ir_version)]
    for name, node in zip(names, graph.node):
        for attribute, message in bad_divisors(walk.nodes_within(node)):
            named.append(
                LintEntry(level="error", source="onnx_checker", message=message, nodes=(name,), op=node.op_type)
            )
            attribute.i = 1  # in this process' copy: the node is not run, and checks of the whole model do not crash
    whole = [*duplicate_entries(graph), *([] if fatal else _checker_entries(model, deaths))]
    entries = [*fatal, *whole, *named]
    if fatal:
        return LintReport(passing=(), failing=(), unchecked=tuple(names), entries=tuple(entries), unnamed=unnamed)
    broken: set[str] = set().union(*(entry.nodes for entry in named if entry.level == "error"))
    if not installed("onnxruntime"):
        message = f"Nodes were not run, only checked by ONNX. {sentence('onnxruntime')}"
        entries.append(LintEntry(level="warning", source="onnxruntime", message=message))
        rest = tuple(name for name in dict.fromkeys(names) if name not in broken)
        return LintReport(passing=(), failing=(*broken,), unchecked=rest, entries=tuple(entries), unnamed=unnamed)
    run = _Run(model, _cast(feed, graph) | weights, names, time.monotonic() + seconds, deaths)
    # If ONNX's checker accepts a model and ONNX Runtime loads and runs it, the model has no errors. Otherwise each node
    # is run by itself on the values that the nodes before it computed. Nodes after a failing node have no values to run
    # on: they are loaded where the types of their inputs are declared or can be inferred, and are reported as unchecked
    # elsewhere. So no node is blamed for the failure of another.
    has_errors = any(entry.level == "error" for entry in entries)
    if has_errors or not run.run_whole():
        run.run_node_by_node(broken)
    no_fault = not run.custom and all(entry.level == "warning" for entry in run.entries)
    if no_fault and not has_errors and not run.has_run:
        run.load_whole()
    if run.refusal and not has_errors and (run.late or no_fault):
        # Each node works by itself, but ONNX Runtime rejects the model.
        entries.append(LintEntry(level="error", source="onnxruntime", message=run.refusal))
    failing = broken.union(*(entry.nodes for entry in (*whole, *run.entries) if entry.level != "warning"))
    unchecked = (run.unchecked | run.custom) - failing
    unique = tuple(dict.fromkeys(names))
    return LintReport(
        passing=tuple(name for name in unique if name not in failing and name not in unchecked),
        failing=tuple(filter(failing.__contains__, unique)),
        unchecked=tuple(filter(unchecked.__contains__, unique)),
        entries=(*entries, *run.entries),
        unnamed=unnamed,
    )


def _cast(feed: dict[str, Any], graph: onnx.GraphProto) -> dict[str, Any]:
    """Return a feed with its arrays cast to the types of the inputs."""
    for value in graph.input:
        array, element = feed.get(value.name), data_type(value.type.tensor_type.elem_type)
        dtype = getattr(array, "dtype", None)
        if array is not None and element and dtype and dtype.kind in "fiub" and dtype != element.numpy():
            feed[value.name] = array.astype(element.numpy())
    return feed


def _checker_entries(model: onnx.ModelProto, deaths: Mapping[str, str]) -> Iterator[LintEntry]:
    """What ONNX's checker reports about the whole model; its messages about single nodes come from their runs."""
    if copying.message_bytes(model) >= PROTOBUF_LIMIT:
        return
    checked = copying.copy_of(model)
    order = list(walk.execution_order(model.graph.node))
    if order != sorted(order):  # ONNX forbids it, and runtimes sort nodes themselves
        yield graph_entry(
            "warning", "Nodes are not in topological order; `trtops surgeon sanitize --toposort` sorts them."
        )
        walk.set_order(checked.graph, order)
    if checked.ir_version:
        checked.ir_version = max(checked.ir_version, WEIGHTS_NEED_NO_INPUTS)
    for value in checked.graph.output:
        # The checker requires a complete declaration of outputs, which ONNX Runtime does not.
        if not value.type.WhichOneof("value"):
            value.type.tensor_type.elem_type = TensorProto.FLOAT
        if value.type.HasField("tensor_type") and not value.type.tensor_type.HasField("shape"):
            value.type.tensor_type.shape.dim.add()
    if _CHECKING in deaths:
        yield LintEntry(level="error", source="onnx_checker", message=deaths[_CHECKING])
        return
    try:
        with Activity(_CHECKING, trial_limit()):
            onnx.checker.check_model(checked)
    except onnx.checker.ValidationError as exc:
        if "Bad node spec for node" not in str(exc):
            yield LintEntry(level="error", source="onnx_checker", message=str(exc).strip())


_NOISE = re.compile(
    r"Load model from .*? failed:|This is an invalid model\. |Error: |Failed to load model with error: "
    r"|Exception caught: |Exception during loading: |Node \(.*?\) Op \(.*?\) \[\w+InferenceError\]|In Node, .*, Error "
    r"|.*Status Message: |\S+\.cc:\d+ onnxruntime::.*\)|\n"
    r"|\S+/model_load_utils\.h:\d+ void .*\) (?=ONNX Runtime only)"
    r"|, inferred types: index=.*"  # every type there is, in another order each time
)


def _short_message(text: str) -> str:
    """Return an error message of ONNX Runtime without its usual prefixes, spaced as in Polygraphy."""
    without_status = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)
    return text if without_status == text else _NOISE.sub("", without_status.replace('"', "`"))


@dataclass
class _Run:
    """One model run as a whole or node by node."""

    model: onnx.ModelProto
    feed: dict[str, Any]  # with large weights, which are inputs of the model
    names: list[str]
    end: float
    deaths: Mapping[str, str]
    entries: list[LintEntry] = field(default_factory=list)
    unchecked: set[str] = field(default_factory=set)
    late: list[str] = field(default_factory=list)  # nodes that were not run within the time limit
    custom: set[str] = field(default_factory=set)  # nodes for which this ONNX Runtime has no kernel, though others may
    refusal: str = ""  # why ONNX Runtime does not load the whole model
    has_run: bool = False  # the whole model
    declared: dict[str, onnx.ValueInfoProto] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sparse = {sparse.values.name: sparse for sparse in self.model.graph.sparse_initializer}

    def run_whole(self) -> bool:
        """Run the whole model; True if it succeeded."""
        if death := self.deaths.get(f"running {_WHOLE}"):
            self.refusal = death
            return False
        inputs = self._inputs()
        if copying.message_bytes(self.model) >= PROTOBUF_LIMIT or any(array is None for array in inputs.values()):
            return False
        try:
            outputs, half = [*walk.by_name(self.model.graph.output)], (self.end - time.monotonic()) / 2
            with_onnxruntime.evaluate(self.model, outputs, inputs, half, _WHOLE)
        except errors.InferenceError as exc:
            log.info("The model does not run as a whole: %s", exc)
            if "cannot load" in str(exc) or "did not finish" in str(exc):
                self.refusal = _short_message(str(exc.__cause__ or exc))
            return False
        self.has_run = True
        return True

    def load_whole(self) -> None:
        """Load the whole model, to set the refusal if ONNX Runtime does not."""
        if self.refusal or copying.message_bytes(self.model) >= PROTOBUF_LIMIT:
            return
        try:
            with_onnxruntime.load(self.model, _WHOLE, max(self.end - time.monotonic(), trial_limit() / 2))
        except errors.InferenceError as exc:
            self.refusal = _short_message(str(exc.__cause__ or exc))

    def run_node_by_node(self, broken: set[str]) -> None:
        """Run each node by itself, except those known to be broken."""
        inferred = copying.copy_of(self.model)
        graph = inferred.graph
        values = self._inputs()
        for tensor in graph.initializer:
            if not external.is_external(tensor):
                with contextlib.suppress(ValueError, TypeError, KeyError):  # of a type that ONNX does not define
                    values[tensor.name] = numpy_helper.to_array(tensor)
        for value in graph.input:
            if isinstance(values.get(value.name), np.ndarray) and value.type.HasField("tensor_type"):
                walk.set_shape(value.type.tensor_type, values[value.name].shape)
        try:
            if shapes.INFERRING not in self.deaths:
                shapes.infer_shapes(inferred)
        except errors.InvalidModelError as exc:
            log.info("%s", exc)
        self.declared = shapes.values(graph)
        order = walk.execution_order(graph.node)
        last_reader: dict[str, int] = {}
        for i in order:
            last_reader.update(dict.fromkeys(walk.uses(graph.node[i]), i))
        for i in order:
            node, name = graph.node[i], self.names[i]
            if name not in broken:
                values.update(zip(filter(None, node.output), self._try_node(node, i, values)))
            # So that not all tensors are in memory at once.
            for used in walk.uses(node):
                if last_reader[used] == i:
                    values.pop(used, None)
        if self.late:
            limit = f"the time limit of {trial_limit():g} s (--timeout), or {_MAX_DEATHS} crashes"
            late = f"{len(self.late)} nodes were not checked: nodes before them reached {limit}."
            self.entries.append(LintEntry(level="warning", source="onnxruntime", message=late, nodes=tuple(self.late)))
        behind = tuple(filter(self.unchecked.__contains__, self.names))
        self.unchecked.update(self.late)
        if behind:
            message = (
                f"{len(behind)} nodes were not checked: the types of their inputs are unknown, since nodes before them "
                "fail or are custom. Declare types and shapes in the model to have them checked."
            )
            self.entries.append(LintEntry(level="warning", source="onnxruntime", message=message, nodes=behind))

    def _try_node(self, node: onnx.NodeProto, index: int, values: Mapping[str, Any]) -> list[Any]:
        """Run a node, or only load it if input values are missing; returns its outputs if it ran."""
        name, label = self.names[index], f"{walk.label(node)}, number {index}"
        if death := self.deaths.get(f"running {label}"):
            entry = LintEntry(level="exception", source="onnxruntime", message=death, nodes=(name,), op=node.op_type)
            self.entries.append(entry)
            return []
        if time.monotonic() >= self.end:
            self.late.append(name)
            return []
        used = [name for name in dict.fromkeys(walk.uses(node)) if name not in self.sparse]
        outputs = list(filter(None, node.output))
        if any(values.get(n) is None and not self._is_typed(n) for n in used):
            self.unchecked.add(name)
            return []
        runs = all(values.get(n) is not None for n in used) and all(map(self._is_native, [*used, *outputs]))
        model = self._model_of_node(node, used, values, runs)
        try:
            if runs:
                left = max(self.end - time.monotonic(), 0.1)
                return list(with_onnxruntime.evaluate(model, outputs, {n: values[n] for n in used}, left, label))
            if can_propagate_values(model):
                with_onnxruntime.load(model, label, max(self.end - time.monotonic(), 0.1))
        except errors.InferenceError as exc:
            self._add_failure(node, name, exc)
        return []

    def _model_of_node(
        self, node: onnx.NodeProto, used: list[str], values: Mapping[str, Any], runs: bool
    ) -> onnx.ModelProto:
        """A model of one node, to run on values, or to load with declared types and small constants."""
        graph = onnx.GraphProto(name="node")
        graph.node.append(node)
        for name in used:
            value = values.get(name)
            if not isinstance(value, np.ndarray) or not self._is_native(name):
                graph.input.append(self.declared[name])
            elif not runs and value.dtype.kind == "i" and value.nbytes <= _SHAPE_BYTES:
                # Small integers may be shapes or axes, without which the outputs' shapes are unknown.
                graph.initializer.append(numpy_helper.from_array(value, name))
            else:
                element = helper.np_dtype_to_tensor_dtype(value.dtype)
                graph.input.append(helper.make_tensor_value_info(name, element, value.shape))
        for name in dict.fromkeys(walk.uses(node)):
            if name in self.sparse:
                graph.sparse_initializer.append(self.sparse[name])
        graph.output.extend(map(helper.make_empty_tensor_value_info, filter(None, node.output)))
        ir_version = max(self.model.ir_version, WEIGHTS_NEED_NO_INPUTS)
        model = helper.make_model(graph, opset_imports=self.model.opset_import, ir_version=ir_version)
        model.functions.extend(self.model.functions)
        return model

    def _add_failure(self, node: onnx.NodeProto, name: str, exc: errors.InferenceError) -> None:
        text = str(exc.__cause__ or exc)
        missing = ""
        functions = {(function.domain, function.name) for function in self.model.functions}
        if node.domain not in _KNOWN_DOMAINS and (node.domain, node.op_type) not in functions:
            missing = f"kernel for {node.domain}.{node.op_type}, which is not a registered function/op"
        elif "Could not find an implementation" in text:
            tensors = map(self.declared.__getitem__, filter(self._is_typed, (*node.input, *node.output)))
            types = {value.type.tensor_type.elem_type for value in tensors}
            accelerated = next((word for element, word in _FOR_ACCELERATORS.items() if element in types), "")
            missing = f"{accelerated} kernel for {node.op_type} on a CPU" if accelerated else ""
        level: Level = "exception" if "while running" in text or "RUNTIME_EXCEPTION" in text else "error"
        message = _short_message(text)
        if missing:
            self.custom.add(name)
            level, message = "warning", f"ONNX Runtime has no {missing}; another back end may have one."
            if node.domain and all(node.domain != opset.domain for opset in self.model.opset_import):
                message = (
                    f"The model imports no operator set of the domain {node.domain!r}, so ONNX's checker and ONNX "
                    f"Runtime refuse its {node.op_type}; another back end may have one. Add the domain to opset_import."
                )
        entry = LintEntry(level=level, source="onnxruntime", message=message, nodes=(name,), op=node.op_type)
        for number, earlier in enumerate(self.entries):
            if earlier.level == level and earlier.message == message:  # such as one about the operator set
                op = node.op_type if node.op_type == earlier.op else ""
                self.entries[number] = replace(earlier, nodes=(*earlier.nodes, name), op=op)
                return
        self.entries.append(entry)

    def _is_typed(self, name: str) -> bool:
        declared = self.declared.get(name)
        return declared is not None and declared.type.WhichOneof("value") is not None

    def _is_native(self, name: str) -> bool:
        """Whether numpy itself has a tensor's type, as far as declared."""
        declared = self.declared.get(name)
        return declared is None or declared.type.tensor_type.elem_type <= TensorProto.UINT64

    def _inputs(self) -> dict[str, Any]:
        """Return the fed or random values of the inputs, without those of weights in the model."""
        constants = walk.initializer_names(self.model.graph)
        return {v.name: self._input_array(v) for v in self.model.graph.input if v.name not in constants}

    def _input_array(self, value: onnx.ValueInfoProto) -> Any:
        """The given or a random value for an input; None if its type or rank is unknown, or it would be too large."""
        array = self.feed.get(value.name)
        element = data_type(value.type.tensor_type.elem_type)
        if array is not None:
            return array
        if element is None or not value.type.tensor_type.HasField("shape"):
            return None
        dims = value.type.tensor_type.shape.dim
        shape = [d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else 1 for d in dims]
        if math.prod(shape) > _MAX_ELEMENTS or len(shape) > MAX_DIMENSIONS:
            return None
        dtype = element.numpy()
        if dtype.kind in "OSU":
            return np.full(shape, "", object)
        if dtype.kind == "f":
            return np.random.RandomState(1).random_sample(shape).astype(dtype)
        return np.ones(shape, dtype)
