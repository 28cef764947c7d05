"""In-place operations for rewriting graphs: unused names, replaced nodes, filtered fields."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from trtops.backend.onnx import walk
from trtops.metadata import Dim, is_dynamic

if TYPE_CHECKING:
    import onnx


class FreshNames:
    """Returns names that no node or tensor of a graph has, at any depth."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        """Record the present names of a graph; returned names are added."""
        self._taken: set[str] = set()
        for part in walk.graphs(graph):
            self._taken |= walk.initializer_names(part)
            self._taken.update(value.name for value in (*part.input, *part.output, *part.value_info))
            for node in part.node:
                self._taken.update((node.name, *node.input, *node.output))

    def __call__(self, wanted: str) -> str:
        """The wanted name, with ``_1`` or the next free number appended if it is taken."""
        name, count = wanted, 1
        while name in self._taken:
            name, count = f"{wanted}_{count}", count + 1
        self._taken.add(name)
        return name


def rename(names: Any, old: str, new: str) -> None:
    """Replace a name in a list or repeated field of names."""
    for i, name in enumerate(names):
        if name == old:
            names[i] = new


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
    """Replace a graph's nodes by copies of others, which may be among its own."""
    # Protobuf keeps removed messages alive as long as they are referenced, so ``nodes`` stays valid.
    del graph.node[:]
    graph.node.extend(nodes)


def remove_unused(graph: onnx.GraphProto) -> None:
    """Remove nodes, weights and declarations that no output depends on, and sort the nodes. Inputs stay."""
    # Nodes that produce a graph input are cut off: the way back from the outputs ends at inputs.
    weights = walk.initializer_names(graph)
    inputs = {value.name for value in graph.input} - weights
    needed = {value.name for value in graph.output} - inputs
    order = walk.execution_order(graph.node)
    kept: set[int] = set()
    for index in reversed(order):
        node = graph.node[index]
        if needed.isdisjoint(node.output):
            continue
        for i, name in enumerate(node.output):
            if name in inputs:
                node.output[i] = f"{name}_unused"
        kept.add(index)
        needed.update(name for name in walk.uses(node) if name not in inputs)
    set_order(graph, [index for index in order if index in kept])
    # Up to IR version 3 a weight is an input as well, and would become one that must be fed.
    keep_only(graph.input, lambda value: value.name not in weights or value.name in needed)
    keep_only(graph.initializer, lambda tensor: tensor.name in needed)
    keep_only(graph.sparse_initializer, lambda sparse: sparse.values.name in needed)
    made = {name for node in graph.node for name in node.output}
    keep_only(graph.value_info, lambda value: value.name in made)


def set_order(graph: onnx.GraphProto, order: Sequence[int]) -> None:
    """Reduce a graph's nodes to those at these indices, in this order. Nodes are copied only if they change places."""
    if all(before < behind for before, behind in pairwise(order)):
        keep_places(graph.node, set(order))
    else:
        replace_nodes(graph, [graph.node[index] for index in order])


def keep_only(field: Any, wanted: Callable[[Any], bool]) -> None:
    """Reduce a repeated field to the items for which ``wanted`` is true."""
    keep_places(field, {i for i, item in enumerate(field) if wanted(item)})


def keep_places(field: Any, places: Collection[int]) -> None:
    """Reduce a repeated field to the items at these indices, without copying any."""
    end = len(field)
    for place in [*sorted(places, reverse=True), -1]:
        if place + 1 < end:
            del field[place + 1 : end]
        end = place
