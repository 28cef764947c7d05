"""Models without their weights: small to share, and complete again with the weights of the model they came from.

The marks are those of Polygraphy and of TensorRT's parser: a stripped weight has no bytes and the comment
``TRT_WEIGHTLESS/``, with ``SPARSE_2_4`` behind it if it was 2:4 sparse.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterator, Mapping

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from trtops import errors
from trtops.backend.onnx import sparsity, walk
from trtops.backend.onnx.constants import numpy_dtype
from trtops.metadata import DataType

_MARK = "TRT_WEIGHTLESS"
_SPARSE = "SPARSE_2_4"
_DATA_FIELDS = (
    "raw_data",
    "float_data",
    "int32_data",
    "int64_data",
    "uint64_data",
    "double_data",
    "external_data",
    "data_location",
)

# Elements below which the weights of an operator stay: they may be indices or sizes.
_LARGE = 1024
_STRIPPED = {"Conv": 1, "ConvTranspose": 1, "Gemm": 1, "MatMul": 1, "Gather": _LARGE, "Slice": _LARGE}
_THROUGH = frozenset({"Transpose", "Cast", "Identity", "QuantizeLinear", "DequantizeLinear"})
_KEPT_TYPES = frozenset({TensorProto.UINT8, TensorProto.STRING, TensorProto.BOOL})


def strippable(model: onnx.ModelProto) -> list[str]:
    """Weights that a model can be shared without, in order: those of matrix products, large tables, and plug-ins.

    Scales, zero points, indices and sizes stay, so that the structure can still be read and built.
    """
    graph = model.graph
    opsets = walk.opsets(model)
    makers = walk.makers(graph.node)
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    wanted: set[str] = set()
    for node in graph.node:
        for name, least in _strippable_inputs(node, opsets):
            found = _weight_behind(name, makers, tensors)
            if found is not None and found.data_type not in _KEPT_TYPES and math.prod(found.dims) >= least:
                wanted.add(found.name)
    return [tensor.name for tensor in graph.initializer if tensor.name in wanted]


def _strippable_inputs(node: onnx.NodeProto, opsets: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Inputs of a node that may be stripped, each with the least number of elements for that."""
    domain = walk.domain(node)
    least = _STRIPPED.get(node.op_type) if not domain else None
    if least is None:
        if domain and not onnx.defs.has(node.op_type, opsets.get(domain, 1), domain):
            yield from ((name, _LARGE) for name in node.input)  # a plug-in
        return
    inputs = node.input[:1] if node.op_type in ("Gather", "Slice") else node.input
    yield from ((name, least) for name in inputs)


def _weight_behind(
    name: str, makers: Mapping[str, onnx.NodeProto], tensors: Mapping[str, TensorProto]
) -> TensorProto | None:
    seen = set()
    while name not in tensors:
        node = makers.get(name)
        if node is None or name in seen or node.op_type not in _THROUGH or not node.input:
            return None
        seen.add(name)
        name = node.input[0]
    return tensors[name]


def strip_weights(model: onnx.ModelProto, exclude: Collection[str] = ()) -> tuple[str, ...]:
    """Take the weights out of a model, in place; fold its constants first, or some may be missed.

    Args:
        model: The model, with its weights inside.
        exclude: Names of weights that stay.

    Returns:
        Names of the weights taken out.

    Raises:
        ConfigError: If a name to exclude is no weight.
    """
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for name in exclude:
        if name not in tensors:
            raise errors.ConfigError(f"The model has no weight {name!r} to exclude. {errors.near(name, tensors)}")
    stripped = tuple(name for name in strippable(model) if name not in exclude)
    axes = sparsity.summed_axes(model.graph)
    for name in stripped:
        tensor = tensors[name]
        sparse = name in axes and sparsity.is_sparse(numpy_helper.to_array(tensor), axes[name])
        for field in _DATA_FIELDS:
            tensor.ClearField(field)
        tensor.doc_string = f"{_MARK}/{_SPARSE if sparse else ''}"
    if stripped and _MARK not in model.doc_string:
        model.doc_string = "-".join(filter(None, [model.doc_string, _MARK]))
    return stripped


def stripped_weights(model: onnx.ModelProto) -> tuple[str, ...]:
    """Names of the weights that a model was stripped of."""
    return tuple(tensor.name for tensor in model.graph.initializer if tensor.doc_string.startswith(_MARK))


def reconstruct_weights(model: onnx.ModelProto, original: onnx.ModelProto | None = None) -> tuple[str, ...]:
    """Put weights back where they were taken out, in place.

    Args:
        model: The stripped model.
        original: A model with weights of the same names, types and shapes. None draws random numbers, of a size that
            keeps the values of layers in bounds and the same for the same names: good for measuring speed. What was
            2:4 sparse is so again.

    Returns:
        Names of the weights put back.

    Raises:
        InvalidModelError: If the original lacks a weight, or has it in another type or shape.
    """
    names = set(stripped_weights(model))
    known = {} if original is None else {tensor.name: tensor for tensor in original.graph.initializer}
    axes = sparsity.summed_axes(model.graph)
    for tensor in model.graph.initializer:
        if tensor.name not in names:
            continue
        if original is None:
            array = _random_weight(tensor, axes.get(tensor.name))
            if _SPARSE in tensor.doc_string and tensor.name in axes:
                array = sparsity.pruned(array, axes[tensor.name])
            tensor.raw_data = numpy_helper.from_array(np.ascontiguousarray(array)).raw_data
            tensor.ClearField("doc_string")
        else:
            tensor.CopyFrom(_matching_weight(tensor, known))
    model.doc_string = model.doc_string.removesuffix(_MARK).removesuffix("-")
    return tuple(tensor.name for tensor in model.graph.initializer if tensor.name in names)


def _matching_weight(tensor: TensorProto, known: Mapping[str, TensorProto]) -> TensorProto:
    found = known.get(tensor.name)
    if found is None:
        raise errors.InvalidModelError(
            f"The model with the weights has no {tensor.name!r}. {errors.near(tensor.name, known)}"
        )
    for what, ours, theirs in (
        ("shape", tuple(tensor.dims), tuple(found.dims)),
        ("type", tensor.data_type, found.data_type),
    ):
        if ours != theirs:
            raise errors.InvalidModelError(
                f"Weight {tensor.name!r} has {what} {ours}; the model with the weights has {theirs}."
            )
    if found.doc_string.startswith(_MARK):
        raise errors.InvalidModelError(f"The model with the weights has none for {tensor.name!r}: it was stripped too.")
    return found


def _random_weight(tensor: TensorProto, axis: int | None) -> sparsity.Array:
    """Random values for a weight, seeded by its name; divided by the root of what is summed over."""
    seed = int.from_bytes(hashlib.sha256(tensor.name.encode()).digest()[:8], "little")
    shape = tuple(tensor.dims)
    dtype = numpy_dtype(tensor.data_type, tensor.name)
    generator = np.random.default_rng(seed)
    if not DataType.of(dtype).is_floating:
        info = np.iinfo(dtype)
        return generator.integers(max(info.min, -100), min(info.max, 100), shape).astype(dtype)
    summed = 1 if axis is None else math.prod(shape[2:] if axis == 1 and len(shape) > 2 else ()) * shape[axis]
    array: sparsity.Array = generator.standard_normal(shape, np.float32) / np.float32(math.sqrt(max(summed, 1)))
    return array.astype(dtype)
