"""Constant folding: values independent of a model's inputs are computed once and become weights.

Shapes are constant where shape inference knows them, also partly. ONNX Runtime computes the values. A node that it
cannot evaluate stays, with everything that depends on it; the rest is folded all the same.
"""

import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import onnx
from onnx import helper, numpy_helper

from trtops import errors
from trtops.backend.onnx import copying, shapes, walk, with_onnxruntime
from trtops.backend.onnx.save import model_bytes
from trtops.backend.onnx.sizes import Array, KnownTensors
from trtops.logger import ON_STDOUT, Logger
from trtops.system.limits import memory_limit, trial_limit
from trtops.system.trial import try_in_child
from trtops.tables import listed

log = logging.getLogger(__name__)

# Folded, they would be weights in FP32 again; builders take Q/DQ pairs as the instruction to compute in integers.
_QUANTIZE = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})
_READ_SCALES = frozenset({"Range", "Resize", "Upsample"})
_LEAST_SECONDS = 0.5  # of an evaluation, once others have used the time limit
_FED_BYTES = 1024  # larger constants are fed to the session, which does not copy them


def fold_constants(
    model: onnx.ModelProto,
    *,
    passes: int | None = None,
    fold_shapes: bool = True,
    infer_shapes: bool = True,
    symbolic: bool = False,
    size_threshold: int | None = None,
    error_ok: bool = True,
) -> int:
    """Fold constants of a model and its sub-graphs, in place; returns the number of nodes folded.

    Unused nodes and weights are removed. Nodes that generate random numbers, QuantizeLinear and related nodes stay.

    Args:
        model: The model, with all weights inside.
        passes: Maximum number of passes; None repeats until a pass folds nothing.
        fold_shapes: Whether Shape and Size, and everything computed from them, are folded.
        infer_shapes: Whether shapes are inferred before each pass; otherwise declared shapes are used.
        symbolic: See :func:`trtops.backend.onnx.shapes.infer_shapes`.
        size_threshold: Bytes above which a tensor is not folded. The default is twice the model's size, and at least a
            sixteenth of ``TRTOPS_MEMORY_LIMIT``.
        error_ok: Whether nodes that cannot be evaluated stay as they are; otherwise they raise InferenceError.
    """
    nodes = len([*walk.nodes(model)])
    if size_threshold is None:
        size_threshold = max(2 * model_bytes(model), memory_limit() // 16)
    folding = _Folding(model, fold_shapes, infer_shapes, size_threshold, error_ok)
    after, done = nodes, 0
    slow = symbolic and passes is not None  # otherwise symbolic inference follows what folds without it
    while passes is None or done < passes:
        log.log(Logger.START, "Folding Constants | Pass %d", done + 1, extra=ON_STDOUT)
        if fold_shapes and infer_shapes and not (done and shapes.has_all_sizes(model.graph)):
            try:
                shapes.infer_shapes(model, symbolic=slow)
            except errors.InvalidModelError as exc:
                if not error_ok:
                    raise
                log.warning("%s", exc)
        changed = folding.fold_graph(model.graph)
        folding.at_once = True
        walk.remove_unused(model.graph)
        done += 1
        before, after = after, len([*walk.nodes(model)])
        folded = f"Total Nodes | Original: {before:5}, After Folding: {after:5} | {before - after:5} Nodes Folded"
        log.log(Logger.FINISH, "    %s", folded, extra=ON_STDOUT)
        if not changed:
            if slow or not (symbolic and fold_shapes and infer_shapes and folding.lacks_dims()):
                break
            slow = True
    return nodes - after + folding.replaced


@dataclass
class _Folding:
    """The folding of one model."""

    model: onnx.ModelProto
    fold_shapes: bool
    infer_shapes: bool
    size_threshold: int
    error_ok: bool
    # First outputs of the nodes that cannot be evaluated, with their scope as :func:`walk.body_scope` calls it.
    stuck: set[tuple[str, str]] = field(default_factory=set)
    replaced: int = 0  # nodes that became Constant nodes, since their results are outputs
    # Whether values are computed as soon as a shape depends on them. A session for each costs more than another pass
    # where few shapes do, so it starts with the second pass.
    at_once: bool = False
    seconds: float = field(default_factory=trial_limit)  # left for evaluations that fail

    def __post_init__(self) -> None:
        self.versions = walk.opsets(self.model)

    @cached_property
    def fresh_name(self) -> walk.FreshNames:
        """Generator of names not used anywhere in the model."""
        return walk.FreshNames(self.model.graph)

    def fold_graph(self, graph: onnx.GraphProto, scope: str = "", outer: KnownTensors | None = None) -> bool:
        """One pass over a graph and its bodies; True if it changed something."""
        outer = outer or KnownTensors({})
        weights = walk.visible(outer.weights, graph, walk.by_name(graph.initializer))
        tensors = KnownTensors(weights, walk.visible(outer.declared, graph, shapes.values(graph)))
        stuck = len(self.stuck)
        graph_pass = _GraphPass(self, graph, scope, tensors)
        folded = graph_pass.run()
        outputs = walk.names_of(graph.output)
        # Shape inference reads Constant nodes, and no other floating-point values, so these reveal no more shapes.
        unread = {name for name, tensor in folded.items() if tensor.data_type in walk.FLOATING}
        for node in graph.node:
            if node.op_type == "Constant":
                unread.update(node.output)
        for node in graph.node:
            if node.op_type in _READ_SCALES:
                unread.difference_update(node.input)
        # Nodes that only folded ones needed are removed later, by remove_unused.
        walk.keep_only(graph.node, lambda node: folded.keys().isdisjoint(node.output))
        # Not every parser accepts a weight as an output, so a Constant node produces it.
        for name, tensor in folded.items():
            if name in outputs:
                graph.node.append(helper.make_node("Constant", [], [name], name=f"{name}_constant", value=tensor))
                self.replaced += 1
            else:
                graph.initializer.append(tensor)
        # A node that got stuck counts as a change: what would have been computed with it is tried again without it.
        changed = graph_pass.inlined or not unread.issuperset(folded) or len(self.stuck) > stuck
        for node in graph.node:
            for attribute, body in walk.named_bodies(node):
                changed |= self.fold_graph(body, walk.body_scope(scope, node.name, node.output, attribute), tensors)
                walk.remove_unused(body)
        return changed

    def lacks_dims(self) -> bool:
        """Return True if dimensions not inferred by ONNX prevent further folding; the nodes are in order."""
        assumed = shapes.computed_dims(self.model.graph)
        for graph in walk.graphs(self.model.graph) if assumed else ():
            tensors = KnownTensors(walk.by_name(graph.initializer), shapes.values(graph), assumed)
            makers = walk.makers(graph.node)
            for node in graph.node:
                sizes = tensors.learn_sizes(node)
                if walk.is_onnx_op(node, "Shape", "Size") and tensors.dims(node.input[0]) is None:
                    if node.input[0] in makers:
                        return True
                elif sizes is not None:
                    return True
        return False


@dataclass
class _GraphPass:
    """One pass over one graph in order of execution, without its bodies; a chain folds in one pass.

    What folds may determine the shape of what a later node returns, from which more folds. So shapes are inferred
    along the way, for the nodes that read something that became known in this pass.
    """

    folding: _Folding
    graph: onnx.GraphProto
    scope: str
    tensors: KnownTensors
    inlined: bool = False  # whether an If was replaced by a branch
    folded: dict[str, onnx.TensorProto] = field(default_factory=dict)
    # Nodes whose results are constant and not computed yet, and the index in this list by output.
    foldable: list[onnx.NodeProto] = field(default_factory=list)
    pending: dict[str, int] = field(default_factory=dict)
    fresh: set[str] = field(default_factory=set)  # tensors with more known than before this pass

    def run(self) -> dict[str, onnx.TensorProto]:
        """Return the graph's constant outputs needed by other nodes, and record them in ``tensors``."""
        outputs = walk.names_of(self.graph.output)
        nodes: list[onnx.NodeProto] = []
        others: list[onnx.NodeProto] = []
        waiting = walk.in_order(self.graph.node)[::-1]
        while waiting:
            node = waiting.pop()
            branch = self._taken_branch(node)
            if branch is not None:
                self.inlined = True
                waiting += reversed(self._branch_nodes(node, branch))
                continue
            nodes.append(node)
            tensor = self._known_output(node)
            if tensor is not None:
                self.tensors.weights[tensor.name] = tensor
                if node.op_type != "Constant" or tensor.name not in outputs:  # such a node would only be written again
                    self.folded[tensor.name] = tensor
                    if node.op_type != "Constant":  # whose values shape inference reads
                        self.fresh.add(tensor.name)
            elif self._is_computable(node, self.pending):
                self.pending.update(dict.fromkeys(filter(None, node.output), len(self.foldable)))
                self.foldable.append(node)
            else:
                others.append(node)
                if self.folding.fold_shapes and self.folding.infer_shapes:
                    self._infer_shapes(node)
        if self.inlined:
            walk.replace_nodes(self.graph, nodes)
        # Tensors between foldable nodes are neither kept nor read back from the session.
        pending = [node for node in self.foldable if not self.tensors.weights.keys() >= set(walk.produced([node]))]
        ready, blocked = self._computable(pending)
        read = outputs.union(walk.read((*others, *blocked)))
        self._record(self._evaluate_all(ready, _outputs_in(ready, read)))
        return self.folded

    def _record(self, folded: Mapping[str, onnx.TensorProto]) -> None:
        self.folded.update(folded)
        self.tensors.weights.update(folded)
        self.fresh.update(folded)

    def _taken_branch(self, node: onnx.NodeProto) -> onnx.GraphProto | None:
        """Return the only branch taken by an If; None if its condition is not constant."""
        if not walk.is_onnx_op(node, "If") or not node.input:
            return None
        if self.folding.at_once and node.input[0] in self.pending:
            self._evaluate_now([node.input[0]])
        if node.input[0] not in self.tensors:
            return None
        condition = self.tensors.array(node.input[0]).reshape(-1)
        if condition.size != 1:
            return None
        return dict(walk.named_bodies(node)).get("then_branch" if condition[0] else "else_branch")

    def _branch_nodes(self, node: onnx.NodeProto, body: onnx.GraphProto) -> list[onnx.NodeProto]:
        """The nodes of a branch under new, unique names, in order; its weights and declarations move to the graph."""
        produced = set(walk.produced(body.node))
        renamed: dict[str, str] = {}
        for name in sorted(produced | walk.initializer_names(body)):
            renamed[name] = self.folding.fresh_name(f"{walk.node_name(node)}/{name}")
        # A branch may return one tensor twice, a weight, or a tensor from outside: these are copied at the end.
        direct = {inside.name: outside for inside, outside in zip(body.output, node.output) if inside.name in produced}
        renamed.update((name, outside) for name, outside in direct.items() if outside)
        copy = copying.copy_of(body)
        walk.rename_uses(copy, renamed)
        for tensor in copy.initializer:
            tensor.name = renamed[tensor.name]
            self.tensors.weights[tensor.name] = copying.add_copy(self.graph.initializer, tensor)
        for sparse in copy.sparse_initializer:
            sparse.values.name = renamed[sparse.values.name]
            copying.add_copy(self.graph.sparse_initializer, sparse)
        for value in copy.value_info:
            if value.name in renamed and value.name not in direct:
                value.name = renamed[value.name]
                self.tensors.declared[value.name] = copying.add_copy(self.graph.value_info, value)
        nodes = walk.in_order(copy.node)
        for inner in nodes:
            inner.output[:] = [renamed.get(name, name) for name in inner.output]
        for inside, outside in zip(body.output, node.output):
            if outside and direct.get(inside.name) != outside:
                nodes.append(helper.make_node("Identity", [renamed.get(inside.name, inside.name)], [outside]))
        self.fresh.update(walk.read(nodes))
        return nodes

    def _infer_shapes(self, node: onnx.NodeProto) -> None:
        """Infer the shapes of a node's outputs, if this pass added knowledge about its inputs."""
        declared = self.tensors.declared
        if all(name in declared and shapes.has_sizes(declared[name].type.tensor_type) for name in node.output if name):
            return
        if self.folding.at_once and (sizes := [name for name in node.input if self._may_set_sizes(node, name)]):
            self._evaluate_now(sizes)
        if self.fresh.isdisjoint(node.input):
            return
        for name, kind in shapes.infer_node(node, self.tensors, self.folding.model).items():
            if name not in declared:
                declared[name] = self.graph.value_info.add(name=name)
            if shapes.refine(declared[name].type, kind):
                self.fresh.add(name)

    def _may_set_sizes(self, node: onnx.NodeProto, name: str) -> bool:
        """Return True if a constant not computed yet may determine the shapes of a node's outputs."""
        if name not in self.pending:
            return False
        value = self.tensors.declared.get(name)
        is_floating = value is None or value.type.tensor_type.elem_type in walk.FLOATING
        return not is_floating or node.op_type in _READ_SCALES

    def _evaluate_now(self, names: Sequence[str]) -> None:
        """Compute constants with the nodes they need, and nothing else."""
        needed: set[int] = set()
        ahead = [*names]
        while ahead:
            index = self.pending.get(ahead.pop())
            if index is not None and index not in needed:
                needed.add(index)
                ahead += walk.uses(self.foldable[index])
        ready, blocked = self._computable([self.foldable[index] for index in sorted(needed)])
        if not blocked:
            self._record(self._evaluate_all(ready, _outputs_in(ready, names)))
        for name in names:  # what failed is not tried again in this pass
            self.pending.pop(name, None)

    def _is_computable(self, node: onnx.NodeProto, computed: Collection[str]) -> bool:
        """Whether a node's result is constant, and ONNX Runtime may be able to compute it."""
        if not node.output or (self.scope, node.output[0]) in self.folding.stuck:
            return False
        if not all(name in self.tensors or name in computed for name in walk.uses(node)):
            return False
        if walk.is_random(node) or any(inner.op_type in _QUANTIZE for inner in walk.nodes_within(node)):
            return False
        domain = walk.domain(node)
        # The onnx package has no schemas of ONNX Runtime's own operators.
        version = self.folding.versions.get(domain, 0)
        return domain == "com.microsoft" or bool(onnx.defs.has(node.op_type, version, domain))

    def _computable(self, nodes: Iterable[onnx.NodeProto]) -> tuple[list[onnx.NodeProto], list[onnx.NodeProto]]:
        """Split nodes into those computable from known tensors, and the rest."""
        computed: set[str] = set()
        ready: list[onnx.NodeProto] = []
        blocked: list[onnx.NodeProto] = []
        for node in nodes:
            if self._is_computable(node, computed):
                ready.append(node)
                computed.update(node.output)
            else:
                blocked.append(node)
        return ready, blocked

    def _evaluate_all(self, nodes: list[onnx.NodeProto], outputs: Sequence[str]) -> dict[str, onnx.TensorProto]:
        """Compute these outputs of the nodes; failing nodes are recorded as stuck and omitted."""
        # All are computed in one session. If that fails, each half is, down to the nodes at fault: a few more sessions
        # for each of those, where one session per node would take far longer.
        if not outputs:
            return {}
        try:
            arrays = self._evaluate_nodes(nodes, outputs)
        except errors.InferenceError as exc:
            if len(nodes) > 1:
                return self._evaluate_halves(nodes, outputs)
            if not self.folding.error_ok:
                raise
            level = logging.WARNING if "did not finish" in str(exc) else logging.INFO
            log.log(level, "%s is not folded: %s", walk.label(nodes[0]), exc)
            self.folding.stuck.add((self.scope, nodes[0].output[0]))
            return {}
        tensors: dict[str, onnx.TensorProto] = {}
        for name, array in arrays.items():
            if array.nbytes <= self.folding.size_threshold:
                tensors[name] = numpy_helper.from_array(array, name)
        large = arrays.keys() - tensors.keys()
        self.folding.stuck.update((self.scope, node.output[0]) for node in nodes if not large.isdisjoint(node.output))
        return tensors

    def _evaluate_halves(self, nodes: list[onnx.NodeProto], outputs: Sequence[str]) -> dict[str, onnx.TensorProto]:
        """Compute the first half of some nodes, then the part of the second half computable from its results."""
        half = len(nodes) // 2
        first, second = nodes[:half], nodes[half:]
        folded = self._evaluate_all(first, _outputs_in(first, {*walk.read(second), *outputs}))
        self.tensors.weights.update(folded)
        ready, blocked = self._computable(second)
        return folded | self._evaluate_all(ready, _outputs_in(ready, {*walk.read(blocked), *outputs}))

    def _evaluate_nodes(self, nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]) -> dict[str, Array]:
        """Compute outputs of constant nodes in one session."""
        source, tensors = self.folding.model, self.tensors
        graph = onnx.GraphProto(name="constants")
        graph.node.extend(nodes)
        feed: dict[str, Array] = {}
        for name in sorted(set(walk.read(nodes)).difference(walk.produced(nodes))):
            tensor = tensors.weights[name]
            size = copying.expected_bytes(tensor)
            # numpy lacks the types beyond UINT64.
            if size is None or size <= _FED_BYTES or tensor.data_type > onnx.TensorProto.UINT64:
                graph.initializer.append(tensor)
            else:
                feed[name] = tensors.array(name)
                graph.input.append(helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims)))
        graph.output.extend(map(helper.make_empty_tensor_value_info, outputs))
        ir_version = max(source.ir_version, 4)  # from which on weights need not be inputs too
        model = helper.make_model(graph, opset_imports=source.opset_import, ir_version=ir_version)
        # Half of what is left, since each half of the nodes is tried after a failure.
        began, seconds = time.monotonic(), max(self.folding.seconds / 2, _LEAST_SECONDS)
        label = listed(map(walk.label, nodes), 3)
        try:
            try_in_child(with_onnxruntime.evaluate, model, outputs, feed, seconds, label)
            results = with_onnxruntime.evaluate(model, outputs, feed, seconds, label)
        except errors.InferenceError:
            self.folding.seconds -= time.monotonic() - began
            raise
        for name, result in zip(outputs, results):
            if not isinstance(result, np.ndarray):
                raise errors.InferenceError(f"{name!r} is not a tensor.")
        return dict(zip(outputs, results))

    def _known_output(self, node: onnx.NodeProto) -> onnx.TensorProto | None:
        """Return a node's output if no computation is needed: of a Constant, or sizes known by shape inference."""
        if walk.is_onnx_op(node, "Constant"):
            return walk.constant_tensor(node)
        sizes = self.tensors.learn_sizes(node) if self.folding.fold_shapes else None
        if sizes is None:
            return None
        declared = self.tensors.declared.get(node.output[0])
        if node.op_type in ("Shape", "Size"):
            element = int(onnx.TensorProto.INT64)
        elif declared is not None and declared.type.tensor_type.elem_type:
            element = declared.type.tensor_type.elem_type
        else:
            return None
        return numpy_helper.from_array(sizes.astype(walk.numpy_dtype(element, node.output[0])), node.output[0])


def _outputs_in(nodes: Iterable[onnx.NodeProto], read: Collection[str]) -> list[str]:
    return [name for name in walk.produced(nodes) if name in read]
