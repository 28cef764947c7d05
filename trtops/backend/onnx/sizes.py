"""What is known of sizes without computing anything: shapes, also in part, and vectors of sizes that nodes make of them.

Of ``(batch, 16, 8)`` the 16 is known, and a Gather or Slice that takes only that makes something known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import numpy_helper

from trtops.backend.onnx import walk

Array: TypeAlias = "np.ndarray[Any, Any]"
Sizes: TypeAlias = "list[int | None] | int | None"
"""Elements of an integer vector, None where one is not known; or an integer scalar. None if nothing is known."""

_LONGEST = 1024
"""Elements of a vector that may still be sizes: no tensor has so many dimensions."""

_INTEGERS = (onnx.TensorProto.INT64, onnx.TensorProto.INT32)


@dataclass
class KnownTensors:
    """What is known of the tensors in reach of a graph.

    Attributes:
        weights: Those that are constant, by name; more may be added.
        declared: What the graph declares of types and shapes.
    """

    weights: dict[str, onnx.TensorProto]
    declared: Mapping[str, onnx.ValueInfoProto] = field(default_factory=dict)
    _arrays: dict[str, Array] = field(default_factory=dict)
    _sizes: dict[str, Sizes] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        """Whether a tensor is constant."""
        return name in self.weights

    def array(self, name: str) -> Array:
        """The values of a constant, which are decoded once."""
        if name not in self._arrays:
            self._arrays[name] = numpy_helper.to_array(self.weights[name])
        return self._arrays[name]

    def sizes(self, name: str) -> Sizes:
        """What is known of an integer vector or scalar."""
        if name in self._sizes:
            return self._sizes[name]
        tensor = self.weights.get(name)
        if tensor is None or len(tensor.dims) > 1 or tensor.data_type not in _INTEGERS:
            return None
        if tensor.dims and tensor.dims[0] > _LONGEST:
            return None
        values: Sizes = self.array(name).tolist()
        return values

    def dims(self, name: str) -> list[int | None] | None:
        """The dimensions of a tensor, None where one is not fixed; None if not even their number is known."""
        if name in self.weights:
            return list(self.weights[name].dims)
        value = self.declared.get(name)
        if value is None or not value.type.tensor_type.HasField("shape"):
            return None
        dims = value.type.tensor_type.shape.dim
        return [d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else None for d in dims]

    def learn_sizes(self, node: onnx.NodeProto) -> Sizes:
        """Work out what is known of the sizes that a node makes, and note it for the nodes that read them."""
        rule = _RULES.get(node.op_type)
        least_inputs = 2 if node.op_type == "Gather" else 1
        if rule is None or not walk.is_onnx_op(node) or len(node.input) < least_inputs or len(node.output) != 1:
            return None
        sizes = rule(node, self)
        if sizes is not None:
            self._sizes[node.output[0]] = sizes
        return sizes


def _sizes_of_shape(node: onnx.NodeProto, known: KnownTensors) -> Sizes:
    dims = known.dims(node.input[0])
    if dims is None:
        return None
    return dims[walk.int_attribute(node, "start", 0) : walk.int_attribute(node, "end", len(dims))]


def _number_of_elements(node: onnx.NodeProto, known: KnownTensors) -> Sizes:
    dims = known.dims(node.input[0])
    if dims is None or any(d is None for d in dims):
        return None
    return int(np.prod([d for d in dims if d is not None], dtype=np.int64))


def _gathered_sizes(node: onnx.NodeProto, known: KnownTensors) -> Sizes:
    sizes, index = known.sizes(node.input[0]), known.sizes(node.input[1])
    if not isinstance(sizes, list) or walk.int_attribute(node, "axis", 0) not in (0, -1):
        return None
    if isinstance(index, int):
        return sizes[index] if -len(sizes) <= index < len(sizes) else None
    if index is None or any(i is None or not -len(sizes) <= i < len(sizes) for i in index):
        return None
    return [sizes[i] for i in index if i is not None]


def _sliced_sizes(node: onnx.NodeProto, known: KnownTensors) -> Sizes:
    sizes = known.sizes(node.input[0])
    start, end, step = _slice_bounds(node, known)
    # Steps backwards are rare, and INT_MIN as an end would need care.
    if not isinstance(sizes, list) or start is None or end is None or step is None or step < 0:
        return None
    return sizes[start:end:step]


def _slice_bounds(node: onnx.NodeProto, known: KnownTensors) -> tuple[int | None, int | None, int | None]:
    """Where a Slice of a vector begins and ends, and its step; None for what is not known."""
    if len(node.input) == 1:  # before operator set 10 they were attributes, and there were no steps
        starts, ends = walk.ints_attribute(node, "starts"), walk.ints_attribute(node, "ends")
        return (starts[0] if starts else None), (ends[0] if ends else None), 1

    def only_element(place: int, left_out: int | None) -> int | None:
        if place >= len(node.input) or not node.input[place]:
            return left_out
        values = known.sizes(node.input[place])
        return values[0] if isinstance(values, list) and len(values) == 1 else None

    if only_element(3, left_out=0) is None:  # axes, of which a vector has one
        return None, None, None
    return only_element(1, left_out=None), only_element(2, left_out=None), only_element(4, left_out=1)


def _joined_sizes(node: onnx.NodeProto, known: KnownTensors) -> Sizes:
    result: list[int | None] = []
    for name in node.input:
        sizes = known.sizes(name)
        if sizes is None:
            dims = known.dims(name)
            if dims is None or len(dims) != 1 or dims[0] is None or dims[0] > _LONGEST:
                return None
            sizes = [None] * dims[0]
        if not isinstance(sizes, list) or len(result) + len(sizes) > _LONGEST:
            return None
        result += sizes
    return result


def _cast_sizes(node: onnx.NodeProto, known: KnownTensors) -> Sizes:
    return known.sizes(node.input[0]) if walk.int_attribute(node, "to", 0) in _INTEGERS else None


def _unsqueezed_size(node: onnx.NodeProto, known: KnownTensors) -> Sizes:
    size = known.sizes(node.input[0])
    axes = known.sizes(node.input[1]) if len(node.input) > 1 else walk.ints_attribute(node, "axes")
    return [size] if isinstance(size, int) and isinstance(axes, list) and len(axes) == 1 else None


def _squeezed_size(node: onnx.NodeProto, known: KnownTensors) -> Sizes:
    sizes = known.sizes(node.input[0])
    return sizes[0] if isinstance(sizes, list) and len(sizes) == 1 else None


# By operator: what is known of the sizes that it makes.
_RULES: dict[str, Callable[[onnx.NodeProto, KnownTensors], Sizes]] = {
    "Shape": _sizes_of_shape,
    "Size": _number_of_elements,
    "Gather": _gathered_sizes,
    "Slice": _sliced_sizes,
    "Concat": _joined_sizes,
    "Identity": lambda node, known: known.sizes(node.input[0]),
    "Cast": _cast_sizes,
    "Unsqueeze": _unsqueezed_size,
    "Squeeze": _squeezed_size,
}
