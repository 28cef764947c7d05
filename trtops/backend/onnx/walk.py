"""ONNX graphs as messages: iteration, names, changes in place, and Constant nodes.

Yielded messages are parts of the model, not copies. Importing this module does not import ``onnx``.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import chain, pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from trtops import errors
from trtops.backend.onnx.copying import copy_of, expected_bytes
from trtops.backend.onnx.messages import AttributeProto, TensorProto
from trtops.metadata import Dim, is_dynamic

if TYPE_CHECKING:
    import numpy as np
    import onnx

M = TypeVar("M")
V = TypeVar("V")
FLOATING = frozenset((TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE))

_RANDOM_OPS = frozenset(
    ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli")
)
# Types of attributes that may have lists of graphs or tensors. To look at an empty list of each attribute
# takes longer than all the rest.
_LISTS = frozenset(
    AttributeProto.AttributeType.Value(name) for name in ("UNDEFINED", "GRAPHS", "TENSORS", "SPARSE_TENSORS")
)
# The input that puts a Dropout in training mode.
_TRAINING_MODE = {"Dropout": 2, "BiasDropout": 4}


def is_random(node: onnx.NodeProto) -> bool:
    """Whether a node or one inside it draws random numbers; a Dropout may, if it has an input for its training mode."""
    mode = _TRAINING_MODE.get(node.op_type)
    if node.op_type in _RANDOM_OPS or (mode is not None and any(node.input[mode : mode + 1])):
        return True
    return any(any(map(is_random, body.node)) for body in subgraphs(node))


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the bodies in a node's attributes (If, Loop, Scan), without those nested inside them."""
    return (body for _, body in named_bodies(node))


def named_bodies(node: onnx.NodeProto) -> Iterator[tuple[str, onnx.GraphProto]]:
    """Yield the :func:`subgraphs` of a node with their attributes' names, numbered within an attribute."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.name, attribute.g
        if attribute.type in _LISTS:
            for number, body in enumerate(attribute.graphs):
                yield f"{attribute.name}[{number}]", body


def nodes_within(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """A node, and all nodes of its sub-graphs at any depth."""
    yield node
    for body in subgraphs(node):
        for graph in graphs(body):
            yield from graph.node


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph, then all graphs nested in it at any depth."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:  # a call of `subgraphs` for each node would take as long as all the rest
            if attribute.HasField("g"):
                yield from graphs(attribute.g)
            if attribute.type in _LISTS:
                for body in attribute.graphs:
                    yield from graphs(body)


def nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Every node of a model: the main graph's, its sub-graphs', and the functions'."""
    for graph in graphs(model.graph):
        yield from graph.node
    for function in model.functions:
        for node in function.node:
            yield from nodes_within(node)


def tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor of a model: the main graph's initializers first, then all others, functions included."""
    function_nodes = chain.from_iterable(function.node for function in model.functions)
    bodies = chain.from_iterable(map(subgraphs, function_nodes))
    for graph in chain.from_iterable(map(graphs, (model.graph, *bodies))):
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield from (sparse.values, sparse.indices)
        yield from _attribute_tensors(graph.node)
    for function in model.functions:
        yield from _attribute_tensors(function.node)


def _attribute_tensors(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            if attribute.HasField("sparse_tensor"):
                yield from (attribute.sparse_tensor.values, attribute.sparse_tensor.indices)
            if attribute.type in _LISTS:
                yield from attribute.tensors
                for sparse in attribute.sparse_tensors:
                    yield from (sparse.values, sparse.indices)


def weight_bytes(model: onnx.ModelProto) -> int:
    """Return the bytes of a model's tensors, by their shapes, wherever they are stored."""
    return sum(expected_bytes(tensor) or 0 for tensor in tensors(model))


def names_of(messages: Iterable[Any]) -> set[str]:
    """Return the names of inputs, outputs, tensors or nodes."""
    return {message.name for message in messages}


def by_name(messages: Iterable[M]) -> dict[str, M]:
    """Return inputs, outputs, tensors or nodes by their names."""
    return {message.name: message for message in messages}  # type: ignore[attr-defined]


def produced(nodes: Iterable[onnx.NodeProto]) -> Iterator[str]:
    """Yield the names of the tensors produced by nodes, without omitted outputs."""
    return filter(None, chain.from_iterable(node.output for node in nodes))


def read(nodes: Iterable[onnx.NodeProto]) -> Iterator[str]:
    """Yield the names read by nodes, as :func:`uses` returns them."""
    return chain.from_iterable(map(uses, nodes))


def initializer_names(graph: onnx.GraphProto) -> set[str]:
    """Names of a graph's initializers, dense and sparse."""
    return names_of((*graph.initializer, *map(attrgetter("values"), graph.sparse_initializer)))


def defined(graph: onnx.GraphProto) -> set[str]:
    """Return the names defined by a graph itself: its inputs, its weights, and its nodes' outputs."""
    names = names_of(graph.input) | initializer_names(graph)
    names.update(produced(graph.node))
    return names


def visible(outer: Mapping[str, V], graph: onnx.GraphProto, inner: Mapping[str, V]) -> dict[str, V]:
    """Return values by name as seen by a graph's nodes: ``inner``, and ``outer`` without redefined names.

    Bodies may use a name again that the graph around them defines later, and that their siblings define.
    """
    if not outer:
        return dict(inner)
    hidden = defined(graph)
    return {**{name: value for name, value in outer.items() if name not in hidden}, **inner}


def body_scope(outer: str, node: str, outputs: Iterable[str], attribute: str) -> str:
    """A name for the body of a node, unique in the model: of the scope around it, the first output, and the attribute.

    The main graph is ``""``. A node without outputs is called by its name.
    """
    return f"{outer}{next(filter(None, outputs), node)}/{attribute}/"


def captured(graph: onnx.GraphProto) -> set[str]:
    """Return the names taken by a sub-graph from the graphs around it."""
    return names_of(graph.output).union(read(graph.node)) - defined(graph)


def uses(node: onnx.NodeProto) -> list[str]:
    """Return the names read by a node: its inputs and captures of its sub-graphs, without omitted optional inputs."""
    names: list[str] = list(filter(None, node.input))
    if node.attribute:
        for body in subgraphs(node):
            names += captured(body)
    return names


def node_name(node: onnx.NodeProto) -> str:
    """Return a node's name, or else its first output's; empty if it has neither."""
    return node.name or next(filter(None, node.output), "")


def select_nodes(model: onnx.ModelProto, patterns: Iterable[str]) -> list[onnx.NodeProto]:
    """Return the nodes matching names, outputs or op types, or shell patterns of names and outputs.

    Bodies and functions are included. ConfigError for a pattern that selects nothing.
    """
    by_label: dict[str, list[onnx.NodeProto]] = {}
    by_type: dict[str, list[onnx.NodeProto]] = {}
    for node in nodes(model):
        by_type.setdefault(node.op_type, []).append(node)
        for name in {node.name, *node.output} - {""}:
            by_label.setdefault(name, []).append(node)
    selected: list[onnx.NodeProto] = []
    for pattern in patterns:
        matches = by_label.get(pattern, []) + by_type.get(pattern, [])
        if not matches:
            for name in fnmatch.filter(by_label, pattern):
                matches += by_label[name]
        if not matches:
            near = errors.near(pattern, by_label)
            raise errors.ConfigError(f"The model has no node, output or op type {pattern!r}. {near}")
        selected += matches
    return selected


def label(node: onnx.NodeProto) -> str:
    """A node for messages: its type and :func:`node_name`."""
    return f"{node.op_type} {node_name(node)!r}" if node_name(node) else node.op_type


def domain(node: onnx.NodeProto) -> str:
    """Return the domain of a node's operator; empty for ONNX's own, also if written ``ai.onnx``."""
    return "" if node.domain == "ai.onnx" else node.domain


def is_onnx_op(node: onnx.NodeProto, *op_types: str) -> bool:
    """Whether a node's operator is one of ONNX's own, and has one of these types if any are given."""
    return not domain(node) and (not op_types or node.op_type in op_types)


def opsets(model: onnx.ModelProto | onnx.FunctionProto) -> dict[str, int]:
    """Return the imported operator set versions by domain, as written by :func:`domain`."""
    versions: dict[str, int] = {}
    for imported in model.opset_import:
        name = "" if imported.domain == "ai.onnx" else imported.domain
        # Damaged models import versions that onnx.defs, with 32 bits, does not accept.
        versions[name] = max(versions.get(name, 0), min(imported.version, (1 << 31) - 1))
    return versions


def opset(model: onnx.ModelProto, domain: str = "") -> int:
    """Return the version of an imported operator set; 0 if it is not imported."""
    return opsets(model).get("" if domain == "ai.onnx" else domain, 0)


def int_attribute(node: onnx.NodeProto, name: str, default: int) -> int:
    """Return an integer attribute, or the default if it is omitted."""
    attribute = by_name(node.attribute).get(name)
    return default if attribute is None else attribute.i


def ints_attribute(node: onnx.NodeProto, name: str) -> list[int] | None:
    """Return an attribute with a list of integers; None if it is omitted."""
    attribute = by_name(node.attribute).get(name)
    return None if attribute is None else list(attribute.ints)


def makers(nodes: Iterable[onnx.NodeProto]) -> dict[str, onnx.NodeProto]:
    """Return the producer of each tensor, by the tensor's name."""
    maker: dict[str, onnx.NodeProto] = {}
    for node in nodes:
        maker.update(dict.fromkeys(filter(None, node.output), node))
    return maker


def readers(nodes: Iterable[onnx.NodeProto]) -> dict[str, list[onnx.NodeProto]]:
    """Return the nodes that read each tensor, each once, by the tensor's name."""
    by_tensor: dict[str, list[onnx.NodeProto]] = {}
    for node in nodes:
        for name in dict.fromkeys(uses(node)):
            by_tensor.setdefault(name, []).append(node)
    return by_tensor


def execution_order(nodes: Sequence[onnx.NodeProto]) -> list[int]:
    """Return the indices of the nodes in an order of execution, the given order if valid.

    InvalidModelError lists nodes that form a cycle.
    """
    maker: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in filter(None, node.output):
            maker.setdefault(name, index)
    if all(maker.get(name, -1) < index for index, node in enumerate(nodes) for name in uses(node)):
        return list(range(len(nodes)))
    waits_for: dict[int, set[int]] = {}
    for index, node in enumerate(nodes):
        waits_for[index] = {maker[name] for name in uses(node) if name in maker}
    try:
        return list(TopologicalSorter(waits_for).static_order())
    except CycleError as exc:
        circle = " -> ".join(label(nodes[i]) for i in exc.args[1][:6])
        raise errors.InvalidModelError(f"Nodes form a cycle: {circle}.") from None


def in_order(nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Return the nodes in :func:`execution_order`."""
    return [nodes[index] for index in execution_order(nodes)]


class FreshNames:
    """Returns names not used by any node or tensor of a graph, at any depth."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        """Record the present names of a graph; returned names are added."""
        self._taken: set[str] = set()
        for part in graphs(graph):
            self._taken |= initializer_names(part)
            self._taken |= names_of((*part.input, *part.output, *part.value_info))
            for node in part.node:
                self._taken.update((node.name, *node.input, *node.output))

    def __call__(self, base: str) -> str:
        """Return the base name, with ``_1`` or the next free number appended if it is taken."""
        name, count = base, 1
        while name in self._taken:
            name, count = f"{base}_{count}", count + 1
        self._taken.add(name)
        return name


def rename(names: Any, old: str, new: str) -> None:
    """Replace a name in a list or repeated field of names."""
    for i, name in enumerate(names):
        if name == old:
            names[i] = new


def rename_uses(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Rename tensors read by the nodes of a graph, in bodies too unless a body defines the name itself."""
    for node in graph.node:
        if not names.keys().isdisjoint(node.input):
            node.input[:] = [names.get(name, name) for name in node.input]
        for body in subgraphs(node):
            captured_names = visible(names, body, {})
            rename_uses(body, captured_names)
            for value in body.output:
                value.name = captured_names.get(value.name, value.name)


def set_shape(tensor_type: Any, shape: Iterable[Dim]) -> None:
    """Declare the shape of a ``TypeProto.Tensor``: sizes, names of dynamic dimensions, -1 or None for unnamed ones."""
    declared = tensor_type.shape
    declared.ClearField("dim")
    declared.SetInParent()  # a scalar has a shape too, without dimensions
    for size in shape:
        dim = declared.dim.add()
        if isinstance(size, str):
            dim.dim_param = size
        elif not is_dynamic(size):
            dim.dim_value = size


def replace_nodes(graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto]) -> None:
    """Replace a graph's nodes by copies of others, possibly its own."""
    # Protobuf keeps removed messages alive as long as they are referenced, so ``nodes`` stays valid.
    del graph.node[:]
    graph.node.extend(nodes)


def remove_unused(graph: onnx.GraphProto) -> None:
    """Remove nodes, weights and declarations without effect on outputs, and sort the nodes. Inputs stay."""
    # Nodes that produce a graph input are cut off: the way back from the outputs ends at inputs.
    weights = initializer_names(graph)
    inputs = names_of(graph.input) - weights
    needed = names_of(graph.output) - inputs
    order = execution_order(graph.node)
    used_nodes: set[int] = set()
    for index in reversed(order):
        node = graph.node[index]
        if needed.isdisjoint(node.output):
            continue
        for i, name in enumerate(node.output):
            if name in inputs:
                node.output[i] = f"{name}_unused"
        used_nodes.add(index)
        needed |= set(uses(node)) - inputs
    set_order(graph, [index for index in order if index in used_nodes])
    # Up to IR version 3 a weight is an input as well, and would become one that must be fed.
    keep_only(graph.input, lambda value: value.name not in weights or value.name in needed)
    keep_only(graph.initializer, lambda tensor: tensor.name in needed)
    keep_only(graph.sparse_initializer, lambda sparse: sparse.values.name in needed)
    declarable = set(produced(graph.node))
    keep_only(graph.value_info, lambda value: value.name in declarable)


def set_order(graph: onnx.GraphProto, order: Sequence[int]) -> None:
    """Reduce a graph's nodes to those at these indices, in this order. Nodes are copied only if they change places."""
    if all(before < behind for before, behind in pairwise(order)):
        keep_places(graph.node, set(order))
    else:
        replace_nodes(graph, [graph.node[index] for index in order])


def keep_only(field: Any, condition: Callable[[Any], bool]) -> None:
    """Reduce a repeated field to the items meeting a condition."""
    keep_places(field, {i for i, item in enumerate(field) if condition(item)})


def keep_places(field: Any, indices: Collection[int]) -> None:
    """Reduce a repeated field to the items at these indices, without copying any."""
    end = len(field)
    for index in [*sorted(indices, reverse=True), -1]:
        if index + 1 < end:
            del field[index + 1 : end]
        end = index


# Element type by attribute (ONNX operator Constant, opset 12 and later).
_ELEMENTS = {
    "value_float": "float32",
    "value_floats": "float32",
    "value_int": "int64",
    "value_ints": "int64",
    "value_string": "object",
    "value_strings": "object",
}
_CONSTANT_TYPES = {name: AttributeProto.AttributeType.Value(name.removeprefix("value_").upper()) for name in _ELEMENTS}


def numpy_dtype(element: int, of: str) -> np.dtype[Any]:
    """Return numpy's data type for the ONNX element type of a tensor; errors contain its name."""
    from onnx import helper

    try:
        return helper.tensor_dtype_to_np_dtype(element)
    except KeyError:
        raise errors.InvalidModelError(f"{of!r} has the element type {element}, which ONNX does not define.") from None


def constant_tensor(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """A new tensor with the name and value of a Constant node's output; None for sparse ones and without a value."""
    import numpy as np
    from onnx import helper, numpy_helper

    # In a function, an attribute may refer to one of the function's, and has no value of its own.
    if not node.attribute or not node.output or node.attribute[0].ref_attr_name:
        return None
    attribute = node.attribute[0]
    if attribute.name == "value" and attribute.HasField("t"):
        tensor: onnx.TensorProto = copy_of(attribute.t)
        tensor.name = node.output[0]
        return tensor
    if attribute.name not in _CONSTANT_TYPES or attribute.type != _CONSTANT_TYPES[attribute.name]:
        return None
    value = np.array(helper.get_attribute_value(attribute), _ELEMENTS[attribute.name])
    return numpy_helper.from_array(value, node.output[0])


def constant_tensors(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """The dense constants of a graph by name: its initializers, and the tensors of its Constant nodes."""
    constants = by_name(graph.initializer)
    for node in graph.node:
        if is_onnx_op(node, "Constant") and (tensor := constant_tensor(node)) is not None:
            constants[tensor.name] = tensor
    return constants


def mean_sum_length(graph: onnx.GraphProto) -> float:
    """Return the mean number of products per value of convolutions and matrix products with constant weights.

    0 without such nodes; bodies of If, Loop and Scan are left out.
    """
    weights, lengths = constant_tensors(graph), []
    for node in graph.node:
        dims = [*weights[node.input[1]].dims] if len(node.input) > 1 and node.input[1] in weights else []
        if node.op_type == "Conv" and len(dims) > 2:
            lengths.append(math.prod(dims[1:]))
        elif node.op_type == "ConvTranspose" and len(dims) > 2:
            inputs = dims[0] // int_attribute(node, "group", 1)
            lengths.append(inputs * math.prod(dims[2:]) // math.prod(ints_attribute(node, "strides") or [1]))
        elif node.op_type in ("Gemm", "MatMul") and len(dims) > 1:
            lengths.append(dims[-1 if int_attribute(node, "transB", 0) else -2])
    return sum(lengths) / len(lengths) if lengths else 0.0


def spell_out(model: onnx.ModelProto) -> bool:
    """Rewrite Constant nodes with plain numbers or strings to tensors, in place; True if there were any."""
    from onnx import helper

    changed = False
    for node in nodes(model):
        if is_onnx_op(node, "Constant") and node.attribute and node.attribute[0].name in _CONSTANT_TYPES:
            tensor = constant_tensor(node)
            if tensor is not None:
                node.attribute[0].CopyFrom(helper.make_attribute("value", tensor))
                changed = True
    return changed


def may_be_bare(data: Any) -> bool:
    """Whether serialized bytes or a mapped file may have Constant nodes for :func:`spell_out`; no false negatives."""
    return any(data.find(f"value_{kind}".encode()) >= 0 for kind in ("float", "int", "string"))
