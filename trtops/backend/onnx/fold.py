"""Constant folding: values that do not depend on a model's inputs are computed once and become weights.

Shapes are constant where shape inference knows them, also partly. ONNX Runtime computes the values. A node that it
cannot evaluate stays, with everything that depends on it; the rest is folded all the same.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper, numpy_helper

from trtops import errors
from trtops.backend.onnx import external, shapes, walk, with_onnxruntime
from trtops.backend.onnx.save import model_bytes
from trtops.backend.onnx.sizes import Array, KnownTensors
from trtops.backend.trial import try_in_child
from trtops.logger import ON_STDOUT, Logger
from trtops.system.limits import memory_limit

log = logging.getLogger(__name__)

# Folded, they would be weights in FP32 again; builders take Q/DQ pairs as the instruction to compute in integers.
_QUANTIZE = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})
_READ_SCALES = frozenset({"Range", "Resize", "Upsample"})
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
    nodes = sum(1 for _ in walk.nodes(model))
    if size_threshold is None:
        size_threshold = max(2 * model_bytes(model), memory_limit() // 16)
    folding = _Folding(model, fold_shapes, size_threshold, error_ok)
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
        changed = folding.fold_graph(model.graph, {})
        walk.remove_unused(model.graph)
        done += 1
        before, after = after, sum(1 for _ in walk.nodes(model))
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
    size_threshold: int
    error_ok: bool
    stuck: set[str] = field(default_factory=set)  # first outputs of the nodes that cannot be evaluated
    replaced: int = 0  # nodes that became Constant nodes, since their results are outputs

    def __post_init__(self) -> None:
        self.versions = walk.opsets(self.model)

    def fold_graph(self, graph: onnx.GraphProto, outer: Mapping[str, onnx.TensorProto]) -> bool:
        """One pass over a graph and its bodies; True if it changed something."""
        known = KnownTensors({**outer, **{tensor.name: tensor for tensor in graph.initializer}})
        changed = _inline_branches(graph, known)
        known.declared = shapes.values(graph)
        stuck = len(self.stuck)
        folded = self._fold_nodes(graph, known)
        outputs = {value.name for value in graph.output}
        # Shape inference reads Constant nodes, and no other floating-point values, so these reveal no more shapes.
        unread = {node.output[0] for node in graph.node if node.op_type == "Constant" and node.output}
        unread.update(name for name, tensor in folded.items() if tensor.data_type in walk.FLOATING)
        unread.difference_update(n for node in graph.node if node.op_type in _READ_SCALES for n in node.input)
        # Nodes that only folded ones needed are removed later, by remove_unused.
        walk.keep_places(graph.node, {i for i, node in enumerate(graph.node) if folded.keys().isdisjoint(node.output)})
        # Not every parser accepts a weight as an output, so a Constant node produces it.
        made = [(n, t) for n, t in folded.items() if n in outputs]
        graph.node.extend(helper.make_node("Constant", [], [n], name=f"{n}_constant", value=t) for n, t in made)
        self.replaced += len(made)
        graph.initializer.extend(tensor for name, tensor in folded.items() if name not in outputs)
        # A node that got stuck counts as a change: what would have been computed with it is tried again without it.
        changed |= not unread.issuperset(folded) or len(self.stuck) > stuck
        for node in graph.node:
            for body in walk.subgraphs(node):
                changed |= self.fold_graph(body, known.weights)
                walk.remove_unused(body)
        return changed

    def lacks_dims(self) -> bool:
        """Whether more could be folded if the dimensions that ONNX does not infer were known."""
        assumed = shapes.computed_dims(self.model.graph)
        for graph in walk.graphs(self.model.graph) if assumed else ():
            known = KnownTensors({t.name: t for t in graph.initializer}, shapes.values(graph), assumed)
            makers = walk.makers(graph.node)
            for index in walk.execution_order(graph.node):
                node = graph.node[index]
                sizes = known.learn_sizes(node)
                if walk.is_onnx_op(node, "Shape", "Size") and known.dims(node.input[0]) is None:
                    if node.input[0] in makers:
                        return True
                elif sizes is not None:
                    return True
        return False

    def _fold_nodes(self, graph: onnx.GraphProto, known: KnownTensors) -> dict[str, onnx.TensorProto]:
        """The constant outputs of a graph's nodes that others need; recorded in ``known`` as well."""
        outputs = {value.name for value in graph.output}
        foldable: list[onnx.NodeProto] = []
        others: list[onnx.NodeProto] = []
        computed: set[str] = set()
        folded: dict[str, onnx.TensorProto] = {}
        for index in walk.execution_order(graph.node):
            node = graph.node[index]
            tensor = self._known_output(node, known)
            if tensor is not None:
                known.weights[tensor.name] = tensor
                if node.op_type != "Constant" or tensor.name not in outputs:  # such a node would only be written again
                    folded[tensor.name] = tensor
            elif self._is_computable(node, known, computed):
                foldable.append(node)
                computed.update(node.output)
            else:
                others.append(node)
        # Tensors between foldable nodes are neither kept nor read back from the session.
        read = outputs.union(*(walk.uses(node) for node in others))
        folded |= self._evaluate_all(foldable, _outputs_in(foldable, read), known)
        known.weights.update(folded)
        return folded

    def _is_computable(self, node: onnx.NodeProto, known: KnownTensors, computed: set[str]) -> bool:
        """Whether a node's result is constant, and ONNX Runtime may be able to compute it."""
        if walk.is_random(node) or node.op_type in _QUANTIZE or not node.output or node.output[0] in self.stuck:
            return False
        domain = walk.domain(node)
        # The onnx package has no schemas of ONNX Runtime's own operators.
        if domain != "com.microsoft" and not onnx.defs.has(node.op_type, self.versions.get(domain, 0), domain):
            return False
        return all(name in known or name in computed for name in walk.uses(node))

    def _evaluate_all(
        self, nodes: list[onnx.NodeProto], wanted: Sequence[str], known: KnownTensors
    ) -> dict[str, onnx.TensorProto]:
        """Compute these outputs of the nodes; nodes that cannot be evaluated are recorded as stuck and omitted."""
        # All are computed in one session. If that fails, each half is, down to the nodes at fault: a few more sessions
        # for each of those, where one session per node would take far longer.
        if not wanted:
            return {}
        try:
            arrays = self._evaluate_nodes(nodes, wanted, known)
        except errors.InferenceError as exc:
            if len(nodes) > 1:
                return self._evaluate_halves(nodes, wanted, known)
            if not self.error_ok:
                raise
            log.info("%s is not folded: %s", walk.label(nodes[0]), exc)
            self.stuck.add(nodes[0].output[0])
            return {}
        large = {name for name, array in arrays.items() if array.nbytes > self.size_threshold}
        self.stuck.update(node.output[0] for node in nodes if not large.isdisjoint(node.output))
        return {name: numpy_helper.from_array(array, name) for name, array in arrays.items() if name not in large}

    def _evaluate_halves(
        self, nodes: list[onnx.NodeProto], wanted: Sequence[str], known: KnownTensors
    ) -> dict[str, onnx.TensorProto]:
        """Compute the first half of some nodes, then those of the second half that can be computed from its results."""
        half = len(nodes) // 2
        first, second = nodes[:half], nodes[half:]
        folded = self._evaluate_all(first, _outputs_in(first, _names_read(second).union(wanted)), known)
        known.weights.update(folded)
        computed: set[str] = set()
        ready: list[onnx.NodeProto] = []
        blocked: list[onnx.NodeProto] = []
        for node in second:
            if self._is_computable(node, known, computed):
                ready.append(node)
                computed.update(node.output)
            else:
                blocked.append(node)
        return folded | self._evaluate_all(ready, _outputs_in(ready, _names_read(blocked).union(wanted)), known)

    def _evaluate_nodes(
        self, nodes: Sequence[onnx.NodeProto], wanted: Sequence[str], known: KnownTensors
    ) -> dict[str, Array]:
        """Compute tensors that constant nodes produce, in one session."""
        graph = onnx.GraphProto(name="constants")
        graph.node.extend(nodes)
        made = {name for node in nodes for name in node.output}
        feed: dict[str, Array] = {}
        for name in sorted(_names_read(nodes) - made):
            tensor = known.weights[name]
            size = external.expected_bytes(tensor)
            # numpy lacks the types beyond UINT64.
            if size is None or size <= _FED_BYTES or tensor.data_type > onnx.TensorProto.UINT64:
                graph.initializer.append(tensor)
            else:
                feed[name] = known.array(name)
                graph.input.append(helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims)))
        graph.output.extend(helper.make_empty_tensor_value_info(name) for name in wanted)
        ir_version = max(self.model.ir_version, 4)  # from which on weights need not be inputs too
        model = helper.make_model(graph, opset_imports=self.model.opset_import, ir_version=ir_version)
        try_in_child(with_onnxruntime.evaluate, model, wanted, feed)
        results = with_onnxruntime.evaluate(model, wanted, feed)
        for name, result in zip(wanted, results):
            if not isinstance(result, np.ndarray):
                raise errors.InferenceError(f"{name!r} is not a tensor.")
        return dict(zip(wanted, results))

    def _known_output(self, node: onnx.NodeProto, known: KnownTensors) -> onnx.TensorProto | None:
        """A node's output if nothing has to be computed for it: a Constant, or sizes that shape inference knows."""
        if walk.is_onnx_op(node, "Constant"):
            return walk.constant_tensor(node)
        sizes = known.learn_sizes(node) if self.fold_shapes else None
        if sizes is None:
            return None
        declared = known.declared.get(node.output[0])
        if node.op_type in ("Shape", "Size"):
            element = int(onnx.TensorProto.INT64)
        elif declared is not None and declared.type.tensor_type.elem_type:
            element = declared.type.tensor_type.elem_type
        else:
            return None
        return numpy_helper.from_array(sizes.astype(walk.numpy_dtype(element, node.output[0])), node.output[0])


def _outputs_in(nodes: Iterable[onnx.NodeProto], read: Collection[str]) -> list[str]:
    return [name for node in nodes for name in node.output if name in read]


def _names_read(nodes: Iterable[onnx.NodeProto]) -> set[str]:
    return {name for node in nodes for name in walk.uses(node)}


def _inline_branches(graph: onnx.GraphProto, known: KnownTensors) -> bool:
    """Replace each If with a constant condition by the branch that it takes; True if there was one."""
    changed = False
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        body = None
        if walk.is_onnx_op(node, "If") and node.input and node.input[0] in known:
            condition = known.array(node.input[0]).reshape(-1)
            if condition.size == 1:
                wanted = "then_branch" if condition[0] else "else_branch"
                body = next((a.g for a in node.attribute if a.name == wanted and a.HasField("g")), None)
        if body is None:
            nodes.append(node)
        else:
            nodes += _branch_nodes(graph, node, body)
            changed = True
    if changed:
        walk.replace_nodes(graph, nodes)
        known.weights.update((tensor.name, tensor) for tensor in graph.initializer)
    return changed


def _branch_nodes(graph: onnx.GraphProto, node: onnx.NodeProto, body: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The nodes of a branch under new, unique names; its weights and declarations move to the graph."""
    prefix = f"{walk.node_name(node)}/"
    made = {name for n in body.node for name in n.output if name}
    renamed = {name: prefix + name for name in walk.initializer_names(body) | made}
    # A branch may return one tensor twice, a weight, or a tensor from outside: these are copied at the end.
    direct = {inside.name: outside for inside, outside in zip(body.output, node.output) if inside.name in made}
    renamed |= {name: outside for name, outside in direct.items() if outside}
    for tensor in body.initializer:
        walk.add_copy(graph.initializer, tensor).name = renamed[tensor.name]
    for sparse in body.sparse_initializer:
        walk.add_copy(graph.sparse_initializer, sparse).values.name = renamed[sparse.values.name]
    for value in body.value_info:
        if value.name in renamed and value.name not in direct:
            walk.add_copy(graph.value_info, value).name = renamed[value.name]
    result = []
    for original in body.node:
        copy = walk.copy_of(original)
        copy.output[:] = [renamed.get(name, name) for name in copy.output]
        copy.input[:] = [renamed.get(name, name) for name in copy.input]
        for part in (part for inside in walk.subgraphs(copy) for part in walk.graphs(inside)):
            for each in part.node:
                each.input[:] = [renamed.get(name, name) for name in each.input]
            for value in part.output:
                value.name = renamed.get(value.name, value.name)
        result.append(copy)
    for inside, outside in zip(body.output, node.output):
        if outside and direct.get(inside.name) != outside:
            result.append(helper.make_node("Identity", [renamed.get(inside.name, inside.name)], [outside]))
    return result
