"""Inference of types and shapes, without copying weights."""

import logging
from operator import attrgetter
from typing import Any

import onnx

from trtops import errors
from trtops.backend.onnx import copying, external, walk, with_onnxruntime
from trtops.backend.onnx.hostile import can_propagate_values, check_inlined_size
from trtops.backend.onnx.sizes import KnownTensors
from trtops.system.activity import Activity
from trtops.system.limits import limited_memory, too_much
from trtops.system.trial import try_in_child

log = logging.getLogger(__name__)

INFERRING = "inferring shapes"
_SUSPECT_BYTES = 1 << 31  # a weight whose shape needs more must have the bytes
_MAX_BYTES = 1 << 42  # 4 TiB, more than any model has
_COMPUTES_SIZES = frozenset(("ConstantOfShape", "Expand", "Flatten", "Range", "Reshape", "Slice", "Split", "Tile"))
_SMALL_BYTES = 4096  # such tensors may be target shapes or axes, whose values are needed
_put_small = copying.put_small(_SMALL_BYTES)


def infer_shapes(model: onnx.ModelProto, *, symbolic: bool = False, strict: bool = False) -> None:
    """Write inferred types and shapes into a model of any size; its ``value_info`` and outputs change, nothing else.

    With ``symbolic``, ONNX Runtime's slow and thorough inference follows where it can find more (see
    :func:`computed_dims`). With ``strict``, contradicting types and shapes are an error.
    """
    check_inlined_size(model)
    bare = copying.copy_model(model, _put_plausible)
    for graph in walk.graphs(bare.graph):
        # ONNX takes sparse weights for scalars, so dense ones without values replace them.
        for sparse in graph.sparse_initializer:
            dense = graph.initializer.add(name=sparse.values.name, data_type=sparse.values.data_type, dims=sparse.dims)
            copying.mark_left_out(dense)
        del graph.sparse_initializer[:]
    try_in_child(infer_shapes, bare)
    try:
        with limited_memory(), Activity(INFERRING):
            propagate = can_propagate_values(bare)
            inferred = onnx.shape_inference.infer_shapes(bare, data_prop=propagate, strict_mode=strict)
    except MemoryError:
        raise errors.InvalidModelError(too_much("Shape inference")) from None
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, ValueError) as exc:
        raise errors.InvalidModelError(f"Shape inference failed: {exc}") from exc  # ValueError: C++ exceptions
    if symbolic and propagate and computed_dims(inferred.graph):
        try:
            inferred = with_onnxruntime.infer_symbolic_shapes(inferred)
            log.debug("Inferred shapes in the model with `onnxruntime.tools.symbolic_shape_infer`.")
        except errors.InferenceError as exc:
            log.info("%s. The shapes that ONNX itself infers are used.", exc)
    for source, target in zip(walk.graphs(inferred.graph), walk.graphs(model.graph)):
        del target.value_info[:]
        target.value_info.extend(source.value_info)
        inferred_outputs = walk.by_name(source.output)
        for value in target.output:
            if value.name in inferred_outputs:
                value.type.CopyFrom(inferred_outputs[value.name].type)
    log.debug("Shape inference completed successfully")


def infer_node(node: onnx.NodeProto, tensors: KnownTensors, model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    """Infer the output types of one node from the types, shapes and small constants of its inputs.

    Empty for nodes with sub-graphs, nodes without a schema, inputs of unknown type, and where inference fails.
    """
    domain = walk.domain(node)
    version = walk.opset(model, domain)
    if any(walk.subgraphs(node)) or not onnx.defs.has(node.op_type, version, domain):
        return {}
    types: dict[str, onnx.TypeProto] = {}
    constants: dict[str, onnx.TensorProto] = {}
    for name in filter(None, node.input):
        if name in tensors:
            tensor = tensors.weights[name]
            types[name] = onnx.helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
            if (copying.expected_bytes(tensor) or 0) <= _SMALL_BYTES:
                constants[name] = tensor
        elif name in tensors.declared:
            types[name] = tensors.declared[name].type
        else:
            return {}
    arguments = (node, version, types, constants, list(model.opset_import))
    try_in_child(_infer_outputs, *arguments)
    return _infer_outputs(*arguments)


def _infer_outputs(
    node: onnx.NodeProto,
    version: int,
    types: dict[str, onnx.TypeProto],
    constants: dict[str, onnx.TensorProto],
    opsets: list[onnx.OperatorSetIdProto],
) -> dict[str, onnx.TypeProto]:
    schema = onnx.defs.get_schema(node.op_type, version, walk.domain(node))
    try:
        with Activity(INFERRING):
            return onnx.shape_inference.infer_node_outputs(schema, node, types, constants, None, opsets)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):  # of contradicting shapes, which stay
        return {}


def refine(kind: onnx.TypeProto, inferred: onnx.TypeProto) -> bool:
    """Complete a declared type with inferred sizes, in place; True if more sizes are known."""
    if kind.WhichOneof("value") not in (None, "tensor_type") or not inferred.HasField("tensor_type"):
        return False
    ours, theirs = kind.tensor_type, inferred.tensor_type
    ours.elem_type = ours.elem_type or theirs.elem_type
    if not theirs.HasField("shape"):
        return False
    if not ours.HasField("shape"):
        ours.shape.CopyFrom(theirs.shape)
        return True
    if len(ours.shape.dim) != len(theirs.shape.dim):
        return False
    refined = False
    for dim, inferred_dim in zip(ours.shape.dim, theirs.shape.dim):
        if not dim.HasField("dim_value") and inferred_dim.HasField("dim_value"):
            dim.dim_value = inferred_dim.dim_value
            refined = True
    return refined


def has_sizes(tensor_type: Any) -> bool:
    """Whether a ``TypeProto.Tensor`` has a shape without dynamic dimensions."""
    return tensor_type.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor_type.shape.dim)


def has_all_sizes(graph: onnx.GraphProto) -> bool:
    """Return True if every node's outputs are declared with all sizes; False for a graph with sub-graphs."""
    declared = (*graph.value_info, *graph.output)
    sized = {value.name for value in declared if has_sizes(value.type.tensor_type)}
    return sized.issuperset(walk.produced(graph.node)) and not any(map(any, map(walk.subgraphs, graph.node)))


def computed_dims(graph: onnx.GraphProto) -> set[str]:
    """Return the names of dimensions introduced by nodes computing sizes from other sizes.

    Symbols cancel there: a Reshape of (batch, 12, 4, 4) to (batch, -1) has 192 columns. They do not where sizes depend
    on data, and a Conv of unknown height only gets a name for its own, which can take a minute. "" stands for unnamed
    dimensions and unknown ranks.
    """
    input_dims: set[str] = set()
    for value in graph.input:
        input_dims.update(dim.dim_param for dim in value.type.tensor_type.shape.dim if dim.dim_param)
    sized = walk.initializer_names(graph) | {""}
    declared = {value.name: value.type.tensor_type for value in (*graph.value_info, *graph.input, *graph.output)}
    for name, tensor in declared.items():
        if all(dim.HasField("dim_value") or dim.dim_param in input_dims for dim in tensor.shape.dim):
            sized.add(name)
    computed = set()
    for node in graph.node:
        if any(name and (name not in declared or not declared[name].HasField("shape")) for name in node.output):
            computed.add("")
        elif node.op_type in _COMPUTES_SIZES and sized.issuperset(node.input):
            for name in filter(None, node.output):
                computed.update(d.dim_param for d in declared[name].shape.dim if not d.HasField("dim_value"))
    return computed - input_dims


def _put_plausible(tensor: onnx.TensorProto, target: onnx.TensorProto) -> None:
    """Keep small tensors; refuse shapes far larger than the data, since ONNX would loop over their elements."""
    size = copying.expected_bytes(tensor)
    if size is not None and size > _SUSPECT_BYTES and not external.is_external(tensor) and size != len(tensor.raw_data):
        raise errors.InvalidModelError(
            f"Tensor {tensor.name!r} of shape {tuple(tensor.dims)} has {len(tensor.raw_data)} bytes; expected {size}."
        )
    if size is not None and size > _MAX_BYTES:
        raise errors.InvalidModelError(
            f"Tensor {tensor.name!r} of shape {tuple(tensor.dims)} is too large for any file."
        )
    _put_small(tensor, target)


def values(graph: onnx.GraphProto) -> dict[str, onnx.ValueInfoProto]:
    """The declarations of a graph's tensors by name: inputs, outputs, intermediate ones, and weights."""
    declare = onnx.helper.make_tensor_value_info
    weights = (declare(tensor.name, tensor.data_type, list(tensor.dims)) for tensor in graph.initializer)
    return walk.by_name((*weights, *graph.value_info, *graph.input, *graph.output))


def element_types(graph: onnx.GraphProto) -> dict[str, int]:
    """ONNX element types of a graph's declared tensors; sequences and unknown types are omitted."""
    types: dict[str, int] = {}
    for tensor in (*graph.initializer, *map(attrgetter("values"), graph.sparse_initializer)):
        types[tensor.name] = tensor.data_type
    for value in (*graph.value_info, *graph.input, *graph.output):
        if value.type.tensor_type.elem_type:
            types[value.name] = value.type.tensor_type.elem_type
    return types
