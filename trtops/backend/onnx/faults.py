"""Faults in a model, switched on by extra inputs: one session runs all of them, one at a time.

Weights are multiplied by a mask, biases by a factor, and activations are rolled and clipped by amounts that are inputs.
With the neutral values of these inputs the model computes what it did before, up to rounding: ONNX Runtime packs only
constant weights.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from trtops import errors
from trtops.backend.onnx import copying, shapes, walk
from trtops.backend.onnx.edit import override_input_shapes, sort_nodes
from trtops.metadata import Shape

Array: TypeAlias = np.ndarray[Any, Any]
Part: TypeAlias = Literal["weight", "bias", "shift", "range"]

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
_RECURRENT = ("LSTM", "GRU", "RNN")
# Inputs that are weights, each with its axis of output channels, and the input that is a bias.
_WEIGHTS = {
    "Conv": {1: 0},
    "ConvTranspose": {1: 1},
    "Gemm": {1: 1},
    "MatMul": {0: -2, 1: -1},
    **{op: {1: 1, 2: 1} for op in _RECURRENT},
    **{f"{kind}Normalization": {1: 0} for kind in ("Batch", "Instance", "Layer", "Group")},
}
_BIASES = {op: 3 if op in _RECURRENT else 2 for op in _WEIGHTS if op != "MatMul"}
# Outputs of other nodes may be statistics or states.
_SPATIAL = ("Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool")
# Sizes computed from shapes: a fault in one makes the model fail, which no data is needed to find.
_SHAPE_OPS = ("Shape", "Size")
# Minimum operator sets: multiplication and limits that broadcast, and slices whose bounds are inputs.
_OPSETS: dict[Part, int] = {"weight": 7, "bias": 7, "range": 8, "shift": 11}


@dataclass(frozen=True)
class Place:
    """A possible fault: at an input of a node, or at a tensor produced by a node."""

    part: Part
    node: onnx.NodeProto
    graph: onnx.GraphProto
    tensor: str
    element: int  # ONNX element type
    axis: int = 0  # of a weight's channels, or to roll along
    dims: tuple[int, ...] = ()  # of a weight
    channels: tuple[int, ...] = ()  # those of a weight that are not zero

    def value(self, factor: float | None = None, channel: int = 0) -> Array:
        """Return the value of the place's input: neutral without a factor, else a fault.

        The factor is for a bias, for the ends of a range, or for one channel of a weight; a shift is by one.
        """
        if self.part == "shift":
            return np.array([0 if factor is None else 1], np.int64)
        dtype = helper.tensor_dtype_to_np_dtype(self.element)
        if self.part != "weight":
            return np.array(1 if factor is None else factor, dtype)
        shape = [1] * len(self.dims)
        shape[self.axis] = self.dims[self.axis]
        array = np.ones(shape, dtype)
        if factor is not None:
            array.reshape(-1)[channel] = factor
        return array


@dataclass(frozen=True)
class _Constant:
    element: int
    dims: tuple[int, ...]  # empty or with 0 if not known
    tensor: onnx.TensorProto | None = None  # None if nodes compute it

    def channels(self, axis: int) -> tuple[int, ...]:
        """Return the channels along an axis with values other than zero; all if the values are not at hand."""
        if self.tensor is None:
            return tuple(range(self.dims[axis]))
        array = np.moveaxis(numpy_helper.to_array(self.tensor), axis, 0)
        return tuple(np.flatnonzero(array.reshape(len(array), -1).any(axis=1)).tolist())


class FaultyModel:
    """A model with faults switched by inputs. ``proto`` is changed in place and must hold its weights.

    ``input_shapes`` are shapes of a feed, by the names of the inputs. Bodies of If and Scan are covered, those of Loop,
    which a fault could keep from ending, are not.
    """

    def __init__(self, proto: onnx.ModelProto, structure: onnx.ModelProto, input_shapes: Mapping[str, Shape]) -> None:
        """Find the places; ``structure`` is the same model, possibly without large weights, and is not changed."""
        self.proto = proto
        self.neutral: dict[str, Array] = {}  # the value of each added input that switches its fault off
        self._fresh = walk.FreshNames(proto.graph)
        self._switches: dict[tuple[object, ...], str] = {}
        self._numbers: dict[int, str] = {}
        inferred = copying.copy_of(structure)
        try:
            override_input_shapes(inferred, input_shapes)
            shapes.infer_shapes(inferred)
        except errors.TrtopsError:  # fewer places are found
            inferred = structure
        self._declared = {}
        for name, value in shapes.values(inferred.graph).items():
            if value.type.HasField("tensor_type"):
                self._declared[name] = value.type.tensor_type
        opset = walk.opset(proto)
        self.places: dict[Part, list[Place]] = {part: [] for part in _OPSETS}
        for site in self._places(proto.graph, {}):
            if opset >= _OPSETS[site.part]:
                self.places[site.part].append(site)

    def _places(self, graph: onnx.GraphProto, outer: Mapping[str, _Constant]) -> Iterator[Place]:
        tensors = walk.constant_tensors(graph)
        stored = {name: _Constant(t.data_type, tuple(t.dims), t) for name, t in tensors.items()}
        constants = walk.visible(outer, graph, stored)
        for index in walk.execution_order(graph.node):
            node = graph.node[index]
            if walk.is_onnx_op(node, "Constant"):
                continue
            reads = list(walk.uses(node))
            if walk.is_onnx_op(node, *_SHAPE_OPS) or (reads and all(name in constants for name in reads)):
                for name in node.output:
                    constants[name] = _Constant(self._element(name), self._dims(name) or ())
                continue
            if not walk.is_onnx_op(node):
                continue
            weights = list(_weights(node, constants))
            for position, axis, constant in weights:
                if channels := constant.channels(axis):
                    weight = node.input[position]
                    yield Place("weight", node, graph, weight, constant.element, axis, constant.dims, channels)
            if (bias := _bias(node, constants)) is not None:
                yield Place("bias", node, graph, bias, constants[bias].element)
            # In bodies no types are inferred, but a layer's output has the type of its weights.
            inner = graph is not self.proto.graph
            element_types = {name: 0 if inner else self._element(name) for name in node.output if name}
            if weights:
                element_types[node.output[0]] = weights[0][2].element
            for name, element in element_types.items():
                if element not in _FLOATS:
                    continue
                yield Place("range", node, graph, name, element)
                yield from (Place("shift", node, graph, name, element, axis) for axis in self._axes(node, name))
            if node.op_type in ("If", "Scan"):
                for body in walk.subgraphs(node):
                    yield from self._places(body, constants)

    def _element(self, name: str) -> int:
        declared = self._declared.get(name)
        return 0 if declared is None else int(declared.elem_type)

    def _dims(self, name: str) -> tuple[int, ...] | None:
        """A tensor's shape, with 0 for unknown sizes; None if the rank is unknown."""
        declared = self._declared.get(name)
        if declared is None or not declared.HasField("shape"):
            return None
        return tuple(dim.dim_value for dim in declared.shape.dim)

    def _axes(self, node: onnx.NodeProto, name: str) -> list[int]:
        """Return the spatial axes or the sequence axis of a tensor, without axes known to have length 1."""
        dims = self._dims(name)
        if dims is None:
            return [-1] if node.op_type in _SPATIAL else []
        axes = range(2, len(dims)) if node.op_type in _SPATIAL else range(len(dims) - 2, len(dims) - 1)
        return [axis for axis in axes if axis >= 1 and dims[axis] != 1]

    def switch(self, site: Place) -> str:
        """Add the nodes of a place, once; returns the name of the input for its faults."""
        key = (site.part, id(site.node), site.tensor, site.axis)
        if key not in self._switches:
            self._switches[key] = self._add(site)
        return self._switches[key]

    def finish(self) -> onnx.ModelProto:
        """The model with its nodes in order."""
        sort_nodes(self.proto)
        return self.proto

    def _add(self, site: Place) -> str:
        name, graph = site.tensor, site.graph
        switch = self._fresh(f"{name}_fault")
        self.neutral[switch] = neutral = site.value()
        self.proto.graph.input.append(
            helper.make_tensor_value_info(switch, helper.np_dtype_to_tensor_dtype(neutral.dtype), neutral.shape)
        )
        if site.part in ("weight", "bias"):
            walk.rename(site.node.input, name, self._node(graph, "Mul", [name, switch]))
            return switch
        # The tensor keeps its name, so that its readers and the model's outputs get what the last node makes.
        before = self._fresh(f"{name}_before_fault")
        producer = next(node for node in graph.node if name in node.output)
        walk.rename(producer.output, name, before)
        if site.part == "shift":
            first, last, axis = (self._number(number) for number in (0, 2**63 - 1, site.axis))
            rolled = [self._node(graph, "Slice", [before, *ends, axis]) for ends in ((switch, last), (first, switch))]
            graph.node.append(helper.make_node("Concat", rolled, [name], axis=site.axis))
        else:
            ends = [self._node(graph, op, [before], keepdims=0) for op in ("ReduceMin", "ReduceMax")]
            low, high = (self._node(graph, "Mul", [end, switch]) for end in ends)
            graph.node.append(helper.make_node("Max", [self._node(graph, "Min", [before, high]), low], [name]))
        return switch

    def _node(self, graph: onnx.GraphProto, op: str, inputs: Sequence[str], **attributes: Any) -> str:
        output = self._fresh(f"{inputs[0]}_{op.lower()}")
        graph.node.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def _number(self, number: int) -> str:
        if number not in self._numbers:
            self._numbers[number] = self._fresh("fault_number")
            self.proto.graph.initializer.append(numpy_helper.from_array(np.array([number]), self._numbers[number]))
        return self._numbers[number]


def _weights(node: onnx.NodeProto, constants: Mapping[str, _Constant]) -> Iterator[tuple[int, int, _Constant]]:
    """Yield the weights of a node: the position of each, its axis of channels, and its known properties."""
    for position, axis in _WEIGHTS.get(node.op_type, {}).items():
        constant = constants.get(node.input[position]) if position < len(node.input) else None
        if constant is None or constant.element not in _FLOATS or not all(constant.dims):
            continue
        if node.op_type == "Gemm" and walk.int_attribute(node, "transB", 0):
            axis = 0
        if -len(constant.dims) <= axis < len(constant.dims):
            yield position, axis, constant


def _bias(node: onnx.NodeProto, constants: Mapping[str, _Constant]) -> str | None:
    """Return the name of the bias added by a node, if it is not zero."""
    names: list[str] = list(node.input[_BIASES[node.op_type] :][:1]) if node.op_type in _BIASES else []
    if node.op_type == "Add":
        names = [n for n in node.input if n in constants and sum(d > 1 for d in constants[n].dims) == 1]
    for name in names:
        constant = constants.get(name)
        if constant is None or constant.element not in _FLOATS:
            continue
        if constant.tensor is None or numpy_helper.to_array(constant.tensor).any():
            return name
    return None
