"""Models without their weights, which are small enough to share, restored models, and pruned ones.

Weights are 2:4 sparse if two of every four neighbors along the reduced axis are zero: sparse tensor cores skip those
zeros (NVIDIA, "Accelerating Sparse Deep Neural Networks", arXiv:2104.08378). The marks are those of Polygraphy and
TensorRT's parser: a stripped weight has no bytes and the comment ``TRT_WEIGHTLESS/``, followed by ``SPARSE_2_4`` if it
was sparse.
"""

import hashlib
import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from trtops import errors
from trtops.backend.onnx import operators, walk
from trtops.backend.onnx.external import STRIPPED, is_stripped
from trtops.backend.onnx.model import tensor_array
from trtops.metadata import DataType

Array: TypeAlias = np.ndarray[Any, Any]

_SPARSE = "SPARSE_2_4"
_DATA_FIELDS = (
    "raw_data", "float_data", "int32_data", "int64_data", "uint64_data", "double_data", "external_data",
    "data_location",
)  # fmt: skip

# The minimum number of elements to strip, by operator: fewer may be indices or sizes.
_LARGE = 1024
_STRIPPED = {"Conv": 1, "ConvTranspose": 1, "Gemm": 1, "MatMul": 1, "Gather": _LARGE, "Slice": _LARGE}
_THROUGH = operators.KEEP_PLACES | {"Transpose"}
_FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16})
_BLOCK_ROWS = 1 << 18  # groups of four that are processed at once
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
        for operand, min_elements in _strippable_inputs(node, opsets):
            name, _ = _weight_behind(operand, makers, tensors)
            weight = tensors.get(name)
            if weight is None or is_stripped(weight) or weight.data_type in _KEPT_TYPES:
                continue
            if math.prod(weight.dims) >= min_elements:
                strippable.add(name)
    stripped = tuple(name for name in tensors if name in strippable and name not in exclude)
    axes = reduced_axes(model.graph)
    for name in stripped:
        tensor = tensors[name]
        sparse = name in axes and is_sparse(tensor_array(tensor), axes[name])
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
    axes = reduced_axes(model.graph)
    restored = []
    for tensor in model.graph.initializer:
        if not tensor.doc_string.startswith(STRIPPED):
            continue
        restored.append(tensor.name)
        if original is None:
            array = _random_weight(tensor, axes.get(tensor.name))
            if _SPARSE in tensor.doc_string and tensor.name in axes:
                array = pruned(array, axes[tensor.name])
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


def _random_weight(tensor: TensorProto, axis: int | None) -> Array:
    """Random values for a weight, seeded by its name, divided by the square root of the number of reduced elements."""
    seed = int.from_bytes(hashlib.sha256(tensor.name.encode()).digest()[:8], "little")
    shape = tuple(tensor.dims)
    dtype = walk.numpy_dtype(tensor.data_type, tensor.name)
    generator = np.random.default_rng(seed)
    if not DataType.of(dtype).is_floating:
        info = np.iinfo(dtype)
        return generator.integers(max(info.min, -100), min(info.max, 100), shape).astype(dtype)
    reduced = 1 if axis is None else math.prod(shape[2:] if axis == 1 and len(shape) > 2 else ()) * shape[axis]
    array: Array = generator.standard_normal(shape, np.float32) / np.float32(math.sqrt(max(reduced, 1)))
    return array.astype(dtype)


def prune(model: onnx.ModelProto) -> tuple[str, ...]:
    """Set the two smallest of every four weights to zero, in place, and return the names of the changed weights.

    Meant to measure what sparse kernels would gain; a model pruned without retraining is no longer accurate.
    """
    tensors = walk.by_name(model.graph.initializer)
    changed = []
    for name, axis in reduced_axes(model.graph).items():
        array = tensor_array(tensors[name])
        if not is_sparse(array, axis):
            fresh = numpy_helper.from_array(np.ascontiguousarray(pruned(array, axis)), name)
            fresh.doc_string = tensors[name].doc_string
            tensors[name].CopyFrom(fresh)
            changed.append(name)
    return tuple(changed)


def reduced_axes(graph: onnx.GraphProto) -> dict[str, int]:
    """Return the axis of reduction of each floating-point weight of Conv, MatMul and Gemm.

    Axes whose length is not a multiple of four are omitted. A weight used along two axes has the first.
    """
    tensors = walk.by_name(graph.initializer)
    makers = walk.makers(graph.node)
    axes: dict[str, int] = {}
    for node in graph.node:
        for name, axis in _reduced_operands(node):
            traced = _trace_weight(name, axis, makers, tensors)
            if traced is not None:
                axes.setdefault(*traced)
    return axes


def _reduced_operands(node: onnx.NodeProto) -> Iterator[tuple[str, int]]:
    """Operands of a node, each with its reduced axis: input channels, or the inner dimension of a product."""
    if not walk.is_onnx_op(node) or len(node.input) < 2:
        return
    if node.op_type == "Conv":
        yield node.input[1], 1
    elif node.op_type == "MatMul":
        yield node.input[0], -1
        yield node.input[1], -2
    elif node.op_type == "Gemm":
        yield node.input[0], -2 if walk.int_attribute(node, "transA", 0) else -1
        yield node.input[1], -1 if walk.int_attribute(node, "transB", 0) else -2


def _trace_weight(
    name: str, axis: int, makers: dict[str, onnx.NodeProto], tensors: dict[str, TensorProto]
) -> tuple[str, int] | None:
    """Return the weight behind an operand, and the axis there; None without a potentially sparse weight."""
    name, passed = _weight_behind(name, makers, tensors)
    if not name or tensors[name].data_type not in _FLOATS:
        return None
    for node in passed:
        perm = walk.ints_attribute(node, "perm")
        if node.op_type == "Transpose" and perm is None:
            axis = -1 - axis if axis < 0 else axis  # the axes are reversed: counted from the other end
        elif node.op_type == "Transpose" and perm is not None:
            if not -len(perm) <= axis < len(perm):
                return None
            axis = perm[axis]
    dims = tensors[name].dims
    if len(dims) < 2 or not -len(dims) <= axis < len(dims):
        return None
    axis %= len(dims)
    return (name, axis) if dims[axis] and dims[axis] % 4 == 0 else None


def _weight_behind(
    name: str, makers: Mapping[str, onnx.NodeProto], tensors: Mapping[str, TensorProto]
) -> tuple[str, list[onnx.NodeProto]]:
    """Return the weight that an operand is, or is moved from ("" if none), and the moving nodes, the last one first."""
    passed: list[onnx.NodeProto] = []
    while name and name not in tensors:
        node = makers.get(name)
        if node is None or node.op_type not in _THROUGH or not node.input or len(passed) == len(makers):
            return "", passed
        passed.append(node)
        name = node.input[0]
    return name, passed


def is_sparse(array: Array, axis: int) -> bool:
    """Whether at most two of every four neighbors along an axis are nonzero."""
    return bool((np.count_nonzero(np.moveaxis(array, axis, -1).reshape(-1, 4), axis=1) <= 2).all())


def pruned(array: Array, axis: int) -> Array:
    """A copy with the two smallest magnitudes of every four neighbors along an axis set to zero; on ties the first."""
    groups = np.array(np.moveaxis(array, axis, -1), copy=True).reshape(-1, 4)
    for start in range(0, len(groups), _BLOCK_ROWS):
        block = groups[start : start + _BLOCK_ROWS]
        smallest = np.argsort(np.abs(block), axis=1, kind="stable")[:, :2]
        np.put_along_axis(block, smallest, np.zeros((), block.dtype), axis=1)
    moved = [size for i, size in enumerate(array.shape) if i != axis % array.ndim] + [array.shape[axis]]
    return np.moveaxis(groups.reshape(moved), -1, axis)
