"""Sizes that are known without computing anything: of shapes, also partly known ones, and of nodes that process them.

Of ``(batch, 16, 8)`` the 16 is known, so a Gather or Slice of only that element is known as well.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import numpy_helper

from trtops.backend.onnx import walk

Array: TypeAlias = np.ndarray[Any, Any]
# Elements of an integer vector, None where one is unknown; or an integer scalar. None if nothing is known.
Sizes: TypeAlias = list[int | None] | int | None

# Of vectors of sizes: no tensor has as many dimensions, and longer vectors would be slow to follow.
_MAX_LENGTH = 1024
_INTEGERS = (onnx.TensorProto.INT64, onnx.TensorProto.INT32)


@dataclass
class KnownTensors:
    """Constants, declarations and sizes of the tensors that a graph can read."""

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
        """The known elements of an integer vector or scalar."""
        if name in self._sizes:
            return self._sizes[name]
        tensor = self.weights.get(name)
        if tensor is None or len(tensor.dims) > 1 or tensor.data_type not in _INTEGERS:
            return None
        if tensor.dims and tensor.dims[0] > _MAX_LENGTH:
            return None
        values: Sizes = self.array(name).tolist()
        return values

    def dims(self, name: str) -> list[int | None] | None:
        """The dimensions of a tensor, None where one is dynamic; None if the rank is unknown."""
        if name in self.weights:
            return list(self.weights[name].dims)
        value = self.declared.get(name)
        if value is None or not value.type.tensor_type.HasField("shape"):
            return None
        dims = value.type.tensor_type.shape.dim
        return [d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else None for d in dims]

    def learn_sizes(self, node: onnx.NodeProto) -> Sizes:
        """Compute the known sizes among a node's outputs, and record them for the nodes that read them."""
        if not walk.is_onnx_op(node) or not node.input or len(node.output) != 1:
            return None
        sizes = self._sizes_made_by(node)
        if sizes is not None:
            self._sizes[node.output[0]] = sizes
        return sizes

    def _sizes_made_by(self, node: onnx.NodeProto) -> Sizes:
        first = node.input[0]
        match node.op_type:
            case "Shape":
                dims = self.dims(first)
                if dims is None:
                    return None
                return dims[walk.int_attribute(node, "start", 0) : walk.int_attribute(node, "end", len(dims))]
            case "Size":
                dims = self.dims(first)
                return None if dims is None or None in dims else math.prod(d for d in dims if d is not None)
            case "Identity":
                return self.sizes(first)
            case "Cast":
                return self.sizes(first) if walk.int_attribute(node, "to", 0) in _INTEGERS else None
            case "Squeeze":
                sizes = self.sizes(first)
                return sizes[0] if isinstance(sizes, list) and len(sizes) == 1 else None
            case "Unsqueeze":
                size = self.sizes(first)
                axes = self.sizes(node.input[1]) if len(node.input) > 1 else walk.ints_attribute(node, "axes")
                return [size] if isinstance(size, int) and isinstance(axes, list) and len(axes) == 1 else None
            case "Concat":
                return self._concatenated(node)
            case "Gather" if len(node.input) > 1:
                return self._gathered(node)
            case "Slice":
                return self._sliced(node)
        return None

    def _gathered(self, node: onnx.NodeProto) -> Sizes:
        sizes, index = self.sizes(node.input[0]), self.sizes(node.input[1])
        if not isinstance(sizes, list) or walk.int_attribute(node, "axis", 0) not in (0, -1):
            return None
        if isinstance(index, int):
            return sizes[index] if -len(sizes) <= index < len(sizes) else None
        if index is None or any(i is None or not -len(sizes) <= i < len(sizes) for i in index):
            return None
        return [sizes[i] for i in index if i is not None]

    def _sliced(self, node: onnx.NodeProto) -> Sizes:
        sizes = self.sizes(node.input[0])

        def only_element(place: int, omitted: int | None) -> int | None:
            if place >= len(node.input) or not node.input[place]:
                return omitted
            values = self.sizes(node.input[place])
            return values[0] if isinstance(values, list) and len(values) == 1 else None

        # Before operator set 10 bounds were attributes; such a Slice is not followed.
        start, end, found_step, axis = (only_element(*at) for at in ((1, None), (2, None), (4, 1), (3, 0)))
        step = found_step if found_step is not None and axis is not None else -1
        # Negative steps are rare, and INT_MIN as an end would need special treatment.
        if not isinstance(sizes, list) or start is None or end is None or step < 0:
            return None
        return sizes[start:end:step]

    def _concatenated(self, node: onnx.NodeProto) -> Sizes:
        result: list[int | None] = []
        for name in node.input:
            sizes = self.sizes(name)
            if sizes is None:
                dims = self.dims(name)
                if dims is None or len(dims) != 1 or dims[0] is None or dims[0] > _MAX_LENGTH:
                    return None
                sizes = [None] * dims[0]
            if not isinstance(sizes, list) or len(result) + len(sizes) > _MAX_LENGTH:
                return None
            result += sizes
        return result
