"""Inputs accepted by a model: row numbers of embeddings, words, masks with nothing hidden, sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trtops.backend.onnx import operators, walk
from trtops.backend.onnx.messages import TensorProto
from trtops.backend.onnx.model import tensor_array

if TYPE_CHECKING:
    import onnx

_PASS_THROUGH_OPS = operators.FROM_FIRST_INPUT | operators.CASTS
_VOCABULARIES = {"CategoryMapper": "cats_strings", "LabelEncoder": "keys_strings", "OneHotEncoder": "cats_strings"}
# Random numbers for these are positive. A constant is often added first, so that zero is allowed as well.
_OF_POSITIVE = frozenset({"Log", "Pow", "Sqrt"})
# The axis of the first input whose size is an axis of the weights, which are the second input.
_SIZED_BY_WEIGHTS = {"Conv": (1, 1), "ConvTranspose": (1, 0), "GRU": (2, 2), "LSTM": (2, 2), "RNN": (2, 2)}
_MASK_TYPES = (TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL)
_SOME_WORDS = ("one", "two", "three")


@dataclass(frozen=True)
class AcceptedInputs:
    """Values and sizes for random data, by input."""

    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)  # smallest and largest number
    words: dict[str, tuple[str, ...]] = field(default_factory=dict)  # every input of strings has some
    sizes: dict[str, dict[int, int]] = field(default_factory=dict)  # that weights require, by axis


def accepted_inputs(model: onnx.ModelProto) -> AcceptedInputs:
    """Return the values and sizes accepted by a model's main graph; large weights may be missing."""
    constants = walk.constant_tensors(model.graph)
    accepted = AcceptedInputs()
    inputs = walk.names_of(model.graph.input).difference(constants)
    source = dict(zip(inputs, inputs))
    shifted = dict(source)
    scalars: set[str] = set()
    for value in model.graph.input:
        kind = value.type.tensor_type.elem_type
        if value.name not in inputs:
            continue
        if all(dim.dim_value == 1 for dim in value.type.tensor_type.shape.dim):
            scalars.add(value.name)
        if kind == TensorProto.STRING:
            accepted.words[value.name] = _SOME_WORDS
        elif value.name.endswith("attention_mask") and kind in _MASK_TYPES:
            accepted.ranges[value.name] = (1, 1)
    for node in walk.in_order(model.graph.node):
        if not node.input or not node.output:
            continue
        if node.op_type in _PASS_THROUGH_OPS and node.input[0] in source:
            source[node.output[0]] = source[node.input[0]]
        name = node.input[0]
        if node.op_type == "Add" and len(node.input) == 2:
            for left, right in (node.input, node.input[::-1]):
                if left in shifted and right in constants:
                    shifted[node.output[0]] = shifted[left]
        if node.op_type in _PASS_THROUGH_OPS and name in shifted:
            shifted[node.output[0]] = shifted[name]
        if node.op_type in _OF_POSITIVE and name in shifted:
            accepted.ranges[shifted[name]] = (0.1, 1.0)
        if node.op_type == "Equal":
            for left, right in (node.input, node.input[::-1]):
                # A mode of the model, such as a sample rate, has one of the numbers that it is compared with.
                if source.get(left) in scalars and right in constants and math.prod(constants[right].dims) == 1:
                    mode = float(tensor_array(constants[right]).reshape(-1)[0])
                    accepted.ranges.setdefault(source[left], (mode, mode))
        if name in inputs and len(node.input) > 1 and node.input[1] in constants:
            dims = constants[node.input[1]].dims
            if node.op_type in _SIZED_BY_WEIGHTS and len(dims) > 2:
                axis, weight_axis = _SIZED_BY_WEIGHTS[node.op_type]
                groups = walk.int_attribute(node, "group", 1) if node.op_type == "Conv" else 1
                accepted.sizes.setdefault(name, {})[axis] = dims[weight_axis] * max(groups, 1)
            elif node.op_type == "MatMul" and len(dims) > 1:
                accepted.sizes.setdefault(name, {})[-1] = dims[-2]
            elif node.op_type == "Gemm" and len(dims) == 2 and not walk.int_attribute(node, "transA", 0):
                accepted.sizes.setdefault(name, {})[1] = dims[1 if walk.int_attribute(node, "transB", 0) else 0]
        # Numbers between 0 and 1 are fine for most inputs. An integer that selects rows of a table is different: random
        # data should select from all rows, and from nothing else.
        if walk.is_onnx_op(node, "Gather") and len(node.input) > 1 and node.input[0] in constants:
            dims = constants[node.input[0]].dims
            axis = walk.int_attribute(node, "axis", 0)
            if node.input[1] in source and -len(dims) <= axis < len(dims) and dims[axis] > 0:
                name = source[node.input[1]]
                accepted.ranges[name] = (0, min(accepted.ranges.get(name, (0, dims[axis] - 1))[1], dims[axis] - 1))
        vocabulary = _VOCABULARIES.get(node.op_type)
        for attribute in node.attribute:
            if attribute.name == vocabulary and attribute.strings and node.input[0] in source:
                words = (text.decode("utf-8", "replace") for text in attribute.strings)
                accepted.words[source[node.input[0]]] = tuple(words)
    return accepted
