"""Cutting models: other outputs, a part between given tensors, bounds on data-dependent sizes.

Every function here changes the model it is given, in place.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx

from trtops import errors
from trtops.backend.onnx import shapes, walk
from trtops.backend.onnx.constants import numpy_dtype
from trtops.backend.onnx.copying import copy_of
from trtops.backend.onnx.rewriting import FreshNames, keep_only, remove_unused, set_shape
from trtops.metadata import DataType, TensorSpec
from trtops.patterns import expand

log = logging.getLogger(__name__)

MARK_ALL = "mark-all"
"""Stands for all tensors that nodes make, where a list of outputs is expected."""


def tensor_names(graph: onnx.GraphProto) -> list[str]:
    """Names of the tensors that a graph's nodes make, in order, without those of Constant nodes."""
    made = (name for node in graph.node if node.op_type != "Constant" for name in node.output if name)
    return list(dict.fromkeys(made))


def set_outputs(model: onnx.ModelProto, outputs: Sequence[str]) -> None:
    """Make these tensors the outputs, in this order; names or shell patterns, or :data:`MARK_ALL`.

    Raises:
        ConfigError: If a name or pattern fits no tensor.
    """
    graph = model.graph
    made = tensor_names(graph)
    if outputs == MARK_ALL or list(outputs) == ["mark", "all"] or list(outputs) == [MARK_ALL]:
        wanted = made
    else:
        plain = [value.name for value in graph.input] + [name for node in graph.node for name in node.output if name]
        in_reach = set(plain)
        # A plain name may mean an input or a constant; a pattern does not.
        wanted = list(dict.fromkeys(n for o in outputs for n in ([o] if o in in_reach else expand([o], made))))
    if not wanted:
        raise errors.ConfigError("No outputs were selected; name at least one tensor.")
    shapes.infer_shapes(model)
    declared = shapes.values(graph)
    new = [copy_of(declared.get(name) or onnx.helper.make_empty_tensor_value_info(name)) for name in wanted]
    del graph.output[:]
    graph.output.extend(new)


def outputs_of_types(graph: onnx.GraphProto, types: Iterable[str]) -> list[str]:
    """Names of the tensors that nodes of these types make, in order of the types; case does not count.

    Raises:
        ConfigError: If there is no node of such a type.
    """
    by_type: dict[str, list[str]] = {}
    for node in graph.node:
        by_type.setdefault(node.op_type.lower(), []).extend(filter(None, node.output))
    result: list[str] = []
    for wanted in types:
        if wanted.lower() not in by_type:
            present = dict.fromkeys(node.op_type for node in graph.node)
            raise errors.ConfigError(f"The model has no {wanted!r} nodes. {errors.near(wanted, present)}")
        result += by_type[wanted.lower()]
    return result


def drop_outputs(model: onnx.ModelProto, patterns: Iterable[str]) -> None:
    """Make these tensors outputs no longer; names or shell patterns.

    Raises:
        ConfigError: If a name or pattern fits no tensor, or no output would be left.
    """
    graph = model.graph
    outputs = [value.name for value in graph.output]
    dropped = set(expand(patterns, list(dict.fromkeys([*tensor_names(graph), *outputs]))))
    kept = [copy_of(value) for value in graph.output if value.name not in dropped]
    if not kept:
        raise errors.ConfigError(f"All outputs are excluded ({', '.join(outputs)}); leave at least one.")
    del graph.output[:]
    graph.output.extend(kept)


def extract(
    model: onnx.ModelProto,
    inputs: Mapping[str, TensorSpec] | None = None,
    outputs: Mapping[str, TensorSpec] | None = None,
) -> None:
    """Keep only the part of a model that leads from given tensors to given tensors.

    Args:
        model: The model; nodes, weights and descriptions that the part does not need are removed.
        inputs: The part's inputs; dtypes and shapes that are None are inferred. None keeps the model's inputs.
        outputs: The part's outputs, likewise.

    Raises:
        ConfigError: If a tensor does not exist, or an output also depends on tensors that are no inputs.
    """
    graph = model.graph
    declared = _declared_for_cut(model)
    if inputs is not None:
        new_inputs = [_tensor_description(spec, declared) for spec in inputs.values()]
        keep_only(graph.initializer, lambda tensor: tensor.name not in inputs)
        del graph.input[:]
        graph.input.extend(new_inputs)
    if outputs is not None:
        new_outputs = [_tensor_description(spec, declared) for spec in outputs.values()]
        del graph.output[:]
        graph.output.extend(new_outputs)
    remove_unused(graph)
    _check_fed(graph)


def _declared_for_cut(model: onnx.ModelProto) -> dict[str, onnx.ValueInfoProto]:
    shapes.infer_shapes(model)
    declared = shapes.values(model.graph)
    for node in model.graph.node:
        for name in filter(None, node.output):
            declared.setdefault(name, onnx.helper.make_empty_tensor_value_info(name))
    return declared


def _tensor_description(spec: TensorSpec, declared: Mapping[str, onnx.ValueInfoProto]) -> onnx.ValueInfoProto:
    """A tensor's description with the dtype and shape that are given, and those known for the rest."""
    if spec.name not in declared:
        raise errors.ConfigError(f"The model has no tensor {spec.name!r}. {errors.near(spec.name, declared)}")
    value = copy_of(declared[spec.name])
    if spec.dtype is not None:
        value.type.tensor_type.elem_type = element_type(spec.dtype)
    if spec.shape is not None:
        set_shape(value.type.tensor_type, spec.shape)
    return value


def element_type(dtype: DataType) -> int:
    """The ONNX element type of a data type."""
    return int(onnx.helper.np_dtype_to_tensor_dtype(dtype.numpy()))


def _check_fed(graph: onnx.GraphProto) -> None:
    known = {value.name for value in graph.input} | walk.initializer_names(graph)
    known.update(name for node in graph.node for name in node.output)
    missing: dict[str, str] = {}
    for node in graph.node:
        for name in walk.uses(node):
            if name not in known:
                missing.setdefault(name, walk.label(node))
    missing.update((value.name, "the outputs") for value in graph.output if value.name not in known)
    if missing:
        lines = ", ".join(f"{name!r} (for {where})" for name, where in missing.items())
        raise errors.ConfigError(
            f"The part also needs {lines}. Add {'it' if len(missing) == 1 else 'them'} to its inputs."
        )


# Inputs whose value gives an output its size: if computed at run time, nothing bounds that size.
_SIZE_INPUTS = {"Range": 1, "Pad": 1, "Resize": 3, "Tile": 1, "Expand": 1}


def unbounded_tensors(model: onnx.ModelProto) -> list[str]:
    """Names of the tensors that set a size at run time, without a bound, in the order of the nodes that read them.

    Needs inferred shapes. A tensor that Min makes counts as bounded.
    """
    graph = model.graph
    constants = walk.initializer_names(graph) | {
        n for node in graph.node if node.op_type == "Constant" for n in node.output
    }
    maker = walk.makers(graph.node)
    known_dims = {dim for value in graph.input for dim in _dynamic_dims(value)}
    declared = shapes.values(graph)
    found: dict[str, None] = {}
    for index in walk.execution_order(graph.node):
        node = graph.node[index]
        new = False
        for name in filter(None, node.output):
            value = declared.get(name)
            if value is None or not value.type.tensor_type.HasField("shape"):
                new = True
                continue
            symbols = _dynamic_dims(value) - known_dims
            known_dims |= symbols
            new = new or bool(symbols)
        position = _SIZE_INPUTS.get(node.op_type)
        if not new or position is None or position >= len(node.input):
            continue
        size = node.input[position]
        if size and size not in constants and size in maker and maker[size].op_type != "Min":
            found[size] = None
    return list(found)


def _dynamic_dims(value: onnx.ValueInfoProto) -> set[str]:
    """Names of a tensor's dynamic dimensions; a dimension without a name gets one that no other has."""
    dims = value.type.tensor_type.shape.dim
    return {d.dim_param or f"{value.name}[{i}]" for i, d in enumerate(dims) if not d.HasField("dim_value")}


def set_upper_bounds(model: onnx.ModelProto, bounds: int | Mapping[str, int]) -> dict[str, int]:
    """Put Min behind tensors that set sizes at run time, so that a builder knows how large those can get.

    Args:
        model: The model, with constants folded and shapes inferred.
        bounds: The bound for all such tensors, or bounds by tensor name, with ``""`` for all others.

    Returns:
        The bounds set, by tensor name.

    Raises:
        ConfigError: If a name is not the output of a node.
    """
    graph = model.graph
    unbounded = unbounded_tensors(model)
    per_name = dict(bounds) if isinstance(bounds, Mapping) else {"": bounds}
    default = per_name.pop("", None)
    made = tensor_names(graph)
    for name in per_name:
        if name not in made:
            raise errors.ConfigError(f"No node makes a tensor {name!r}. {errors.near(name, made)}")
        if name not in unbounded:
            log.warning("Tensor %r is bounded already; setting the bound all the same.", name)
    chosen = {name: per_name.get(name, default) for name in dict.fromkeys([*unbounded, *per_name])}
    applied = {name: bound for name, bound in chosen.items() if bound is not None}
    for name, bound in applied.items():
        _insert_min(graph, name, bound)
    return applied


def _insert_min(graph: onnx.GraphProto, name: str, bound: int) -> None:
    """Rename what a node makes, and make the old name the smaller of that and a bound."""
    fresh = FreshNames(graph)  # a tensor may be bounded again
    before, limit = fresh(f"{name}_unbounded"), fresh(f"{name}_upper_bound")
    index = next(i for i, node in enumerate(graph.node) if name in node.output)
    node = graph.node[index]
    node.output[list(node.output).index(name)] = before
    declared = shapes.values(graph).get(name)
    element = declared.type.tensor_type.elem_type if declared is not None else 0
    dtype = numpy_dtype(element or onnx.TensorProto.INT64, name)
    graph.initializer.append(onnx.numpy_helper.from_array(np.array(bound, dtype), limit))
    graph.node.insert(index + 1, onnx.helper.make_node("Min", [before, limit], [name], name=fresh(f"{name}_bounded")))
    if declared is not None:
        copy = copy_of(declared)
        copy.name = before
        graph.value_info.append(copy)
