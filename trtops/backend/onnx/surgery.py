"""Small operations on a model: a node put in, other input shapes, nodes in order. Each changes the model in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from onnx import helper

from trtops import errors
from trtops.backend.onnx import walk
from trtops.backend.onnx.rewriting import FreshNames, remove_unused, rename, set_order, set_shape
from trtops.metadata import Shape


def insert_node(
    model: onnx.ModelProto,
    op: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    *,
    name: str = "",
    domain: str = "",
    attributes: Mapping[str, Any] | None = None,
) -> None:
    """Put a node between tensors, in place of whatever made its outputs; what is then not needed is removed.

    A tensor that is both input and output is passed through the node: everything that read it reads what the node
    makes of it. If it is an output of the model, the model's output keeps its name.

    Args:
        model: The model.
        op: The node's type; of any domain, as a plug-in may be.
        inputs: Names of the tensors that it reads.
        outputs: Names of the tensors that it makes.
        name: Its name.
        domain: Its operator domain; imported as version 1 if the model does not import it.
        attributes: Its attributes: numbers, text, or lists of these.

    Raises:
        ConfigError: If a tensor does not exist, an attribute's value cannot be one, or the node would read what is
            made from its own output.
    """
    graph = model.graph
    known = {value.name for value in graph.input} | walk.initializer_names(graph)
    known |= {tensor for node in graph.node for tensor in node.output if tensor}
    for tensor in (*inputs, *outputs):
        if tensor not in known:
            raise errors.ConfigError(f"The model has no tensor {tensor!r}. {errors.near(tensor, sorted(known))}")
    reads, makes = list(inputs), list(outputs)
    for i, tensor in enumerate(outputs):
        if tensor in inputs:
            before, makes[i] = _pass_through(graph, tensor)
            reads = [before if read == tensor else read for read in reads]
        else:
            _detach_maker(graph, tensor)
    try:
        node = helper.make_node(op, reads, makes, name=name or None, domain=domain or None, **(attributes or {}))
    except (TypeError, ValueError) as exc:
        raise errors.ConfigError(f"An attribute of the new {op} node cannot be one: {exc}.") from None
    if domain and not walk.opset(model, domain):
        model.opset_import.append(helper.make_opsetid(domain, 1))
    graph.node.append(node)
    try:
        remove_unused(graph)
    except errors.InvalidModelError as exc:
        raise errors.ConfigError(f"The new {op} node would depend on itself. {exc}") from None


def _pass_through(graph: onnx.GraphProto, tensor: str) -> tuple[str, str]:
    """Split a tensor in two for a node between them; returns the names of what it is to read and to make."""
    is_output = any(value.name == tensor for value in graph.output)
    other = FreshNames(graph)(f"{tensor}_{'before' if is_output else 'after'}")
    before, after = (other, tensor) if is_output else (tensor, other)
    for body in walk.graphs(graph):
        for node in body.node:
            rename(node.input, tensor, after)
            if is_output and body is graph:
                rename(node.output, tensor, before)
        for value in body.output:
            if value.name == tensor:
                value.name = after
    if is_output:
        for field in (graph.input, graph.initializer):
            for item in field:
                if item.name == tensor:
                    raise errors.ConfigError(f"{tensor!r} is an input or weight and an output at once; name another.")
    return before, after


def _detach_maker(graph: onnx.GraphProto, tensor: str) -> None:
    """Give what makes a tensor another name for it, so that a new node can make the tensor."""
    for node in graph.node:
        if tensor in node.output:
            rename(node.output, tensor, FreshNames(graph)(f"{tensor}_replaced"))
            return
    raise errors.ConfigError(f"{tensor!r} is an input or a weight of the model; a node cannot make it.")


def override_input_shapes(model: onnx.ModelProto, input_shapes: Mapping[str, Shape]) -> None:
    """Give inputs other shapes; what the model declares of shapes in between and behind is forgotten.

    Args:
        model: The model; infer its shapes anew afterwards.
        input_shapes: Shapes by input name; sizes, names of dynamic dimensions, or -1 or None for dynamic ones without.

    Raises:
        ConfigError: If there is no such input, or it is no tensor.
    """
    inputs = {value.name: value for value in model.graph.input}
    for name, shape in input_shapes.items():
        value = inputs.get(name)
        if value is None:
            raise errors.ConfigError(f"The model has no input {name!r}. {errors.near(name, inputs)}")
        if value.type.WhichOneof("value") not in (None, "tensor_type"):
            raise errors.ConfigError(f"Input {name!r} is no tensor, and has no shape.")
        set_shape(value.type.tensor_type, shape)
    if input_shapes:
        for graph in walk.graphs(model.graph):
            del graph.value_info[:]
        for value in model.graph.output:
            if value.type.HasField("tensor_type"):
                value.type.tensor_type.ClearField("shape")


def sort_nodes(model: onnx.ModelProto) -> bool:
    """Put nodes into an order of execution, in sub-graphs too; True if that changed anything.

    Raises:
        InvalidModelError: If nodes wait for each other in a circle.
    """
    changed = False
    for graph in walk.graphs(model.graph):
        order = walk.execution_order(graph.node)
        if order != list(range(len(order))):
            set_order(graph, order)
            changed = True
    return changed
