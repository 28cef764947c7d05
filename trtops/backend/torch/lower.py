"""Exported files for back ends that read operator sets older than 18, which PyTorch exports first.

PyTorch's own conversion leaves a file as it is where it does not know an operator, and attributes that the older
operators do not have. TensorRT 8.6 computes such files wrongly or crashes: it ignores the axes of a reduction that are
an input, and the first and last dimension of a Shape.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from trtops import errors
from trtops.backend.onnx import walk

EXPORTED = 18  # the oldest operator set that PyTorch exports without a conversion
_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")
# Attributes of newer operators that mean nothing if they have these values.
_NEUTRAL: dict[tuple[str, str], Any] = {
    ("Resize", "antialias"): 0,
    ("Resize", "keep_aspect_ratio_policy"): b"stretch",
}


def lower_file(path: Path, opset: int) -> None:
    """Rewrite a file of operator set 18 as one of ``opset``, 15 to 17.

    Raises InvalidModelError if an operator has no form there that computes the same.
    """
    model = onnx.load(path, load_external_data=False)
    for graph in walk.graphs(model.graph):
        rewriting = _Rewriting(graph)
        for node in list(graph.node):
            if not walk.domain(node):
                rewriting.rewrite(node)
                _check(node, opset)
    for entry in model.opset_import:
        if not entry.domain:
            entry.version = opset
    onnx.save(model, path)


class _Rewriting:
    """One graph whose nodes are rewritten."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.graph = graph
        self.constants = walk.constant_tensors(graph)
        self.values = walk.by_name([*graph.value_info, *graph.input])
        self.rewrites: dict[str, Callable[[onnx.NodeProto], None]] = {
            **{f"Reduce{name}": self.reduction for name in _REDUCTIONS},
            "Split": self.split,
            "Shape": self.shape,
            "Pad": self.pad,
        }

    def rewrite(self, node: onnx.NodeProto) -> None:
        """Give a node its older form."""
        if (rewrite := self.rewrites.get(node.op_type)) is not None:
            rewrite(node)
        walk.keep_only(node.attribute, lambda a: _NEUTRAL.get((node.op_type, a.name)) not in (a.i, a.s))

    def reduction(self, node: onnx.NodeProto) -> None:
        """Axes become an attribute."""
        if walk.int_attribute(node, "noop_with_empty_axes", 0) and not any(node.input[1:]):
            raise errors.InvalidModelError(f"{walk.label(node)} reduces nothing, which has no older form.")
        if any(node.input[1:]):
            node.attribute.append(helper.make_attribute("axes", self.ints(node, 1)))
        del node.input[1:]
        walk.keep_only(node.attribute, lambda a: a.name != "noop_with_empty_axes")

    def split(self, node: onnx.NodeProto) -> None:
        """A number of parts becomes their sizes, unless all are equal."""
        count = walk.int_attribute(node, "num_outputs", 0)
        walk.keep_only(node.attribute, lambda a: a.name != "num_outputs")
        value = self.values.get(node.input[0])
        dims = value.type.tensor_type.shape.dim if value is not None else ()
        axis = walk.int_attribute(node, "axis", 0)
        size = dims[axis].dim_value if -len(dims) <= axis < len(dims) else 0
        if count and size % count:
            part = -(-size // count)
            node.input.append(self.constant(node, "split", [part] * (count - 1) + [size - part * (count - 1)]))

    def shape(self, node: onnx.NodeProto) -> None:
        """A part of the shape becomes a Slice of all of it."""
        start = walk.int_attribute(node, "start", 0)
        end = walk.int_attribute(node, "end", np.iinfo(np.int64).max)
        is_whole = start == 0 and end == np.iinfo(np.int64).max
        walk.keep_only(node.attribute, lambda a: a.name not in ("start", "end"))
        if not is_whole:
            part, node.output[0] = node.output[0], f"{node.output[0]}_all"
            bounds = [self.constant(node, name, [value]) for name, value in (("start", start), ("end", end))]
            inputs = [node.output[0], *bounds, self.constant(node, "axis", [0])]
            slice_node = helper.make_node("Slice", inputs, [part], f"{walk.node_name(node)}_part")
            self.graph.node.insert(list(self.graph.node).index(node) + 1, slice_node)

    def pad(self, node: onnx.NodeProto) -> None:
        """Padding of some axes becomes padding of all."""
        if len(node.input) < 4 or not node.input[3]:
            del node.input[3:]
            return
        value = self.values.get(node.input[0])
        if value is None or not value.type.tensor_type.HasField("shape"):
            raise errors.InvalidModelError(f"{walk.label(node)} pads axes of a tensor of unknown rank.")
        rank = len(value.type.tensor_type.shape.dim)
        axes, pads = self.ints(node, 3), self.ints(node, 1)
        every = np.zeros(2 * rank, np.int64)
        for place, axis in enumerate(axes):
            every[axis % rank], every[axis % rank + rank] = pads[place], pads[place + len(axes)]
        node.input[1] = self.constant(node, "pads", every)
        del node.input[3:]

    def ints(self, node: onnx.NodeProto, index: int) -> list[int]:
        """Return the values of an input that is constant; InvalidModelError if it is computed."""
        if (tensor := self.constants.get(node.input[index])) is None:
            raise errors.InvalidModelError(
                f"{walk.label(node)}: {node.input[index]!r} is computed, which has no older form."
            )
        return [int(number) for number in numpy_helper.to_array(tensor).ravel()]

    def constant(self, node: onnx.NodeProto, name: str, numbers: Any) -> str:
        """Add a constant, and return its name."""
        tensor = numpy_helper.from_array(np.asarray(numbers, np.int64), f"{node.output[0]}_{name}")
        self.graph.initializer.append(tensor)
        return str(tensor.name)


def _check(node: onnx.NodeProto, opset: int) -> None:
    """Raise InvalidModelError if an operator set has no operator with a node's inputs and attributes."""
    try:
        schema = onnx.defs.get_schema(node.op_type, opset)
    except onnx.defs.SchemaError:
        schema = None
    if (
        schema is None
        or len(node.input) > schema.max_input
        or any(a.name not in schema.attributes for a in node.attribute)
    ):
        raise errors.InvalidModelError(
            f"{walk.label(node)} needs an operator set newer than {opset}, the newest that the back end reads. "
            "Use a newer release of it, or compute this part of the module in another way."
        )
