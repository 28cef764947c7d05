"""Constant folding: what does not depend on a model's inputs is computed once and becomes a weight.

Shapes count as constant where shape inference knows them, also in part: of ``(batch, 16, 8)`` the 16 is known, and a
Gather or Slice that takes only that folds. Values are computed by ONNX Runtime, all of a pass in one session. A node
that it cannot evaluate stays, and whatever depends on it; the rest folds all the same.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from trtops import errors
from trtops.backend.onnx import external, shapes, walk, with_onnxruntime
from trtops.backend.onnx.constants import constant_tensor, numpy_dtype
from trtops.backend.onnx.copying import add_copy, copy_of
from trtops.backend.onnx.rewriting import keep_places, remove_unused, replace_nodes
from trtops.backend.onnx.save import model_bytes
from trtops.backend.onnx.sizes import Array, KnownTensors
from trtops.limits import memory_limit
from trtops.logger import ON_STDOUT, Logger

log = logging.getLogger(__name__)

_RANDOM = frozenset(
    {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli"}
)
# Folded, they would be weights in FP32 again: builders take the pairs for the order to compute in integers.
_QUANTIZE = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})
_LARGEST_VERSION = (1 << 31) - 1  # of an operator set, as onnx.defs takes it; damaged models import larger ones
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
    """Fold constants in a model, in place, sub-graphs included, and remove what is not needed any more.

    Nodes that draw random numbers, and QuantizeLinear and its kin, are left alone.

    Args:
        model: The model, with all weights inside.
        passes: Most passes to make; None repeats until a pass folds nothing.
        fold_shapes: Whether Shape and Size, and what is computed from them, are folded.
        infer_shapes: Whether shapes are inferred before each pass; else those that the model declares are used.
        symbolic: See :func:`trtops.backend.onnx.shapes.infer_shapes`.
        size_threshold: Bytes above which a tensor is not folded; by default twice the model's own bytes, and at least a
            sixteenth of what may be taken (:mod:`trtops.limits`), which is 256 MiB.
        error_ok: Whether nodes that cannot be evaluated are left as they are.

    Returns:
        Number of nodes folded.

    Raises:
        InferenceError: If a node cannot be evaluated, unless ``error_ok``.
    """
    nodes, bytes_before = sum(1 for _ in walk.nodes(model)), model_bytes(model)
    settings = _Settings(model, bytes_before, fold_shapes, size_threshold, error_ok)
    after, done = nodes, 0
    while passes is None or done < passes:
        log.log(Logger.START, "Folding Constants | Pass %d", done + 1, extra=ON_STDOUT)
        if fold_shapes and infer_shapes:
            _infer_shapes(model, symbolic, error_ok)
        changed = _fold_graph(model.graph, {}, settings)
        remove_unused(model.graph)
        done += 1
        before, after = after, sum(1 for _ in walk.nodes(model))
        folded = f"Total Nodes | Original: {before:5}, After Folding: {after:5} | {before - after:5} Nodes Folded"
        log.log(Logger.FINISH, "    %s", folded, extra=ON_STDOUT)
        if not changed:
            break
    bytes_after = model_bytes(model)
    if bytes_after > max(2 * bytes_before, _SMALL_MODEL):
        log.warning(
            "The model has %.1f MB now, and had %.1f MB: constants larger than what they are made of were folded. "
            "Limit that by --fold-size-threshold (size_threshold).",
            bytes_after / 1e6,
            bytes_before / 1e6,
        )
    return nodes - after


def _infer_shapes(model: onnx.ModelProto, symbolic: bool, error_ok: bool) -> None:
    try:
        shapes.infer_shapes(model, symbolic=symbolic)
    except errors.InvalidModelError as exc:
        if not error_ok:
            raise
        log.warning("%s", exc)


_SMALL_MODEL = 1 << 20
"""Bytes of a model whose growth is nobody's concern."""


class _Settings:
    """Settings of the whole run, and in ``stuck`` the first outputs of nodes that turned out not to be evaluable."""

    def __init__(
        self, model: onnx.ModelProto, size: int, fold_shapes: bool, size_threshold: int | None, error_ok: bool
    ) -> None:
        self.opset_imports = list(model.opset_import)
        self.versions = {name: min(version, _LARGEST_VERSION) for name, version in walk.opsets(model).items()}
        self.ir_version = max(model.ir_version, 4)  # from which on weights need not be inputs too
        self.fold_shapes = fold_shapes
        # A constant far larger than the whole model saves nobody anything.
        usual = max(2 * size, memory_limit() // 16)
        self.size_threshold = usual if size_threshold is None else size_threshold
        self.error_ok = error_ok
        self.stuck: set[str] = set()

    def may_fold(self, node: onnx.NodeProto) -> bool:
        """Whether a node with constant inputs always makes the same, and ONNX Runtime may know how."""
        if node.op_type in _RANDOM or node.op_type in _QUANTIZE or not node.output or node.output[0] in self.stuck:
            return False
        domain = walk.domain(node)
        if domain == "com.microsoft":  # ONNX Runtime's own operators, of which onnx has no schemas
            return True
        return onnx.defs.has(node.op_type, self.versions.get(domain, 0), domain)

    def too_large(self, array_bytes: int) -> bool:
        return array_bytes > self.size_threshold


def _fold_graph(graph: onnx.GraphProto, outer: Mapping[str, onnx.TensorProto], settings: _Settings) -> bool:
    """One pass over one graph and its bodies; True if it changed something."""
    known = KnownTensors({**outer, **{tensor.name: tensor for tensor in graph.initializer}})
    changed = _inline_branches(graph, known)
    known.declared = shapes.values(graph)
    stuck = len(settings.stuck)
    folded = _fold_nodes(graph, known, settings)
    outputs = {value.name for value in graph.output}
    # Of the nodes that stay, remove_unused takes out what only folded ones needed.
    keep_places(graph.node, {i for i, node in enumerate(graph.node) if folded.keys().isdisjoint(node.output)})
    # Not every parser takes a weight for an output: a Constant node makes it.
    graph.node.extend(
        helper.make_node("Constant", [], [n], name=f"{n}_constant", value=t) for n, t in folded.items() if n in outputs
    )
    graph.initializer.extend(tensor for name, tensor in folded.items() if name not in outputs)
    # A node that got stuck is a change: what was to be computed with it is tried again without it.
    changed |= bool(folded) or len(settings.stuck) > stuck
    for node in graph.node:
        for body in walk.subgraphs(node):
            changed |= _fold_graph(body, known.weights, settings)
            remove_unused(body)
    return changed


def _fold_nodes(graph: onnx.GraphProto, known: KnownTensors, settings: _Settings) -> dict[str, onnx.TensorProto]:
    """What the nodes of a graph make that is constant and needed by others; noted in ``known`` as well."""
    outputs = {value.name for value in graph.output}
    foldable: list[onnx.NodeProto] = []
    others: list[onnx.NodeProto] = []
    computed: set[str] = set()
    folded: dict[str, onnx.TensorProto] = {}
    for index in walk.execution_order(graph.node):
        node = graph.node[index]
        tensor = _known_output(node, known, settings)
        if tensor is not None:
            known.weights[tensor.name] = tensor
            if node.op_type != "Constant" or tensor.name not in outputs:  # such a node would only be written anew
                folded[tensor.name] = tensor
        elif _is_computable(node, known, computed, settings):
            foldable.append(node)
            computed.update(node.output)
        else:
            others.append(node)
    # What lies between foldable nodes is neither kept nor even read back from the session.
    read = outputs.union(*(walk.uses(node) for node in others))
    folded |= _evaluate_all(foldable, _made_and_read(foldable, read), known, settings)
    known.weights.update(folded)
    return folded


def _is_computable(node: onnx.NodeProto, known: KnownTensors, computed: set[str], settings: _Settings) -> bool:
    return settings.may_fold(node) and all(name in known or name in computed for name in walk.uses(node))


def _made_and_read(nodes: Iterable[onnx.NodeProto], read: Collection[str]) -> list[str]:
    return [name for node in nodes for name in node.output if name in read]


def _evaluate_all(
    nodes: list[onnx.NodeProto], wanted: Sequence[str], known: KnownTensors, settings: _Settings
) -> dict[str, onnx.TensorProto]:
    """Compute what is wanted of the nodes; those that cannot be evaluated are noted as stuck and left out.

    All are computed in one session. If that fails, the halves are, and so on down to the nodes at fault: a few more
    sessions for each of them, where one for every node would take far longer.
    """
    if not wanted:
        return {}
    try:
        arrays = _evaluate_nodes(nodes, wanted, known, settings)
    except errors.InferenceError as exc:
        if len(nodes) > 1:
            return _evaluate_halves(nodes, wanted, known, settings)
        if not settings.error_ok:
            raise
        log.info("%s is not folded: %s", walk.label(nodes[0]), exc)
        settings.stuck.add(nodes[0].output[0])
        return {}
    large = {name for name, array in arrays.items() if settings.too_large(array.nbytes)}
    settings.stuck.update(node.output[0] for node in nodes if not large.isdisjoint(node.output))
    return {name: numpy_helper.from_array(array, name) for name, array in arrays.items() if name not in large}


def _evaluate_halves(
    nodes: list[onnx.NodeProto], wanted: Sequence[str], known: KnownTensors, settings: _Settings
) -> dict[str, onnx.TensorProto]:
    """Compute the first half of some nodes, then what can be computed of the second with what the first one made."""
    half = len(nodes) // 2
    first, second = nodes[:half], nodes[half:]
    folded = _evaluate_all(first, _made_and_read(first, _names_read(second).union(wanted)), known, settings)
    known.weights.update(folded)
    computed: set[str] = set()
    ready: list[onnx.NodeProto] = []
    blocked: list[onnx.NodeProto] = []
    for node in second:
        if _is_computable(node, known, computed, settings):
            ready.append(node)
            computed.update(node.output)
        else:
            blocked.append(node)
    return folded | _evaluate_all(ready, _made_and_read(ready, _names_read(blocked).union(wanted)), known, settings)


def _names_read(nodes: Iterable[onnx.NodeProto]) -> set[str]:
    return {name for node in nodes for name in walk.uses(node)}


def _evaluate_nodes(
    nodes: Sequence[onnx.NodeProto], wanted: Sequence[str], known: KnownTensors, settings: _Settings
) -> dict[str, Array]:
    """Compute tensors that constant nodes make, in one session."""
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
    model = helper.make_model(graph, opset_imports=settings.opset_imports, ir_version=settings.ir_version)
    results = with_onnxruntime.evaluate(model, wanted, feed)
    for name, result in zip(wanted, results):
        if not isinstance(result, np.ndarray):
            raise errors.InferenceError(f"{name!r} is no tensor.")
    return dict(zip(wanted, results))


def _known_output(node: onnx.NodeProto, known: KnownTensors, settings: _Settings) -> onnx.TensorProto | None:
    """What a node makes if no computation is needed to tell: a Constant, or sizes that shape inference knows."""
    if walk.is_onnx_op(node, "Constant"):
        return constant_tensor(node)
    sizes = known.learn_sizes(node) if settings.fold_shapes else None
    if sizes is None or (isinstance(sizes, list) and None in sizes):
        return None
    declared = known.declared.get(node.output[0])
    if node.op_type in ("Shape", "Size"):
        element = int(onnx.TensorProto.INT64)
    elif declared is not None and declared.type.tensor_type.elem_type:
        element = declared.type.tensor_type.elem_type
    else:
        return None
    return numpy_helper.from_array(np.array(sizes, numpy_dtype(element, node.output[0])), node.output[0])


def _inline_branches(graph: onnx.GraphProto, known: KnownTensors) -> bool:
    """Replace each If whose condition is a weight by the branch that it takes."""
    changed = False
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        body = _branch_taken(node, known)
        if body is None:
            nodes.append(node)
        else:
            nodes += _branch_nodes(graph, node, body)
            changed = True
    if changed:
        replace_nodes(graph, nodes)
        known.weights.update((tensor.name, tensor) for tensor in graph.initializer)
    return changed


def _branch_taken(node: onnx.NodeProto, known: KnownTensors) -> onnx.GraphProto | None:
    """The branch that an If takes; None if that is not known, or the node is no If."""
    if not walk.is_onnx_op(node, "If") or not node.input or node.input[0] not in known:
        return None
    condition = known.array(node.input[0]).reshape(-1)
    if condition.size != 1:
        return None
    wanted = "then_branch" if condition[0] else "else_branch"
    return next((a.g for a in node.attribute if a.name == wanted and a.HasField("g")), None)


def _branch_nodes(graph: onnx.GraphProto, node: onnx.NodeProto, body: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The nodes of a branch under new names that cannot collide; its weights and descriptions move to the graph."""
    prefix = f"{walk.node_name(node)}/"
    inner = walk.initializer_names(body) | {name for n in body.node for name in n.output if name}
    renamed = {name: prefix + name for name in inner}
    for tensor in body.initializer:
        add_copy(graph.initializer, tensor).name = renamed[tensor.name]
    for sparse in body.sparse_initializer:
        add_copy(graph.sparse_initializer, sparse).values.name = renamed[sparse.values.name]
    for value in body.value_info:
        if value.name in renamed:
            add_copy(graph.value_info, value).name = renamed[value.name]
    result = [_copy_renamed(n, renamed) for n in body.node]
    for inside, outside in zip(body.output, node.output):
        if outside:
            result.append(helper.make_node("Identity", [renamed.get(inside.name, inside.name)], [outside]))
    return result


def _copy_renamed(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    """A copy of a node with tensors renamed, in its bodies too."""
    copy = copy_of(node)
    for field_name in (copy.input, copy.output):
        for i, name in enumerate(field_name):
            field_name[i] = names.get(name, name)
    for body in walk.subgraphs(copy):
        for graph in walk.graphs(body):
            for inner in graph.node:
                for i, name in enumerate(inner.input):
                    inner.input[i] = names.get(name, name)
            for value in graph.output:
                value.name = names.get(value.name, value.name)
    return copy
