"""What nodes imply of tensors that nobody made, since a node before them fails.

A node's own attributes and weights say much of what it can read: a convolution with a weight of rank 4 reads nothing but
tensors of rank 4, and gives back as many channels as its weight has. Only what holds for everything that a node could
ever read is taken from it, so that no node is blamed for what another did.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from trtops.backend.onnx import walk, with_onnxruntime
from trtops.backend.onnx.following import may_propagate
from trtops.backend.onnx.messages import TensorProto
from trtops.backend.onnx.rewriting import set_shape
from trtops.limits import limited_memory

if TYPE_CHECKING:
    import onnx

# What ONNX's own operators say of their first input's rank. It is that of another input, mostly a weight; or the length
# of an attribute and so many more; or always the same.
_AS_INPUT = {"Conv": 1, "ConvInteger": 1, "ConvTranspose": 1, "DeformConv": 1, "QLinearConv": 3}
_AS_ATTRIBUTE = {
    "AveragePool": ("kernel_shape", 2),
    "LpPool": ("kernel_shape", 2),
    "MaxPool": ("kernel_shape", 2),
    "MaxUnpool": ("kernel_shape", 2),
    "Transpose": ("perm", 0),
}
_FIXED = {"DepthToSpace": 4, "GRU": 3, "Gemm": 2, "LSTM": 3, "RNN": 3, "SpaceToDepth": 4}


def load_node(model: onnx.ModelProto) -> onnx.ModelProto:
    """Load a model of one node, and see what it implies.

    If the node's first input has no known rank, it gets the only one that the node can read, where its operator says that.
    Other ranks are not tried: ONNX Runtime 1.23 aborts the process for some. Nor are vectors that are too long to be followed.

    Args:
        model: One node; inputs have at least types, outputs need not have any. Changed in place.

    Returns:
        The model, with types and shapes as far as they are implied; a copy.

    Raises:
        InferenceError: If ONNX Runtime does not load the node, whatever the tensor of unknown rank is.
    """
    if not may_propagate(model):
        return model
    [node] = model.graph.node
    inputs = {value.name: value.type.tensor_type for value in model.graph.input if value.type.HasField("tensor_type")}
    first = inputs.get(node.input[0]) if node.input else None
    if first is not None and not first.HasField("shape"):
        rank = _only_rank(node, {name: len(kind.shape.dim) for name, kind in inputs.items() if kind.HasField("shape")})
        if rank is not None:
            set_shape(first, [None] * rank)
    with_onnxruntime.load(model)
    return _infer_types(model)


def _only_rank(node: onnx.NodeProto, ranks: Mapping[str, int]) -> int | None:
    """The only rank that a node's first input can have, by its operator and the ranks of other inputs; None if it is open."""
    if not walk.is_onnx_op(node):
        return None
    if node.op_type in _AS_INPUT:
        place = _AS_INPUT[node.op_type]
        return ranks.get(node.input[place]) if place < len(node.input) else None
    if node.op_type in _AS_ATTRIBUTE:
        wanted, beside = _AS_ATTRIBUTE[node.op_type]
        sizes = walk.ints_attribute(node, wanted)
        return len(sizes) + beside if sizes else None
    return _FIXED.get(node.op_type)


def _infer_types(model: onnx.ModelProto) -> onnx.ModelProto:
    import onnx

    try:
        with limited_memory():
            return onnx.shape_inference.infer_shapes(model, data_prop=True)
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, ValueError, MemoryError):
        return model  # C++ exceptions come as ValueError


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

    domain = walk.domain(node)
    try:
        schema = defs.get_schema(node.op_type, opsets.get(domain, 1), domain)
    except defs.SchemaError:
        return {}
    allowed = {constraint.type_param_str: constraint.allowed_type_strs for constraint in schema.type_constraints}
    read: defaultdict[str, set[str]] = defaultdict(set)
    for name, parameter in zip(node.input, _formal_parameters(schema.inputs, len(node.input))):
        if name in element_types:
            read[parameter.type_str].add(f"tensor({TensorProto.DataType.Name(element_types[name]).lower()})")
    codes = {f"tensor({name.lower()})": code for name, code in TensorProto.DataType.items()}
    types: dict[str, int] = {}
    for name, parameter in zip(node.output, _formal_parameters(schema.outputs, len(node.output))):
        options = allowed.get(parameter.type_str, [parameter.type_str])
        found = read[parameter.type_str] or set(options)
        if name and len(found) == 1 and found <= set(options) & set(codes):
            types[name] = codes[found.pop()]
    return types


def _formal_parameters(
    declared: Sequence[onnx.defs.OpSchema.FormalParameter], count: int
) -> list[onnx.defs.OpSchema.FormalParameter]:
    """The formal parameter of each argument. A variadic one is repeated if its arguments have one type, or else left out."""
    import onnx

    last = declared[-1] if declared else None
    repeats = last is not None and last.option == onnx.defs.OpSchema.FormalParameterOption.Variadic
    if last is None or not repeats:
        return list(declared)
    if not last.is_homogeneous:
        return list(declared[:-1])
    return [*declared, *[last] * (count - len(declared))]
