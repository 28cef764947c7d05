"""2:4 structured sparsity: two of every four neighboring weights along the reduced axis are zero.

Sparse tensor cores skip those zeros (NVIDIA, "Accelerating Sparse Deep Neural Networks", arXiv:2104.08378).
"""

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from trtops.backend.onnx import walk
from trtops.backend.onnx.model import tensor_array
from trtops.backend.onnx.operators import KEEP_PLACES

Array: TypeAlias = np.ndarray[Any, Any]

_FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16})
_BLOCK_ROWS = 1 << 18  # groups of four that are processed at once


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
    seen = set()
    while name not in tensors:
        node = makers.get(name)
        if node is None or name in seen or not node.input:
            return None
        seen.add(name)
        if node.op_type == "Transpose":
            perm = walk.ints_attribute(node, "perm")
            if perm is None:
                axis = -1 - axis if axis < 0 else axis  # the axes are reversed: counted from the other end
            elif -len(perm) <= axis < len(perm):
                axis = perm[axis]
            else:
                return None
        elif node.op_type not in KEEP_PLACES:
            return None
        name = node.input[0]
    dims = tensors[name].dims
    if tensors[name].data_type not in _FLOATS or len(dims) < 2 or not -len(dims) <= axis < len(dims):
        return None
    axis %= len(dims)
    return (name, axis) if dims[axis] and dims[axis] % 4 == 0 else None


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
