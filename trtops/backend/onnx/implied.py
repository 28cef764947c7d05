"""What nodes imply of tensors that nobody made, since a node before them fails.

A node's own attributes and weights say much of what it can read: a convolution with a weight of rank 4 reads nothing but
tensors of rank 4, and gives back as many channels as its weight has. Only what holds for everything that a node could
ever read is taken from it, so that no node is blamed for what another did.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from trtops import errors
from trtops.backend.onnx import walk, with_onnxruntime
from trtops.backend.onnx.messages import ModelProto, TensorProto

if TYPE_CHECKING:
    import onnx

_RANKS = (4, 3, 2, 5, 1, 0, 6, 7, 8)
"""Ranks that tensors have; the usual first, since two that fit end the search."""


def load_node(model: onnx.ModelProto) -> onnx.ModelProto:
    """Load a model of one node, and see what it implies.

    A node that reads one tensor of unknown rank is tried with every rank: if none fits, the node fails whatever it reads;
    if one does, that is the tensor's.

    Args:
        model: One node; inputs have at least types, outputs need not have any.

    Returns:
        The model, with types and shapes of its outputs as far as they are implied; a copy.

    Raises:
        InferenceError: If ONNX Runtime does not load the node, with no rank at all.
    """
    with_onnxruntime.load(model)
    unknown = [i for i, value in enumerate(model.graph.input) if _is_without_rank(value)]
    [node] = model.graph.node
    only_fit = None
    if len(unknown) == 1 and not any(True for _ in walk.subgraphs(node)):
        only_fit = _with_only_rank(model, unknown[0])
    return _inferred(only_fit or model)


def _is_without_rank(value: onnx.ValueInfoProto) -> bool:
    return value.type.HasField("tensor_type") and not value.type.tensor_type.HasField("shape")


def _with_only_rank(model: onnx.ModelProto, index: int) -> onnx.ModelProto | None:
    """A copy in which an input has the one rank that fits; None if several do."""
    fit = None
    reasons: dict[str, int] = {}
    for rank in _RANKS:
        tried = ModelProto()
        tried.CopyFrom(model)
        shape = tried.graph.input[index].type.tensor_type.shape
        shape.SetInParent()
        for _ in range(rank):
            shape.dim.add()
        try:
            with_onnxruntime.load(tried)
        except errors.InferenceError as exc:
            reasons.setdefault(str(exc.__cause__), rank)
            continue
        if fit is not None:
            return None
        fit = tried
    if fit is None:
        each = "; ".join(f"as rank {rank}: {reason}" for reason, rank in reasons.items())
        raise errors.InferenceError(f"{model.graph.input[index].name!r} fits with no rank: {each}")
    return fit


def _inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    import onnx

    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=True)
    except (onnx.shape_inference.InferenceError, ValueError):  # C++ exceptions come as ValueError
        return model


def output_types(node: onnx.NodeProto, opsets: Mapping[str, int], element_types: Mapping[str, int]) -> dict[str, int]:
    """Element types of what a node makes, as far as its operator says, even if the node fails.

    Args:
        node: The node.
        opsets: The model's operator sets, by domain.
        element_types: ONNX element types of what it reads, by name, as far as known.

    Returns:
        ONNX element types by output name; outputs whose type is open are left out, and so are those of a type that the
        operator does not have: there the type itself may be what is wrong.
    """
    from onnx import defs

    domain = "" if node.domain == "ai.onnx" else node.domain
    try:
        schema = defs.get_schema(node.op_type, opsets.get(domain, 1), domain)
    except defs.SchemaError:
        return {}
    allowed = {constraint.type_param_str: constraint.allowed_type_strs for constraint in schema.type_constraints}
    read: defaultdict[str, set[str]] = defaultdict(set)
    for name, parameter in zip(node.input, _parameters(schema.inputs, len(node.input))):
        if name in element_types:
            read[parameter.type_str].add(f"tensor({TensorProto.DataType.Name(element_types[name]).lower()})")
    codes = {f"tensor({name.lower()})": code for name, code in TensorProto.DataType.items()}
    types: dict[str, int] = {}
    for name, parameter in zip(node.output, _parameters(schema.outputs, len(node.output))):
        options = allowed.get(parameter.type_str, [parameter.type_str])
        found = read[parameter.type_str] or set(options)
        if name and len(found) == 1 and found <= set(options) & set(codes):
            types[name] = codes[found.pop()]
    return types


def _parameters(
    declared: Sequence[onnx.defs.OpSchema.FormalParameter], count: int
) -> list[onnx.defs.OpSchema.FormalParameter]:
    """The formal parameter of each argument; the last may stand for several alike, and those unlike are left out."""
    import onnx

    last = declared[-1] if declared else None
    repeats = last is not None and last.option == onnx.defs.OpSchema.FormalParameterOption.Variadic
    if last is None or not repeats:
        return list(declared)
    if not last.is_homogeneous:
        return list(declared[:-1])
    return [*declared, *[last] * (count - len(declared))]
