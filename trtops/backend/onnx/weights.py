"""Models without their weights: small enough to share, and complete again with the original model's weights.

The marks are those of Polygraphy and TensorRT's parser: a stripped weight has no bytes and the comment
``TRT_WEIGHTLESS/``, followed by ``SPARSE_2_4`` if it was 2:4 sparse.
"""

import hashlib
import math
from collections.abc import Collection, Iterator, Mapping

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from trtops import errors
from trtops.backend.onnx import operators, sparsity, walk
from trtops.backend.onnx.external import STRIPPED, is_stripped
from trtops.backend.onnx.model import tensor_array
from trtops.metadata import DataType

_SPARSE = "SPARSE_2_4"
_DATA_FIELDS = (
    *("raw_data", "float_data", "int32_data", "int64_data", "uint64_data", "double_data"),
    *("external_data", "data_location"),
)

# The minimum number of elements to strip, by operator: fewer may be indices or sizes.
_LARGE = 1024
_STRIPPED = {"Conv": 1, "ConvTranspose": 1, "Gemm": 1, "MatMul": 1, "Gather": _LARGE, "Slice": _LARGE}
_THROUGH = operators.KEEP_PLACES | {"Transpose"}
_KEPT_TYPES = frozenset({TensorProto.UINT8, TensorProto.STRING, TensorProto.BOOL})


def strip_weights(model: onnx.ModelProto, exclude: Collection[str] = ()) -> tuple[str, ...]:
    """Remove the weights of matrix products, large tables and plug-ins, in place; returns their names.

    Scales, zero points, indices and sizes stay, so that the structure can still be read and built, and so do excluded
    weights. Fold constants first, or some weights may be missed.
    """
    tensors = walk.by_name(model.graph.initializer)
    for name in exclude:
        errors.check_known(name, tensors, "The model has no weight")
    opsets = walk.opsets(model)
    makers = walk.makers(model.graph.node)
    strippable: set[str] = set()
    for node in model.graph.node:
        for name, min_elements in _strippable_inputs(node, opsets):
            seen: set[str] = set()
            while name not in tensors and name in makers and name not in seen:
                seen.add(name)
                maker = makers[name]
                name = maker.input[0] if maker.op_type in _THROUGH and maker.input else ""
            weight = tensors.get(name)
            if (
                weight is not None
                and not is_stripped(weight)
                and weight.data_type not in _KEPT_TYPES
                and math.prod(weight.dims) >= min_elements
            ):
                strippable.add(name)
    stripped = tuple(name for name in tensors if name in strippable and name not in exclude)
    axes = sparsity.reduced_axes(model.graph)
    for name in stripped:
        tensor = tensors[name]
        sparse = name in axes and sparsity.is_sparse(tensor_array(tensor), axes[name])
        for field in _DATA_FIELDS:
            tensor.ClearField(field)
        tensor.doc_string = f"{STRIPPED}/{_SPARSE if sparse else ''}"
    if stripped and STRIPPED not in model.doc_string:
        model.doc_string = "-".join(filter(None, [model.doc_string, STRIPPED]))
    return stripped


def _strippable_inputs(node: onnx.NodeProto, opsets: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Yield the strippable inputs of a node, each with the minimum number of elements."""
    domain = walk.domain(node)
    if not domain and node.op_type in _STRIPPED:
        inputs = node.input[:1] if node.op_type in ("Gather", "Slice") else node.input
        yield from ((name, _STRIPPED[node.op_type]) for name in inputs)
    elif domain and not onnx.defs.has(node.op_type, opsets.get(domain, 1), domain):
        yield from ((name, _LARGE) for name in node.input)  # a plug-in


def reconstruct_weights(model: onnx.ModelProto, original: onnx.ModelProto | None = None) -> tuple[str, ...]:
    """Restore stripped weights from the original model, in place; returns their names.

    Without an original, weights are random numbers: scaled so that layers' values stay bounded, the same for the same
    names, and 2:4 sparse where the originals were. That is sufficient to measure speed.
    """
    originals = {} if original is None else walk.by_name(original.graph.initializer)
    axes = sparsity.reduced_axes(model.graph)
    restored = []
    for tensor in model.graph.initializer:
        if not tensor.doc_string.startswith(STRIPPED):
            continue
        restored.append(tensor.name)
        if original is None:
            array = _random_weight(tensor, axes.get(tensor.name))
            if _SPARSE in tensor.doc_string and tensor.name in axes:
                array = sparsity.pruned(array, axes[tensor.name])
            tensor.raw_data = numpy_helper.from_array(np.ascontiguousarray(array)).raw_data
            tensor.ClearField("doc_string")
            continue
        name, source = tensor.name, originals.get(tensor.name)
        if source is None:
            raise errors.InvalidModelError(f"The original model has no weight {name!r}. {errors.near(name, originals)}")
        ours, theirs = ((tuple(proto.dims), proto.data_type) for proto in (tensor, source))
        if ours != theirs or source.doc_string.startswith(STRIPPED):
            raise errors.InvalidModelError(
                f"Weight {name!r} has shape and type {ours}; the original model has {theirs}, or no values."
            )
        tensor.CopyFrom(source)
    model.doc_string = model.doc_string.removesuffix(STRIPPED).removesuffix("-")
    return tuple(restored)


def _random_weight(tensor: TensorProto, axis: int | None) -> sparsity.Array:
    """Random values for a weight, seeded by its name, divided by the square root of the number of reduced elements."""
    seed = int.from_bytes(hashlib.sha256(tensor.name.encode()).digest()[:8], "little")
    shape = tuple(tensor.dims)
    dtype = walk.numpy_dtype(tensor.data_type, tensor.name)
    generator = np.random.default_rng(seed)
    if not DataType.of(dtype).is_floating:
        info = np.iinfo(dtype)
        return generator.integers(max(info.min, -100), min(info.max, 100), shape).astype(dtype)
    reduced = 1 if axis is None else math.prod(shape[2:] if axis == 1 and len(shape) > 2 else ()) * shape[axis]
    array: sparsity.Array = generator.standard_normal(shape, np.float32) / np.float32(math.sqrt(max(reduced, 1)))
    return array.astype(dtype)
