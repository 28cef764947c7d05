"""Ranges of outputs from a model's graph: a sigmoid ends in [0, 1], whatever the data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from trtops import errors
from trtops.comparator.arrays import as_arrays

if TYPE_CHECKING:
    import onnx

    from trtops.backend.base import Feed
    from trtops.backend.onnx.model import Model

# The least and the largest value of each element.
_BOUNDED = {
    "Sigmoid": (0.0, 1.0), "HardSigmoid": (0.0, 1.0), "Softmax": (0.0, 1.0),
    "Tanh": (-1.0, 1.0), "Softsign": (-1.0, 1.0), "Erf": (-1.0, 1.0), "Sin": (-1.0, 1.0), "Cos": (-1.0, 1.0),
}  # fmt: skip
# The range of a sum is not that of its parts: what is computed of these has no range.
_SUMS = (
    "Conv", "ConvTranspose", "Einsum", "Gemm", "GRU", "LSTM", "MatMul", "ReduceMean", "ReduceSum", "RNN",
)  # fmt: skip


def output_ranges(model: Model, feed: Feed) -> dict[str, npt.NDArray[np.float64]]:
    """The width of the range of each element of an output, by output; 0 without a range in the graph.

    The model runs twice on NaN instead of numbers. The results of bounded functions are replaced by their least and by
    their largest values, and sums by NaN: what is not NaN then is determined by bounded functions alone. Outputs
    without such elements are omitted. The result is empty for models that are too large to be changed in memory, or do
    not run so.
    """
    from trtops.backend.onnx.model import is_large

    structure = model.structure()
    if is_large(structure) or not _end_in_bounded(structure.graph):
        return {}
    unknown = as_arrays(feed)
    for name, array in unknown.items():
        if array.dtype.kind == "f":
            unknown[name] = np.full_like(array, np.nan)
    try:
        low, high = _outputs_at(model, unknown, 0), _outputs_at(model, unknown, 1)
    except errors.TrtopsError:
        return {}
    ranges = {}
    for name, lower in low.items():
        if isinstance(lower, np.ndarray) and lower.dtype.kind == "f" and lower.shape == high[name].shape:
            width = np.nan_to_num(np.abs(high[name].astype(np.float64) - lower), posinf=0.0)
            if width.any():
                ranges[name] = width
    return ranges


def _end_in_bounded(graph: onnx.GraphProto) -> bool:
    """Whether an output depends on a bounded function without a sum in between."""
    from trtops.backend.onnx import walk

    makers, tensors, visited = walk.makers(graph.node), [value.name for value in graph.output], set[str]()
    while tensors:
        node = makers.get(tensors.pop())
        if node is None or node.output[0] in visited or node.op_type in _SUMS:
            continue
        if node.op_type in _BOUNDED:
            return True
        visited.add(node.output[0])
        tensors.extend(walk.uses(node))
    return False


def _outputs_at(model: Model, feed: Mapping[str, Any], end: int) -> dict[str, Any]:
    """The outputs with the results of bounded functions at the least (0) or the largest (1) value."""
    import onnx
    from onnx import helper

    from trtops.backend.onnx import shapes, walk
    from trtops.backend.onnxrt.runner import reference_outputs

    proto = model.proto()
    shapes.infer_shapes(proto)
    types, fresh, nodes = shapes.element_types(proto.graph), walk.FreshNames(proto.graph), []
    not_a_number = fresh("not_a_number")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(np.nan), not_a_number))
    for node in proto.graph.node:
        is_float = walk.is_onnx_op(node) and types.get(node.output[0]) == onnx.TensorProto.FLOAT
        if is_float and node.op_type in _BOUNDED:
            shape = fresh(f"{node.output[0]}_shape")
            value = helper.make_tensor("value", onnx.TensorProto.FLOAT, [1], [_BOUNDED[node.op_type][end]])
            nodes.append(helper.make_node("Shape", [node.input[0]], [shape]))
            nodes.append(helper.make_node("ConstantOfShape", [shape], [node.output[0]], value=value))
        elif is_float and node.op_type in _SUMS:
            output, node.output[0] = node.output[0], fresh(f"{node.output[0]}_sum")
            nodes += [node, helper.make_node("Mul", [node.output[0], not_a_number], [output])]
        else:
            nodes.append(node)
    walk.replace_nodes(proto.graph, nodes)
    [outputs] = reference_outputs(proto, [feed])
    return outputs
