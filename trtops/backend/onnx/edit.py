"""In-place changes of a model: outputs, input shapes, parts, inserted nodes, bounds on data-dependent sizes."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import onnx
from onnx import helper

from trtops import errors
from trtops.backend.onnx import copying, shapes, walk
from trtops.metadata import DataType, Shape, TensorSpec
from trtops.patterns import expand, is_mark_all

log = logging.getLogger(__name__)


def tensor_names(graph: onnx.GraphProto) -> list[str]:
    """Return the names of the tensors produced by a graph's nodes, in order, without those of Constant nodes."""
    return list(dict.fromkeys(walk.produced(node for node in graph.node if node.op_type != "Constant")))


def set_outputs(model: onnx.ModelProto, outputs: Sequence[str]) -> None:
    """Make these tensors the outputs, in this order; names or shell patterns, or :data:`trtops.patterns.MARK_ALL`."""
    graph = model.graph
    produced = tensor_names(graph)
    if is_mark_all(outputs):
        selected = produced
    else:
        # A plain name may be an input or a constant; a pattern does not match those.
        plain = walk.names_of(graph.input).union(walk.produced(graph.node))
        selected = []
        for output in outputs:
            selected += [output] if output in plain else expand([output], produced)
        selected = list(dict.fromkeys(selected))
    if not selected:
        raise errors.ConfigError("No outputs were selected; name at least one tensor.")
    shapes.infer_shapes(model)
    declared = shapes.values(graph)
    del graph.output[:]
    graph.output.extend(declared.get(name) or helper.make_empty_tensor_value_info(name) for name in selected)


def outputs_of_types(graph: onnx.GraphProto, types: Iterable[str]) -> list[str]:
    """Return the names of the tensors produced by nodes of these types, ignoring case, in order of the types."""
    by_type: dict[str, list[str]] = {}
    for node in graph.node:
        by_type.setdefault(node.op_type.lower(), []).extend(filter(None, node.output))
    result: list[str] = []
    for op_type in types:
        if op_type.lower() not in by_type:
            present = dict.fromkeys(map(attrgetter("op_type"), graph.node))
            raise errors.ConfigError(f"The model has no {op_type!r} nodes. {errors.near(op_type, present)}")
        result += by_type[op_type.lower()]
    return result


def drop_outputs(model: onnx.ModelProto, patterns: Iterable[str]) -> None:
    """Remove these tensors from the outputs; names or shell patterns."""
    graph = model.graph
    outputs = list(walk.by_name(graph.output))
    # An input, too: it may be an output as well.
    dropped = set(expand(patterns, list(dict.fromkeys([*tensor_names(graph), *outputs, *walk.names_of(graph.input)]))))
    if dropped.issuperset(outputs):
        raise errors.ConfigError(f"All outputs are excluded ({', '.join(outputs)}); leave at least one.")
    walk.keep_only(graph.output, lambda value: value.name not in dropped)


def extract(
    model: onnx.ModelProto,
    inputs: Mapping[str, TensorSpec] | None = None,
    outputs: Mapping[str, TensorSpec] | None = None,
) -> None:
    """Keep only the part of a model between these tensors; None keeps the model's inputs or outputs.

    Dtypes and shapes that are None are inferred; other shapes of inputs change those of all tensors.
    """
    graph = model.graph
    shapes.infer_shapes(model)
    declared = shapes.values(graph)
    for node in graph.node:
        for name in filter(None, node.output):
            declared.setdefault(name, helper.make_empty_tensor_value_info(name))

    def describe(spec: TensorSpec) -> onnx.ValueInfoProto:
        errors.check_known(spec.name, declared, "The model has no tensor")
        value = copying.copy_of(declared[spec.name])
        if spec.dtype is not None:
            value.type.tensor_type.elem_type = element_type(DataType.of(spec.dtype))
        if spec.shape is not None:
            walk.set_shape(value.type.tensor_type, spec.shape)
        return value

    has_other_types = False
    if inputs is not None:
        starts = list(map(describe, inputs.values()))
        has_other_types = any(start.type != declared[start.name].type for start in starts)
        walk.keep_only(graph.initializer, lambda tensor: tensor.name not in inputs)
        del graph.input[:]
        graph.input.extend(starts)
    if outputs is not None:
        ends = list(map(describe, outputs.values()))
        graph.value_info.extend(value for value in graph.output if value.name not in outputs)
        del graph.output[:]
        graph.output.extend(ends)
    walk.remove_unused(graph)
    if has_other_types:
        clear_shapes(model)
    available = walk.defined(graph)
    readers: dict[str, str] = {}
    for node in graph.node:
        readers.update(dict.fromkeys(walk.uses(node), walk.label(node)))
    readers.update(dict.fromkeys(walk.names_of(graph.output), "the outputs"))
    missing = [f"{name!r} (for {reader})" for name, reader in readers.items() if name not in available]
    if missing:
        raise errors.ConfigError(f"The part also needs {', '.join(missing)}. Add them to its inputs.")
    if has_other_types:
        shapes.infer_shapes(model)
        for spec, value in zip((outputs or {}).values(), graph.output):
            if spec.shape is not None:
                walk.set_shape(value.type.tensor_type, spec.shape)


def element_type(dtype: DataType) -> int:
    """The ONNX element type of a data type."""
    return int(helper.np_dtype_to_tensor_dtype(dtype.numpy()))


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
    """Insert a node between tensors, replacing the producers of its outputs, and remove unused nodes.

    A tensor that is both input and output is passed through the node: its readers read the node's result instead. An
    output of the model keeps its name. A domain that the model does not import is imported as version 1.
    """
    graph = model.graph
    tensors = sorted(walk.defined(graph))
    for tensor in (*inputs, *outputs):
        errors.check_known(tensor, tensors, "The model has no tensor")
    reads, makes = list(inputs), list(outputs)
    for i, tensor in enumerate(outputs):
        if tensor in inputs:
            before, makes[i] = _split_tensor(graph, tensor)
            walk.rename(reads, tensor, before)
            continue
        maker = walk.makers(graph.node).get(tensor)
        if maker is None:
            raise errors.ConfigError(f"{tensor!r} is an input or a weight of the model; a node cannot produce it.")
        walk.rename(maker.output, tensor, walk.FreshNames(graph)(f"{tensor}_replaced"))
    try:
        node = helper.make_node(op, reads, makes, name=name or None, domain=domain or None, **(attributes or {}))
    except (TypeError, ValueError) as exc:
        raise errors.ConfigError(f"The new {op} node cannot have these attributes: {exc}.") from None
    if domain and not walk.opset(model, domain):
        model.opset_import.append(helper.make_opsetid(domain, 1))
    graph.node.append(node)
    try:
        walk.remove_unused(graph)
    except errors.InvalidModelError as exc:
        raise errors.ConfigError(f"The new {op} node would depend on itself. {exc}") from None


def _split_tensor(graph: onnx.GraphProto, tensor: str) -> tuple[str, str]:
    """Split a tensor in two for a node between them; returns the names of the node's input and output."""
    is_output = tensor in walk.names_of(graph.output)
    if is_output and tensor in walk.names_of((*graph.input, *graph.initializer)):
        raise errors.ConfigError(f"{tensor!r} is an input or weight and an output at once; name another.")
    other = walk.FreshNames(graph)(f"{tensor}_trtops_surgeon_insert_output")
    before, after = (other, tensor) if is_output else (tensor, other)
    walk.rename_uses(graph, {tensor: after})
    for node in graph.node if is_output else ():
        walk.rename(node.output, tensor, before)
    return before, after


def override_input_shapes(model: onnx.ModelProto, input_shapes: Mapping[str, Shape]) -> None:
    """Give inputs other shapes, and remove the declared shapes of all other tensors; infer them again afterwards."""
    inputs = walk.by_name(model.graph.input)
    for name, shape in input_shapes.items():
        errors.check_known(name, inputs, "The model has no input")
        value = inputs[name]
        if value.type.WhichOneof("value") not in (None, "tensor_type"):
            raise errors.ConfigError(f"Input {name!r} is not a tensor, and has no shape.")
        walk.set_shape(value.type.tensor_type, shape)
    if input_shapes:
        clear_shapes(model)


def clear_shapes(model: onnx.ModelProto) -> None:
    """Remove the declared shapes of all tensors but the inputs, also in sub-graphs."""
    for graph in walk.graphs(model.graph):
        del graph.value_info[:]
        for value in graph.output:
            if value.type.HasField("tensor_type"):
                value.type.tensor_type.ClearField("shape")


def sort_nodes(model: onnx.ModelProto) -> bool:
    """Sort nodes in order of execution, in sub-graphs too; True if their order changed."""
    changed = False
    for graph in walk.graphs(model.graph):
        order = walk.execution_order(graph.node)
        if order != list(range(len(order))):
            walk.set_order(graph, order)
            changed = True
    return changed


# The input whose values determine an output's size, by operator: if computed at run time, the size has no bound.
_SIZE_INPUTS = {"Range": 1, "Pad": 1, "Resize": 3, "Tile": 1, "Expand": 1}


def unbounded_tensors(model: onnx.ModelProto) -> list[str]:
    """Return the names of unbounded tensors used as sizes at run time, in the order of their readers.

    Shapes must have been inferred. A tensor that Min produces counts as bounded.
    """
    graph = model.graph
    constants = walk.initializer_names(graph)
    constants.update(walk.produced(node for node in graph.node if node.op_type == "Constant"))
    maker = walk.makers(graph.node)
    known_dims: set[str] = set().union(*map(_dynamic_dims, graph.input))
    declared = shapes.values(graph)
    unbounded: dict[str, None] = {}
    for node in walk.in_order(graph.node):
        has_new_dim = False
        for name in filter(None, node.output):
            value = declared.get(name)
            if value is None or not value.type.tensor_type.HasField("shape"):
                has_new_dim = True
                continue
            new_dims = _dynamic_dims(value) - known_dims
            known_dims |= new_dims
            has_new_dim |= bool(new_dims)
        position = _SIZE_INPUTS.get(node.op_type)
        if not has_new_dim or position is None or position >= len(node.input):
            continue
        size = node.input[position]
        if size and size not in constants and size in maker and maker[size].op_type != "Min":
            unbounded[size] = None
    return list(unbounded)


def _dynamic_dims(value: onnx.ValueInfoProto) -> set[str]:
    """Names of a tensor's dynamic dimensions; an unnamed dimension gets a unique name."""
    dims = value.type.tensor_type.shape.dim
    return {d.dim_param or f"{value.name}[{i}]" for i, d in enumerate(dims) if not d.HasField("dim_value")}


def set_upper_bounds(model: onnx.ModelProto, bounds: int | Mapping[str, int]) -> dict[str, int]:
    """Insert Min after tensors used as sizes at run time, to give builders their upper bounds.

    Constants must be folded and shapes inferred. ``bounds`` is one bound for all such tensors, or bounds by name, with
    ``""`` for all others. Returns the bounds set, by tensor name.
    """
    graph = model.graph
    unbounded = unbounded_tensors(model)
    per_name = dict(bounds) if isinstance(bounds, Mapping) else {"": bounds}
    default = per_name.pop("", None)
    produced = tensor_names(graph)
    for name in per_name:
        errors.check_known(name, produced, "No node produces a tensor")
        if name not in unbounded:
            log.warning("Tensor %r is already bounded; a further bound is set.", name)
    applied = per_name if default is None else dict.fromkeys(unbounded, default) | per_name
    all_declared, makers = shapes.values(graph), walk.makers(graph.node)
    fresh = walk.FreshNames(graph)  # a tensor may be bounded again
    for name, bound in applied.items():
        # The node's output gets another name, and the old name becomes the minimum of that output and the bound.
        before, limit = fresh(f"{name}_unbounded"), fresh(f"{name}_upper_bound")
        maker = makers[name]
        walk.rename(maker.output, name, before)
        declared = all_declared.get(name)
        element = declared.type.tensor_type.elem_type if declared is not None else 0
        dtype = walk.numpy_dtype(element or onnx.TensorProto.INT64, name)
        graph.initializer.append(onnx.numpy_helper.from_array(np.array(bound, dtype), limit))
        bounded = helper.make_node("Min", [before, limit], [name], name=fresh(f"{name}_bounded"))
        graph.node.insert([*graph.node].index(maker) + 1, bounded)
        if declared is not None:
            copying.add_copy(graph.value_info, declared).name = before
    return applied
