"""Constant folding: what does not depend on a model's inputs is computed once and becomes a weight.

Shapes count as constant where shape inference knows them, also in part: of ``(batch, 16, 8)`` the 16 is known, and a
Gather or Slice that takes only that folds. Values are computed by ONNX Runtime, all of a pass in one session. A node
that it cannot evaluate stays, and whatever depends on it; the rest folds all the same.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import helper, numpy_helper

from trtops import errors
from trtops.backend.onnx import external, shapes, walk, with_onnxruntime
from trtops.backend.onnx.constants import constant_tensor
from trtops.backend.onnx.copying import copy_of
from trtops.backend.onnx.rewriting import keep_places, remove_unused, replace_nodes

log = logging.getLogger(__name__)

Array: TypeAlias = "np.ndarray[Any, Any]"
Sizes: TypeAlias = "list[int | None] | int | None"
"""What is known of an integer vector (None where an element is not) or scalar."""

_RANDOM = frozenset(
    {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli"}
)
_QUANTIZE = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})
_LARGEST_VERSION = (1 << 31) - 1  # of an operator set, as onnx takes it
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
        passes: Most passes to make; None goes on until one folds nothing.
        fold_shapes: Whether Shape and Size, and what is computed from them, are folded.
        infer_shapes: Whether shapes are inferred before each pass; else those that the model declares are used.
        symbolic: See :func:`trtops.backend.onnx.shapes.infer_shapes`.
        size_threshold: Bytes above which a tensor is not folded; None folds all.
        error_ok: Whether nodes that cannot be evaluated are left as they are.

    Returns:
        Number of nodes folded.

    Raises:
        InferenceError: If a node cannot be evaluated, unless ``error_ok``.
    """
    settings = _Settings(model, fold_shapes, size_threshold, error_ok)
    before = sum(1 for _ in walk.nodes(model))
    done = 0
    while passes is None or done < passes:
        if fold_shapes and infer_shapes:
            _infer(model, symbolic, error_ok)
        changed = _fold_graph(model.graph, {}, settings)
        remove_unused(model.graph)
        done += 1
        if not changed:
            break
    after = sum(1 for _ in walk.nodes(model))
    log.info("Folded %d of %d nodes in %d passes", before - after, before, done)
    return before - after


def _infer(model: onnx.ModelProto, symbolic: bool, error_ok: bool) -> None:
    try:
        shapes.infer_shapes(model, symbolic=symbolic)
    except errors.InvalidModelError as exc:
        if not error_ok:
            raise
        log.warning("%s", exc)


class _Settings:
    """What holds for a whole folding, beside the nodes that turned out not to be evaluable."""

    def __init__(self, model: onnx.ModelProto, fold_shapes: bool, size_threshold: int | None, error_ok: bool) -> None:
        self.opset_imports = list(model.opset_import)
        self.versions = {name: min(version, _LARGEST_VERSION) for name, version in walk.opsets(model).items()}
        self.ir_version = max(model.ir_version, 4)
        self.fold_shapes = fold_shapes
        self.size_threshold = size_threshold
        self.error_ok = error_ok
        self.stuck: set[str] = set()

    def may_fold(self, node: onnx.NodeProto) -> bool:
        """Whether a node with constant inputs always makes the same, and ONNX Runtime may know how."""
        if node.op_type in _RANDOM or node.op_type in _QUANTIZE or not node.output or node.output[0] in self.stuck:
            return False
        domain = walk.domain(node)
        if domain == "com.microsoft":
            return True
        return onnx.defs.has(node.op_type, self.versions.get(domain, 0), domain)

    def too_large(self, array_bytes: int) -> bool:
        return self.size_threshold is not None and array_bytes > self.size_threshold


@dataclass
class _Constants:
    """The constants in reach of a graph: weights by name, decoded when used, and what is known of size vectors."""

    weights: dict[str, onnx.TensorProto]
    arrays: dict[str, Array] = field(default_factory=dict)
    sizes: dict[str, Sizes] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return name in self.weights

    def array(self, name: str) -> Array:
        if name not in self.arrays:
            self.arrays[name] = numpy_helper.to_array(self.weights[name])
        return self.arrays[name]

    def size(self, name: str) -> Sizes:
        """What is known of an integer vector or scalar; an empty list of knowledge is None."""
        if name in self.sizes:
            return self.sizes[name]
        tensor = self.weights.get(name)
        if (
            tensor is None
            or len(tensor.dims) > 1
            or tensor.data_type not in (onnx.TensorProto.INT64, onnx.TensorProto.INT32)
        ):
            return None
        values: Sizes = self.array(name).tolist()
        return values


def _fold_graph(graph: onnx.GraphProto, outer: Mapping[str, onnx.TensorProto], settings: _Settings) -> bool:
    """One pass over one graph and its bodies; True if it changed something."""
    constants = _Constants({**outer, **{tensor.name: tensor for tensor in graph.initializer}})
    changed = _inline_branches(graph, constants)
    outputs = {value.name for value in graph.output}
    foldable: list[onnx.NodeProto] = []
    others: list[onnx.NodeProto] = []
    computed: set[str] = set()
    folded: dict[str, onnx.TensorProto] = {}
    declared = shapes.values(graph)
    for index in walk.execution_order(graph.node):
        node = graph.node[index]
        tensor = _known_output(node, constants, declared, settings)
        if tensor is not None:
            constants.weights[tensor.name] = tensor
            if node.op_type != "Constant" or tensor.name not in outputs:
                folded[tensor.name] = tensor
        elif _is_constant(node, constants, computed, settings):
            foldable.append(node)
            computed.update(node.output)
        else:
            others.append(node)
    stuck = len(settings.stuck)
    read = outputs.union(*(walk.uses(node) for node in others))
    folded |= _evaluate_all(foldable, [n for node in foldable for n in node.output if n in read], constants, settings)
    constants.weights.update(folded)
    # Of the nodes that stay, remove_unused takes out what only folded ones needed.
    keep_places(graph.node, {i for i, node in enumerate(graph.node) if folded.keys().isdisjoint(node.output)})
    # Not every parser takes a weight for an output: a Constant node makes it.
    graph.node.extend(
        helper.make_node("Constant", [], [n], name=f"{n}_constant", value=t) for n, t in folded.items() if n in outputs
    )
    graph.initializer.extend(tensor for name, tensor in folded.items() if name not in outputs)
    changed |= bool(folded) or len(settings.stuck) > stuck
    for node in graph.node:
        for body in walk.subgraphs(node):
            changed |= _fold_graph(body, constants.weights, settings)
            remove_unused(body)
    return changed


def _is_constant(node: onnx.NodeProto, constants: _Constants, computed: set[str], settings: _Settings) -> bool:
    return settings.may_fold(node) and all(name in constants or name in computed for name in walk.uses(node))


def _evaluate_all(
    nodes: list[onnx.NodeProto], wanted: Sequence[str], constants: _Constants, settings: _Settings
) -> dict[str, onnx.TensorProto]:
    """Compute what is wanted of the nodes; nodes that cannot be evaluated are noted as stuck and left out."""
    if not wanted:
        return {}
    try:
        arrays = _evaluate(nodes, wanted, constants, settings)
    except errors.InferenceError as exc:
        if len(nodes) == 1:
            if not settings.error_ok:
                raise
            log.info("%s is not folded: %s", walk.label(nodes[0]), exc)
            settings.stuck.add(nodes[0].output[0])
            return {}
    else:
        large = {name for name, array in arrays.items() if settings.too_large(array.nbytes)}
        if not large:
            return {name: numpy_helper.from_array(array, name) for name, array in arrays.items()}
        settings.stuck.update(node.output[0] for node in nodes if large & set(node.output))
        return {name: numpy_helper.from_array(a, name) for name, a in arrays.items() if name not in large}
    half = len(nodes) // 2
    first, second = nodes[:half], nodes[half:]
    read = set(wanted) | {name for node in second for name in walk.uses(node)}
    folded = _evaluate_all(first, [n for node in first for n in node.output if n in read], constants, settings)
    constants.weights.update(folded)
    computed: set[str] = set()
    ready = []
    for node in second:
        if _is_constant(node, constants, computed, settings):
            ready.append(node)
            computed.update(node.output)
    if ready:
        read = set(wanted) | {name for node in second if node not in ready for name in walk.uses(node)}
        folded |= _evaluate_all(ready, [n for node in ready for n in node.output if n in read], constants, settings)
    return folded


def _evaluate(
    nodes: Sequence[onnx.NodeProto], wanted: Sequence[str], constants: _Constants, settings: _Settings
) -> dict[str, Array]:
    """Compute tensors that constant nodes make, in one session."""
    graph = onnx.GraphProto(name="constants")
    graph.node.extend(nodes)
    made = {name for node in nodes for name in node.output}
    feed: dict[str, Array] = {}
    for name in sorted({name for node in nodes for name in walk.uses(node)} - made):
        tensor = constants.weights[name]
        size = external.expected_bytes(tensor)
        # numpy lacks the types beyond UINT64.
        if size is None or size <= _FED_BYTES or tensor.data_type > onnx.TensorProto.UINT64:
            graph.initializer.append(tensor)
        else:
            feed[name] = constants.array(name)
            graph.input.append(helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims)))
    graph.output.extend(helper.make_empty_tensor_value_info(name) for name in wanted)
    model = helper.make_model(graph, opset_imports=settings.opset_imports, ir_version=settings.ir_version)
    results = with_onnxruntime.evaluate(model, wanted, feed)
    for name, result in zip(wanted, results):
        if not isinstance(result, np.ndarray):
            raise errors.InferenceError(f"{name!r} is no tensor.")
    return dict(zip(wanted, results))


def _known_output(
    node: onnx.NodeProto, constants: _Constants, declared: Mapping[str, onnx.ValueInfoProto], settings: _Settings
) -> onnx.TensorProto | None:
    """The value of a node that can be told without computing: a Constant, or sizes that shape inference knows."""
    if walk.is_onnx_op(node, "Constant"):
        return constant_tensor(node)
    if not settings.fold_shapes or not walk.is_onnx_op(node):
        return None
    rule = _SIZE_RULES.get(node.op_type)
    if rule is None or len(node.input) < _LEAST_INPUTS.get(node.op_type, 1) or not node.output:
        return None
    known = rule(node, constants, declared)
    if known is None or len(node.output) != 1:
        return None
    constants.sizes[node.output[0]] = known
    if isinstance(known, list) and any(size is None for size in known):
        return None
    element = _element_type(node, declared)
    if not element:
        return None
    return numpy_helper.from_array(np.array(known, helper.tensor_dtype_to_np_dtype(element)), node.output[0])


def _element_type(node: onnx.NodeProto, declared: Mapping[str, onnx.ValueInfoProto]) -> int:
    """Element type of what a node makes; 0 if not known."""
    if node.op_type in ("Shape", "Size"):
        return onnx.TensorProto.INT64
    value = declared.get(node.output[0])
    return value.type.tensor_type.elem_type if value is not None else 0


def _attribute(node: onnx.NodeProto, name: str, default: int) -> int:
    return next((int(a.i) for a in node.attribute if a.name == name), default)


def _dims(name: str, constants: _Constants, declared: Mapping[str, onnx.ValueInfoProto]) -> list[int | None] | None:
    if name in constants:
        return list(constants.weights[name].dims)
    value = declared.get(name)
    if value is None or not value.type.tensor_type.HasField("shape"):
        return None
    dims = value.type.tensor_type.shape.dim
    return [d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else None for d in dims]


def _shape(node: onnx.NodeProto, constants: _Constants, declared: Mapping[str, onnx.ValueInfoProto]) -> Sizes:
    dims = _dims(node.input[0], constants, declared)
    if dims is None:
        return None
    return dims[_attribute(node, "start", 0) : _attribute(node, "end", len(dims))]


def _size(node: onnx.NodeProto, constants: _Constants, declared: Mapping[str, onnx.ValueInfoProto]) -> Sizes:
    dims = _dims(node.input[0], constants, declared)
    if dims is None or any(d is None for d in dims):
        return None
    return int(np.prod([d for d in dims if d is not None], dtype=np.int64))


def _gather(node: onnx.NodeProto, constants: _Constants, declared: Mapping[str, onnx.ValueInfoProto]) -> Sizes:
    sizes, index = constants.size(node.input[0]), constants.size(node.input[1])
    if not isinstance(sizes, list) or _attribute(node, "axis", 0) not in (0, -1):
        return None
    if isinstance(index, int):
        return sizes[index] if -len(sizes) <= index < len(sizes) else None
    if index is None or any(i is None or not -len(sizes) <= i < len(sizes) for i in index):
        return None
    return [sizes[i] for i in index if i is not None]


def _slice(node: onnx.NodeProto, constants: _Constants, declared: Mapping[str, onnx.ValueInfoProto]) -> Sizes:
    sizes = constants.size(node.input[0])
    if not isinstance(sizes, list):
        return None
    if len(node.input) == 1:  # before operator set 10, starts and ends were attributes
        given = {a.name: list(a.ints) for a in node.attribute}
        start, end, step = given.get("starts", [None])[0], given.get("ends", [None])[0], 1
    else:
        bounds = [constants.size(name) if name else None for name in node.input[1:]]
        if any(name and not (isinstance(b, list) and len(b) == 1) for name, b in zip(node.input[1:], bounds)):
            return None
        start, end = (b[0] if isinstance(b, list) else None for b in bounds[:2])
        last = bounds[3] if len(bounds) > 3 else None
        step_or_none = last[0] if isinstance(last, list) else 1
        if step_or_none is None:
            return None
        step = step_or_none
    if start is None or end is None:
        return None
    if step < 0:
        return None  # rare, and INT_MIN as an end would need care
    return sizes[start:end:step]


def _concat(node: onnx.NodeProto, constants: _Constants, declared: Mapping[str, onnx.ValueInfoProto]) -> Sizes:
    result: list[int | None] = []
    for name in node.input:
        sizes = constants.size(name)
        if sizes is None:
            dims = _dims(name, constants, declared)
            if dims is None or len(dims) != 1 or dims[0] is None:
                return None
            sizes = [None] * dims[0]
        if not isinstance(sizes, list):
            return None
        result += sizes
    return result


def _same(node: onnx.NodeProto, constants: _Constants, declared: Mapping[str, onnx.ValueInfoProto]) -> Sizes:
    return constants.size(node.input[0])


def _cast(node: onnx.NodeProto, constants: _Constants, declared: Mapping[str, onnx.ValueInfoProto]) -> Sizes:
    to = _attribute(node, "to", 0)
    return constants.size(node.input[0]) if to in (onnx.TensorProto.INT64, onnx.TensorProto.INT32) else None


def _unsqueeze(node: onnx.NodeProto, constants: _Constants, declared: Mapping[str, onnx.ValueInfoProto]) -> Sizes:
    size = constants.size(node.input[0])
    axes = constants.size(node.input[1]) if len(node.input) > 1 else next((list(a.ints) for a in node.attribute), [])
    return [size] if isinstance(size, int) and isinstance(axes, list) and len(axes) == 1 else None


def _squeeze(node: onnx.NodeProto, constants: _Constants, declared: Mapping[str, onnx.ValueInfoProto]) -> Sizes:
    sizes = constants.size(node.input[0])
    return sizes[0] if isinstance(sizes, list) and len(sizes) == 1 else None


_SIZE_RULES = {
    "Shape": _shape,
    "Size": _size,
    "Gather": _gather,
    "Slice": _slice,
    "Concat": _concat,
    "Identity": _same,
    "Cast": _cast,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
}


_LEAST_INPUTS = {"Gather": 2}


def _inline_branches(graph: onnx.GraphProto, constants: _Constants) -> bool:
    """Replace each If whose condition is a weight by the branch that it takes."""
    changed = False
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        body = _branch_taken(node, constants)
        if body is None:
            nodes.append(node)
        else:
            nodes += _inlined(graph, node, body)
            changed = True
    if changed:
        replace_nodes(graph, nodes)
        constants.weights.update((tensor.name, tensor) for tensor in graph.initializer)
    return changed


def _branch_taken(node: onnx.NodeProto, constants: _Constants) -> onnx.GraphProto | None:
    """The branch that an If takes; None if that is not known, or the node is no If."""
    if not walk.is_onnx_op(node, "If") or not node.input or node.input[0] not in constants:
        return None
    condition = constants.array(node.input[0]).reshape(-1)
    if condition.size != 1:
        return None
    wanted = "then_branch" if condition[0] else "else_branch"
    return next((a.g for a in node.attribute if a.name == wanted and a.HasField("g")), None)


def _inlined(graph: onnx.GraphProto, node: onnx.NodeProto, body: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The nodes of a branch with names of their own; its weights and descriptions move to the graph."""
    prefix = f"{node.name or node.output[0]}/"
    inner = walk.initializer_names(body) | {name for n in body.node for name in n.output if name}
    renamed = {name: prefix + name for name in inner}
    for tensor in body.initializer:
        graph.initializer.append(tensor)
        graph.initializer[-1].name = renamed[tensor.name]
    for value in body.value_info:
        if value.name in renamed:
            graph.value_info.append(value)
            graph.value_info[-1].name = renamed[value.name]
    result = [_renamed(n, renamed) for n in body.node]
    for inside, outside in zip(body.output, node.output):
        if outside:
            result.append(helper.make_node("Identity", [renamed.get(inside.name, inside.name)], [outside]))
    return result


def _renamed(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
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
