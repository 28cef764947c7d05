"""Sizes known without computation: of shapes, also partly known ones, and of nodes processing them.

Of ``(batch, 16, 8)`` the 16 is known, so a Gather or Slice of only that element is known as well.
"""

import math
import operator
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import onnx

from trtops.backend.onnx import walk
from trtops.backend.onnx.model import tensor_array

Array: TypeAlias = np.ndarray[Any, Any]

_MAX_ELEMENTS = 1024  # no tensor has as many dimensions, and more elements would be slow to follow
_INTEGERS = (onnx.TensorProto.INT64, onnx.TensorProto.INT32)
_UNKNOWN = float("nan")  # so is what is computed with it
_ARITHMETIC: dict[str, Any] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "Div": np.frompyfunc(lambda a, b: a // b if a >= 0 and b > 0 else _UNKNOWN, 2, 1),  # ONNX rounds towards zero
}
# Of the nodes whose results may be sizes; most nodes of a model are of other types.
_FOLLOWED = frozenset((
    "Cast", "Concat", "Gather", "Identity", "Reshape", "Shape", "Size", "Slice", "Squeeze", "Unsqueeze", *_ARITHMETIC
))  # fmt: skip


@dataclass
class KnownTensors:
    """Constants, declarations and sizes of the tensors readable by a graph."""

    weights: dict[str, onnx.TensorProto]
    declared: dict[str, onnx.ValueInfoProto] = field(default_factory=dict)
    assumed: Collection[str] = ()  # names of dimensions that count as 1
    _arrays: dict[str, Array] = field(default_factory=dict)
    _sizes: dict[str, Array] = field(default_factory=dict)  # integers as Python objects, NaN where one is unknown

    def __contains__(self, name: str) -> bool:
        """Whether a tensor is constant."""
        return name in self.weights

    def array(self, name: str) -> Array:
        """Return the values of a constant, decoded once."""
        if name not in self._arrays:
            self._arrays[name] = tensor_array(self.weights[name])
        return self._arrays[name]

    def dims(self, name: str) -> list[float] | None:
        """Return the dimensions of a tensor, NaN for dynamic ones; None if the rank is unknown."""
        if name in self.weights:
            return list(self.weights[name].dims)
        value = self.declared.get(name)
        if value is None or not value.type.tensor_type.HasField("shape"):
            return None
        return [
            max(d.dim_value, 1) if d.dim_param in self.assumed else d.dim_value if d.HasField("dim_value") else _UNKNOWN
            for d in value.type.tensor_type.shape.dim
        ]

    def learn_sizes(self, node: onnx.NodeProto) -> Array | None:
        """Return a node's integer output if all elements are known, and record partly known ones for its readers."""
        if node.op_type not in _FOLLOWED or not (walk.is_onnx_op(node) and node.input and len(node.output) == 1):
            return None
        try:
            sizes = np.asarray(self._sizes_made_by(node), object)
            # None is what is not followed. Integers of fewer bits overflow.
            if sizes.size > _MAX_ELEMENTS or any(size is None or abs(size) >= 1 << 31 for size in sizes.flat):
                return None
            self._sizes[node.output[0]] = sizes
            return sizes.astype(np.int64)
        # NaN is no integer, and ONNX Runtime reports nodes that cannot be evaluated.
        except (IndexError, OverflowError, TypeError, ValueError):
            return None

    def _sizes_of(self, name: str) -> Array | None:
        if name not in self._sizes:
            tensor = self.weights.get(name)
            if tensor is None or tensor.data_type not in _INTEGERS or math.prod(tensor.dims) > _MAX_ELEMENTS:
                return None
            self._sizes[name] = self.array(name).astype(object)
        return self._sizes[name]

    def _part(self, name: str) -> Array | None:
        """Return the sizes of a tensor, or the right number of unknown ones if only its length is known."""
        sizes = self._sizes_of(name)
        if sizes is None and (dims := self.dims(name)) is not None and len(dims) == 1 and dims[0] <= _MAX_ELEMENTS:
            return np.full(int(dims[0]), _UNKNOWN, object)
        return sizes

    def _sizes_made_by(self, node: onnx.NodeProto) -> Any:
        """Return a node's output in any form convertible to a numpy array; None if it is not followed."""
        kind = node.op_type
        if kind in ("Shape", "Size"):
            dims = self.dims(node.input[0])
            if kind == "Size":
                return None if dims is None else math.prod(dims)
            return dims and dims[walk.int_attribute(node, "start", 0) : walk.int_attribute(node, "end", len(dims))]
        if kind == "Concat":
            parts: list[Any] = [self._part(name) for name in node.input]
            return None if any(p is None for p in parts) else np.concatenate(parts, walk.int_attribute(node, "axis", 1))
        sizes = self._sizes_of(node.input[0])
        if sizes is None or (kind == "Cast" and walk.int_attribute(node, "to", 0) not in _INTEGERS):
            return None

        def integers(position: int, attribute: str = "", default: list[int] | None = None) -> Any:
            """Return integers from an input, or from an attribute of earlier operator sets."""
            if position < len(node.input) and node.input[position]:
                operand = self._sizes_of(node.input[position])
                return np.array(operand).astype(np.int64)  # fails if one is unknown
            stored = walk.ints_attribute(node, attribute)
            return default if stored is None else stored

        match kind:
            case "Identity" | "Cast":
                return sizes
            case "Squeeze":
                axes = integers(1, "axes")
                return np.squeeze(sizes, None if axes is None else tuple(axes))
            case "Unsqueeze":
                return np.expand_dims(sizes, tuple(integers(1, "axes")))
            case "Reshape":
                return sizes.reshape(integers(1, "shape"))
            case "Gather":
                return np.take(sizes, integers(1), walk.int_attribute(node, "axis", 0))
            case "Slice" if sizes.ndim == 1:
                bounds = (integers(1, "starts"), integers(2, "ends"), integers(4, default=[1]))
                [window] = [slice(*bound) for bound in zip(*bounds)]
                return sizes[window]
            case "Add" | "Sub" | "Mul" | "Div" if not node.attribute:  # of the rules before operator set 7
                other = self._sizes_of(node.input[1])
                with np.errstate(invalid="ignore"):
                    return None if other is None else _ARITHMETIC[kind](sizes, other)
        return None
